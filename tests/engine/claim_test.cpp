// Getting a claim: round trips, lost answers, clocks.
#include <cstddef>
#include <string>

#include <once/platform/snapshot.hpp>

#include "engine_test.hpp"

namespace once::testing {
namespace claim_test {

using ClaimTest = EngineTest;

TEST_F(ClaimTest, ANewOperationTakesTwoRoundTrips) {
  auto p = process();
  auto begun = begin(p, "a");
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_EQ(begun->verdict, Verdict::execute);
  auto finish = complete(begun->claim, "done");
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_EQ(finish->record->result.bytes, "done");
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace"));
  EXPECT_THAT(p.events->names(), ElementsAre("claimed", "work_done", "completed"));
}

TEST_F(ClaimTest, AReplayTakesOneRoundTrip) {
  auto p = process();
  auto first = begin(p, "a");
  complete(first->claim, "done");
  auto other = process();
  store->forget_calls();
  auto again = begin(other, "a");
  ASSERT_EQ(again->kind, Begin::Kind::replayed);
  EXPECT_EQ(again->record->result.bytes, "done");
  EXPECT_THAT(store->calls(), ElementsAre("insert"));
  EXPECT_THAT(other.events->names(), ElementsAre("replayed"));
}

TEST_F(ClaimTest, AConflictTakesOneRoundTrip) {
  auto p = process();
  auto first = begin(p, "a");
  auto other = process();
  store->forget_calls();
  timers->advance(1s);
  auto again = begin(other, "a");
  ASSERT_EQ(again->kind, Begin::Kind::conflict);
  EXPECT_EQ(again->retry_after, 8s);
  EXPECT_EQ(again->record->owner, first->claim.owner());
  EXPECT_THAT(store->calls(), ElementsAre("insert"));
}

TEST_F(ClaimTest, ATakeoverTakesThreeRoundTrips) {
  auto p = process();
  Policy without = policy();
  without.heartbeat = false;
  auto first = begin(p, "a", without);
  auto other = process();
  store->forget_calls();
  clock->advance(9s);
  auto again = begin(other, "a");
  ASSERT_EQ(again->kind, Begin::Kind::claimed);
  EXPECT_EQ(again->verdict, Verdict::take_over);
  EXPECT_EQ(again->claim.attempt(), 2U);
  EXPECT_GT(again->claim.token(), first->claim.token());
  complete(again->claim, "done");
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace", "replace"));
  EXPECT_THAT(other.events->names(), ElementsAre("took_over", "work_done", "completed"));
}

TEST_F(ClaimTest, AnotherPayloadIsAMismatchInEveryState) {
  auto p = process();
  auto other = process();
  auto first = begin(p, "a", {}, "payload 1");
  EXPECT_EQ(begin(other, "a", {}, "payload 2")->kind, Begin::Kind::mismatch);
  EXPECT_EQ(begin(p, "a", {}, "payload 2")->kind, Begin::Kind::mismatch);
  complete(first->claim, "done");
  EXPECT_EQ(begin(other, "a", {}, "payload 2")->kind, Begin::Kind::mismatch);
  EXPECT_EQ(begin(other, "a", {}, "payload 1")->kind, Begin::Kind::replayed);
  EXPECT_EQ(begin(other, "a")->kind, Begin::Kind::replayed) << "an empty fingerprint is not checked";
}

TEST_F(ClaimTest, ALostAnswerToTheInsertIsFoundAgain) {
  auto p = process();
  store->script({Next::lose});
  auto begun = begin(p, "a");
  EXPECT_FALSE(begun.ready());
  timers->advance(1s);
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_EQ(begun->verdict, Verdict::resume);
  EXPECT_EQ(begun->claim.attempt(), 1U);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "get"));
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
  EXPECT_THAT(p.events->names(), ElementsAre("store_error", "resumed", "work_done", "completed"));
}

TEST_F(ClaimTest, AnInsertThatNeverLandedIsMadeAgain) {
  auto p = process();
  store->script({Next::drop});
  auto begun = begin(p, "a");
  timers->advance(1s);
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "get", "insert"));
}

TEST_F(ClaimTest, AnInsertThatLandsLateIsStillOurs) {
  auto p = process();
  store->script({Next::late, Next::carry_out, Next::late});
  auto begun = begin(p, "a");
  timers->advance(30ms);  // Read: nothing there yet. Inserted again: no answer to that one either.
  store->land();
  timers->advance(1s);
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_EQ(stored("a")->owner, begun->claim.owner());
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(ClaimTest, ALostAnswerToATakeoverIsFoundAgain) {
  auto p = process();
  Policy without = policy();
  without.heartbeat = false;
  auto first = begin(p, "a", without);
  clock->advance(9s);
  auto other = process();
  store->script({Next::carry_out, Next::lose});
  auto begun = begin(other, "a");
  timers->advance(1s);
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_EQ(begun->claim.attempt(), 2U);
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.bytes, "done");
}

TEST_F(ClaimTest, AStoreThatIsDownIsSaidAtOnceAndOneInDoubtAfterAWhile) {
  auto p = process();
  store->otherwise(Next::fail);
  auto down = begin(p, "a");
  ASSERT_EQ(down->kind, Begin::Kind::error);
  EXPECT_EQ(down->error.kind, ErrorKind::unavailable);
  store->script({Next::drop});
  auto doubt = begin(p, "b");
  EXPECT_FALSE(doubt.ready());
  timers->advance(5s);
  ASSERT_EQ(doubt->kind, Begin::Kind::error);
  EXPECT_EQ(doubt->error.kind, ErrorKind::in_doubt) << "the insert may still land";
  EXPECT_EQ(timers->pending(), 0U);
}

// The process was stopped between the claim and its answer, longer than the lease.
TEST_F(ClaimTest, AnAnswerThatComesAfterTheLeaseStartsNothingWhileAnotherRuns) {
  auto p = process();
  store->script({Next::stall});
  auto begun = begin(p, "a");
  clock->advance(10s);
  auto other = process();
  auto taken = begin(other, "a");
  ASSERT_EQ(taken->kind, Begin::Kind::claimed);
  store->answer_stalled();
  ASSERT_EQ(begun->kind, Begin::Kind::conflict);
  EXPECT_EQ(begun->record->owner, taken->claim.owner());
}

TEST_F(ClaimTest, AnAnswerThatComesAfterTheLeaseIsConfirmedBeforeAnythingRuns) {
  auto p = process();
  store->script({Next::stall});
  auto begun = begin(p, "a");
  clock->advance(10s);
  store->answer_stalled();
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace"));
  EXPECT_EQ(stored("a")->lease_until, manual_start + 19s);
  EXPECT_EQ(begun->claim.attempt(), 1U);
}

// The lease is stored in whole milliseconds, counted from one that is cut off.
TEST_F(ClaimTest, NothingStartsInTheLastFractionOfAMillisecond) {
  auto p = process();
  Policy second = policy();
  second.lease = 1s;
  clock->advance(900us);
  store->script({Next::stall});
  auto begun = begin(p, "a", second);
  clock->advance(999'500us);
  ASSERT_GE(clock->now(), stored("a")->lease_until) << "anybody may take it over";
  store->answer_stalled();
  EXPECT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace")) << "confirmed before anything runs";
  EXPECT_GT(stored("a")->lease_until, clock->now());
}

TEST_F(ClaimTest, ALeaseShorterThanEveryAnswerIsAnErrorThatSaysSo) {
  auto p = process();
  store->otherwise(Next::stall);
  auto begun = begin(p, "a");
  for (int i = 0; i < 20 && !begun.ready(); ++i) {
    clock->advance(10s);
    store->answer_stalled();
  }
  ASSERT_EQ(begun->kind, Begin::Kind::error);
  EXPECT_THAT(begun->error.message, HasSubstr("use a longer lease"));
}

// An operator released the claim while its answer was lost: another attempt may have it at any moment.
// 1. The insert is under way when the process is copied. 2. The copy has its answer, and renews. 3. Here it is lost.
TEST_F(ClaimTest, ACopysClaimIsAnothersThoughItShowsOurOwner) {
  auto p = process();
  store->script({Next::lose});
  Policy waits = policy();
  waits.on_conflict = OnConflict::wait;
  waits.wait = 60s;
  auto begun = begin(p, "a", waits);
  ASSERT_FALSE(begun.ready());
  const Record seen = stored("a").value();
  Record renewed = seen;
  renew(renewed, effective(policy()), Stamp(clock->now(), 7));
  ASSERT_EQ(blocking::replace(store->inner(), renewed, {seen.owner, seen.revision, 0}).status, AnswerStatus::done);
  timers->advance(1s);
  EXPECT_FALSE(begun.ready()) << "the copy has the claim";
  EXPECT_EQ(stored("a"), renewed);
  timers->advance(15s);
  ASSERT_TRUE(begun.ready());
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_EQ(begun->verdict, Verdict::take_over) << "it lapsed as anybody's";
  EXPECT_NE(begun->claim.owner(), seen.owner);
  EXPECT_EQ(begun->claim.attempt(), 2U);
}

// The copy has even finished it, with a failure that this policy executes again. That attempt is another one.
TEST_F(ClaimTest, ACopysFailureIsExecutedAgainUnderAnotherOwner) {
  auto p = process();
  store->script({Next::lose});
  Policy again = policy();
  again.on_stored_failure = OnStoredFailure::execute;
  auto begun = begin(p, "a", again);
  ASSERT_FALSE(begun.ready());
  const Record seen = stored("a").value();
  Record failed = seen;
  failed.state = State::failed;
  failed.revision = next_revision(seen.revision, 7);
  failed.lease_until = Time();
  failed.finished_at = clock->now();
  failed.expires_at = clock->now() + 1h;
  ASSERT_EQ(blocking::replace(store->inner(), failed, {seen.owner, seen.revision, 0}).status, AnswerStatus::done);
  timers->advance(1s);
  ASSERT_TRUE(begun.ready());
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_EQ(begun->verdict, Verdict::retry);
  EXPECT_EQ(begun->claim.attempt(), 2U);
  EXPECT_NE(begun->claim.owner(), seen.owner);
}

struct Kernel final : Random {
  void fill(std::span<std::uint8_t> out) noexcept override {
    std::fill(out.begin(), out.end(), gives);
    ++draws;
  }
  // Whether the record's owner and revision were drawn while it gave `byte`.
  static bool gave(std::uint8_t byte, const Record& record) {
    Owner owner;
    owner.bytes.fill(byte);
    const std::uint32_t random = byte * 0x01010101U;
    return record.owner == owner &&
           record.revision == next_revision(record.revision - (std::uint64_t{1} << 20U), random);
  }
  std::uint8_t gives = 1;
  unsigned draws = 0;
};

// Each draw is a system call. Two for a call that ran, and none that is kept for later.
TEST_F(ClaimTest, ACallDrawsOnceForItsClaimAndOnceForItsFinish) {
  auto kernel = std::make_shared<Kernel>();
  auto p = process([&](EngineOptions& o) { o.random = kernel; });
  kernel->draws = 0;
  auto begun = begin(p, "a");
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_EQ(kernel->draws, 1U);
  EXPECT_TRUE(Kernel::gave(1, stored("a").value()));
  kernel->gives = 2;
  const std::uint64_t claimed = begun->claim.record().revision;
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
  EXPECT_EQ(kernel->draws, 2U);
  EXPECT_EQ(stored("a")->revision, next_revision(claimed, 0x02020202U));
}

// So a copy of the process that was made while they waited claims under other owners.
TEST_F(ClaimTest, CallersThatWaitedDrawTheirOwnersWhenTheyClaim) {
  Policy waits = policy();
  waits.on_conflict = OnConflict::wait;
  waits.wait = 60s;
  waits.heartbeat = false;
  auto other = process();
  auto held = begin(other, "a", waits);
  auto kernel = std::make_shared<Kernel>();
  auto p = process([&](EngineOptions& o) { o.random = kernel; });
  auto first = begin(p, "a", waits);
  auto second = begin(p, "a", waits);
  timers->advance(1s);
  ASSERT_FALSE(first.ready());
  kernel->gives = 2;
  timers->advance(15s);
  ASSERT_TRUE(first.ready());
  ASSERT_EQ(first->kind, Begin::Kind::claimed);
  EXPECT_EQ(first->verdict, Verdict::take_over);
  EXPECT_TRUE(Kernel::gave(2, stored("a").value()));
  kernel->gives = 3;
  ASSERT_FALSE(second.ready());
  Slot<Finish> released;
  first->claim.release("no", released.fill());
  timers->advance(1s);
  ASSERT_TRUE(second.ready());
  ASSERT_EQ(second->kind, Begin::Kind::claimed);
  EXPECT_TRUE(Kernel::gave(3, stored("a").value()));
}

// The same of one that reads first, as its process has the key: the read takes its time.
TEST_F(ClaimTest, ACallerThatReadsFirstDrawsItsOwnerAfterIt) {
  auto kernel = std::make_shared<Kernel>();
  auto p = process([&](EngineOptions& o) { o.random = kernel; });
  Policy without = policy();
  without.heartbeat = false;
  auto held = begin(p, "a", without);
  clock->advance(20s);
  kernel->gives = 2;
  store->script({Next::stall});
  auto again = begin(p, "a", without);
  ASSERT_FALSE(again.ready());
  EXPECT_EQ(store->calls().back(), "get");
  kernel->gives = 3;
  store->answer_stalled();
  ASSERT_TRUE(again.ready());
  ASSERT_EQ(again->kind, Begin::Kind::claimed);
  EXPECT_TRUE(Kernel::gave(3, stored("a").value()));
}

TEST_F(ClaimTest, AResumedClaimThatAnOperatorReleasedIsLeasedAnew) {
  auto p = process();
  store->script({Next::lose});
  auto begun = begin(p, "a");
  operate("a", [](Record r) {
    release(r, "by hand", effective(policy()), Stamp(manual_start, 0));
    return r;
  });
  timers->advance(1s);
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_GT(stored("a")->lease_until, manual_start + 9s);
}

// The store tells its time only in answers, and this machine's clock is wrong.
class WrongClock : public EngineTest, public ::testing::WithParamInterface<Millis> {
 protected:
  WrongClock() {
    store->tells = ScriptStore::Tells::in_answers;
    store->default_skew = 2s;
  }
  Process wrong_process() {
    return process([&](EngineOptions& o) {
      wrong = std::make_shared<DriftingClock>(clock, 0, GetParam());
      o.clock = wrong;
    });
  }
  std::shared_ptr<DriftingClock> wrong;
};

TEST_P(WrongClock, ItsFirstClaimIsCountedAnewBeforeAnythingRuns) {
  auto p = wrong_process();
  auto begun = begin(p, "a");
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace"));
  EXPECT_EQ(stored("a")->lease_until, manual_start + 9s);
  EXPECT_EQ(stored("a")->expires_at, manual_start + 1h);
  auto second = begin(p, "b");
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace", "insert")) << "the time is known now";
  EXPECT_EQ(stored("b")->lease_until, manual_start + 9s);
}

// Its uptime may have stood still while the snapshot lay on a disk.
TEST_P(WrongClock, LearnsTheTimeAnewAfterASnapshot) {
  auto p = wrong_process();
  begin(p, "learns");
  for (const auto& happens : {&before_snapshot, &after_restore}) {
    const std::string key = happens == &before_snapshot ? "a" : "b";
    std::size_t calls = store->calls().size();
    auto known = begin(p, key + "1");
    EXPECT_EQ(store->calls().size() - calls, 1U);
    happens();
    calls = store->calls().size();
    auto anew = begin(p, key + "2");
    EXPECT_EQ(store->calls().size() - calls, 2U) << "counted anew, as the first claim of a process is";
    EXPECT_EQ(stored(key + "2")->lease_until, manual_start + 9s);
  }
}

TEST_P(WrongClock, ACorrectionWhoseAnswerIsLostIsNotForgotten) {
  for (const Next fault : {Next::drop, Next::lose, Next::fail}) {
    const std::string key = "a" + std::to_string(static_cast<int>(fault));
    auto p = wrong_process();
    store->script({Next::carry_out, fault});
    const Time now = clock->now();
    auto begun = begin(p, key);
    timers->advance(1s);
    ASSERT_EQ(begun->kind, Begin::Kind::claimed);
    EXPECT_GE(stored(key)->lease_until, now + 9s);
    EXPECT_LE(stored(key)->lease_until, now + 11s);
  }
}

TEST_P(WrongClock, ItStealsNoLiveClaim) {
  auto right = process();
  auto held = begin(right, "a");
  auto p = wrong_process();
  auto begun = begin(p, "a");
  ASSERT_EQ(begun->kind, Begin::Kind::conflict);
  EXPECT_GE(begun->retry_after, 11s) << "the lease and the skew";
  EXPECT_LE(begun->retry_after, 11s + 10ms);
  complete(held->claim, "done");
  EXPECT_EQ(begin(p, "a")->kind, Begin::Kind::replayed);
}

TEST_P(WrongClock, ItLosesNoClaim) {
  auto p = wrong_process();
  auto held = begin(p, "a");
  auto right = process();
  EXPECT_EQ(begin(right, "a")->kind, Begin::Kind::conflict);
  for (int i = 0; i < 30; ++i) timers->advance(1s);  // Heartbeats.
  EXPECT_EQ(begin(right, "a")->kind, Begin::Kind::conflict);
  EXPECT_FALSE(held->claim.stop_token().stop_requested());
  EXPECT_EQ(complete(held->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_P(WrongClock, ItsJumpsMoveNoLease) {
  auto p = process([&](EngineOptions& o) {
    wrong = std::make_shared<DriftingClock>(clock, 0);
    o.clock = wrong;
  });
  auto held = begin(p, "a");
  wrong->jump(GetParam());
  timers->advance(3s);
  EXPECT_EQ(stored("a")->lease_until, manual_start + 12s);
  auto second = begin(p, "b");
  EXPECT_EQ(stored("b")->lease_until, manual_start + 12s);
}

INSTANTIATE_TEST_SUITE_P(Offsets, WrongClock,
                         ::testing::Values(Millis{5'000}, Millis{-5'000}, Millis{3'600'000}, Millis{-3'600'000}),
                         [](const auto& test) {
                           return (test.param.count() < 0 ? "behind" : "ahead") +
                                  std::to_string(std::abs(test.param.count())) + "ms";
                         });

// The store's own clock is set while engines run: by hand, or because another machine took over its work.
class SetClock : public ClaimTest, public ::testing::WithParamInterface<Millis> {
 protected:
  SetClock() { store->tells = ScriptStore::Tells::in_answers; }
  Process warm_process() {
    auto p = process();
    auto begun = begin(p, "warm");
    complete(begun->claim, "the store's time is known now");
    return p;
  }
};

TEST_P(SetClock, ANewClaimIsCountedAnewBeforeAnythingRuns) {
  auto p = warm_process();
  store->told_off = GetParam();
  auto begun = begin(p, "a");
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_EQ(stored("a")->lease_until, clock->now() + GetParam() + 9s);
  EXPECT_TRUE(begun->claim.is_ours());
}

// Another claim's answers tell of it while this one is on its way.
TEST_P(SetClock, AClaimUnderWayIsCountedAnewAsWell) {
  auto p = warm_process();
  store->script({Next::block});
  auto begun = begin(p, "a");
  store->told_off = GetParam();
  auto second = begin(p, "b");
  store->script({Next::block});
  second->claim.heartbeat();
  for (const char* const key : {"c", "d", "e"}) begin(p, key);
  store->answer_stalled();
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  for (const char* const key : {"a", "b"}) {
    EXPECT_GE(stored(key)->lease_until, clock->now() + GetParam() + 9s) << key;
  }
  EXPECT_TRUE(begun->claim.is_ours());
  EXPECT_TRUE(second->claim.is_ours());
}

TEST_P(SetClock, AHeldClaimIsCountedAnewByItsNextRenewal) {
  auto p = warm_process();
  auto held = begin(p, "a");
  store->told_off = GetParam();
  timers->advance(3s);
  EXPECT_GE(stored("a")->lease_until, clock->now() + GetParam() + 9s);
  EXPECT_GT(held->claim.deadline(), clock->uptime() + 8s);
  timers->advance(1min);
  EXPECT_EQ(p.events->count(EventKind::renewal_lost), 0U);
  EXPECT_EQ(complete(held->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_P(SetClock, OneFalseAnswerStopsNoWork) {
  auto p = warm_process();
  auto held = begin(p, "a");
  store->before_next_write([this](Store&) {
    store->told_off = GetParam();
    store->before_next_write([this](Store&) { store->told_off = Millis{0}; });
  });
  timers->advance(3s);
  EXPECT_TRUE(held->claim.is_ours());
  EXPECT_GT(held->claim.deadline(), clock->uptime() + 8s);
  timers->advance(1min);
  EXPECT_EQ(p.events->count(EventKind::renewal_lost), 0U);
}

// Answers that agree with nothing, least of all with each other, must not make it write without end.
TEST_P(SetClock, AStoreThatNeverAgreesWithItselfIsNotAskedWithoutEnd) {
  auto p = warm_process();
  auto held = begin(p, "a");
  std::function<void(Store&)> set = [this, &set](Store&) {
    store->told_off = store->told_off * 2 + GetParam();
    store->before_next_write(set);
  };
  set(*store);
  store->forget_calls();
  timers->advance(3s);
  EXPECT_LE(store->calls().size(), 6U);
  store->before_next_write(nullptr);
}

INSTANTIATE_TEST_SUITE_P(Offsets, SetClock, ::testing::Values(Millis{20'000}, Millis{-20'000}, Millis{3'600'000}),
                         [](const auto& test) {
                           return (test.param.count() < 0 ? "back" : "forward") +
                                  std::to_string(std::abs(test.param.count())) + "ms";
                         });

// Between reading the time and sending what was counted from it this process may be stopped: here by the random bits.
TEST_F(ClaimTest, ATakeoversLeaseIsTrustedFromWhenItsTimesWereRead) {
  auto p = process();
  Policy without = policy();
  without.heartbeat = false;
  auto first = begin(p, "a", without);
  clock->advance(9s);
  struct Stopping final : Random {
    explicit Stopping(ManualClock& by) : clock(by) {}
    void fill(std::span<std::uint8_t> out) noexcept override {
      inner.fill(out);
      if (out.size() == sizeof(Owner) + sizeof(Stamp::random)) clock.advance(2s);
    }
    ManualClock& clock;
    SeededRandom inner{7};
  };
  auto other = process([&](EngineOptions& o) { o.random = std::make_shared<Stopping>(*clock); });
  auto taken = begin(other, "a", without);
  ASSERT_EQ(taken->verdict, Verdict::take_over);
  EXPECT_LE(taken->claim.deadline() - clock->uptime(), stored("a")->lease_until - clock->now());
}

TEST_F(ClaimTest, SkewKeepsATakeoverAwayAndStopsTheHolderEarlier) {
  store->default_skew = 2s;
  auto p = process();
  auto held = begin(p, "a");
  const Uptime start = clock->uptime();
  EXPECT_LE(held->claim.deadline(), start + 9s - 2s - 1ms);
  EXPECT_GE(held->claim.deadline(), start + 9s - 2s - 3ms) << "200 ppm for clocks that drift, and 1 ms that is cut off";
  store->otherwise(Next::fail);
  timers->advance(10s);
  EXPECT_TRUE(held->claim.stop_token().stop_requested());
  store->otherwise(Next::carry_out);
  auto other = process();
  EXPECT_EQ(begin(other, "a")->kind, Begin::Kind::conflict) << "for the skew";
  clock->advance(1s);
  EXPECT_EQ(begin(other, "a")->kind, Begin::Kind::claimed);
}

TEST_F(ClaimTest, ASkewLongerThanTheLeaseLeavesAUsableClaim) {
  store->default_skew = 20s;
  auto p = process();
  auto held = begin(p, "a");
  ASSERT_EQ(held->kind, Begin::Kind::claimed);
  EXPECT_GT(held->claim.deadline(), clock->uptime() + 6s);
}

TEST_F(ClaimTest, AVagueClockIsTakenOffTheTrust) {
  store->tells = ScriptStore::Tells::in_answers;
  store->told_error = 3s;
  auto p = process();
  auto held = begin(p, "a");
  EXPECT_LE(held->claim.deadline(), clock->uptime() + 6s);
  auto other = process();
  EXPECT_EQ(begin(other, "a")->kind, Begin::Kind::conflict);
  clock->advance(11s);
  EXPECT_EQ(begin(other, "a")->kind, Begin::Kind::conflict) << "it may be 3 s earlier";
  clock->advance(2s);
  EXPECT_EQ(begin(other, "a")->kind, Begin::Kind::claimed);
}

TEST_F(ClaimTest, UnderHoldALapsedClaimBecomesUnknownForGood) {
  Policy hold = policy();
  hold.on_lapse = OnLapse::hold;
  hold.heartbeat = false;
  auto p = process();
  auto held = begin(p, "a", hold);
  clock->advance(24h * 365);
  auto other = process();
  auto begun = begin(other, "a", hold);
  ASSERT_EQ(begun->kind, Begin::Kind::unknown);
  EXPECT_THAT(begun->record->failure.message, HasSubstr("host:1"));
  EXPECT_EQ(stored("a")->state, State::unknown);
  EXPECT_EQ(begin(other, "a")->kind, Begin::Kind::unknown) << "whatever the policy";
  EXPECT_EQ(complete(held->claim, "late")->kind, Finish::Kind::lost);
  EXPECT_EQ(stored("a")->state, State::unknown);
}

TEST_F(ClaimTest, AStoredFailureIsReplayedOrTriedAgain) {
  auto p = process();
  auto first = begin(p, "a");
  Slot<Finish> finish;
  first->claim.fail({.code = "declined", .message = "no money"}, {}, finish.fill());
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
  auto again = begin(p, "a");
  ASSERT_EQ(again->kind, Begin::Kind::stored_failure);
  EXPECT_EQ(again->record->failure.code, "declined");
  Policy retry = policy();
  retry.on_stored_failure = OnStoredFailure::execute;
  auto third = begin(p, "a", retry);
  ASSERT_EQ(third->kind, Begin::Kind::claimed);
  EXPECT_EQ(third->verdict, Verdict::retry);
  EXPECT_EQ(third->claim.attempt(), 2U);
}

TEST_F(ClaimTest, BadRequestsAreRefusedByName) {
  auto p = process();
  Policy bad = policy();
  bad.lease = 1ms;
  try {
    begin(p, "a", bad);
    FAIL();
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_THAT(error.what(), HasSubstr("lease"));
  }
  EXPECT_THROW(Engine({}), Exception);
}

}  // namespace claim_test
}  // namespace once::testing
