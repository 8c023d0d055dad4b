// Asking the service about unknown operations: what counts, when, and how often.
#include <once/reconcile.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"

namespace once {

namespace reconcile_test {

using namespace std::chrono_literals;
using testing::ManualClock;
using testing::ManualTimers;
using testing::SeededRandom;

class ReconcileTest : public ::testing::Test {
 protected:
  Engine engine() {
    return Engine({.store = store_,
                   .policy = {.lease = 30s, .on_conflict = OnConflict::fail, .on_lapse = OnLapse::hold},
                   .scope = "pay",
                   .holder = "h",
                   .clock = clock_,
                   .random = random_,
                   .timers = timers_});
  }

  Reconciler reconciler(ReconcileOptions options = {}) {
    options.store = store_;
    options.clock = clock_;
    options.random = random_;
    if (!options.ask) {
      options.ask = ask_blocking([this](const Record& record) {
        asked_.emplace_back(Key::from_stored(record.key).name());
        return finding_;
      });
    }
    options.observer = [this](const Event& event) { events_.emplace_back(to_string(event.kind)); };
    return Reconciler(std::move(options));
  }

  // Its holder gave it up.
  RecordPtr held(const std::string& name = "k") {
    Engine with = engine();
    Begin begun = with.begin(name);
    EXPECT_EQ(begun.kind, Begin::Kind::claimed);
    EXPECT_EQ(begun.claim.hold("no answer").kind, Finish::Kind::recorded);
    return stored(name);
  }

  RecordPtr stored(const std::string& name = "k") { return blocking::get(*store_, Key("pay", name).stored()).record; }

  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers_ = std::make_shared<ManualTimers>(clock_);
  std::shared_ptr<SeededRandom> random_ = std::make_shared<SeededRandom>(1);
  std::shared_ptr<Store> store_ = stores::make_memory_store(clock_);
  Finding finding_;
  std::vector<std::string> asked_;
  std::vector<std::string> events_;
};

using Kind = Reconciled::Kind;

TEST_F(ReconcileTest, WritesWhatHappenedAsAnActInTheHistory) {
  finding_ = Finding::happened(Result::inlined("charge 4711", "text/plain"), "charge 4711 is in the ledger");
  const Reconciled decided = reconciler().ask(held());
  EXPECT_EQ(decided.kind, Kind::completed);
  const RecordPtr record = stored();
  EXPECT_EQ(record->state, State::completed);
  EXPECT_EQ(record->result.bytes, "charge 4711");
  ASSERT_EQ(record->history.entries.size(), 2U);
  EXPECT_EQ(record->history.entries[0].what, "unknown");
  EXPECT_EQ(record->history.entries[1].what, "resolved as completed");
  EXPECT_EQ(record->history.entries[1].who, "reconcile");
  EXPECT_EQ(record->history.entries[1].why, "charge 4711 is in the ledger");
  EXPECT_EQ(record->history.entries[1].attempt, 0U);
  EXPECT_EQ(events_, std::vector<std::string>{"reconciled"});
  EXPECT_EQ(engine().begin("k").kind, Begin::Kind::replayed);
}

TEST_F(ReconcileTest, FindsOutForAnOperatorAndWritesNothing) {
  finding_ = Finding::not_done("no such charge");
  const RecordPtr unknown = held();
  const Reconciler with = reconciler({.settle = 60s, .key_prefix = scope_prefix("pay")});
  EXPECT_EQ(with.find_out(unknown).kind, Finding::Kind::not_known);  // It does not count yet.
  clock_->advance(60s);
  EXPECT_EQ(with.find_out(unknown).kind, Finding::Kind::not_done);  // Asked at once, whatever the pauses say.
  finding_ = Finding::happened(Result::inlined("charge 4711"));
  EXPECT_EQ(with.find_out(unknown).result.bytes, "charge 4711");
  EXPECT_EQ(*stored(), *unknown);
  EXPECT_TRUE(events_.empty());
  EXPECT_TRUE(with.concerns(*unknown));
  Record other = *unknown;
  other.key = Key("mail", "k").stored();
  EXPECT_FALSE(with.concerns(other));
  // A question that is dropped.
  const Reconciler dropping = reconciler({.ask = [](const RecordPtr&, const Callback<void(Finding)>&) {}});
  EXPECT_EQ(dropping.find_out(unknown).kind, Finding::Kind::not_known);
}

// What an operator takes of an answer is kept as long as what ask() writes.
TEST_F(ReconcileTest, FindsOutHowLongTheAnswerIsKept) {
  const RecordPtr unknown = held();
  const auto kept = [&](Finding finding, std::optional<Millis> failure_retention = 48h) {
    finding_ = std::move(finding);
    return reconciler({.settle = 0ms, .retention = 14 * 24h, .failure_retention = failure_retention})
        .find_out(unknown)
        .retention;
  };
  EXPECT_EQ(kept(Finding::happened({})), 14 * 24h);
  EXPECT_EQ(kept(Finding::not_done()), 14 * 24h);
  EXPECT_EQ(kept(Finding::failed({})), 48h);
  EXPECT_EQ(kept(Finding::failed({}), std::nullopt), 14 * 24h);
  EXPECT_EQ(kept({.kind = Finding::Kind::happened, .retention = 1h}), 1h);
}

TEST_F(ReconcileTest, WritesAFailure) {
  finding_ = Finding::failed({.code = "refunded", .message = "refunded by hand"});
  EXPECT_EQ(reconciler().ask(held()).kind, Kind::failed);
  EXPECT_EQ(stored()->failure.code, "refunded");
  EXPECT_EQ(engine().begin("k").kind, Begin::Kind::stored_failure);
}

TEST_F(ReconcileTest, NotDoneCountsOnlyAfterTheSettleTime) {
  finding_ = Finding::not_done("no such charge");
  const RecordPtr unknown = held();
  Reconciler with = reconciler({.settle = 60s, .first_pause = 1ms, .longest_pause = 1ms});
  EXPECT_EQ(with.ask(unknown).kind, Kind::not_known);
  EXPECT_EQ(*stored(), *unknown);
  clock_->advance(60s - 1ms);
  const Reconciled early = with.ask(unknown);
  EXPECT_EQ(early.kind, Kind::not_known);
  EXPECT_EQ(early.why, "not done so far, which counts only after 1 ms more");
  EXPECT_EQ(*stored(), *unknown);
  clock_->advance(1ms);
  EXPECT_EQ(with.ask(unknown).kind, Kind::released);
  EXPECT_EQ(engine().begin("k").kind, Begin::Kind::claimed);
}

// The question is what was true when it was asked: an answer that took long does not become older by that.
TEST_F(ReconcileTest, NotDoneCountsByTheTimeOfTheQuestion) {
  const RecordPtr unknown = held();
  Reconciler with = reconciler({.ask = ask_blocking([this](const Record&) {
                                  clock_->advance(10min);
                                  return Finding::not_done();
                                }),
                                .settle = 60s});
  EXPECT_EQ(with.ask(unknown).kind, Kind::not_known);
  EXPECT_EQ(*stored(), *unknown);
}

// 1. A claims, and is slow. 2. Its lease ends, and B finds the record: unknown. 3. The service has nothing yet, as A's
// request is still on its way. 4. A's request arrives, and A finishes too late. 5. The service is asked again.
TEST_F(ReconcileTest, DoesNotReleaseUnderASlowOwner) {
  int charges = 0;
  finding_ = Finding::not_done();
  Engine with = engine();
  Begin slow = with.begin("k");
  ASSERT_EQ(slow.kind, Begin::Kind::claimed);
  clock_->advance(31s);  // No timer fires: its process does not run.
  const Begin met = engine().begin("k");
  ASSERT_EQ(met.kind, Begin::Kind::unknown);
  Reconciler reconciling = reconciler({.settle = 60s});
  EXPECT_EQ(reconciling.ask(met.record).kind, Kind::not_known);
  EXPECT_EQ(engine().begin("k").kind, Begin::Kind::unknown);
  charges += 1;
  EXPECT_NE(slow.claim.complete(Result::inlined("late")).kind, Finish::Kind::recorded);
  finding_ = Finding::happened(Result::inlined("charge 1"));
  clock_->advance(60s);
  EXPECT_EQ(reconciling.ask(stored()).kind, Kind::completed);
  const Begin replay = engine().begin("k");
  EXPECT_EQ(replay.kind, Begin::Kind::replayed);
  EXPECT_EQ(replay.record->result.bytes, "charge 1");
  EXPECT_EQ(charges, 1);
}

// It is marked by the caller of tomorrow, but its holder has had no lease since yesterday.
TEST_F(ReconcileTest, TheSettleTimeBeginsWhenTheLeaseLapsed) {
  Engine with = engine();
  const Begin lost = with.begin("k");
  clock_->advance(24h);
  const Begin met = engine().begin("k");
  ASSERT_EQ(met.kind, Begin::Kind::unknown);
  EXPECT_EQ(attempt_ended_at(*met.record), testing::manual_start + 30s);
  finding_ = Finding::not_done();
  EXPECT_EQ(reconciler({.settle = 5min}).ask(met.record).kind, Kind::released);
}

TEST_F(ReconcileTest, TheSettleTimeOfALaterAttemptIsItsOwn) {
  finding_ = Finding::not_done();
  Engine with = engine();
  const Begin lost = with.begin("k");
  clock_->advance(24h);
  ASSERT_EQ(engine().begin("k").kind, Begin::Kind::unknown);
  ASSERT_EQ(reconciler({.settle = 5min}).ask(stored()).kind, Kind::released);
  const RecordPtr again = held();
  ASSERT_EQ(again->attempt, 2U);
  EXPECT_EQ(attempt_ended_at(*again), again->finished_at);
  EXPECT_EQ(reconciler({.settle = 5min}).ask(again).kind, Kind::not_known);
}

TEST_F(ReconcileTest, AnOperatorWhoDecidesFirstWins) {
  const RecordPtr unknown = held();
  RecordPtr theirs;
  Reconciler with = reconciler({.ask = ask_blocking([&](const Record& seen) {
                                  operate::Plan plan = operate::plan_resolve(
                                      seen, {.result = Result::inlined("by hand")}, {.by = "alice", .text = "seen"},
                                      Owner{{1}}, Stamp(clock_->now(), 7));
                                  theirs = operate::apply(*store_, seen, 0, std::move(*plan.next)).record;
                                  return Finding::not_done();
                                }),
                                .settle = 0ms});
  const Reconciled lost = with.ask(unknown);
  EXPECT_EQ(lost.kind, Kind::changed);
  ASSERT_NE(lost.record, nullptr);
  EXPECT_EQ(lost.record->result.bytes, "by hand");
  EXPECT_EQ(*stored(), *theirs);
  EXPECT_TRUE(events_.empty());
}

TEST_F(ReconcileTest, AnExceptionAndADroppedAnswerAreNotKnown) {
  const RecordPtr unknown = held();
  Reconciler throws =
      reconciler({.ask = ask_blocking([](const Record&) -> Finding { throw std::runtime_error("connection refused"); }),
                  .settle = 0ms});
  const Reconciled thrown = throws.ask(unknown);
  EXPECT_EQ(thrown.kind, Kind::not_known);
  EXPECT_EQ(thrown.why, "connection refused");
  Reconciler drops = reconciler({.ask = [](const RecordPtr&, const Callback<void(Finding)>&) {}, .settle = 0ms});
  EXPECT_EQ(drops.ask(unknown).why, "the question ended without an answer");
  EXPECT_EQ(*stored(), *unknown);
}

TEST_F(ReconcileTest, PausesDoubleAndThenItGivesUpOnce) {
  const RecordPtr unknown = held();
  Reconciler with = reconciler({.settle = 0ms, .tries = 4, .first_pause = 1s, .longest_pause = 3s});
  EXPECT_EQ(with.pass().asked, 1U);
  for (const Millis pause : {1s, 2s, 3s}) {
    clock_->advance(pause - 1ms);
    EXPECT_EQ(with.pass().asked, 0U) << pause.count();
    clock_->advance(1ms);
    EXPECT_EQ(with.pass().asked, 1U) << pause.count();
  }
  EXPECT_EQ(events_, (std::vector<std::string>{"reconcile_later", "reconcile_later", "reconcile_later",
                                               "reconcile_later", "reconcile_gave_up"}));
  const RecordPtr given_up = stored();
  EXPECT_EQ(given_up->state, State::unknown);
  EXPECT_TRUE(has_given_up(*given_up));
  EXPECT_EQ(given_up->history.entries.back().why, "asked 4 times; the last answer: the service does not know");
  clock_->advance(24h);
  EXPECT_EQ(with.pass().decided, 0U);
  EXPECT_EQ(asked_.size(), 4U);
  // After a restart too.
  finding_ = Finding::happened(Result::inlined("x"));
  EXPECT_EQ(reconciler().ask(given_up).kind, Kind::gave_up);
  EXPECT_EQ(asked_.size(), 4U);
  EXPECT_EQ(events_.size(), 5U);
}

TEST_F(ReconcileTest, AsksAgainAboutALaterAttempt) {
  held();
  Reconciler with = reconciler({.settle = 0ms, .tries = 1});
  EXPECT_EQ(with.ask(stored()).kind, Kind::gave_up);
  operate::Plan plan = operate::plan_resolve(*stored(), {.as = operate::As::released}, {.by = "alice", .text = "no"},
                                             Owner{{1}}, Stamp(clock_->now(), 7));
  operate::apply(*store_, *stored(), 0, std::move(*plan.next));
  clock_->advance(1s);
  const RecordPtr again = held();
  EXPECT_FALSE(has_given_up(*again));
  finding_ = Finding::not_done();
  EXPECT_EQ(with.ask(again).kind, Kind::released);
}

TEST_F(ReconcileTest, OneQuestionForAKeyAndAFewAtOnce) {
  std::vector<Callback<void(Finding)>> open;
  Reconciler with =
      reconciler({.ask = [&](const RecordPtr&, Callback<void(Finding)> answer) { open.push_back(std::move(answer)); },
                  .settle = 0ms,
                  .at_once = 2});
  for (const char* const name : {"a", "b", "c"}) held(name);
  std::optional<ReconcilePass> passed;
  with.pass([&](ReconcilePass pass) { passed = pass; });
  EXPECT_EQ(open.size(), 2U);
  std::optional<Reconciled> same;
  with.ask(stored("a"), [&](Reconciled reconciled) { same = std::move(reconciled); });
  ASSERT_TRUE(same);
  EXPECT_EQ(same->kind, Kind::not_asked);
  EXPECT_FALSE(passed);
  std::exchange(open[0], nullptr)(Finding::not_done());
  EXPECT_EQ(open.size(), 3U);
  std::exchange(open[1], nullptr)(Finding::not_known());
  std::exchange(open[2], nullptr)(Finding::happened({}));
  ASSERT_TRUE(passed);
  EXPECT_EQ(passed->seen, 3U);
  EXPECT_EQ(passed->asked, 3U);
  EXPECT_EQ(passed->decided, 2U);
}

TEST_F(ReconcileTest, APassReadsOnePageAndTheNextOneGoesOn) {
  for (int i = 0; i < 5; ++i) held("k" + std::to_string(i));
  Reconciler with = reconciler({.settle = 0ms, .records_per_pass = 2});
  std::size_t seen = 0;
  for (int i = 0; i < 3; ++i) seen += with.pass().seen;
  EXPECT_EQ(seen, 5U);
  EXPECT_EQ(asked_.size(), 5U);
}

TEST_F(ReconcileTest, LeavesOtherStatesAlone) {
  Engine with = engine();
  const Begin running = with.begin("k");
  EXPECT_EQ(reconciler({.settle = 0ms}).ask(stored()).kind, Kind::changed);
  EXPECT_EQ(reconciler({.settle = 0ms}).pass().seen, 0U);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(ReconcileTest, AResultWithoutRoomIsDroppedAndNotRunAgain) {
  store_ = std::make_shared<testing::SmallStore>(store_);
  finding_ = Finding::happened(Result::inlined(std::string(10'000, 'x')));
  EXPECT_EQ(reconciler().ask(held()).kind, Kind::completed);
  EXPECT_EQ(stored()->result.placement, Placement::dropped);
  EXPECT_EQ(stored()->result.size, 10'000U);
}

TEST_F(ReconcileTest, RefusesOptionsOutOfRange) {
  EXPECT_THROW(Reconciler({.store = store_}), Exception);
  EXPECT_THROW(reconciler({.settle = -1ms}), Exception);
  EXPECT_THROW(reconciler({.first_pause = 2s, .longest_pause = 1s}), Exception);
  EXPECT_THROW(reconciler({.at_once = 0}), Exception);
}

}  // namespace reconcile_test

}  // namespace once
