// Layer 5: lost answers, writes that come late or twice, stores that stop, bytes that are not a record.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <thread>

#include <once/testing/faulty_store.hpp>

#include "testing/conformance/subject.hpp"

namespace once::testing {

namespace {

// The store under test, lent to a FaultyStore: the subject keeps it.
std::shared_ptr<Store> lent(Store& store) { return {std::shared_ptr<void>(), &store}; }

// One client's writes to one key, as steps in the record.
struct Ledger {
  std::set<std::string> acknowledged;  // These must be in the record, once.
  std::set<std::string> not_done;      // These must not.
  std::size_t in_doubt = 0;
};

// Adds a step to the record of `key`, as a holder does: conditional on what it saw. After a lost answer it checks for
// its own owner and revision.
class Client {
 public:
  Client(Subject& subject, Store& store, std::uint8_t number) : subject_(subject), store_(store), number_(number) {}

  void write_once(const std::string& key, Ledger& ledger) {
    const std::string mark = std::to_string(number_) + "." + std::to_string(++writes_);
    const std::optional<Record> seen = view(key);
    Record next = seen ? *seen : plain_record(key);
    next.revision = seen ? seen->revision + 1 : revision_of(1);
    next.owner = unique_owner();
    next.steps.push_back({mark, ""});
    const Answer answer = seen ? subject_.replace(store_, next, seen_of(*seen)) : subject_.insert(store_, next);
    switch (answer.status) {
      case AnswerStatus::done:
        ledger.acknowledged.insert(mark);
        return;
      case AnswerStatus::refused:
        // Sent twice by the network: the record in the way is the write itself.
        (answer.record && answer.record->owner == next.owner ? ledger.acknowledged : ledger.not_done).insert(mark);
        return;
      case AnswerStatus::failed:
        break;
    }
    if (answer.error.kind == ErrorKind::unavailable) {
      ledger.not_done.insert(mark);
      return;
    }
    ASSERT_EQ(answer.error.kind, ErrorKind::in_doubt) << describe(answer);
    const std::optional<Record> now = view(key);
    if (now && now->owner == next.owner && now->revision == next.revision) {
      ledger.acknowledged.insert(mark);
    } else {
      ++ledger.in_doubt;
    }
  }

 private:
  // Reads until it is answered.
  std::optional<Record> view(const std::string& key) {
    for (int i = 0; i < 1000; ++i) {
      Answer answer = subject_.get(store_, key);
      if (answer.status == AnswerStatus::done) return copy_of(answer.record);
      EXPECT_EQ(answer.error.kind, ErrorKind::unavailable) << describe(answer);
    }
    throw Broken("get failed 1000 times");
  }

  Owner unique_owner() {
    Owner owner = owner_of(number_);
    for (std::size_t i = 0; i < 4; ++i) owner.bytes.at(i) = static_cast<std::uint8_t>(writes_ >> (8 * i));
    return owner;
  }

  Subject& subject_;
  Store& store_;
  const std::uint8_t number_;
  std::uint64_t writes_ = 0;
};

void lost_and_doubled_answers_lose_nothing(Subject& subject) {
  const std::uint64_t seed = test_seed();
  SeededRandom random(seed);
  FaultyStore faulty(
      lent(subject.store()),
      random_faults({.unavailable = 100, .lost_before = 100, .lost_after = 100, .resent = 100, .repeated = 100}, seed));
  std::array<Client, 3> clients = {Client(subject, faulty, 1), Client(subject, faulty, 2), Client(subject, faulty, 3)};
  std::map<std::string, Ledger> ledgers;
  for (int i = 0; i < 300; ++i) {
    const std::string key = "ledger#" + std::to_string(random.below(4));
    clients.at(random.below(clients.size())).write_once(key, ledgers[key]);
  }
  EXPECT_GT(faulty.counts().faults, 50U);
  for (const auto& [key, ledger] : ledgers) {
    const std::optional<Record> last = subject.read(key);
    ASSERT_TRUE(last.has_value()) << quote(key);
    std::multiset<std::string> marks;
    for (const Step& step : last->steps) marks.insert(step.name);
    for (const std::string& mark : ledger.acknowledged) {
      EXPECT_EQ(marks.count(mark), 1U) << "write " << mark << " of " << quote(key) << " was acknowledged, seed "
                                       << seed;
    }
    for (const std::string& mark : ledger.not_done) {
      EXPECT_EQ(marks.count(mark), 0U) << "write " << mark << " of " << quote(key) << " was refused, seed " << seed;
    }
    EXPECT_LE(marks.size(), ledger.acknowledged.size() + ledger.in_doubt) << "seed " << seed;
    EXPECT_EQ(last->revision, revision_of(1) + marks.size() - 1) << "seed " << seed;
  }
}

// Requests and answers that overtake each other, in virtual time: at most one winner, and every call is answered.
void late_and_reordered_answers(Subject& subject) {
  const std::uint64_t seed = test_seed();
  const auto clock = std::make_shared<ManualClock>();
  const auto timers = std::make_shared<ManualTimers>(clock);
  FaultyStore faulty(
      lent(subject.store()),
      random_faults({.lost_after = 100, .repeated = 200, .delayed = 700, .max_delay = Millis{1000}}, seed), clock,
      timers);
  constexpr std::size_t keys = 20;
  std::vector<std::vector<std::shared_ptr<Pending<Answer>>>> calls(keys);
  for (std::size_t i = 0; i < keys; ++i) {
    for (std::uint8_t client = 1; client <= 5; ++client) {
      Record record = plain_record("late#" + std::to_string(i));
      record.owner = owner_of(client);
      calls[i].push_back(subject.start_insert(faulty, record));
    }
  }
  // The store under test may answer from its own threads, and so set further timers, after the check.
  const auto rest = [&] { return faulty.counts().under_way; };
  const auto give_up = std::chrono::steady_clock::now() + subject.traits().patience;
  while (rest() != 0 || timers->pending() != 0) {
    if (!timers->run_next()) std::this_thread::yield();
    if (std::chrono::steady_clock::now() <= give_up) continue;
    while (timers->run_next()) {
    }  // Those left would keep the faulty store, which keeps the timers.
    throw Broken("calls were not answered");
  }
  for (std::size_t i = 0; i < keys; ++i) {
    const std::optional<Record> there = subject.read("late#" + std::to_string(i));
    ASSERT_TRUE(there.has_value());
    for (std::uint8_t client = 1; client <= 5; ++client) {
      const Answer answer = subject.wait(calls[i].at(client - 1U));
      if (answer.status == AnswerStatus::done) {
        EXPECT_EQ(there->owner.hex(), owner_of(client).hex()) << "key " << i << ", seed " << seed;
      } else if (answer.status == AnswerStatus::refused) {
        expect_record(there, copy_of(answer.record), "key " + std::to_string(i) + ", a loser");
      } else {
        EXPECT_EQ(answer.error.kind, ErrorKind::in_doubt) << describe(answer);
      }
    }
  }
}

// Closing a store answers all running calls, and keeps what it acknowledged.
void closing_answers_what_is_under_way(Subject& subject) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Pending<Answer>>> calls;
    const std::string prefix = "closing" + std::to_string(round) + "#";
    for (int i = 0; i < 50; ++i) {
      calls.push_back(subject.start_insert(subject.store(), full_record(prefix + std::to_string(i))));
      calls.push_back(subject.start_get(subject.store(), prefix + std::to_string(i)));
    }
    auto pages = subject.watch<ListPage>();
    subject.store().list({}, [pages](ListPage page) { pages->answer(std::move(page)); });
    auto swept = subject.watch<SweepAnswer>();
    subject.store().sweep(Time{}, 10, [swept](SweepAnswer answer) { swept->answer(std::move(answer)); });
    subject.close();  // Checks that each was answered once.
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::optional<Answer> answer = calls[i]->try_take();
      if (!answer) continue;
      const bool is_insert = i % 2 == 0;
      if (answer->status == AnswerStatus::failed) {
        EXPECT_TRUE(answer->error.kind == ErrorKind::in_doubt || answer->error.kind == ErrorKind::unavailable)
            << describe(*answer);
      } else {
        EXPECT_EQ(answer->status, AnswerStatus::done) << describe(*answer);
      }
      if (!is_insert || !subject.traits().durable) continue;
      const Record expected = full_record(prefix + std::to_string(i / 2));
      const std::optional<Record> there = subject.read(expected.key);
      if (answer->status == AnswerStatus::done) expect_record(expected, there, "acknowledged before closing");
      if (there) expect_record(expected, there, "written before closing");
      if (answer->status == AnswerStatus::failed && answer->error.kind == ErrorKind::unavailable) {
        expect_record(std::nullopt, there, "refused as unavailable before closing");
      }
    }
  }
}

constexpr std::array all_faults = {
    Test{"lost_and_doubled_answers_lose_nothing", lost_and_doubled_answers_lose_nothing},
    Test{"late_and_reordered_answers", late_and_reordered_answers},
    Test{"closing_answers_what_is_under_way", closing_answers_what_is_under_way},
};

void expect_corrupt(const Answer& answer, std::string_view what) { expect_failed(answer, ErrorKind::corrupt, what); }

}  // namespace

std::span<const Test> fault_tests() noexcept { return all_faults; }

void foreign_record(Subject& subject, std::size_t which) {
  const Record healthy = full_record("healthy#1");
  subject.put(healthy);
  const std::string foreign = "foreign#1";
  subject.harness().plant(which, foreign);
  for (int round = 0; round < (subject.traits().durable ? 2 : 1); ++round) {
    expect_corrupt(subject.get(foreign), "get of foreign bytes");
    // A foreign record: never overwritten, never treated as missing.
    expect_corrupt(subject.insert(plain_record(foreign)), "insert over foreign bytes");
    expect_corrupt(subject.replace(plain_record(foreign), {.owner = owner_of(1), .revision = 1}),
                   "replace of foreign bytes");
    expect_corrupt(subject.remove(foreign, {.owner = owner_of(1), .revision = 1}), "remove of foreign bytes");
    expect_corrupt(subject.get(foreign), "get of foreign bytes after refused writes");
    // A list does not hide it.
    const ListPage page = subject.list({.key_prefix = foreign});
    ASSERT_TRUE(page.error || !page.unreadable.empty()) << "list hides foreign bytes";
    const Error& told = page.error ? *page.error : page.unreadable.front();
    EXPECT_EQ(told.kind, ErrorKind::corrupt) << told.message;
    // It does not affect other records.
    expect_record(healthy, subject.read(healthy.key), "the record beside foreign bytes");
    EXPECT_EQ(subject.list_all({.key_prefix = "healthy#"}).size(), 1U);
    Record next = healthy;
    next.revision += 1;
    expect_done(subject.replace(next, seen_of(healthy)), "replace beside foreign bytes");
    expect_done(subject.replace(healthy, seen_of(next)), "replace beside foreign bytes");
    subject.sweep(manual_start, 10);  // May fail, but must not remove the healthy one.
    expect_record(healthy, subject.read(healthy.key), "the record beside foreign bytes after a sweep");
    if (subject.traits().durable) subject.close();
  }
}

void outage(Subject& subject, const std::string& name) {
  const Record before = full_record("before#1");
  const Record removed = full_record("removed#1");
  subject.put(before);
  subject.put(removed);
  Record next = before;
  next.revision += 1;
  next.note = "written during the outage";
  const Record fresh = full_record("fresh#1");
  Record expired = plain_record("expired#1");
  expired.expires_at = Time{Millis{1}};
  subject.put(expired);

  Answer inserted;
  Answer replaced;
  Answer gone;
  {
    const std::shared_ptr<void> until = subject.harness().begin_outage(name);
    ASSERT_TRUE(until) << "the harness began no outage";
    inserted = subject.insert(fresh);
    replaced = subject.replace(next, seen_of(before));
    gone = subject.remove(removed.key, seen_of(removed));
    const Answer got = subject.get(expired.key);
    if (got.status == AnswerStatus::done) {
      expect_record(expired, copy_of(got.record), "get during the outage");
    } else {
      expect_failed(got, ErrorKind::unavailable, "get during the outage");
    }
    const ListPage page = subject.list({.key_prefix = "expired#"});
    if (page.error) {
      EXPECT_EQ(page.error->kind, ErrorKind::unavailable) << page.error->message;
    } else {
      EXPECT_EQ(page.records.size(), 1U);
    }
    std::size_t failures = 0;
    for (const Answer* const answer : {&inserted, &replaced, &gone}) {
      if (answer->status != AnswerStatus::failed) {
        expect_done(*answer, "a write during the outage that did not fail");
        continue;
      }
      ++failures;
      EXPECT_TRUE(answer->error.kind == ErrorKind::unavailable || answer->error.kind == ErrorKind::in_doubt)
          << describe(*answer);
      EXPECT_FALSE(answer->error.message.empty());
    }
    EXPECT_GT(failures, 0U) << "this is no outage: every write succeeded";
  }
  // After the outage: acknowledged writes are there, unavailable ones are not, the rest may be either.
  const auto expect_either = [&](const Answer& answer, const std::optional<Record>& old_one,
                                 const std::optional<Record>& new_one, const std::string& key, const char* what) {
    const std::optional<Record> there = subject.read(key);
    const bool in_doubt = answer.status == AnswerStatus::failed && answer.error.kind == ErrorKind::in_doubt;
    if (in_doubt && there == new_one) return;
    expect_record(answer.status == AnswerStatus::done ? new_one : old_one, there, what);
  };
  expect_either(inserted, std::nullopt, fresh, fresh.key, "insert during the outage");
  expect_either(replaced, before, next, before.key, "replace during the outage");
  expect_either(gone, removed, std::nullopt, removed.key, "remove during the outage");
  const Record after = full_record("after#1");
  expect_done(subject.insert(after), "insert after the outage");
  expect_record(after, subject.read(after.key), "after the outage");
  const SweepAnswer swept = subject.sweep(Time{Millis{1}}, 10);
  EXPECT_FALSE(swept.error);
  EXPECT_EQ(swept.removed, 1U);
}

}  // namespace once::testing
