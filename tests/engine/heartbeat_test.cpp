// Keeping a lease alive, and finding out that it is lost.
#include "engine_test.hpp"

namespace once::testing {
namespace heartbeat_test {

using HeartbeatTest = EngineTest;

TEST_F(HeartbeatTest, RenewsAtAThirdOfTheLease) {
  auto p = process();
  auto begun = begin(p, "a");
  timers->advance(2'999ms);
  EXPECT_EQ(p.events->count(EventKind::renewed), 0U);
  timers->advance(1ms);
  EXPECT_EQ(p.events->count(EventKind::renewed), 1U);
  EXPECT_EQ(stored("a")->lease_until, manual_start + 12s);
  EXPECT_GT(begun->claim.deadline(), clock->uptime() + 8'900ms) << "moves along";
  timers->advance(9s);
  EXPECT_EQ(p.events->count(EventKind::renewed), 4U);
  complete(begun->claim, "done");
  timers->advance(1min);
  EXPECT_EQ(p.events->count(EventKind::renewed), 4U);
  EXPECT_EQ(timers->pending(), 0U);
}

TEST_F(HeartbeatTest, ACompletionThatTakesLongStopsNeitherHeartbeatsNorAFinish) {
  auto p = process();
  auto begun = begin(p, "a");
  Claim& claim = begun->claim;
  store->script({Next::stall});
  Slot<Finish> finish;
  bool stopped = false;
  bool finished = false;
  claim.add_step("one", "1", [&](const Finish&) {
    timers->advance(30s);
    stopped = claim.stop_token().stop_requested();
    claim.complete(Result::inlined("done"), finish.fill());
    finished = finish.ready();
  });
  claim.heartbeat("half way");  // To be written after the step, so after its completion.
  store->answer_stalled();
  EXPECT_FALSE(stopped) << "nothing was renewed for 30 s";
  EXPECT_TRUE(finished);
  EXPECT_EQ(stored("a")->note, "half way");
  EXPECT_EQ(stored("a")->result.bytes, "done");
}

TEST_F(HeartbeatTest, OneTimerServesManyClaims) {
  auto p = process();
  std::vector<Slot<Begin>> claims;
  for (int i = 0; i < 100; ++i) claims.push_back(begin(p, "k" + std::to_string(i)));
  EXPECT_EQ(timers->pending(), 1U);
  timers->advance(30s);
  EXPECT_EQ(p.events->count(EventKind::renewed), 1'000U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(complete(claims[i]->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(HeartbeatTest, IsTriedAgainUntilTheLeaseNearsItsEnd) {
  auto p = process();
  auto begun = begin(p, "a");
  const std::stop_token stop = begun->claim.stop_token();
  store->otherwise(Next::fail);
  timers->advance(8'900ms);
  EXPECT_FALSE(stop.stop_requested());
  EXPECT_GT(p.events->count(EventKind::store_error), 5U);
  timers->advance(99ms);
  EXPECT_TRUE(stop.stop_requested());
  EXPECT_EQ(p.events->count(EventKind::renewal_lost), 1U);
  timers->advance(1min);
  EXPECT_EQ(p.events->count(EventKind::renewal_lost), 1U) << "told once";
}

TEST_F(HeartbeatTest, AFailedRenewalThatSucceedsInTimeIsNoLoss) {
  auto p = process();
  auto begun = begin(p, "a");
  store->otherwise(Next::fail);
  timers->advance(6s);
  store->otherwise(Next::carry_out);
  timers->advance(3s);
  EXPECT_FALSE(begun->claim.stop_token().stop_requested());
  EXPECT_EQ(p.events->count(EventKind::renewal_lost), 0U);
  EXPECT_GT(stored("a")->lease_until, clock->now() + 5s);
}

TEST_F(HeartbeatTest, ARenewalThatHangsStopsTheWorkAtTheEndOfTheLease) {
  auto p = process();
  auto begun = begin(p, "a");
  const std::stop_token stop = begun->claim.stop_token();
  store->otherwise(Next::block);
  timers->advance(8'900ms);
  EXPECT_FALSE(stop.stop_requested());
  timers->advance(100ms);
  EXPECT_TRUE(stop.stop_requested());
  EXPECT_EQ(p.events->count(EventKind::renewal_lost), 1U);
  store->answer_stalled();
}

TEST_F(HeartbeatTest, WithoutAHeartbeatTheWorkIsStoppedAtTheEndOfTheLease) {
  auto p = process();
  Policy quiet = policy();
  quiet.heartbeat = false;
  auto begun = begin(p, "a", quiet);
  timers->advance(8'900ms);
  EXPECT_FALSE(begun->claim.stop_token().stop_requested());
  timers->advance(100ms);
  EXPECT_TRUE(begun->claim.stop_token().stop_requested());
  EXPECT_THAT(store->calls(), ElementsAre("insert"));
  EXPECT_EQ(complete(begun->claim, "late but alone")->kind, Finish::Kind::recorded) << "nobody took it over";
}

TEST_F(HeartbeatTest, NothingProlongsAFixedLease) {
  auto p = process();
  Policy fixed = policy();
  fixed.fixed_lease = true;
  auto begun = begin(p, "a", fixed);
  const Uptime deadline = begun->claim.deadline();
  timers->advance(8s);
  EXPECT_EQ(begun->claim.add_step("charge", "ch_1").kind, Finish::Kind::recorded);
  begun->claim.heartbeat("nearly there");
  EXPECT_EQ(stored("a")->lease_until, manual_start + 9s);
  EXPECT_EQ(stored("a")->note, "nearly there");
  EXPECT_EQ(begun->claim.deadline(), deadline);
  EXPECT_FALSE(begun->claim.stop_token().stop_requested());
  timers->advance(1s);
  EXPECT_TRUE(begun->claim.stop_token().stop_requested());

  auto other = process();
  auto next = begin(other, "a", fixed);
  EXPECT_EQ(next->kind, Begin::Kind::claimed) << "as soon as the first lease is over";
  EXPECT_EQ(next->claim.step("charge"), "ch_1");
  EXPECT_EQ(complete(begun->claim, "late")->kind, Finish::Kind::lost);
  EXPECT_EQ(complete(next->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(HeartbeatTest, ATakeoverStopsTheWork) {
  auto p = process();
  auto begun = begin(p, "a");
  bool called = false;
  const std::stop_callback callback(begun->claim.stop_token(), [&] { called = true; });
  clock->advance(9s);  // The process was stopped: its timers come late.
  auto other = process();
  auto taken = begin(other, "a");
  ASSERT_EQ(taken->kind, Begin::Kind::claimed);
  timers->advance(1ms);
  EXPECT_TRUE(called);
  EXPECT_EQ(p.events->count(EventKind::renewal_lost), 1U);
  EXPECT_EQ(complete(taken->claim, "done")->kind, Finish::Kind::recorded);
}

// The host sleeps longer than the lease. Nobody else exists.
TEST_F(HeartbeatTest, AClaimGoesOnAfterASleep) {
  auto p = process();
  auto begun = begin(p, "a");
  Claim& claim = begun->claim;
  const std::stop_token told = claim.stop_token();
  const std::stop_token loss = claim.loss_token();
  clock->advance(1h);
  timers->advance(1ms);
  EXPECT_TRUE(told.stop_requested()) << "another attempt might have run";
  EXPECT_FALSE(loss.stop_requested());
  EXPECT_TRUE(claim.is_ours());
  timers->advance(1min);
  EXPECT_TRUE(claim.is_ours());
  EXPECT_GE(p.events->count(EventKind::renewed), 20U);
  EXPECT_EQ(complete(claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(HeartbeatTest, WorkThatAsksAfterTheSleepGoesOn) {
  auto p = process();
  auto begun = begin(p, "a");
  clock->advance(1h);
  timers->advance(1ms);
  EXPECT_FALSE(begun->claim.stop_token().stop_requested());
  EXPECT_FALSE(begun->claim.loss_token().stop_requested());
}

TEST_F(HeartbeatTest, AClaimThatAnotherTookDuringTheSleepIsLost) {
  auto p = process();
  auto begun = begin(p, "a");
  const std::stop_token loss = begun->claim.loss_token();
  clock->advance(1h);
  auto other = process();
  auto taken = begin(other, "a");
  ASSERT_EQ(taken->kind, Begin::Kind::claimed);
  timers->advance(1ms);
  EXPECT_TRUE(loss.stop_requested());
  EXPECT_TRUE(begun->claim.loss_token().stop_requested());
  EXPECT_FALSE(taken->claim.loss_token().stop_requested());
}

TEST_F(HeartbeatTest, AfterASleepRenewalsAreTriedForOneLease) {
  auto p = process();
  auto begun = begin(p, "a");
  const std::stop_token loss = begun->claim.loss_token();
  store->otherwise(Next::fail);  // The network is not back yet.
  clock->advance(1h);
  timers->advance(8'900ms);
  EXPECT_FALSE(loss.stop_requested());
  EXPECT_GT(p.events->count(EventKind::store_error), 5U) << "tried again with a backoff, not at each heartbeat";
  timers->advance(200ms);
  EXPECT_TRUE(loss.stop_requested());
  EXPECT_TRUE(begun->claim.loss_token().stop_requested());
  store->otherwise(Next::carry_out);
  timers->advance(1h);
  EXPECT_EQ(p.events->count(EventKind::renewed), 0U);
  EXPECT_EQ(complete(begun->claim, "late but alone")->kind, Finish::Kind::recorded);
}

TEST_F(HeartbeatTest, AClaimGoesOnIfTheNetworkComesBackInTime) {
  auto p = process();
  auto begun = begin(p, "a");
  const std::stop_token loss = begun->claim.loss_token();
  store->otherwise(Next::fail);
  clock->advance(1h);
  timers->advance(5s);
  EXPECT_FALSE(begun->claim.is_ours());
  store->otherwise(Next::carry_out);
  timers->advance(1s);  // The longest backoff.
  EXPECT_TRUE(begun->claim.is_ours());
  timers->advance(1min);
  EXPECT_FALSE(loss.stop_requested());
  EXPECT_TRUE(begun->claim.is_ours());
}

TEST_F(HeartbeatTest, WithoutAHeartbeatTheLossIsForGood) {
  auto p = process();
  Policy quiet = policy();
  quiet.heartbeat = false;
  auto begun = begin(p, "a", quiet);
  const std::stop_token loss = begun->claim.loss_token();
  timers->advance(9s);
  EXPECT_TRUE(loss.stop_requested());
  EXPECT_TRUE(begun->claim.loss_token().stop_requested());
}

TEST_F(HeartbeatTest, AStepRenewsAsWell) {
  auto p = process();
  auto begun = begin(p, "a");
  timers->advance(2s);
  Slot<Finish> step;
  begun->claim.add_step("one", "1", step.fill());
  EXPECT_EQ(stored("a")->lease_until, manual_start + 11s);
  timers->advance(2'900ms);
  EXPECT_EQ(p.events->count(EventKind::renewed), 0U) << "a third after the step";
  timers->advance(100ms);
  EXPECT_EQ(p.events->count(EventKind::renewed), 1U);
}

TEST_F(HeartbeatTest, GoesOnWhileAResultIsOffloaded) {
  struct Slow final : Offload {
    void put(std::string, std::string, Callback<void(OffloadAnswer)> d) override { done = std::move(d); }
    void get(std::string, Callback<void(OffloadAnswer)>) override {}
    void remove(std::string, Callback<void(OffloadAnswer)>) override {}
    Callback<void(OffloadAnswer)> done;
  };
  const auto slow = std::make_shared<Slow>();
  auto p = process([&](EngineOptions& o) {
    o.offload = slow;
    o.policy.max_inline_bytes = 1;
  });
  auto begun = begin(p, "a");
  auto finish = complete(begun->claim, "larger");
  timers->advance(30s);
  EXPECT_EQ(p.events->count(EventKind::renewed), 10U);
  slow->done({"place", {}});
  slow->done = nullptr;
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.location, "place");
}

}  // namespace heartbeat_test
}  // namespace once::testing
