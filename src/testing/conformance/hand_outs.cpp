// Finishes in a transaction of the user's own: laws and races of Store::finish_statement().
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <once/record.hpp>
#include <once/stores/sql.hpp>

#include "testing/conformance/subject.hpp"

namespace once::testing {

namespace {

// The completion of a claim, as an engine would hand it out.
Record handed_out(Record record) {
  record.state = State::completed;
  record.revision = next_revision(record.revision, 0x54321);
  record.lease_until = Time{};
  record.result = Result::inlined("done");
  record.failure = {};
  record.finished_at = manual_start;
  return record;
}

Record renewed(Record record) {
  record.revision = next_revision(record.revision, 7);
  record.lease_until += Millis{60'000};
  return record;
}

Record released(Record record) {
  record.revision = next_revision(record.revision, 7);
  record.lease_until = Time{};
  return record;
}

void expect_written(Subject& subject, std::size_t count, std::string_view what) {
  EXPECT_EQ(subject.harness().companions_written(), count) << what;
}

// The finish raises an error, or at the latest the commit does; the transaction's own writes are gone.
void expect_raises(Subject& subject, const stores::SqlStatement& statement, std::string_view what) {
  const std::size_t before = subject.harness().companions_written();
  bool raised = false;
  {
    const auto transaction = subject.harness().begin_transaction(subject.store());
    transaction->add();
    try {
      transaction->finish(statement);
    } catch (const std::exception&) {
      raised = true;
    }
    EXPECT_TRUE(raised) << what << ": the finish raised no error";
    if (raised) {
      EXPECT_THROW(transaction->commit(), std::exception) << what << ": it could be committed all the same";
    }
  }
  expect_written(subject, before, what);
}

void own_commit(Subject& subject, const stores::SqlStatement& statement) {
  const auto transaction = subject.harness().begin_transaction(subject.store());
  transaction->add();
  transaction->finish(statement);
  transaction->commit();
}

void a_finish_in_ones_own_transaction_commits_with_it(Subject& subject) {
  for (std::size_t i = 0; i < 3; ++i) {
    Record claim = full_record("own#" + std::to_string(i), State::in_progress);
    if (i == 1) claim.expires_at = never;
    const std::uint64_t place = subject.put(claim);
    Record completion = handed_out(claim);
    if (i == 2) completion.expires_at = never;
    if (i == 2) completion.result = full_record("other", State::completed, Placement::offloaded).result;
    own_commit(subject, subject.store().finish_statement(completion, i == 0 ? 0 : place));
    expect_record(completion, subject.read(claim.key), "what the transaction has finished");
    expect_written(subject, i + 1, "after a commit");
    // It is a record like others: it can be replaced and removed.
    const Answer later = subject.replace(claim, seen_of(claim));
    EXPECT_EQ(later.status, AnswerStatus::refused);
    expect_done(subject.remove(claim.key, seen_of(completion)), "remove what was finished so");
  }
}

void renewals_before_it_do_not_matter(Subject& subject) {
  const Record claim = plain_record("own#1");
  const std::uint64_t place = subject.put(claim);
  const stores::SqlStatement statement = subject.store().finish_statement(handed_out(claim), place);
  Record now = claim;
  for (int i = 0; i < 3; ++i) {
    const Record next = renewed(now);
    expect_done(subject.replace(next, seen_of(now, place)), "renewal beside a hand-out");
    now = next;
  }
  own_commit(subject, statement);
  Record expected = handed_out(now);
  expect_record(expected, subject.read(claim.key), "finished after renewals");
  EXPECT_EQ(revision_count(expected.revision), revision_count(claim.revision) + 4);
  const Answer late = subject.replace(renewed(now), seen_of(now, place));
  expect_refused(late, expected, "a renewal after the finish");
}

void what_the_finish_does_not_set_stays(Subject& subject) {
  const Record claim = plain_record("own#1");
  const std::uint64_t place = subject.put(claim);
  const stores::SqlStatement statement = subject.store().finish_statement(handed_out(claim), place);
  Record changed = renewed(claim);  // As an operator may do.
  changed.on_lapse = OnLapse::hold;
  changed.note = "by hand";
  changed.history.entries.push_back(
      {.what = "lease extended", .who = "operator", .why = "busy", .attempt = 0, .began_at = {}, .at = manual_start});
  expect_done(subject.replace(changed, seen_of(claim, place)), "an operator's act beside a hand-out");
  own_commit(subject, statement);
  const std::optional<Record> stored = subject.read(claim.key);
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->state, State::completed);
  EXPECT_EQ(stored->on_lapse, OnLapse::hold);
  EXPECT_EQ(stored->result, handed_out(claim).result);
  Record expected = handed_out(changed);
  expect_record(expected, stored, "finished after an operator's act");
}

void who_has_no_claim_cannot_finish(Subject& subject) {
  Store& store = subject.store();
  const auto statement_of = [&](const Record& claim, std::uint64_t place) {
    return store.finish_statement(handed_out(claim), place);
  };
  const Record claim = plain_record("own#1");
  const std::uint64_t place = subject.put(claim);
  const stores::SqlStatement statement = statement_of(claim, place);

  Record theirs = renewed(claim);
  theirs.owner = owner_of(2);
  expect_done(subject.replace(theirs, seen_of(claim, place)), "takeover");
  expect_raises(subject, statement, "a displaced owner");
  expect_record(theirs, subject.read(claim.key), "after a displaced owner");

  const stores::SqlStatement second = statement_of(theirs, place);
  const Record given_up = released(theirs);
  expect_done(subject.replace(given_up, seen_of(theirs, place)), "release");
  expect_raises(subject, second, "a released claim");
  expect_record(given_up, subject.read(claim.key), "after a released claim");

  expect_done(subject.remove(claim.key, seen_of(given_up, place)), "remove");
  expect_raises(subject, second, "a record that is gone");
  expect_record(std::nullopt, subject.read(claim.key), "after a record that is gone");

  subject.put(claim);  // Again, under the first owner: as good as its own.
  own_commit(subject, statement_of(claim, 0));
  const Record completed = handed_out(claim);
  expect_raises(subject, statement_of(claim, 0), "a completed record");
  expect_record(completed, subject.read(claim.key), "after a completed record");
  expect_raises(subject, statement_of(plain_record("none#1"), 0), "a key that nobody has claimed");
  expect_record(std::nullopt, subject.read("none#1"), "after a key that nobody has claimed");
}

void a_transaction_that_is_rolled_back_leaves_the_claim(Subject& subject) {
  const Record claim = plain_record("own#1");
  const std::uint64_t place = subject.put(claim);
  {
    const auto transaction = subject.harness().begin_transaction(subject.store());
    transaction->add();
    transaction->finish(subject.store().finish_statement(handed_out(claim), place));
    // Nobody sees it yet, and nobody who only reads waits for it.
    expect_record(claim, subject.read(claim.key), "before the commit");
  }
  expect_record(claim, subject.read(claim.key), "after a rollback");
  expect_written(subject, 0, "after a rollback");
  own_commit(subject, subject.store().finish_statement(handed_out(claim), place));
  expect_record(handed_out(claim), subject.read(claim.key), "once more");
  expect_written(subject, 1, "once more");
}

void a_record_that_is_too_large_is_not_handed_out(Subject& subject) {
  const Record claim = plain_record("own#1");
  subject.put(claim);
  Record large = handed_out(claim);
  large.result.bytes.assign(subject.store().capabilities().max_record_bytes, 'x');
  EXPECT_THROW(static_cast<void>(subject.store().finish_statement(large, 0)), Exception);
}

// Owners that all believe in their claim: one transaction commits, with its writes.
void one_own_transaction_wins(Subject& subject) {
  constexpr std::size_t threads = 6;
  constexpr std::size_t rounds = 20;
  std::size_t written = 0;
  std::vector<Store*> stores;
  for (std::size_t i = 0; i < subject.connections(); ++i) stores.push_back(&subject.store(i));
  for (std::size_t round = 0; round < rounds; ++round) {
    const Record claim = plain_record("own#" + std::to_string(round));
    const std::uint64_t place = subject.put(claim);
    std::atomic<std::size_t> commits{0};
    std::atomic<std::size_t> takeovers{0};
    on_threads(threads, [&](std::size_t thread) {
      Store& store = *stores[thread % stores.size()];
      if (thread % 3 == 2) {
        Record theirs = renewed(claim);
        theirs.owner = owner_of(static_cast<std::uint8_t>(thread + 10));
        const Answer answer = subject.replace(store, theirs, seen_of(claim, place));
        EXPECT_NE(answer.status, AnswerStatus::failed) << answer.error.message;
        if (answer.status == AnswerStatus::done) ++takeovers;
        return;
      }
      const stores::SqlStatement statement = store.finish_statement(handed_out(claim), place);
      const auto transaction = subject.harness().begin_transaction(store);
      transaction->add();
      try {
        transaction->finish(statement);
      } catch (const std::exception&) {
        return;
      }
      transaction->commit();
      ++commits;
    });
    EXPECT_EQ(commits + takeovers, 1U) << "round " << round;
    const std::optional<Record> stored = subject.read(claim.key);
    ASSERT_TRUE(stored);
    EXPECT_EQ(stored->state == State::completed, commits == 1U) << "round " << round;
    written += commits;
    expect_written(subject, written, "one write for each commit");
  }
}

constexpr std::array hand_out_laws = {
    Test{"a_finish_in_ones_own_transaction_commits_with_it", a_finish_in_ones_own_transaction_commits_with_it,
         Test::Needs::hands_out},
    Test{"renewals_before_it_do_not_matter", renewals_before_it_do_not_matter, Test::Needs::hands_out},
    Test{"what_the_finish_does_not_set_stays", what_the_finish_does_not_set_stays, Test::Needs::hands_out},
    Test{"who_has_no_claim_cannot_finish", who_has_no_claim_cannot_finish, Test::Needs::hands_out},
    Test{"a_transaction_that_is_rolled_back_leaves_the_claim", a_transaction_that_is_rolled_back_leaves_the_claim,
         Test::Needs::hands_out},
    Test{"a_record_that_is_too_large_is_not_handed_out", a_record_that_is_too_large_is_not_handed_out,
         Test::Needs::hands_out},
};

constexpr std::array hand_out_races = {
    Test{"one_own_transaction_wins", one_own_transaction_wins, Test::Needs::hands_out},
};

}  // namespace

std::span<const Test> hand_out_law_tests() noexcept { return hand_out_laws; }
std::span<const Test> hand_out_race_tests() noexcept { return hand_out_races; }

}  // namespace once::testing
