// Claims that are taken up by their key and their owner.
#include <functional>
#include <latch>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <once/engine/within_invocation.hpp>

#include "engine_test.hpp"

namespace once::testing {
namespace attach_test {

class AttachTest : public EngineTest {
 protected:
  static Slot<Attached> attach(const Process& p, std::string_view key, Owner owner, std::optional<Policy> with = {},
                               std::string_view payload = {}) {
    Slot<Attached> slot;
    p.engine->attach(request(key, std::move(with), payload), owner, slot.fill());
    return slot;
  }
  // By a process that dies: its handle is dropped, and the claim stays in the store.
  Owner claim_and_die(std::string_view key, std::optional<Policy> with = {}, std::string_view payload = {}) {
    auto p = process();
    auto begun = begin(p, key, std::move(with), payload);
    EXPECT_EQ(begun->kind, Begin::Kind::claimed);
    Slot<Finish> step;
    begun->claim.add_step("first", "1", step.fill());
    EXPECT_EQ(step->kind, Finish::Kind::recorded);
    return begun->claim.owner();
  }
  void do_elsewhere(std::string_view key, std::string result, std::string_view payload = {}) {
    auto other = process();
    auto begun = begin(other, key, {}, payload);
    ASSERT_EQ(begun->kind, Begin::Kind::claimed);
    EXPECT_EQ(complete(begun->claim, std::move(result))->kind, Finish::Kind::recorded);
  }
  void run_until(const auto& slot) {
    for (int i = 0; i < 100 && !slot.ready(); ++i) timers->run_next();
  }
};

TEST_F(AttachTest, AnotherProcessGoesOnWithTheClaim) {
  const Owner owner = claim_and_die("a");
  const Record before = stored("a").value();
  clock->advance(5s);
  auto p = process([](EngineOptions& options) { options.holder = "host:2"; });
  store->forget_calls();
  auto attached = attach(p, "a", owner);
  ASSERT_TRUE(attached->claim);
  EXPECT_THAT(store->calls(), ElementsAre("get", "replace"));
  EXPECT_THAT(p.events->names(), ElementsAre("resumed"));
  const Record now = stored("a").value();
  EXPECT_EQ(now.owner, owner);
  EXPECT_EQ(now.token, before.token);
  EXPECT_EQ(now.attempt, 1U);
  EXPECT_EQ(now.created_at, before.created_at);
  EXPECT_EQ(now.lease_until, clock->now() + 9s);
  EXPECT_EQ(now.holder, "host:2");
  EXPECT_EQ(attached->claim.token(), before.token);
  EXPECT_EQ(attached->claim.step("first"), "1");
  EXPECT_TRUE(attached->claim.is_ours());
  EXPECT_EQ(complete(attached->claim, "done")->kind, Finish::Kind::recorded);
  EXPECT_EQ(begin(p, "a")->record->result.bytes, "done");
}

// Elsewhere the second write after an insert gives the token anew, when a clock was wrong. Here the work has used it.
TEST_F(AttachTest, TheTokenStaysAlsoAtTheFirstRenewal) {
  auto first = process();
  auto begun = begin(first, "a");
  const std::uint64_t token = begun->claim.token();
  clock->advance(2s);
  auto p = process();
  auto attached = attach(p, "a", begun->claim.owner());
  ASSERT_TRUE(attached->claim);
  EXPECT_EQ(attached->claim.token(), token);
  EXPECT_EQ(stored("a")->token, token);
}

TEST_F(AttachTest, TheClaimIsRenewedFromThenOn) {
  const Owner owner = claim_and_die("a");
  auto p = process();
  auto attached = attach(p, "a", owner);
  ASSERT_TRUE(attached->claim);
  timers->advance(20s);
  EXPECT_TRUE(attached->claim.is_ours());
  EXPECT_GT(stored("a")->lease_until, clock->now());
  EXPECT_EQ(begin(process(), "a")->kind, Begin::Kind::conflict);
}

TEST_F(AttachTest, AClaimWhoseLeaseEndedGoesOnIfNobodyTookIt) {
  for (const OnLapse on_lapse : {OnLapse::takeover, OnLapse::hold}) {
    const std::string key = on_lapse == OnLapse::hold ? "held" : "taken over";
    Policy with = policy();
    with.on_lapse = on_lapse;
    const Owner owner = claim_and_die(key, with);
    clock->advance(1min);
    auto p = process();
    auto attached = attach(p, key, owner, with);
    ASSERT_TRUE(attached->claim) << key;
    EXPECT_EQ(complete(attached->claim, "done")->kind, Finish::Kind::recorded);
  }
}

TEST_F(AttachTest, UnderHoldAnotherCallAfterTheLeaseEndsIt) {
  Policy with = policy();
  with.on_lapse = OnLapse::hold;
  const Owner owner = claim_and_die("a", with);
  clock->advance(1min);
  EXPECT_EQ(begin(process(), "a")->kind, Begin::Kind::unknown);
  auto p = process();
  auto attached = attach(p, "a", owner, with);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::lost);
  EXPECT_EQ(attached->finish.record->state, State::unknown);
  EXPECT_THAT(p.events->names(), ElementsAre("unknown"));
}

TEST_F(AttachTest, AFixedLeaseIsCountedAnew) {
  Policy with = policy();
  with.heartbeat = false;
  with.fixed_lease = true;
  const Owner owner = claim_and_die("a", with);
  clock->advance(5s);
  auto p = process();
  auto attached = attach(p, "a", owner, with);
  ASSERT_TRUE(attached->claim);
  EXPECT_EQ(stored("a")->lease_until, clock->now() + 9s);
  EXPECT_TRUE(attached->claim.is_ours());
}

TEST_F(AttachTest, AnOperatorsLongerLeaseIsKept) {
  const Owner owner = claim_and_die("a");
  operate("a", [&](Record record) {
    record.revision += 1U << 20U;
    record.lease_until = clock->now() + 1h;
    record.expires_at = record.lease_until + 1h;
    return record;
  });
  auto p = process();
  auto attached = attach(p, "a", owner);
  ASSERT_TRUE(attached->claim);
  EXPECT_EQ(stored("a")->lease_until, clock->now() + 1h);
}

TEST_F(AttachTest, WhatAnotherAttemptHasIsLost) {
  const Owner owner = claim_and_die("a");
  clock->advance(10s);
  auto other = process();
  auto begun = begin(other, "a");
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  auto p = process();
  auto attached = attach(p, "a", owner);
  EXPECT_FALSE(attached->claim);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::lost);
  EXPECT_EQ(attached->finish.record->owner, begun->claim.owner());
  complete(begun->claim, "theirs");
  auto late = attach(p, "a", owner);
  EXPECT_EQ(late->finish.kind, Finish::Kind::superseded);
  EXPECT_EQ(late->finish.record->result.bytes, "theirs");
  EXPECT_THAT(p.events->names(), ElementsAre("conflict", "replayed"));
}

TEST_F(AttachTest, TheResultOfAnotherPayloadIsNotItsOwn) {
  Policy brief = policy();
  brief.retention = 1s;
  const Owner owner = claim_and_die("a", brief, "payload 1");
  auto attached = attach(process(), "a", owner, brief, "payload 1");
  ASSERT_TRUE(attached->claim);
  attached->claim = Claim();
  clock->advance(1min);
  do_elsewhere("a", "theirs", "payload 2");
  EXPECT_EQ(attach(process(), "a", owner, brief, "payload 1")->finish.kind, Finish::Kind::lost);
}

TEST_F(AttachTest, ALaterLossComparesThePayloadThatIsStored) {
  Policy brief = policy();
  brief.retention = 1s;
  brief.heartbeat = false;
  const Owner owner = claim_and_die("a", brief, "payload 1");
  auto p = process();
  auto attached = attach(p, "a", owner, brief);
  ASSERT_TRUE(attached->claim);
  clock->advance(1min);
  do_elsewhere("a", "theirs", "payload 2");
  EXPECT_EQ(complete(attached->claim, "late")->kind, Finish::Kind::lost);
}

TEST_F(AttachTest, ItMakesNoClaimOfWhatIsNotThere) {
  auto p = process();
  EXPECT_EQ(attach(p, "nothing", Owner{})->finish.kind, Finish::Kind::lost);
  EXPECT_FALSE(stored("nothing"));
  const Owner owner = claim_and_die("expired");
  clock->advance(24h);
  EXPECT_EQ(attach(p, "expired", owner)->finish.kind, Finish::Kind::lost);
  auto begun = begin(p, "released");
  Slot<Finish> step;
  begun->claim.add_step("first", "1", step.fill());
  Slot<Finish> released;
  begun->claim.release("stopped", released.fill());
  ASSERT_EQ(released->kind, Finish::Kind::recorded);
  store->forget_calls();
  EXPECT_EQ(attach(p, "released", begun->claim.owner())->finish.kind, Finish::Kind::lost);
  EXPECT_THAT(store->calls(), ElementsAre("get"));
}

TEST_F(AttachTest, WhatIsRemovedMeanwhileIsNotClaimedAgain) {
  const Owner owner = claim_and_die("a");
  store->before_next_write([&](Store& inner) {
    const Record seen = stored("a").value();
    ASSERT_EQ(blocking::remove(inner, seen.key, {seen.owner, seen.revision, 0}).status, AnswerStatus::done);
  });
  auto p = process();
  EXPECT_EQ(attach(p, "a", owner)->finish.kind, Finish::Kind::lost);
  EXPECT_FALSE(stored("a"));
}

TEST_F(AttachTest, WhatThisOwnerFinishedIsRecorded) {
  auto first = process();
  auto begun = begin(first, "a");
  const Owner owner = begun->claim.owner();
  complete(begun->claim, "done");
  auto failing = begin(first, "b");
  const Owner failed_owner = failing->claim.owner();
  Slot<Finish> failed;
  failing->claim.fail({.code = "declined", .message = "no"}, {}, failed.fill());
  auto p = process();
  auto attached = attach(p, "a", owner);
  EXPECT_FALSE(attached->claim);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::recorded);
  EXPECT_EQ(attached->finish.record->result.bytes, "done");
  EXPECT_EQ(attach(p, "b", failed_owner)->finish.record->failure.code, "declined");
  EXPECT_THAT(p.events->names(), ElementsAre("replayed", "replayed"));
}

TEST_F(AttachTest, TheHandleThatAttachesLastHasTheClaim) {
  auto first = process();
  auto begun = begin(first, "a");
  const Process other = process();
  for (const Process* by : {&other, &std::as_const(first)}) {
    auto attached = attach(*by, "a", begun->claim.owner());
    ASSERT_TRUE(attached->claim);
    EXPECT_EQ(complete(begun->claim, "late")->kind, Finish::Kind::lost);
    EXPECT_TRUE(begun->claim.stop_token().stop_requested());
    begun->claim = std::move(attached->claim);
  }
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
}

// The first handle does not know yet that it has lost the claim, and holds the flight of the key.
TEST_F(AttachTest, CallsOfTheSameEngineGetTheNewHandlesResult) {
  for (const std::string payload : {"", "a payload"}) {
    auto p = process();
    const std::string key = "a" + payload;
    auto begun = begin(p, key, {}, payload);
    auto waits = begin(p, key, waiting(), payload);
    auto attached = attach(p, key, begun->claim.owner(), {}, payload);
    ASSERT_TRUE(attached->claim);
    complete(attached->claim, "done");
    EXPECT_EQ(begin(p, key, {}, payload)->record->result.bytes, "done");
    run_until(waits);
    ASSERT_EQ(waits->kind, Begin::Kind::replayed);
    EXPECT_EQ(complete(begun->claim, "late")->kind, Finish::Kind::superseded);
  }
}

TEST_F(AttachTest, ALostAnswerIsReadAgain) {
  const Owner owner = claim_and_die("a");
  auto p = process();
  store->script({Next::carry_out, Next::lose});
  auto attached = attach(p, "a", owner);
  run_until(attached);
  ASSERT_TRUE(attached->claim);
  EXPECT_EQ(complete(attached->claim, "done")->kind, Finish::Kind::recorded);
}

// In doubt, it finds the renewal of a handle that came after it.
TEST_F(AttachTest, InDoubtItTakesNothingFromALaterHandle) {
  const Owner owner = claim_and_die("a");
  auto p = process();
  store->script({Next::carry_out, Next::lose});
  auto attached = attach(p, "a", owner);
  auto later = attach(process(), "a", owner);
  ASSERT_TRUE(later->claim);
  run_until(attached);
  EXPECT_FALSE(attached->claim);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::unrecorded);
  EXPECT_EQ(attached->finish.error.kind, ErrorKind::in_doubt);
  EXPECT_EQ(complete(later->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(AttachTest, AStoreThatDoesNotAnswerLeavesItOpen) {
  const Owner owner = claim_and_die("a");
  auto p = process();
  store->script({Next::fail});
  auto attached = attach(p, "a", owner);
  EXPECT_FALSE(attached->claim);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::unrecorded);
  EXPECT_EQ(attached->finish.error.kind, ErrorKind::unavailable);
  EXPECT_TRUE(attach(p, "a", owner)->claim);
}

// A live handle writes again and again between the read and the write.
TEST_F(AttachTest, AHandleThatWritesInBetweenOnlyCostsAnotherTry) {
  auto first = process();
  auto begun = begin(first, "a");
  const Owner owner = begun->claim.owner();
  auto p = process();
  int steps = 0;
  std::function<void(Store&)> add = [&](Store&) {
    begun->claim.add_step("step" + std::to_string(steps), "x", [](const Finish&) {});
    if (++steps < 20) store->before_next_write(add);
  };
  store->before_next_write(add);
  auto attached = attach(p, "a", owner);
  ASSERT_TRUE(attached->claim);
  EXPECT_FALSE(attached->claim.record().steps.empty());
}

TEST_F(AttachTest, TheTakeoverOfALapsedClaimDisplacesIt) {
  const Owner owner = claim_and_die("a");
  clock->advance(10s);
  auto p = process();
  store->before_next_write([&](Store&) { do_elsewhere("a", "theirs"); });
  auto attached = attach(p, "a", owner);
  EXPECT_FALSE(attached->claim);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::superseded);
  EXPECT_EQ(attached->finish.record->result.bytes, "theirs");
}

TEST_F(AttachTest, ItsLeaseEndsWithItsOwnInvocation) {
  const Owner owner = claim_and_die("a");
  auto p = process();
  std::latch began(1);
  std::latch ended(1);
  std::thread other([&] {
    const WithinInvocation theirs({.deadline = clock->now() + 1h});
    began.count_down();
    ended.wait();
  });
  began.wait();
  const WithinInvocation mine({.deadline = clock->now() + 4s});
  const Attached attached = p->attach(request("a"), owner);
  ended.count_down();
  other.join();
  ASSERT_TRUE(attached.claim);
  EXPECT_LE(attached.claim.deadline(), clock->uptime() + 5s);
}

}  // namespace attach_test
}  // namespace once::testing
