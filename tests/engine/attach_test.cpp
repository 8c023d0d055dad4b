// Claims that are taken up by their key and their owner: begin() with an owner, attach().
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine_test.hpp"

namespace once::testing {
namespace attach_test {

class AttachTest : public EngineTest {
 protected:
  static Owner owner(std::uint8_t number) {
    Owner out;
    out.bytes.fill(number);
    return out;
  }
  static Request named(std::string_view key, Owner by, std::optional<Policy> with = {}, std::string_view payload = {}) {
    Request out = request(key, std::move(with), payload);
    out.owner = by;
    return out;
  }
  static Slot<Begin> begin_as(const Process& p, std::string_view key, Owner by, std::optional<Policy> with = {}) {
    Slot<Begin> slot;
    p.engine->begin(named(key, by, std::move(with)), slot.fill());
    return slot;
  }
  static Slot<Attached> attach(const Process& p, std::string_view key, Owner by, std::optional<Policy> with = {}) {
    Slot<Attached> slot;
    p.engine->attach(named(key, by, std::move(with)), slot.fill());
    return slot;
  }
  // Of a process that dies: its handle is dropped, and the claim stays in the store.
  void claim_and_die(std::string_view key, Owner by, std::optional<Policy> with = {}) {
    auto p = process();
    auto begun = begin_as(p, key, by, std::move(with));
    ASSERT_EQ(begun->kind, Begin::Kind::claimed);
    EXPECT_EQ(begun->claim.owner(), by);
    Slot<Finish> step;
    begun->claim.add_step("first", "1", step.fill());
    ASSERT_EQ(step->kind, Finish::Kind::recorded);
  }
  // Another process does the work of `key` and ends it.
  void take_over(std::string_view key, std::string result) {
    auto other = process();
    auto begun = begin(other, key);
    ASSERT_EQ(begun->kind, Begin::Kind::claimed);
    EXPECT_EQ(complete(begun->claim, std::move(result))->kind, Finish::Kind::recorded);
  }
};

TEST_F(AttachTest, AnotherProcessGoesOnWithTheClaim) {
  claim_and_die("a", owner(1));
  const Record before = stored("a").value();
  clock->advance(5s);
  auto p = process([](EngineOptions& options) { options.holder = "host:2"; });
  store->forget_calls();
  auto attached = attach(p, "a", owner(1));
  ASSERT_TRUE(attached->claim);
  EXPECT_THAT(store->calls(), ElementsAre("get", "replace"));
  EXPECT_THAT(p.events->names(), ElementsAre("resumed"));
  const Record now = stored("a").value();
  EXPECT_EQ(now.owner, owner(1));
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

// The second write after an insert gives the token anew elsewhere, when a clock was wrong. Here the work has used it.
TEST_F(AttachTest, TheTokenStaysAlsoAtTheFirstRenewal) {
  auto first = process();
  auto begun = begin_as(first, "a", owner(1));
  const std::uint64_t token = begun->claim.token();
  clock->advance(2s);
  auto p = process();
  auto attached = attach(p, "a", owner(1));
  ASSERT_TRUE(attached->claim);
  EXPECT_EQ(attached->claim.token(), token);
  EXPECT_EQ(stored("a")->token, token);
}

TEST_F(AttachTest, TheClaimIsRenewedFromThenOn) {
  claim_and_die("a", owner(1));
  auto p = process();
  auto attached = attach(p, "a", owner(1));
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
    claim_and_die(key, owner(1), with);
    clock->advance(1min);
    auto p = process();
    auto attached = attach(p, key, owner(1), with);
    ASSERT_TRUE(attached->claim) << key;
    EXPECT_EQ(complete(attached->claim, "done")->kind, Finish::Kind::recorded);
  }
}

TEST_F(AttachTest, AFixedLeaseIsCountedAnew) {
  Policy with = policy();
  with.heartbeat = false;
  with.fixed_lease = true;
  claim_and_die("a", owner(1), with);
  clock->advance(5s);
  auto p = process();
  auto attached = attach(p, "a", owner(1), with);
  ASSERT_TRUE(attached->claim);
  EXPECT_EQ(stored("a")->lease_until, clock->now() + 9s);
  EXPECT_TRUE(attached->claim.is_ours());
}

TEST_F(AttachTest, AnOperatorsLongerLeaseIsKept) {
  claim_and_die("a", owner(1));
  operate("a", [&](Record record) {
    record.revision += 1U << 20U;
    record.lease_until = clock->now() + 1h;
    record.expires_at = record.lease_until + 1h;
    return record;
  });
  auto p = process();
  auto attached = attach(p, "a", owner(1));
  ASSERT_TRUE(attached->claim);
  EXPECT_EQ(stored("a")->lease_until, clock->now() + 1h);
}

TEST_F(AttachTest, WhatAnotherAttemptHasIsLost) {
  Policy with = policy();
  claim_and_die("a", owner(1), with);
  clock->advance(10s);
  auto other = process();
  auto begun = begin(other, "a");
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  auto p = process();
  auto attached = attach(p, "a", owner(1));
  EXPECT_FALSE(attached->claim);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::lost);
  EXPECT_EQ(attached->finish.record->owner, begun->claim.owner());
  EXPECT_THAT(p.events->names(), ElementsAre("renewal_lost"));
  complete(begun->claim, "theirs");
  auto late = attach(p, "a", owner(1));
  EXPECT_EQ(late->finish.kind, Finish::Kind::superseded);
  EXPECT_EQ(late->finish.record->result.bytes, "theirs");
}

TEST_F(AttachTest, ItMakesNoClaimOfWhatIsNotThere) {
  auto p = process();
  EXPECT_EQ(attach(p, "nothing", owner(1))->finish.kind, Finish::Kind::lost);
  claim_and_die("expired", owner(1));
  clock->advance(24h);
  EXPECT_EQ(attach(p, "expired", owner(1))->finish.kind, Finish::Kind::lost);
  {
    auto first = process();
    auto begun = begin_as(first, "released", owner(1));
    Slot<Finish> step;
    begun->claim.add_step("first", "1", step.fill());
    Slot<Finish> released;
    begun->claim.release("stopped", released.fill());
    ASSERT_EQ(released->kind, Finish::Kind::recorded);
  }
  store->forget_calls();
  EXPECT_EQ(attach(p, "released", owner(1))->finish.kind, Finish::Kind::lost);
  EXPECT_THAT(store->calls(), ElementsAre("get"));
  EXPECT_FALSE(stored("nothing"));
}

TEST_F(AttachTest, WhatThisOwnerFinishedIsRecorded) {
  auto first = process();
  auto begun = begin_as(first, "a", owner(1));
  complete(begun->claim, "done");
  auto failing = begin_as(first, "b", owner(2));
  Slot<Finish> failed;
  failing->claim.fail({.code = "declined", .message = "no"}, {}, failed.fill());
  auto p = process();
  auto attached = attach(p, "a", owner(1));
  EXPECT_FALSE(attached->claim);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::recorded);
  EXPECT_EQ(attached->finish.record->result.bytes, "done");
  EXPECT_EQ(attach(p, "b", owner(2))->finish.record->failure.code, "declined");
}

TEST_F(AttachTest, WhoAttachesLastHasTheClaim) {
  auto first = process();
  auto begun = begin_as(first, "a", owner(1));
  const Process other = process();
  for (const Process* by : {&other, &std::as_const(first)}) {
    auto attached = attach(*by, "a", owner(1));
    ASSERT_TRUE(attached->claim);
    EXPECT_EQ(complete(begun->claim, "late")->kind, Finish::Kind::lost);
    EXPECT_TRUE(begun->claim.stop_token().stop_requested());
    begun->claim = std::move(attached->claim);
  }
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(AttachTest, ALostAnswerIsReadAgain) {
  claim_and_die("a", owner(1));
  auto p = process();
  store->script({Next::carry_out, Next::lose});
  auto attached = attach(p, "a", owner(1));
  for (int i = 0; i < 100 && !attached.ready(); ++i) timers->run_next();
  ASSERT_TRUE(attached->claim);
  EXPECT_EQ(complete(attached->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(AttachTest, AStoreThatDoesNotAnswerLeavesItOpen) {
  claim_and_die("a", owner(1));
  auto p = process();
  store->script({Next::fail});
  auto attached = attach(p, "a", owner(1));
  EXPECT_FALSE(attached->claim);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::unrecorded);
  EXPECT_EQ(attached->finish.error.kind, ErrorKind::unavailable);
  EXPECT_TRUE(attach(p, "a", owner(1))->claim);
}

TEST_F(AttachTest, CallsOfTheSameEngineWaitForIt) {
  claim_and_die("a", owner(1));
  auto p = process();
  auto attached = attach(p, "a", owner(1));
  auto waits = begin(p, "a", waiting());
  EXPECT_FALSE(waits.ready());
  complete(attached->claim, "done");
  for (int i = 0; i < 100 && !waits.ready(); ++i) timers->run_next();
  ASSERT_EQ(waits->kind, Begin::Kind::replayed);
  EXPECT_EQ(waits->record->result.bytes, "done");
}

TEST_F(AttachTest, ABeginWithItsOwnerMayBeRepeated) {
  auto p = process();
  auto first = begin_as(p, "a", owner(1));
  const Process other = process();
  for (const Process* by : {&other, &std::as_const(p)}) {
    auto again = begin_as(*by, "a", owner(1));
    ASSERT_EQ(again->kind, Begin::Kind::claimed);
    EXPECT_EQ(again->verdict, Verdict::resume);
    EXPECT_EQ(again->claim.token(), first->claim.token());
    EXPECT_EQ(begin_as(*by, "a", owner(2))->kind, Begin::Kind::conflict);
    first->claim = std::move(again->claim);
  }
  EXPECT_EQ(complete(first->claim, "done")->kind, Finish::Kind::recorded);
  EXPECT_EQ(begin_as(process(), "a", owner(1))->kind, Begin::Kind::replayed);
}

TEST_F(AttachTest, AnOwnerHasOneClaim) {
  auto p = process();
  auto first = begin_as(p, "a", owner(1));
  Slot<Finish> step;
  first->claim.add_step("first", "1", step.fill());
  Slot<Finish> released;
  first->claim.release("stopped", released.fill());
  const Record before = stored("a").value();
  auto again = begin_as(p, "a", owner(1));
  EXPECT_EQ(again->kind, Begin::Kind::error);
  EXPECT_EQ(again->error.kind, ErrorKind::misuse);
  EXPECT_THAT(again->error.message, HasSubstr("draw an owner for each claim"));
  EXPECT_EQ(stored("a")->revision, before.revision);
  EXPECT_EQ(begin_as(p, "a", owner(2))->kind, Begin::Kind::claimed);
}

TEST_F(AttachTest, AnOwnerIsForBeginAndAttachOnly) {
  auto p = process();
  EXPECT_THROW(static_cast<void>(p->run(named("a", owner(1)), [] { return std::string(); })), Exception);
  EXPECT_THROW(static_cast<void>(p->attach(request("a"))), Exception);
  EXPECT_THAT(store->calls(), IsEmpty());
}

TEST_F(AttachTest, TheTakeoverOfALapsedClaimDisplacesIt) {
  claim_and_die("a", owner(1));
  clock->advance(10s);
  auto p = process();
  store->script({Next::carry_out});
  store->before_next_write([&](Store&) { take_over("a", "theirs"); });
  auto attached = attach(p, "a", owner(1));
  EXPECT_FALSE(attached->claim);
  EXPECT_EQ(attached->finish.kind, Finish::Kind::superseded);
  EXPECT_EQ(attached->finish.record->result.bytes, "theirs");
}

}  // namespace attach_test
}  // namespace once::testing
