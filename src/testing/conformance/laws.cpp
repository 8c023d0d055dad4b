// Layer 2: the laws of a compare-and-swap on one record.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "testing/conformance/subject.hpp"

namespace once::testing {

namespace {

// The same record, taken over by another owner.
Record taken_over(Record record, std::uint8_t by) {
  record.owner = owner_of(by);
  record.revision += 1;
  record.token += 1;
  record.attempt += 1;
  record.holder = "taken over by " + std::to_string(by);
  return record;
}

void nothing_is_there_at_first(Subject& subject) {
  expect_record(std::nullopt, subject.read("nothing#1"), "get of nothing");
  expect_refused(subject.replace(plain_record("nothing#1"), {.owner = owner_of(1), .revision = 1}), std::nullopt,
                 "replace of nothing");
  expect_refused(subject.remove("nothing#1", {.owner = owner_of(1), .revision = 1}), std::nullopt, "remove of nothing");
  // The zero owner and revision 0 match no record.
  expect_refused(subject.replace(plain_record("nothing#1"), {}), std::nullopt, "replace of nothing, nobody seen");
  expect_record(std::nullopt, subject.read("nothing#1"), "get after refused writes");
  EXPECT_TRUE(subject.list_all({}).empty());
}

void second_insert_returns_the_record_in_the_way(Subject& subject) {
  const Record first = full_record("insert#1");
  subject.put(first);
  Record second = plain_record("insert#1");
  second.owner = owner_of(2);
  for (int i = 0; i < 3; ++i) {
    expect_refused(subject.insert(second), first, "second insert");
    expect_record(first, subject.read(first.key), "after the second insert");
  }
  expect_refused(subject.insert(first), first, "insert of the very same record");
}

void insert_is_refused_by_an_expired_record(Subject& subject) {
  for (const Time expires_at : {Time{}, Time{Millis{1}}, manual_start}) {
    Record old = plain_record("expired#1");
    old.expires_at = expires_at;
    old.lease_until = Time{};
    subject.put(old);
    expect_refused(subject.insert(taken_over(old, 2)), old, "insert over an expired record");
    expect_record(old, subject.read(old.key), "an expired record that nobody removed");
    expect_done(subject.replace(taken_over(old, 2), seen_of(old)), "replace of an expired record");
    expect_done(subject.remove(old.key, seen_of(taken_over(old, 2))), "remove of an expired record");
  }
}

void a_displaced_owner_can_do_nothing(Subject& subject) {
  const Record first = plain_record("owner#1");
  const std::uint64_t place = subject.put(first);
  const Record second = taken_over(first, 2);
  expect_done(subject.replace(second, seen_of(first, place)), "takeover");
  Record renewed = first;
  renewed.revision += 1;
  renewed.lease_until += Millis{1000};
  expect_refused(subject.replace(renewed, seen_of(first, place)), second, "renewal by the displaced owner");
  Record completed = renewed;
  completed.state = State::completed;
  expect_refused(subject.replace(completed, seen_of(first, place)), second, "finish by the displaced owner");
  expect_refused(subject.remove(first.key, seen_of(first, place)), second, "remove by the displaced owner");
  // Knowing the new revision is not enough.
  expect_refused(subject.replace(completed, {.owner = first.owner, .revision = second.revision, .place = place}),
                 second, "the displaced owner with the new revision");
  expect_refused(subject.remove(first.key, {.owner = first.owner, .revision = second.revision, .place = place}), second,
                 "remove by the displaced owner with the new revision");
  expect_record(second, subject.read(first.key), "after all that");
}

// Every combination of right and wrong owner, revision and place.
void only_the_right_owner_and_revision_write(Subject& subject) {
  Record other = full_record("other#1");
  other.owner = owner_of(1);
  other.revision = revision_of(7);
  const std::uint64_t other_place = subject.put(other);
  Record record = full_record("record#1");
  record.owner = owner_of(1);
  record.revision = revision_of(7);
  std::uint64_t place = subject.put(record);

  struct Named {
    const char* name;
    Owner owner;
  };
  struct Numbered {
    const char* name;
    std::uint64_t revision;
  };
  Owner last_byte = record.owner;
  last_byte.bytes.back() ^= 1U;
  Owner first_byte = record.owner;
  first_byte.bytes.front() ^= 0x80U;
  const Named owners[] = {{"the owner", record.owner},
                          {"nobody", Owner{}},
                          {"another owner", owner_of(2)},
                          {"an owner that differs in the last bit", last_byte},
                          {"an owner that differs in the first bit", first_byte}};
  const Numbered revisions[] = {{"the revision", revision_of(7)},
                                {"the same count with other random bits", revision_of(7) + 1},
                                {"the revision before", revision_of(6)},
                                {"the revision after", revision_of(8)},
                                {"revision 0", 0},
                                {"the largest", INT64_MAX},
                                {"a revision 2^32 away", revision_of(7) + (1ULL << 32U)}};
  const auto places = [&] {
    return std::array<std::pair<const char*, std::uint64_t>, 5>{{{"the right place", place},
                                                                 {"no place", 0},
                                                                 {"another record's place", other_place},
                                                                 {"a place that never was", place + 1'000'003},
                                                                 {"the largest place", UINT64_MAX}}};
  };
  for (const Named& owner : owners) {
    for (const Numbered& revision : revisions) {
      for (const auto& [place_name, place_value] : places()) {
        const std::string what = std::string(owner.name) + ", " + revision.name + ", " + place_name;
        const Seen seen{.owner = owner.owner, .revision = revision.revision, .place = place_value};
        const bool right = owner.owner == record.owner && revision.revision == record.revision;
        Record next = record;
        next.note = what;
        const Answer replaced = subject.replace(next, seen);
        if (right) {
          expect_done(replaced, "replace with " + what);
          record = next;
        } else {
          expect_refused(replaced, record, "replace with " + what);
        }
        expect_record(record, subject.read(record.key), "after replace with " + what);
        expect_record(other, subject.read(other.key), "the other record after replace with " + what);

        const Answer removed = subject.remove(record.key, seen);
        if (right) {
          expect_done(removed, "remove with " + what);
          expect_record(std::nullopt, subject.read(record.key), "after remove with " + what);
          place = subject.put(record);
        } else {
          expect_refused(removed, record, "remove with " + what);
        }
        expect_record(record, subject.read(record.key), "after remove with " + what);
        expect_record(other, subject.read(other.key), "the other record after remove with " + what);
      }
    }
  }
}

// The place of a removed record may be reused.
void a_stale_place_lets_nothing_through(Subject& subject) {
  const Record gone = plain_record("gone#1");
  const std::uint64_t place = subject.put(gone);
  expect_done(subject.remove(gone.key, seen_of(gone, place)), "remove");
  std::vector<Record> successors;
  for (int i = 0; i < 20; ++i) {
    Record record = plain_record("new#" + std::to_string(i));  // Same owner and revision as the removed one.
    subject.put(record);
    successors.push_back(record);
  }
  expect_refused(subject.replace(gone, seen_of(gone, place)), std::nullopt, "replace of what is gone");
  expect_refused(subject.remove(gone.key, seen_of(gone, place)), std::nullopt, "remove of what is gone");
  for (const Record& record : successors) expect_record(record, subject.read(record.key), "a record in the same place");
  subject.put(taken_over(gone, 3));
  expect_refused(subject.replace(gone, seen_of(gone, place)), taken_over(gone, 3), "replace after another insert");
  expect_refused(subject.remove(gone.key, seen_of(gone, place)), taken_over(gone, 3), "remove after another insert");
}

void places_that_answers_give_are_right(Subject& subject) {
  const Record filler = plain_record("filler#1");
  subject.put(filler);
  Record record = plain_record("place#1");
  std::uint64_t place = subject.put(record);
  for (int i = 0; i < 4; ++i) {
    Record next = record;
    next.revision += 1;
    const Answer answer = subject.replace(next, seen_of(record, place));
    expect_done(answer, "replace at the place that the last answer gave");
    record = next;
    place = answer.place;
  }
  place = subject.get(record.key).place;
  Record next = record;
  next.revision += 1;
  expect_done(subject.replace(next, seen_of(record, place)), "replace at the place that get gave");
  place = subject.insert(record).place;
  expect_done(subject.replace(record, seen_of(next, place)), "replace at the place that a refused insert gave");
  place = subject.remove(record.key, {.owner = owner_of(9), .revision = 1}).place;
  expect_done(subject.remove(record.key, seen_of(record, place)), "remove at the place that a refused remove gave");
  expect_record(filler, subject.read(filler.key), "the other record");
}

void refused_writes_change_nothing(Subject& subject) {
  const Record record = full_record("refused#1");
  const Record neighbour = full_record("refused#2");
  subject.put(record);
  subject.put(neighbour);
  SeededRandom random(7);
  Record other = edge_record(record.key, random);
  other.owner = owner_of(9);
  for (int i = 0; i < 3; ++i) {
    expect_refused(subject.insert(other), record, "insert");
    expect_refused(subject.replace(other, {.owner = record.owner, .revision = record.revision + 1}), record, "replace");
    expect_refused(subject.replace(other, {.owner = other.owner, .revision = record.revision}), record, "replace");
    expect_refused(subject.remove(record.key, {.owner = other.owner, .revision = record.revision}), record, "remove");
    expect_refused(subject.remove(record.key, {.owner = record.owner, .revision = record.revision - 1}), record,
                   "remove");
    expect_record(record, subject.read(record.key), "after refused writes");
    expect_record(neighbour, subject.read(neighbour.key), "the neighbour after refused writes");
  }
  EXPECT_EQ(subject.list_all({}).size(), 2U);
  // The owner can still write the record.
  Record next = record;
  next.revision += 1;
  expect_done(subject.replace(next, seen_of(record)), "replace by the owner after refused writes");
}

// The store decides only by owner and revision, for all contents of the record.
void records_are_stored_as_given(Subject& subject) {
  Record record = plain_record("given#1");
  record.revision = revision_of(10);
  record.token = 100;
  record.attempt = 5;
  subject.put(record);
  const auto replace_by = [&](const char* what, auto change) {
    Record next = record;
    change(next);
    expect_done(subject.replace(next, seen_of(record)), what);
    expect_record(next, subject.read(next.key), what);
    record = next;
  };
  replace_by("a revision that jumps", [](Record& r) { r.revision = revision_of(1000); });
  replace_by("a revision that goes back", [](Record& r) { r.revision = revision_of(3); });
  replace_by("a revision that stays", [](Record& r) { r.note = "same revision"; });
  replace_by("a token that falls", [](Record& r) { r.token = 1; });
  replace_by("an attempt that falls", [](Record& r) { r.attempt = 1; });
  replace_by("another fingerprint", [](Record& r) { r.fingerprint = Fingerprint::of("another payload"); });
  replace_by("a live lease, another owner", [](Record& r) { r.owner = owner_of(2); });
  replace_by("a lease that shrinks", [](Record& r) { r.lease_until = Time{}; });
  replace_by("a retention that ends before the lease", [](Record& r) { r.expires_at = Time{}; });
  replace_by("a lease after expiry", [](Record& r) { r.lease_until = never; });
  replace_by("completed", [](Record& r) { r.state = State::completed; });
  replace_by("back to in_progress", [](Record& r) { r.state = State::in_progress; });
  replace_by("other steps", [](Record& r) { r.steps = {{"a", "1"}}; });
  replace_by("another step by the same name", [](Record& r) { r.steps = {{"a", "2"}}; });
  replace_by("nobody's", [](Record& r) { r.owner = Owner{}; });
  replace_by("somebody's again", [](Record& r) { r.owner = owner_of(3); });
}

void a_key_can_be_used_again(Subject& subject) {
  for (std::uint8_t i = 1; i <= 5; ++i) {
    Record record = full_record("again#1");
    record.owner = owner_of(i);
    record.token = i;
    expect_done(subject.insert(record), "insert");
    expect_record(record, subject.read(record.key), "after insert");
    expect_done(subject.remove(record.key, seen_of(record)), "remove");
    expect_record(std::nullopt, subject.read(record.key), "after remove");
    expect_refused(subject.remove(record.key, seen_of(record)), std::nullopt, "second remove");
    expect_refused(subject.replace(record, seen_of(record)), std::nullopt, "replace after remove");
    EXPECT_TRUE(subject.list_all({}).empty());
  }
}

void a_shorter_record_leaves_nothing_of_a_longer(Subject& subject) {
  const Record large = full_record("shrink#1", State::failed, Placement::offloaded);
  subject.put(large);
  Record small;
  small.key = large.key;
  small.owner = large.owner;
  small.attempt = 1;
  small.revision = large.revision + 1;
  expect_done(subject.replace(small, seen_of(large)), "replace by an empty record");
  expect_record(small, subject.read(small.key), "replace by an empty record");
  expect_done(subject.remove(small.key, seen_of(small)), "remove");
  expect_done(subject.insert(small), "insert where a longer record was");
  expect_record(small, subject.read(small.key), "insert where a longer record was");
}

// Completions may start further operations: each of these does, inside the completion.
void completions_may_start_operations(Subject& subject) {
  struct Chain {
    Store& store;
    Record record;
    Record next;
    std::shared_ptr<Pending<std::string>> end;
  };
  Record record = plain_record("chain#1");
  Record next = record;
  next.revision = revision_of(2);
  const auto chain = std::make_shared<Chain>(Chain{subject.store(), record, next, subject.watch<std::string>()});
  const auto begin = [chain] {
    chain->store.insert(share(chain->record), [chain](Answer inserted) {
      if (inserted.status != AnswerStatus::done) return chain->end->answer("insert " + describe(inserted));
      chain->store.insert(share(chain->next), [chain](Answer refused) {
        if (refused.status != AnswerStatus::refused) return chain->end->answer("insert " + describe(refused));
        chain->store.get(chain->record.key, [chain](Answer got) {
          if (!got.record) return chain->end->answer("get " + describe(got));
          chain->store.replace(share(chain->next), seen_of(chain->record, got.place), [chain](Answer replaced) {
            if (replaced.status != AnswerStatus::done) return chain->end->answer("replace " + describe(replaced));
            chain->store.list({}, [chain](ListPage page) {
              if (page.error || page.records.size() != 1) return chain->end->answer("list");
              chain->store.sweep(manual_start, 10, [chain](SweepAnswer swept) {
                if (swept.error || swept.removed != 0) return chain->end->answer("sweep");
                chain->store.remove(chain->next.key, seen_of(chain->next), [chain](Answer removed) {
                  chain->end->answer(removed.status == AnswerStatus::done ? "" : "remove " + describe(removed));
                });
              });
            });
          });
        });
      });
    });
  };
  // A store that completes under its own lock hangs here forever, so this thread can be abandoned.
  std::thread thread(begin);
  try {
    EXPECT_EQ(subject.wait(chain->end), "");
  } catch (const Broken&) {
    thread.detach();
    throw;
  }
  thread.join();
  expect_record(std::nullopt, subject.read(record.key), "after the chain");
}

constexpr std::array all_laws = {
    Test{"nothing_is_there_at_first", nothing_is_there_at_first},
    Test{"second_insert_returns_the_record_in_the_way", second_insert_returns_the_record_in_the_way},
    Test{"insert_is_refused_by_an_expired_record", insert_is_refused_by_an_expired_record},
    Test{"a_displaced_owner_can_do_nothing", a_displaced_owner_can_do_nothing},
    Test{"only_the_right_owner_and_revision_write", only_the_right_owner_and_revision_write},
    Test{"a_stale_place_lets_nothing_through", a_stale_place_lets_nothing_through},
    Test{"places_that_answers_give_are_right", places_that_answers_give_are_right},
    Test{"refused_writes_change_nothing", refused_writes_change_nothing},
    Test{"records_are_stored_as_given", records_are_stored_as_given},
    Test{"a_key_can_be_used_again", a_key_can_be_used_again},
    Test{"a_shorter_record_leaves_nothing_of_a_longer", a_shorter_record_leaves_nothing_of_a_longer},
    Test{"completions_may_start_operations", completions_may_start_operations},
};

}  // namespace

std::span<const Test> law_tests() noexcept { return all_laws; }

}  // namespace once::testing
