// Companions of a record: laws, races and outages of Store::replace_with().
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include <once/testing/faulty_store.hpp>

#include "testing/conformance/subject.hpp"

namespace once::testing {

namespace {

// The claim's completion, as an engine would write it.
Record completed(Record record) {
  record.state = State::completed;
  record.revision += 1;
  record.result = Result::inlined("done");
  record.finished_at = manual_start;
  return record;
}

Record taken_over(Record record) {
  record.owner = owner_of(2);
  record.revision += 1;
  return record;
}

void expect_declined(const Answer& answer, ErrorKind kind, std::string_view what) {
  expect_failed(answer, kind, what);
  EXPECT_TRUE(answer.declined) << what << ": the failure is not told to be the companion's";
}

void a_companion_of_another_kind_is_declined(Subject& subject) {
  struct Unknown final : Companion {};
  const Record claim = plain_record("with#1");
  subject.put(claim);
  const auto unknown = std::make_shared<Unknown>();
  expect_declined(subject.replace_with(completed(claim), seen_of(claim), unknown), ErrorKind::misuse,
                  "a companion that no store knows");
  expect_record(claim, subject.read(claim.key), "after an unknown companion");
  expect_done(subject.replace(completed(claim), seen_of(claim)), "the same without it");
}

void a_record_and_its_companion_are_both_written(Subject& subject) {
  for (std::size_t i = 0; i < 3; ++i) {
    Record claim = full_record("with#" + std::to_string(i));
    claim.state = State::in_progress;
    const std::uint64_t place = subject.put(claim);
    expect_done(subject.replace_with(completed(claim), seen_of(claim, place), subject.harness().companion(false)),
                "replace with a companion");
    expect_record(completed(claim), subject.read(claim.key), "what was written with a companion");
    EXPECT_EQ(subject.harness().companions_written(), i + 1);
    if (subject.traits().durable) subject.close();
    EXPECT_EQ(subject.harness().companions_written(), i + 1);
  }
}

void a_refused_record_takes_its_companion_along(Subject& subject) {
  const Record claim = plain_record("with#1");
  const Record theirs = taken_over(claim);
  subject.put(claim);
  expect_done(subject.replace(theirs, seen_of(claim)), "takeover");
  // For every companion the record's condition comes first.
  for (const bool declined : {false, true}) {
    expect_refused(subject.replace_with(completed(claim), seen_of(claim), subject.harness().companion(declined)),
                   theirs, "the displaced owner with a companion");
    expect_refused(subject.replace_with(completed(plain_record("none#1")), seen_of(plain_record("none#1")),
                                        subject.harness().companion(declined)),
                   std::nullopt, "nothing there, with a companion");
  }
  expect_record(theirs, subject.read(claim.key), "after the refusals");
  expect_record(std::nullopt, subject.read("none#1"), "after the refusals");
  EXPECT_EQ(subject.harness().companions_written(), 0U);
}

void a_declined_companion_changes_nothing(Subject& subject) {
  const Record claim = plain_record("with#1");
  subject.put(claim);
  for (int i = 0; i < 2; ++i) {
    expect_declined(subject.replace_with(completed(claim), seen_of(claim), subject.harness().companion(true)),
                    ErrorKind::unavailable, "a companion whose condition does not hold");
    expect_record(claim, subject.read(claim.key), "after a declined companion");
    EXPECT_EQ(subject.harness().companions_written(), 0U);
  }
  expect_done(subject.replace_with(completed(claim), seen_of(claim), subject.harness().companion(false)),
              "another companion");
  EXPECT_EQ(subject.harness().companions_written(), 1U);
}

void a_record_that_is_too_large_is_not_the_companions_fault(Subject& subject) {
  const Record claim = plain_record("with#1");
  subject.put(claim);
  Record large = completed(claim);
  large.result.bytes.assign(subject.store().capabilities().max_record_bytes, 'x');
  const Answer answer = subject.replace_with(large, seen_of(claim), subject.harness().companion(false));
  expect_unfit(answer, "a record that is too large, with a companion");
  EXPECT_FALSE(answer.declined);
  expect_record(claim, subject.read(claim.key), "after a record that is too large");
  EXPECT_EQ(subject.harness().companions_written(), 0U);
}

// The same record and companion again, from a caller or the network.
void asked_again_a_companion_is_written_once(Subject& subject) {
  std::size_t written = 0;
  for (const Fault::Kind kind :
       {Fault::Kind::none, Fault::Kind::lost_after, Fault::Kind::resent, Fault::Kind::repeated}) {
    const std::string what(to_string(kind));
    const Record claim = plain_record("with#" + what);
    subject.put(claim);
    FaultyStore faulty(std::shared_ptr<Store>(&subject.store(), [](Store*) {}),
                       [kind](const StoreCall&) { return Fault{.kind = kind}; });
    const auto companion = subject.harness().companion(false);
    ++written;
    for (int i = 0; i < 3; ++i) {
      const Answer answer = subject.replace_with(faulty, completed(claim), seen_of(claim), companion);
      if (answer.status == AnswerStatus::refused) {
        expect_refused(answer, completed(claim), "asked again, " + what);
      } else if (kind == Fault::Kind::lost_after) {
        expect_failed(answer, ErrorKind::in_doubt, "a lost answer");
      } else {
        expect_done(answer, "asked again, " + what);
      }
      EXPECT_EQ(subject.harness().companions_written(), written) << what;
    }
    expect_record(completed(claim), subject.read(claim.key), what);
  }
}

void one_companion_wins(Subject& subject) {
  constexpr std::size_t threads = 8;
  constexpr std::size_t rounds = 20;
  std::vector<Store*> stores;
  for (std::size_t i = 0; i < subject.connections(); ++i) stores.push_back(&subject.store(i));
  for (std::size_t round = 0; round < rounds; ++round) {
    const Record claim = plain_record("with#" + std::to_string(round));
    subject.put(claim);
    std::vector<std::shared_ptr<const Companion>> companions;
    for (std::size_t i = 0; i < threads; ++i) companions.push_back(subject.harness().companion(false));
    std::atomic<std::size_t> winners{0};
    on_threads(threads, [&](std::size_t thread) {
      Record next = taken_over(claim);
      next.owner = owner_of(static_cast<std::uint8_t>(thread + 10));
      // A write that meets another's transaction may have to be retried.
      for (int tries = 0; tries < 1'000; ++tries) {
        const Answer answer =
            subject.replace_with(*stores[thread % stores.size()], next, seen_of(claim), companions[thread]);
        if (answer.status == AnswerStatus::failed && answer.error.kind == ErrorKind::unavailable && !answer.declined) {
          continue;
        }
        EXPECT_NE(answer.status, AnswerStatus::failed) << describe(answer);
        if (answer.status == AnswerStatus::done) ++winners;
        return;
      }
      throw Broken("a replace with a companion is unavailable for good");
    });
    EXPECT_EQ(winners, 1U) << "round " << round;
    EXPECT_EQ(subject.harness().companions_written(), round + 1) << "round " << round;
  }
}

constexpr std::array companion_laws = {
    Test{"a_companion_of_another_kind_is_declined", a_companion_of_another_kind_is_declined},
    Test{"a_record_and_its_companion_are_both_written", a_record_and_its_companion_are_both_written,
         Test::Needs::companions},
    Test{"a_refused_record_takes_its_companion_along", a_refused_record_takes_its_companion_along,
         Test::Needs::companions},
    Test{"a_declined_companion_changes_nothing", a_declined_companion_changes_nothing, Test::Needs::companions},
    Test{"a_record_that_is_too_large_is_not_the_companions_fault",
         a_record_that_is_too_large_is_not_the_companions_fault, Test::Needs::companions},
    Test{"asked_again_a_companion_is_written_once", asked_again_a_companion_is_written_once, Test::Needs::companions},
};

constexpr std::array companion_races = {
    Test{"one_companion_wins", one_companion_wins, Test::Needs::companions},
};

}  // namespace

std::span<const Test> companion_law_tests() noexcept { return companion_laws; }
std::span<const Test> companion_race_tests() noexcept { return companion_races; }

void outage_with_companion(Subject& subject, const std::string& name) {
  const Record claim = plain_record("with#1");
  subject.put(claim);
  const auto companion = subject.harness().companion(false);
  Answer during;
  {
    const std::shared_ptr<void> until = subject.harness().begin_outage(name);
    ASSERT_TRUE(until) << "the harness began no outage";
    during = subject.replace_with(completed(claim), seen_of(claim), companion);
  }
  const bool written = subject.read(claim.key) == completed(claim);
  if (!written) expect_record(claim, subject.read(claim.key), "neither written nor not");
  EXPECT_EQ(subject.harness().companions_written(), written ? 1U : 0U) << "one without the other";
  if (during.status == AnswerStatus::failed) {
    EXPECT_FALSE(during.declined) << describe(during);
    EXPECT_TRUE(during.error.kind == ErrorKind::unavailable || during.error.kind == ErrorKind::in_doubt)
        << describe(during);
    if (during.error.kind == ErrorKind::unavailable) {
      EXPECT_FALSE(written) << "unavailable, and yet written";
    }
  } else {
    expect_done(during, "a write during the outage that did not fail");
    EXPECT_TRUE(written) << "done, and not written";
  }
  const Answer again = subject.replace_with(completed(claim), seen_of(claim), companion);
  if (again.status == AnswerStatus::refused) {
    expect_refused(again, completed(claim), "again after the outage");
  } else {
    expect_done(again, "again after the outage");
  }
  EXPECT_EQ(subject.harness().companions_written(), 1U);
}

}  // namespace once::testing
