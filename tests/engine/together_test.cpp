// Completions that commit together with the user's own writes: both or neither, even if something is lost, refused or
// late.
#include <map>

#include "engine_test.hpp"
#include "ledger_store.hpp"

struct Wordless {};
template <>
struct once::Codec<Wordless> {
  static constexpr std::string_view content_type = "";
  static std::string encode(const Wordless&) { throw std::domain_error("no words for it"); }
  static Wordless decode(std::string_view) { return {}; }
};

namespace once::testing {
namespace together_test {

class Together : public EngineTest {
 protected:
  Together() { store = std::make_shared<ScriptStore>(ledger); }

  Slot<Finish> complete_with(Claim& claim, std::string bytes, int amount) {
    Slot<Finish> slot;
    claim.complete(Result::inlined(std::move(bytes)), std::make_shared<Entry>(amount), slot.fill());
    return slot;
  }
  static Policy quiet() {
    Policy p = policy();
    p.heartbeat = false;
    return p;
  }

  std::shared_ptr<LedgerStore> ledger = std::make_shared<LedgerStore>(clock);
};

TEST_F(Together, BothAreWrittenInOneCall) {
  auto p = process();
  auto begun = begin(p, "a");
  auto finish = complete_with(begun->claim, "done", 5);
  ASSERT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_EQ(finish->record->result.bytes, "done");
  EXPECT_EQ(ledger->balance, 5);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace_with"));
  EXPECT_EQ(begin(p, "a")->kind, Begin::Kind::replayed);
  EXPECT_THAT(p.events->names(), ElementsAre("claimed", "work_done", "completed", "replayed"));
}

TEST_F(Together, NothingToCommitWithIsAnOrdinaryCompletion) {
  auto p = process();
  auto begun = begin(p, "a");
  Slot<Finish> finish;
  begun->claim.complete(Result::inlined("done"), nullptr, finish.fill());
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace"));
}

TEST_F(Together, EveryLostAnswerIsOneWrite) {
  int expected = 0;
  for (const Next fault : {Next::lose, Next::drop, Next::late, Next::fail}) {
    const std::string key = "a" + std::to_string(static_cast<int>(fault));
    auto p = process();
    auto begun = begin(p, key);
    ledger->asked.clear();
    store->script({fault, fault});
    auto finish = complete_with(begun->claim, "done", 1);
    timers->advance(1s);
    store->land();
    store->land();
    ASSERT_EQ(finish->kind, Finish::Kind::recorded) << key;
    EXPECT_EQ(ledger->balance, ++expected) << key;
    EXPECT_EQ(stored(key)->result.bytes, "done");
    for (const RecordPtr& record : ledger->asked) {
      EXPECT_EQ(*record, *ledger->asked.front()) << "a repetition that a store cannot know as one";
    }
  }
}

TEST_F(Together, ADisplacedHolderWritesNothing) {
  auto p = process();
  auto late = begin(p, "a", quiet());
  auto later = begin(p, "b", quiet());
  clock->advance(9s);
  auto other = process();
  auto taken = begin(other, "a", quiet());
  auto taken_b = begin(other, "b", quiet());
  EXPECT_EQ(complete_with(late->claim, "late", 100)->kind, Finish::Kind::lost);
  EXPECT_EQ(complete_with(taken_b->claim, "in time", 1)->kind, Finish::Kind::recorded);
  auto superseded = complete_with(later->claim, "late", 100);
  ASSERT_EQ(superseded->kind, Finish::Kind::superseded);
  EXPECT_EQ(superseded->record->result.bytes, "in time");
  EXPECT_EQ(complete_with(taken->claim, "in time", 1)->kind, Finish::Kind::recorded);
  EXPECT_EQ(ledger->balance, 2);
}

TEST_F(Together, WhatIsDeclinedLeavesTheClaimToBeFinishedOtherwise) {
  using Ending = std::function<Slot<Finish>(Claim&)>;
  const std::map<std::string, Ending> endings = {
      {"fail",
       [](Claim& claim) {
         Slot<Finish> slot;
         claim.fail({.code = "empty", .message = "sold out"}, {}, slot.fill());
         return slot;
       }},
      {"release",
       [](Claim& claim) {
         Slot<Finish> slot;
         claim.release("sold out", slot.fill());
         return slot;
       }},
      {"hold",
       [](Claim& claim) {
         Slot<Finish> slot;
         claim.hold("sold out", slot.fill());
         return slot;
       }},
      {"complete", [](Claim& claim) { return complete(claim, "without"); }},
      {"with another", [this](Claim& claim) { return complete_with(claim, "with less", 0); }},
  };
  for (const auto& [name, end] : endings) {
    auto p = process();
    auto begun = begin(p, name);
    auto finish = complete_with(begun->claim, "sold", -1);
    ASSERT_EQ(finish->kind, Finish::Kind::declined) << name;
    EXPECT_EQ(finish->error, (Error{ErrorKind::unavailable, "the ledger has only 0"}));
    EXPECT_EQ(finish->record, nullptr);
    EXPECT_EQ(stored(name)->state, State::in_progress);
    EXPECT_FALSE(begun->claim.stop_token().stop_requested());
    EXPECT_EQ(p.events->count(EventKind::declined), 1U);
    EXPECT_EQ(p.events->last(EventKind::declined).error, "the ledger has only 0");
    EXPECT_EQ(end(begun->claim)->kind, Finish::Kind::recorded) << name;
    EXPECT_THROW(complete(begun->claim, "again"), Exception) << name;
    EXPECT_EQ(p.events->count(EventKind::abandoned), 0U);
  }
  EXPECT_EQ(ledger->balance, 0);
}

TEST_F(Together, TheLeaseIsKeptAliveAfterADecline) {
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::fail, Next::fail, Next::fail});
  auto finish = complete_with(begun->claim, "sold", -1);
  timers->advance(1s);
  ASSERT_EQ(finish->kind, Finish::Kind::declined);
  begun->claim.add_step("asked the warehouse", "none");  // As before the finish.
  for (int i = 0; i < 10; ++i) timers->advance(3s);
  EXPECT_FALSE(begun->claim.stop_token().stop_requested());
  EXPECT_EQ(p.events->count(EventKind::renewal_lost), 0U);
  EXPECT_EQ(complete(begun->claim, "sold out")->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->steps.size(), 1U);
}

// A first try whose answer is lost, a second that is declined: by the time the first arrives, its condition holds.
TEST_F(Together, ADeclinedWriteIsBarredBeforeThatIsTold) {
  for (const Next fence : {Next::carry_out, Next::lose, Next::drop, Next::fail}) {
    const std::string key = "a" + std::to_string(static_cast<int>(fence));
    auto p = process();
    auto begun = begin(p, key);
    ledger->balance = 0;
    store->script({Next::late, Next::carry_out, fence});
    auto finish = complete_with(begun->claim, "sold", -1);
    timers->advance(1s);
    ASSERT_EQ(finish->kind, Finish::Kind::declined) << key;
    ledger->balance = 7;
    store->land();
    EXPECT_EQ(ledger->balance, 7) << "written after it was told that nothing would be";
    EXPECT_EQ(stored(key)->state, State::in_progress);
    EXPECT_EQ(complete_with(begun->claim, "sold", -2)->kind, Finish::Kind::recorded);
    EXPECT_EQ(ledger->balance, 5);
  }
}

TEST_F(Together, AFirstTryThatArrivesBeforeTheFenceCounts) {
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::late, Next::carry_out, Next::block});
  auto finish = complete_with(begun->claim, "sold", -1);
  timers->advance(1s);
  ASSERT_EQ(store->stalled(), 1U) << "the second try was declined, and the fence is on its way";
  ASSERT_FALSE(finish.ready());
  ledger->balance = 7;
  store->land();
  store->answer_stalled();
  ASSERT_EQ(finish->kind, Finish::Kind::superseded) << "it is done after all";
  EXPECT_EQ(finish->record->result.bytes, "sold");
  EXPECT_EQ(finish->record->owner, begun->claim.owner());
  EXPECT_EQ(ledger->balance, 6);
}

TEST_F(Together, AnOperatorsProlongationIsAdopted) {
  auto p = process();
  auto begun = begin(p, "a");
  operate("a", [](Record r) {
    r.lease_until += 1h;
    r.revision = next_revision(r.revision, 0);
    return r;
  });
  store->script({Next::carry_out, Next::lose});
  auto finish = complete_with(begun->claim, "done", 1);
  timers->advance(1s);
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_EQ(ledger->balance, 1);
}

TEST_F(Together, AResultThatIsTooLargeIsDroppedAndTheRestCommitted) {
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::bad});
  auto finish = complete_with(begun->claim, "large", 1);
  ASSERT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.placement, Placement::dropped);
  EXPECT_EQ(stored("a")->result.size, 5U);
  EXPECT_EQ(ledger->balance, 1);
}

TEST_F(Together, WhatCannotBeWrittenEvenWithoutItsResultIsDeclined) {
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::bad, Next::bad});
  auto finish = complete_with(begun->claim, "large", 1);
  ASSERT_EQ(finish->kind, Finish::Kind::declined);
  EXPECT_EQ(finish->error.kind, ErrorKind::misuse);
  EXPECT_EQ(complete(begun->claim, "large")->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.bytes, "large");
  EXPECT_EQ(ledger->balance, 0);
}

TEST_F(Together, AStoreThatKnowsNoCompanionsDeclinesThemWithTheResultWhole) {
  struct Other final : Companion {};
  auto p = process();
  auto begun = begin(p, "a");
  Slot<Finish> finish;
  begun->claim.complete(Result::inlined("done"), std::make_shared<Other>(), finish.fill());
  ASSERT_EQ(finish->kind, Finish::Kind::declined);
  EXPECT_EQ(finish->error.kind, ErrorKind::misuse);
  EXPECT_THAT(finish->error.message, HasSubstr("ledger: cannot commit other writes"));
  EXPECT_THAT(store->calls(), ElementsAre("insert", "replace_with")) << "as if the result were too large";
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(Together, WhatIsWrittenAfterAllIsRecordedInTheBackground) {
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::fail, Next::fail, Next::fail, Next::fail});
  auto finish = complete_with(begun->claim, "done", 1);
  timers->advance(2s);
  ASSERT_EQ(finish->kind, Finish::Kind::unrecorded);
  EXPECT_EQ(ledger->balance, 1);
  EXPECT_EQ(stored("a")->result.bytes, "done");
  EXPECT_THAT(p.events->names(), ElementsAre("claimed", "work_done", "store_error", "store_error", "store_error",
                                             "store_error", "unrecorded", "completed"));
}

TEST_F(Together, WhatIsDeclinedWithNobodyListeningIsAbandoned) {
  auto p = process();
  auto told = begin(p, "a", quiet());
  store->script({Next::fail, Next::fail, Next::fail, Next::fail});
  auto finish = complete_with(told->claim, "sold", -1);
  timers->advance(2s);
  ASSERT_EQ(finish->kind, Finish::Kind::unrecorded);
  EXPECT_EQ(p.events->count(EventKind::declined), 1U);
  EXPECT_EQ(p.events->count(EventKind::abandoned), 1U);
  EXPECT_THROW(complete(told->claim, "again"), Exception);

  auto dropped = begin(p, "b", quiet());
  store->script({Next::stall});
  auto second = complete_with(dropped->claim, "sold", -1);
  dropped->claim = Claim();
  store->answer_stalled();
  EXPECT_EQ(second->kind, Finish::Kind::declined);
  EXPECT_EQ(p.events->count(EventKind::abandoned), 2U);

  clock->advance(9s);
  for (const char* key : {"a", "b"}) {
    auto again = begin(p, key, quiet());
    ASSERT_EQ(again->kind, Begin::Kind::claimed) << key;
    EXPECT_EQ(complete_with(again->claim, "given back", 1)->kind, Finish::Kind::recorded);
  }
  EXPECT_EQ(ledger->balance, 2);
}

TEST_F(Together, AnOffloadedResultGoesWithADecline) {
  struct MapOffload final : Offload {
    void put(std::string, std::string bytes, Callback<void(OffloadAnswer)> done) override {
      kept["there"] = std::move(bytes);
      done({"there", {}});
    }
    void get(std::string, Callback<void(OffloadAnswer)> done) override { done({kept["there"], {}}); }
    void remove(std::string, Callback<void(OffloadAnswer)> done) override {
      kept.clear();
      done({});
    }
    std::map<std::string, std::string> kept;
  };
  auto offload = std::make_shared<MapOffload>();
  Policy small = quiet();
  small.max_inline_bytes = 3;
  auto p = process([&](EngineOptions& o) { o.offload = offload; });
  auto begun = begin(p, "a", small);
  EXPECT_EQ(complete_with(begun->claim, "a large one", -1)->kind, Finish::Kind::declined);
  EXPECT_THAT(offload->kept, IsEmpty());
  EXPECT_EQ(complete_with(begun->claim, "a large one", 1)->kind, Finish::Kind::recorded);
  EXPECT_EQ(offload->kept["there"], "a large one");
  EXPECT_EQ(ledger->balance, 1);
}

class TogetherRun : public Together {
 protected:
  // The work of an order: one piece less.
  static std::string sell(Context& context) {
    context.commit_with(std::make_shared<Entry>(-1));
    return "sold";
  }
};

TEST_F(TogetherRun, TheWorkHandsItsWritesToItsResult) {
  auto p = process();
  ledger->balance = 3;
  EXPECT_EQ(p->run("a", {}, sell).kind, Outcome::Kind::executed);
  EXPECT_EQ(p->run("a", {}, sell).kind, Outcome::Kind::replayed);
  EXPECT_EQ(ledger->balance, 2);
}

TEST_F(TogetherRun, ADeclineIsTreatedAsThrownByTheWork) {
  auto p = process();
  try {
    p->run("a", {}, sell);
    FAIL() << "nothing was thrown";
  } catch (const Declined& declined) {
    EXPECT_EQ(declined.kind(), ErrorKind::unavailable);
    EXPECT_THAT(declined.what(), HasSubstr("nothing was written: the ledger has only 0"));
  }
  EXPECT_EQ(stored("a"), std::nullopt) << "released";
  ledger->balance = 1;
  EXPECT_EQ(p->run("a", {}, sell).kind, Outcome::Kind::executed) << "a retry may run";

  auto storing = process([](EngineOptions& o) { o.throw_rule = on_exception<Declined>(OnThrow::store); });
  EXPECT_THROW(storing->run("b", {}, sell), Declined);
  EXPECT_EQ(storing->run("b", {}, sell).kind, Outcome::Kind::stored_failure);
  EXPECT_EQ(stored("b")->failure.code, "once::Declined");

  auto holding = process([](EngineOptions& o) { o.policy.on_throw = OnThrow::hold; });
  EXPECT_THROW(holding->run("c", {}, sell), Declined);
  EXPECT_EQ(holding->run("c", {}, sell).kind, Outcome::Kind::unknown);
  EXPECT_EQ(ledger->balance, 0);
}

TEST_F(TogetherRun, WorkThatThrowsWritesNothing) {
  auto p = process();
  const auto work = [](Context& context) {
    context.commit_with(std::make_shared<Entry>(5));
    throw std::runtime_error("after all, no");
  };
  EXPECT_THROW(p->run("a", {}, work), std::runtime_error);
  EXPECT_EQ(ledger->balance, 0);
}

TEST_F(TogetherRun, WorkThatLostItsClaimWritesNothing) {
  auto p = process();
  auto other = process();
  const Outcome outcome = p->run(request("a", quiet()), [&](Context& context) {
    context.commit_with(std::make_shared<Entry>(100));
    clock->advance(9s);
    auto taken = begin(other, "a", quiet());
    EXPECT_EQ(complete_with(taken->claim, "theirs", 1)->kind, Finish::Kind::recorded);
    return std::string("ours");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::superseded);
  EXPECT_EQ(outcome.value(), "theirs");
  EXPECT_EQ(ledger->balance, 1);
}

TEST_F(TogetherRun, WhatMayNotBeCommittedIsNeverReturnedAsDone) {
  EngineOptions o;  // The blocking face waits for timers: here they fire by themselves.
  o.store = store;
  o.scope = "test";
  o.policy.on_unrecorded = OnUnrecorded::return_result;
  Engine engine(o);
  EXPECT_THROW(engine.run("a", {},
                          [&](Context& context) {
                            store->otherwise(Next::fail);
                            context.commit_with(std::make_shared<Entry>(1));
                            return std::string("done");
                          }),
               Unrecorded);
  store->otherwise(Next::carry_out);
}

TEST_F(TogetherRun, AResultThatCannotBeEncodedIsDroppedAndTheWritesStand) {
  auto p = process();
  EXPECT_THROW(p->run("a", {},
                      [](Context& context) {
                        context.commit_with(std::make_shared<Entry>(1));
                        return Wordless{};
                      }),
               std::domain_error);
  EXPECT_EQ(ledger->balance, 1);
  EXPECT_EQ(stored("a")->result.placement, Placement::dropped);
}

TEST_F(TogetherRun, AResultThatIsRefusedWritesNothing) {
  auto p = process();
  EXPECT_THROW(p->run("a", {},
                      [](Context& context) {
                        context.commit_with(std::make_shared<Entry>(1));
                        Result wrong;
                        wrong.content_type = std::string(1'000, 'x');
                        return wrong;
                      }),
               Exception);
  EXPECT_EQ(ledger->balance, 0);
}

TEST_F(TogetherRun, MisuseIsThrownIntoTheWork) {
  auto p = process();
  const auto twice = [](Context& context) {
    context.commit_with(std::make_shared<Entry>(1));
    context.commit_with(std::make_shared<Entry>(1));
  };
  const auto nothing = [](Context& context) { context.commit_with(nullptr); };
  for (const std::function<void(Context&)>& work : {std::function<void(Context&)>(twice), {nothing}}) {
    try {
      p->run("a", {}, work);
      FAIL() << "nothing was thrown";
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
    }
  }
  try {
    p->run_unprotected("sell", sell);
    FAIL() << "nothing was thrown";
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_THAT(error.what(), HasSubstr("no record for its writes to commit with"));
  }
  EXPECT_EQ(ledger->balance, 0);
}

}  // namespace together_test
}  // namespace once::testing
