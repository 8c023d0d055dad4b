// Layer 4: many threads, on every connection, and one winner.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <map>
#include <set>

#include "testing/conformance/subject.hpp"

namespace once::testing {

namespace {

constexpr std::size_t thread_count = 8;

// If a thread leaves a round by an exception, the others must not wait for it.
class Lane {
 public:
  explicit Lane(std::barrier<>& barrier) : barrier_(barrier) {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() { barrier_.arrive_and_drop(); }
  void meet() { barrier_.arrive_and_wait(); }

 private:
  std::barrier<>& barrier_;
};

Record claim_of(const std::string& key, std::size_t thread) {
  Record record = plain_record(key);
  record.owner = owner_of(static_cast<std::uint8_t>(thread + 1));
  record.holder = "thread " + std::to_string(thread);
  return record;
}

// The connections, opened before the threads begin: Subject::store() is for one thread.
std::vector<Store*> connections_of(Subject& subject) {
  std::vector<Store*> out;
  for (std::size_t i = 0; i < subject.connections(); ++i) out.push_back(&subject.store(i));
  return out;
}

// In each round all threads write to one key at once. Checks that there is one winner.
void one_winner_a_round(Subject& subject, int rounds, const std::function<std::string(int)>& prepare,
                        const std::function<Answer(Store&, std::size_t thread, int round)>& write) {
  const std::vector<Store*> stores = connections_of(subject);
  std::barrier barrier(static_cast<std::ptrdiff_t>(thread_count));
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(rounds));
  for (int round = 0; round < rounds; ++round) keys.push_back(prepare(round));
  std::vector<std::array<Answer, thread_count>> answers(static_cast<std::size_t>(rounds));
  on_threads(thread_count, [&](std::size_t thread) {
    Lane lane(barrier);
    for (int round = 0; round < rounds; ++round) {
      lane.meet();
      answers[static_cast<std::size_t>(round)].at(thread) = write(*stores[thread % stores.size()], thread, round);
    }
  });
  for (int round = 0; round < rounds; ++round) {
    const auto& all = answers[static_cast<std::size_t>(round)];
    const std::optional<Record> there = subject.read(keys[static_cast<std::size_t>(round)]);
    ASSERT_TRUE(there.has_value()) << "round " << round;
    std::size_t winners = 0;
    for (std::size_t thread = 0; thread < thread_count; ++thread) {
      if (all.at(thread).status == AnswerStatus::done) {
        ++winners;
        EXPECT_EQ(there->owner.hex(), owner_of(static_cast<std::uint8_t>(thread + 1)).hex())
            << "round " << round << ": the record is not the winner's";
      } else {
        expect_refused(all.at(thread), there, "round " + std::to_string(round) + ", a loser");
      }
    }
    ASSERT_EQ(winners, 1U) << "round " << round << ": winners among " << thread_count;
  }
}

void one_insert_wins(Subject& subject) {
  one_winner_a_round(
      subject, 60, [](int round) { return "insert#" + std::to_string(round); },
      [&](Store& store, std::size_t thread, int round) {
        return subject.insert(store, claim_of("insert#" + std::to_string(round), thread));
      });
}

void one_takeover_wins(Subject& subject) {
  std::vector<Record> lapsed;
  one_winner_a_round(
      subject, 60,
      [&](int round) {
        Record record = claim_of("lapsed#" + std::to_string(round), 100);
        subject.put(record);
        lapsed.push_back(record);
        return record.key;
      },
      [&](Store& store, std::size_t thread, int round) {
        const Record& seen = lapsed[static_cast<std::size_t>(round)];
        Record next = claim_of(seen.key, thread);
        next.revision = seen.revision + 1;
        return subject.replace(store, next, seen_of(seen));
      });
}

// All at once from one thread.
void one_insert_wins_of_many_under_way(Subject& subject) {
  const std::vector<Store*> stores = connections_of(subject);
  for (int round = 0; round < 5; ++round) {
    const std::string key = "flight#" + std::to_string(round);
    std::vector<std::shared_ptr<Pending<Answer>>> calls;
    for (std::size_t i = 0; i < 100; ++i) {
      calls.push_back(subject.start_insert(*stores[i % stores.size()], claim_of(key, i)));
    }
    std::size_t winners = 0;
    std::vector<Answer> losers;
    for (const auto& call : calls) {
      Answer answer = subject.wait(call);
      if (answer.status == AnswerStatus::done) {
        ++winners;
      } else {
        losers.push_back(std::move(answer));
      }
    }
    ASSERT_EQ(winners, 1U);
    const std::optional<Record> there = subject.read(key);
    for (const Answer& answer : losers) expect_refused(answer, there, "a loser");
  }
}

// A holder renews while others try to take over. A refused writer sees a newer revision than the one it named, and
// every revision has one writer.
void renewals_against_takeovers(Subject& subject) {
  const std::vector<Store*> stores = connections_of(subject);
  std::mutex mutex;
  std::map<std::pair<std::string, std::uint64_t>, std::size_t> written;  // By (key, revision): how many successes.
  std::atomic<bool> went_back = false;
  constexpr int keys = 4;
  std::array<Record, keys> first;
  for (int i = 0; i < keys; ++i) {
    first.at(static_cast<std::size_t>(i)) = claim_of("renew#" + std::to_string(i), 0);
    subject.put(first.at(static_cast<std::size_t>(i)));
  }
  on_threads(thread_count, [&](std::size_t thread) {
    for (const Record& start : first) {
      Record view = start;
      for (int i = 0; i < 25; ++i) {
        Record next = view;
        next.revision += 1;
        // The holder renews, all others take over.
        if (!(view.owner == claim_of("", thread).owner)) {
          next.owner = claim_of("", thread).owner;
          next.token += 1;
          next.attempt += 1;
        }
        const Answer answer = subject.replace(*stores[thread % stores.size()], next, seen_of(view));
        if (answer.status == AnswerStatus::done) {
          const std::lock_guard lock(mutex);
          ++written[{next.key, next.revision}];
          view = next;
        } else if (answer.status == AnswerStatus::refused && answer.record) {
          // The same revision may be there under another owner, but never an older one.
          if (answer.record->revision <= view.revision) went_back = true;
          view = *answer.record;
        } else {
          throw Broken("a race ended with " + describe(answer));
        }
      }
    }
  });
  EXPECT_FALSE(went_back) << "a refusal showed a record that is not newer than the one that was named";
  for (const auto& [what, times] : written) {
    EXPECT_EQ(times, 1U) << quote(what.first) << " revision " << what.second << " was written by " << times;
  }
  for (const Record& start : first) {
    const std::optional<Record> last = subject.read(start.key);
    ASSERT_TRUE(last.has_value());
    std::size_t successes = 0;
    for (const auto& [what, times] : written) successes += what.first == start.key ? times : 0;
    EXPECT_EQ(last->revision, revision_of(1) + successes) << "writes of " << quote(start.key) << " got lost";
  }
}

// A counter in the record, read and written back: none of the acknowledged additions may be lost.
void no_update_is_lost(Subject& subject) {
  const std::vector<Store*> stores = connections_of(subject);
  constexpr std::size_t each = 25;
  const std::array<std::string, 2> keys = {"counter#1", "counter#2"};
  for (const std::string& key : keys) {
    Record record = plain_record(key);
    record.result.bytes = "0";
    subject.put(record);
  }
  std::array<std::atomic<std::uint64_t>, 2> added{};
  on_threads(thread_count, [&](std::size_t thread) {
    Store& store = *stores[thread % stores.size()];
    for (std::size_t i = 0; i < each; ++i) {
      const std::size_t which = (thread + i) % keys.size();
      for (std::size_t tries = 0;; ++tries) {
        // Every refusal is another thread's success, so they cannot be many.
        if (tries > 2 * thread_count * each) throw Broken("a counter can be read and not written");
        const Answer got = subject.get(store, keys.at(which));
        if (!got.record) throw Broken("get of a counter " + describe(got));
        Record next = *got.record;
        next.revision += 1;
        next.result.bytes = std::to_string(std::stoull(next.result.bytes) + 1);
        const Answer answer = subject.replace(store, next, seen_of(*got.record, got.place));
        if (answer.status == AnswerStatus::failed) throw Broken("replace of a counter " + describe(answer));
        if (answer.status == AnswerStatus::done) break;
      }
      ++added.at(which);
    }
  });
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::optional<Record> last = subject.read(keys.at(i));
    ASSERT_TRUE(last.has_value());
    EXPECT_EQ(last->result.bytes, std::to_string(added.at(i))) << "acknowledged additions and the counter differ";
    EXPECT_EQ(last->revision, revision_of(1) + added.at(i));
  }
}

// All threads insert and remove claims: successes must alternate.
void inserts_and_removes_alternate(Subject& subject) {
  const std::vector<Store*> stores = connections_of(subject);
  const std::array<std::string, 3> keys = {"turn#1", "turn#2", "turn#3"};
  std::array<std::atomic<std::int64_t>, 3> there{};
  std::atomic<bool> broken = false;
  on_threads(thread_count, [&](std::size_t thread) {
    Store& store = *stores[thread % stores.size()];
    for (std::size_t i = 0; i < 60; ++i) {
      const std::size_t which = (thread + i) % keys.size();
      const Record mine = claim_of(keys.at(which), thread);
      const Answer inserted = subject.insert(store, mine);
      if (inserted.status == AnswerStatus::failed) throw Broken("insert " + describe(inserted));
      // An insert is never refused without a record in the way.
      if (inserted.status == AnswerStatus::refused && !inserted.record) broken = true;
      if (inserted.status != AnswerStatus::done) continue;
      // Between insert and remove no other thread can have it.
      if (there.at(which).fetch_add(1) != 0) broken = true;
      const Answer got = subject.get(store, mine.key);
      if (!got.record || !(*got.record == mine)) broken = true;
      there.at(which).fetch_sub(1);
      const Answer removed = subject.remove(store, mine.key, seen_of(mine, inserted.place));
      if (removed.status != AnswerStatus::done) broken = true;
    }
  });
  EXPECT_FALSE(broken) << "two threads held one key, or a holder's record was not there";
  EXPECT_TRUE(subject.list_all({}).empty());
}

// A sweep removes records that others claim again at the same time: it must not remove a live claim.
void sweeps_spare_what_was_claimed_anew(Subject& subject) {
  const std::vector<Store*> stores = connections_of(subject);
  constexpr std::size_t claimers = 4;
  constexpr int keys = 20;
  for (int round = 0; round < 8; ++round) {
    const auto key_of = [&](int i) { return "swept" + std::to_string(round) + "#" + std::to_string(i); };
    for (int i = 0; i < keys; ++i) {
      Record record = claim_of(key_of(i), 100);
      record.expires_at = manual_start;
      subject.put(record);
    }
    std::array<std::set<std::string>, claimers> claimed;
    std::atomic<std::size_t> removed = 0;
    on_threads(claimers + 2, [&](std::size_t thread) {
      Store& store = *stores[thread % stores.size()];
      if (thread >= claimers) {
        for (int i = 0; i < keys; ++i) {
          const SweepAnswer answer = subject.sweep(store, manual_start, 3);
          if (answer.error) throw Broken("sweep failed: " + answer.error->message);
          removed += answer.removed;
        }
        return;
      }
      for (int i = 0; i < keys; ++i) {
        Record mine = claim_of(key_of(i), thread);
        const Answer inserted = subject.insert(store, mine);
        if (inserted.status == AnswerStatus::done) {
          claimed.at(thread).insert(mine.key);
        } else if (inserted.status == AnswerStatus::refused && inserted.record &&
                   inserted.record->expires_at <= manual_start) {
          mine.revision = inserted.record->revision + 1;
          const Answer replaced = subject.replace(store, mine, seen_of(*inserted.record, inserted.place));
          if (replaced.status == AnswerStatus::done) claimed.at(thread).insert(mine.key);
        }
      }
    });
    for (std::size_t thread = 0; thread < claimed.size(); ++thread) {
      for (const std::string& key : claimed.at(thread)) {
        const std::optional<Record> there = subject.read(key);
        ASSERT_TRUE(there.has_value()) << quote(key) << " was claimed, and then swept";
        EXPECT_EQ(there->owner.hex(), claim_of(key, thread).owner.hex()) << quote(key);
      }
    }
    EXPECT_LE(removed.load(), static_cast<std::size_t>(keys)) << "more was swept than had expired";
  }
}

constexpr std::array all_races = {
    Test{"one_insert_wins", one_insert_wins},
    Test{"one_takeover_wins", one_takeover_wins},
    Test{"one_insert_wins_of_many_under_way", one_insert_wins_of_many_under_way},
    Test{"renewals_against_takeovers", renewals_against_takeovers},
    Test{"no_update_is_lost", no_update_is_lost},
    Test{"inserts_and_removes_alternate", inserts_and_removes_alternate},
    Test{"sweeps_spare_what_was_claimed_anew", sweeps_spare_what_was_claimed_anew},
};

}  // namespace

std::span<const Test> race_tests() noexcept { return all_races; }

}  // namespace once::testing
