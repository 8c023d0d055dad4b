// Callers with one key in one process share requests to the store; waiting; the local cache.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>

#include "engine_test.hpp"

namespace once::testing {
namespace sharing_test {

using SharingTest = EngineTest;

TEST_F(SharingTest, AHundredCallersAreOneConversation) {
  auto p = process();
  store->script({Next::stall});
  std::vector<Slot<Begin>> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(begin(p, "a", waiting()));
  EXPECT_THAT(store->calls(), ElementsAre("insert"));
  store->answer_stalled();
  ASSERT_EQ(calls[0]->kind, Begin::Kind::claimed);
  for (int i = 1; i < 100; ++i) EXPECT_FALSE(calls[i].ready());
  complete(calls[0]->claim, "done");
  for (int i = 1; i < 100; ++i) {
    ASSERT_EQ(calls[i]->kind, Begin::Kind::replayed);
    EXPECT_EQ(calls[i]->record->result.bytes, "done");
  }
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace"));
  EXPECT_EQ(p.events->count(EventKind::replayed), 99U);
  for (const Told& told : p.events->all) {
    EXPECT_EQ(told.coalesced, told.kind == EventKind::replayed);
  }
}

TEST_F(SharingTest, WhoDoesNotWaitIsToldOfAConflictAtOnce) {
  auto p = process();
  store->script({Next::stall});
  auto first = begin(p, "a");
  auto second = begin(p, "a");
  auto other_payload = begin(p, "b", {}, "1");
  auto mismatch = begin(p, "b", {}, "2");
  EXPECT_EQ(mismatch->kind, Begin::Kind::mismatch);
  store->answer_stalled();
  EXPECT_EQ(first->kind, Begin::Kind::claimed);
  ASSERT_EQ(second->kind, Begin::Kind::conflict);
  EXPECT_EQ(second->retry_after, 9s);
  EXPECT_EQ(begin(p, "a")->kind, Begin::Kind::conflict);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "insert")) << "of a and b";
}

TEST_F(SharingTest, WhoSaysNothingWaits) {
  const auto no_word = [](EngineOptions& o) { o.policy.on_conflict.reset(); };
  auto p = process(no_word);
  auto held = begin(p, "a");
  auto near = begin(p, "a");
  auto far = begin(process(no_word), "a");
  auto of_its_own = begin(p, "a", Policy{});
  timers->advance(9'999ms);
  for (const auto* const waits : {&near, &far, &of_its_own}) EXPECT_FALSE(waits->ready());
  timers->advance(1ms);
  for (const auto* const waits : {&near, &far, &of_its_own}) EXPECT_EQ((*waits)->kind, Begin::Kind::conflict);

  auto late = begin(p, "a");
  complete(held->claim, "done");
  EXPECT_EQ(late->kind, Begin::Kind::replayed);
}

TEST_F(SharingTest, WhatARequestsPolicyLeavesOpenTheEnginesSays) {
  auto p = process();
  auto held = begin(p, "a");
  EXPECT_EQ(begin(p, "a", Policy{})->kind, Begin::Kind::conflict);
}

TEST_F(SharingTest, AnErrorIsForEverybody) {
  auto p = process();
  store->script({Next::drop});
  auto one = begin(p, "a", waiting());
  auto two = begin(p, "a");
  store->otherwise(Next::fail);
  timers->advance(10s);
  EXPECT_EQ(one->kind, Begin::Kind::error);
  EXPECT_EQ(two->kind, Begin::Kind::error);
}

TEST_F(SharingTest, WaitersShareTheirPolls) {
  auto holder = process();
  auto held = begin(holder, "a");
  auto p = process();
  store->forget_calls();
  std::vector<Slot<Begin>> calls;
  for (int i = 0; i < 50; ++i) calls.push_back(begin(p, "a", waiting()));
  const auto gets = [&] {
    const auto all = store->calls();
    return std::count(all.begin(), all.end(), "get");
  };
  for (int i = 0; i < 50; ++i) timers->advance(100ms);
  const auto alone = gets();
  EXPECT_GT(alone, 3);
  EXPECT_LT(alone, 15) << "backoff";
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(calls[i].ready());
  complete(held->claim, "done");
  timers->advance(2s);
  for (auto& call : calls) EXPECT_EQ(call->kind, Begin::Kind::replayed);
  EXPECT_LE(gets(), alone + 2);
}

// The store had reported a live claim before it failed: failing open would run beside it.
TEST_F(SharingTest, AWaiterWhoSawAClaimDoesNotFailOpen) {
  auto holder = process();
  auto held = begin(holder, "a");
  auto p = process();
  auto waits = begin(p, "a", waiting());
  EXPECT_FALSE(waits.ready());
  store->otherwise(Next::fail);
  timers->advance(2s);
  ASSERT_EQ(waits->kind, Begin::Kind::error);
  EXPECT_EQ(waits->error.kind, ErrorKind::unavailable);
  ASSERT_NE(waits->record, nullptr);
  EXPECT_EQ(waits->record->owner, held->claim.owner());
}

TEST_F(SharingTest, AWaitEndsAtItsDeadline) {
  auto holder = process();
  auto held = begin(holder, "a");
  auto p = process();
  auto waits = begin(p, "a", waiting(2'500ms));
  auto longer = begin(p, "a", waiting(60s));
  timers->advance(2'499ms);
  EXPECT_FALSE(waits.ready());
  timers->advance(1ms);
  ASSERT_EQ(waits->kind, Begin::Kind::conflict);
  EXPECT_FALSE(longer.ready());
  EXPECT_EQ(p.events->count(EventKind::conflict), 1U);
  EXPECT_EQ(p.events->last(EventKind::conflict).took, 2'500ms);
  // The same where the holder is in this process.
  auto near = begin(holder, "a", waiting(2'500ms));
  timers->advance(2'500ms);
  EXPECT_EQ(near->kind, Begin::Kind::conflict);
}

TEST_F(SharingTest, AWaiterClaimsWhatIsReleased) {
  auto p = process();
  auto other = process();
  auto held = begin(p, "a");
  auto near = begin(p, "a", waiting());
  auto far = begin(other, "a", waiting());
  Slot<Finish> finish;
  held->claim.release("no", finish.fill());
  ASSERT_EQ(near->kind, Begin::Kind::claimed) << "at once, in the same process";
  timers->advance(1s);
  EXPECT_FALSE(far.ready());
  complete(near->claim, "done");
  timers->advance(1s);
  EXPECT_EQ(far->kind, Begin::Kind::replayed);
}

TEST_F(SharingTest, AWaiterTakesOverWhatLapses) {
  Policy quiet = policy();
  quiet.heartbeat = false;
  for (const bool same_process : {true, false}) {
    const std::string key = same_process ? "near" : "far";
    auto p = process();
    auto other = process();
    auto held = begin(p, key, quiet);
    auto waits = begin(same_process ? p : other, key, waiting(60s));
    timers->advance(8'990ms);
    EXPECT_FALSE(waits.ready());
    timers->advance(20ms);
    ASSERT_EQ(waits->kind, Begin::Kind::claimed) << key;
    EXPECT_EQ(waits->claim.attempt(), 2U);
    EXPECT_EQ(complete(held->claim, "late")->kind, Finish::Kind::lost);
  }
}

TEST_F(SharingTest, WhatWasWaitedIsTakenOffAFixedLease) {
  auto holder = process();
  auto p = process();
  Policy fixed = waiting(60s);
  fixed.lease = 40s;
  fixed.fixed_lease = true;
  const Time ended = clock->now() + *fixed.lease;
  auto held = begin(holder, "a");
  auto waits = begin(p, "a", fixed);
  timers->advance(15s);
  held->claim.release("not now", [](Finish) {});
  timers->advance(2s);
  ASSERT_EQ(waits->kind, Begin::Kind::claimed);
  EXPECT_EQ(waits->claim.record().lease_until, ended) << "its caller is ended then all the same";

  held = begin(holder, "b");
  waits = begin(p, "b", fixed);
  timers->advance(50s);
  const Time released = clock->now();
  held->claim.release("not now", [](Finish) {});
  timers->advance(2s);
  ASSERT_EQ(waits->kind, Begin::Kind::claimed);
  EXPECT_LE(waits->claim.record().lease_until, released + 2s) << "nothing is left of it";
}

TEST_F(SharingTest, WhoDoesNotWaitGetsAFreshAnswerAndWakesTheOthers) {
  auto holder = process();
  auto held = begin(holder, "a");
  auto p = process();
  auto waits = begin(p, "a", waiting());
  timers->advance(5s);
  complete(held->claim, "done");
  store->forget_calls();
  EXPECT_EQ(begin(p, "a")->kind, Begin::Kind::replayed);
  EXPECT_EQ(waits->kind, Begin::Kind::replayed);
  EXPECT_THAT(store->calls(), ElementsAre("get"));
}

// 1. A asks, and the store forms its answer. 2. An operator replaces the result, which is confirmed. 3. B asks.
TEST_F(SharingTest, NobodySharesAnAnswerThatWasFormedBeforeHeCame) {
  auto writer = process();
  auto held = begin(writer, "a");
  complete(held->claim, "first");
  auto p = process();
  store->script({Next::stall});
  auto before = begin(p, "a");
  const auto decide_otherwise = [](Record record) {
    record.revision += 1;
    record.result = Result::inlined("second");
    return record;
  };
  operate("a", decide_otherwise);
  std::vector<Slot<Begin>> after;
  for (int i = 0; i < 50; ++i) after.push_back(begin(p, "a", i % 2 == 0 ? policy() : waiting()));
  store->forget_calls();
  store->answer_stalled();
  EXPECT_EQ(before->record->result.bytes, "first");
  for (auto& call : after) EXPECT_EQ(call->record->result.bytes, "second");
  EXPECT_THAT(store->calls(), ElementsAre("get")) << "one question more, for all of them";
}

// The same where the answer is that of the finish of this process's own claim.
TEST_F(SharingTest, WhoComesAfterAFinishWasSentAsksTheStore) {
  auto p = process();
  auto held = begin(p, "a");
  auto before = begin(p, "a", waiting());
  store->script({Next::stall});
  auto finish = complete(held->claim, "first");
  operate("a", [](Record record) {
    record.revision += 1;
    record.result = Result::inlined("second");
    return record;
  });
  auto after = begin(p, "a", waiting());
  store->answer_stalled();
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_EQ(before->record->result.bytes, "first");
  EXPECT_EQ(after->record->result.bytes, "second");
}

// A timer without a waiting caller would keep the engine and its store alive until it fires.
TEST_F(SharingTest, NoTimerIsLeftWhenNobodyWaits) {
  auto holder = process();
  auto p = process();
  auto held = begin(p, "near");
  auto near = begin(p, "near", waiting(24h));
  complete(held->claim, "done");
  auto far_held = begin(holder, "far");
  auto far = begin(p, "far", waiting(24h));
  complete(far_held->claim, "done");
  timers->advance(3s);
  EXPECT_EQ(near->kind, Begin::Kind::replayed);
  EXPECT_EQ(far->kind, Begin::Kind::replayed);
  EXPECT_EQ(timers->pending(), 0U);
}

// A first claim that is written again, or late, while its caller waits.
TEST_F(SharingTest, AWaiterFindsItsOwnLateClaim) {
  auto holder = process();
  auto held = begin(holder, "a");
  auto p = process();
  store->script({Next::late});
  auto waits = begin(p, "a", waiting(60s));  // Its insert is on its way …
  timers->advance(1s);                       // … and it finds the holder's claim meanwhile.
  Slot<Finish> released;
  held->claim.release("no", released.fill());
  store->land();
  timers->advance(3s);
  ASSERT_EQ(waits->kind, Begin::Kind::claimed);
  EXPECT_EQ(waits->verdict, Verdict::resume);
  EXPECT_GT(stored("a")->lease_until, clock->now() + 6s) << "leased anew before it runs";
  EXPECT_EQ(complete(waits->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(SharingTest, AnAbandonedClaimLetsItsWaitersGoOnAfterTheLease) {
  auto p = process();
  auto held = begin(p, "a");
  auto waits = begin(p, "a", waiting(60s));
  held->claim = Claim();
  timers->advance(8s);
  EXPECT_FALSE(waits.ready());
  timers->advance(2s);
  EXPECT_EQ(waits->kind, Begin::Kind::claimed);
}

TEST_F(SharingTest, TheCacheAnswersWithoutTheStore) {
  auto p = process([](EngineOptions& o) { o.cache_records = 10; });
  auto first = begin(p, "a", {}, "payload");
  complete(first->claim, "done");
  store->forget_calls();
  auto again = begin(p, "a", {}, "payload");
  ASSERT_EQ(again->kind, Begin::Kind::replayed);
  EXPECT_EQ(again->record->result.bytes, "done");
  EXPECT_EQ(begin(p, "a", {}, "another")->kind, Begin::Kind::mismatch);
  EXPECT_THAT(store->calls(), IsEmpty());
  EXPECT_TRUE(p.events->last(EventKind::replayed).coalesced);
  clock->advance(1h);
  EXPECT_EQ(begin(p, "a", {}, "payload")->kind, Begin::Kind::claimed) << "expired";
}

TEST_F(SharingTest, TheCacheLearnsFromReplaysAndForgetsTheLeastUsed) {
  auto writer = process();
  auto p = process([](EngineOptions& o) { o.cache_records = 1; });  // One for each of its parts.
  for (int i = 0; i < 200; ++i) {
    auto begun = begin(writer, "k" + std::to_string(i));
    complete(begun->claim, "done");
    EXPECT_EQ(begin(p, "k" + std::to_string(i))->kind, Begin::Kind::replayed);
  }
  store->forget_calls();
  EXPECT_EQ(begin(p, "k199")->kind, Begin::Kind::replayed);
  EXPECT_THAT(store->calls(), IsEmpty());
  for (int i = 0; i < 200; ++i) EXPECT_EQ(begin(p, "k" + std::to_string(i))->kind, Begin::Kind::replayed);
  EXPECT_GE(store->calls().size(), 180U);
}

TEST(SharingThreads, AHundredThreadsAreOneConversation) {
  const auto clock = std::make_shared<ManualClock>();
  const auto store = std::make_shared<ScriptStore>(clock);
  EngineOptions options;
  options.store = store;
  options.scope = "test";
  options.policy.on_conflict = OnConflict::wait;
  Engine engine(options);
  store->script({Next::stall});
  std::atomic<int> ran = 0;
  std::atomic<int> got = 0;
  std::barrier all(101);
  std::vector<std::thread> threads;
  for (int i = 0; i < 100; ++i) {
    threads.emplace_back([&] {
      all.arrive_and_wait();
      const Outcome outcome = engine.run("a", "payload", [&] {
        ++ran;
        return std::string("done");
      });
      if (outcome.value() == "done") ++got;
    });
  }
  all.arrive_and_wait();
  while (store->stalled() == 0) std::this_thread::yield();
  store->answer_stalled();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(got, 100);
  // Threads that came after the end asked for themselves; the others did not.
  const auto calls = store->calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "replace"), 1);
}

}  // namespace sharing_test
}  // namespace once::testing
