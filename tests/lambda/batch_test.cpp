// Batches of SQS: which records run, are reported, are kept.
#include "batch_test.hpp"

#include <atomic>
#include <barrier>
#include <functional>
#include <latch>
#include <optional>
#include <thread>

#include <once/engine/exceptions.hpp>
#include <once/engine/within_invocation.hpp>
#include <once/frontends/lambda/recipes.hpp>

namespace once::testing {
namespace batch_test {

using sqs::Message;

class SqsBatchTest : public BatchTest {
 protected:
  // Calls it on a thread of its own and lets the time pass that it waits for, from the moment on at which `ready` is
  // true, and as long as more than `idle` timers are set. Time is short for all who are at work meanwhile.
  template <class Call>
  std::string while_time_passes(
      Call call, std::size_t idle = 0, const std::function<bool()>& ready = [] { return true; }) {
    std::string response;
    std::atomic<bool> over{false};
    std::thread platform([&] {
      response = call();
      over = true;
    });
    while (!over) {
      if (ready() && timers->pending() > idle) timers->run_next();
      std::this_thread::yield();
    }
    platform.join();
    return response;
  }

  void TearDown() override {
    other_claims.clear();
    BatchTest::TearDown();
  }

  std::vector<Claim> other_claims;

  // Notes the message's id, and throws for the bodies that say so.
  auto handler() {
    return [this](const Message& message) {
      effects.add(message.id);
      if (message.body.find("boom") != std::string::npos) throw std::runtime_error("boom");
      if (message.body.find("hopeless") != std::string::npos) throw sqs::PoisonMessage("hopeless");
    };
  }
};

// --- Side by side ---------------------------------------------------------------------------------------------------

TEST_F(SqsBatchTest, TenNewMessagesTakeTwoRoundTripsNotTwenty) {
  const auto held = std::make_shared<HeldStore>(store);
  Engine remote(engine_options(held));
  const auto batch = sqs::batch(remote, options(), handler());
  std::string response;
  std::thread platform([&] { response = batch(sqs_event(ten_messages()), invocation()); });
  held->answer(10);  // Nobody has been answered before all ten have asked.
  held->answer(10);
  platform.join();
  EXPECT_EQ(response, nothing_failed);
  EXPECT_EQ(held->calls(), 20U);
  EXPECT_THAT(effects.list(), SizeIs(10));
}

TEST_F(SqsBatchTest, AllTenAreAtWorkAtOneTime) {
  std::barrier all(10);
  const auto batch = sqs::batch(engine, options(), [&](const Message&) { all.arrive_and_wait(); });
  EXPECT_EQ(batch(sqs_event(ten_messages()), invocation()), nothing_failed);
}

TEST_F(SqsBatchTest, NoMoreThanTheBoundAreAtWork) {
  std::barrier three(3);  // Nine in threes: three are reached again and again.
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) { o.parallel = 3; }), [&](const Message&) {
    const int here = ++now;
    int seen = most.load();
    while (here > seen && !most.compare_exchange_weak(seen, here)) {
    }
    three.arrive_and_wait();
    --now;
  });
  std::vector<Sent> nine = ten_messages();
  nine.pop_back();
  EXPECT_EQ(batch(sqs_event(nine), invocation()), nothing_failed);
  EXPECT_EQ(most.load(), 3);
}

TEST_F(SqsBatchTest, WithABoundOfOneTheyAreRunInTheirOrderOnTheCallersThread) {
  const auto here = std::this_thread::get_id();
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) { o.parallel = 1; }), [&](const Message& message) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    effects.add(message.id);
  });
  EXPECT_EQ(batch(sqs_event(ten_messages()), invocation()), nothing_failed);
  EXPECT_THAT(effects.list(), ElementsAre("m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"));
}

TEST_F(SqsBatchTest, OneHandlerServesInvocationsThatOverlap) {
  std::barrier both(2);
  const auto batch = sqs::batch(engine, options(), [&](const Message&) { both.arrive_and_wait(); });
  std::string first;
  std::thread other([&] { first = batch(sqs_event({{.id = "a"}}), invocation()); });
  const std::string second = batch(sqs_event({{.id = "b"}}), invocation());
  other.join();
  EXPECT_EQ(first, nothing_failed);
  EXPECT_EQ(second, nothing_failed);
}

TEST_F(SqsBatchTest, ThousandsAreNoTrouble) {
  std::vector<Sent> many(10'000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i].id = "m" + std::to_string(i);
  std::atomic<int> runs{0};
  BatchOptions o = options();
  o.observer = nullptr;
  const auto batch = sqs::batch(engine, o, [&](const Message&) { ++runs; });
  EXPECT_EQ(batch(sqs_event(many), invocation()), nothing_failed);
  EXPECT_EQ(runs.load(), 10'000);
}

// --- Failures -------------------------------------------------------------------------------------------------------

TEST_F(SqsBatchTest, OneOfTenThatThrowsIsReportedAloneAndRunAgainWhenItComesAgain) {
  std::vector<Sent> messages = ten_messages();
  messages[4].body = "boom";
  const auto batch = sqs::batch(engine, options(), handler());
  EXPECT_EQ(batch(sqs_event(messages), invocation()), failures({"m4"}));
  EXPECT_EQ(ends.whole("m4").why, "boom");
  EXPECT_TRUE(ends.whole("m4").reported);
  EXPECT_EQ(ends.of("m5"), "executed");
  ends.clear();

  // The queue may deliver everything again after any response.
  EXPECT_EQ(batch(sqs_event(messages), invocation()), failures({"m4"}));
  EXPECT_EQ(ends.of("m5"), "replayed");
  EXPECT_EQ(effects.count("m4"), 2U);
  for (const char* id : {"m0", "m1", "m2", "m3", "m5", "m6", "m7", "m8", "m9"}) EXPECT_EQ(effects.count(id), 1U);
}

TEST_F(SqsBatchTest, AnythingThatIsThrownFailsItsMessageOnly) {
  const auto batch = sqs::batch(engine, options(), [](const Message& message) {
    if (message.id == "a") throw 17;  // NOLINT(hicpp-exception-baseclass): that is the point
  });
  EXPECT_EQ(batch(sqs_event({{.id = "a"}, {.id = "b"}}), invocation()), failures({"a"}));
  EXPECT_THAT(ends.whole("a").why, HasSubstr("not a std::exception"));
}

TEST_F(SqsBatchTest, ResultsAreKeptAndTheContextIsTheOperations) {
  std::string derived;
  const auto batch = sqs::batch(engine, options(), [&](const Message& message, Context& context) {
    EXPECT_TRUE(context.is_protected());
    derived = context.derived_key("card");
    return "receipt of " + message.id;
  });
  EXPECT_EQ(batch(sqs_event({{.id = "a"}}), invocation()), nothing_failed);
  const Record record = stored("a").value();
  EXPECT_EQ(record.state, State::completed);
  EXPECT_EQ(record.result.bytes, "receipt of a");
  EXPECT_EQ(record.holder, "host:1 request-1");
  EXPECT_FALSE(derived.empty());
}

TEST_F(SqsBatchTest, AStepThatWasFinishedIsNotRunAgain) {
  bool fails = true;
  const auto batch = sqs::batch(engine, options(), [&](const Message&, Context& context) {
    context.step("charge", [&] { effects.add("charge"); });
    if (fails) throw std::runtime_error("the mail server is down");
    effects.add("mail");
  });
  EXPECT_EQ(batch(sqs_event({{.id = "a"}}), invocation()), failures({"a"}));
  fails = false;
  ends.clear();
  EXPECT_EQ(batch(sqs_event({{.id = "a"}}), invocation()), nothing_failed);
  EXPECT_THAT(effects.list(), ElementsAre("charge", "mail"));
}

TEST_F(SqsBatchTest, WhatSomebodyElseIsAtIsReportedAndNotRun) {
  Engine other(engine_options(store));
  Claim claim = claimed(other, "f/batch", "m3");
  const auto batch = sqs::batch(engine, options(), handler());
  EXPECT_EQ(batch(sqs_event(ten_messages()), invocation()), failures({"m3"}));
  EXPECT_EQ(ends.of("m3"), "conflict");
  EXPECT_EQ(effects.count("m3"), 0U);
  claim.complete(Result::inlined("done elsewhere"));
  ends.clear();
  EXPECT_EQ(batch(sqs_event({{.id = "m3"}}), invocation()), nothing_failed);
  EXPECT_EQ(ends.of("m3"), "replayed");
  EXPECT_EQ(effects.count("m3"), 0U);
}

TEST_F(SqsBatchTest, WhereTheStoreDoesNotAnswerNothingIsRun) {
  const auto faulty = std::make_shared<FaultyStore>(store, [](const StoreCall& call) {
    const bool down = call.key.ends_with("m2") || call.key.ends_with("m7");
    return Fault{.kind = down ? Fault::Kind::unavailable : Fault::Kind::none};
  });
  Engine unlucky(engine_options(faulty));
  const auto batch = sqs::batch(unlucky, options(), handler());
  const auto others_are_done = [&] {
    const std::vector<Sent> messages = ten_messages();
    return std::count_if(messages.begin(), messages.end(), [&](const Sent& each) {
             const std::optional<Record> record = stored(each.id);
             return record && record->state == State::completed;
           }) == 8;
  };
  EXPECT_EQ(while_time_passes([&] { return batch(sqs_event(ten_messages()), {}); }, 0, others_are_done),
            failures({"m2", "m7"}));
  EXPECT_EQ(ends.of("m2"), "error");
  EXPECT_THAT(effects.list(), SizeIs(8));
}

TEST_F(SqsBatchTest, WhatIsDoneIsDoneWhoeverCannotFetchItsResult) {
  Claim claim = claimed(engine, "f/batch", "a");
  ASSERT_EQ(claim.complete(out_of_reach()).kind, Finish::Kind::recorded);
  const auto batch = sqs::batch(engine, options(), handler());
  EXPECT_EQ(batch(sqs_event({{.id = "a"}}), invocation()), nothing_failed);
  EXPECT_EQ(ends.of("a"), "replayed");
  EXPECT_THAT(ends.whole("a").why, HasSubstr("offload"));
  EXPECT_THAT(effects.list(), IsEmpty());
}

TEST_F(SqsBatchTest, WhatFailedForGoodHasFailedWhoeverCannotFetchItsOutput) {
  Claim claim = claimed(engine, "f/batch", "a");
  ASSERT_EQ(claim.fail({.code = "declined", .message = "no"}, out_of_reach()).kind, Finish::Kind::recorded);
  const auto batch = sqs::batch(engine, options(), handler());
  EXPECT_EQ(batch(sqs_event({{.id = "a"}}), invocation()), failures({"a"}));
  EXPECT_EQ(ends.of("a"), "stored_failure");
  EXPECT_THAT(ends.whole("a").why, HasSubstr("offload"));
  EXPECT_THAT(effects.list(), IsEmpty());
}

TEST_F(SqsBatchTest, AFailureThatPolicyKeepsIsReportedAndNotRunAgain) {
  Policy policy;
  policy.on_throw = OnThrow::store;
  const auto batch = sqs::batch(engine, options([&](BatchOptions& o) { o.policy = policy; }), handler());
  EXPECT_EQ(batch(sqs_event({{.id = "a", .body = "boom"}}), invocation()), failures({"a"}));
  ends.clear();
  EXPECT_EQ(batch(sqs_event({{.id = "a", .body = "boom"}}), invocation()), failures({"a"}));
  EXPECT_EQ(ends.of("a"), "stored_failure");
  EXPECT_THAT(ends.whole("a").why, HasSubstr("boom"));
  EXPECT_EQ(effects.count("a"), 1U);
}

TEST_F(SqsBatchTest, AMessageWhoseClaimWasLostMeanwhileCountsByWhatIsStored) {
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) { o.margin = 0ms; }), [&](const Message& message) {
    // Frozen until the invocation is over; another one takes the message over.
    clock->advance(31s);
    const WithinInvocation another_process({});
    Engine other(engine_options(store));
    Claim claim = claimed(other, "f/batch", message.id);
    if (message.id == "done") claim.complete(Result::inlined("theirs"));
    other_claims.push_back(std::move(claim));
  });
  EXPECT_EQ(batch(sqs_event({{.id = "done"}}), invocation()), nothing_failed);
  EXPECT_EQ(ends.of("done"), "replayed");
  EXPECT_EQ(stored("done")->result.bytes, "theirs");
  EXPECT_EQ(batch(sqs_event({{.id = "going"}}), invocation()), failures({"going"}));
  EXPECT_EQ(ends.of("going"), "lost");
}

// --- Order ----------------------------------------------------------------------------------------------------------

TEST_F(SqsBatchTest, AGroupKeepsItsOrderAndStopsAtAFailure) {
  const std::vector<Sent> messages = {
      {.id = "a1", .group = "a"}, {.id = "b1", .group = "b"}, {.id = "a2", .body = "boom", .group = "a"},
      {.id = "a3", .group = "a"}, {.id = "b2", .group = "b"}, {.id = "a4", .group = "a"},
      {.id = "b3", .group = "b"}};
  const auto batch = sqs::batch(engine, options(), handler());
  EXPECT_EQ(batch(sqs_event(messages, "orders.fifo"), invocation()), failures({"a2", "a3", "a4"}));
  EXPECT_THAT(effects.list("a"), ElementsAre("a1", "a2"));
  EXPECT_THAT(effects.list("b"), ElementsAre("b1", "b2", "b3"));
  EXPECT_EQ(ends.of("a3"), "blocked");
  EXPECT_THAT(ends.whole("a4").why, HasSubstr("a3"));
}

TEST_F(SqsBatchTest, GroupsRunSideBySide) {
  std::barrier heads(3);
  const std::vector<Sent> messages = {{.id = "a1", .group = "a"}, {.id = "a2", .group = "a"},
                                      {.id = "b1", .group = "b"}, {.id = "c1", .group = "c"},
                                      {.id = "b2", .group = "b"}, {.id = "c2", .group = "c"}};
  const auto batch = sqs::batch(engine, options(), [&](const Message& message) {
    heads.arrive_and_wait();  // Three at a time: one of each group, twice.
    effects.add(message.id);
  });
  EXPECT_EQ(batch(sqs_event(messages, "orders.fifo"), invocation()), nothing_failed);
  for (const char* group : {"a", "b", "c"}) {
    EXPECT_THAT(effects.list(group), ElementsAre(std::string(group) + "1", std::string(group) + "2"));
  }
}

TEST_F(SqsBatchTest, GroupsOfAStandardQueueOrderNothing) {
  std::barrier both(2);  // AWS, "Amazon SQS fair queues".
  const auto batch = sqs::batch(engine, options(), [&](const Message&) { both.arrive_and_wait(); });
  EXPECT_EQ(batch(sqs_event({{.id = "a1", .group = "a"}, {.id = "a2", .group = "a"}}), invocation()), nothing_failed);
}

TEST_F(SqsBatchTest, WhatWasHeldDoesNotStopItsGroup) {
  const std::vector<Sent> messages = {{.id = "a1", .body = "hopeless", .group = "a"}, {.id = "a2", .group = "a"}};
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) { o.on_poison = OnDeadEnd::park; }), handler());
  EXPECT_EQ(batch(sqs_event(messages, "orders.fifo"), invocation()), nothing_failed);
  EXPECT_THAT(effects.list(), ElementsAre("a1", "a2"));
}

TEST_F(SqsBatchTest, ARecordThatCannotBeReadStopsItsGroupAndNoOther) {
  const std::vector<Sent> messages = {{.id = "a1", .group = "a", .more = R"("body": "twice", )"},
                                      {.id = "a2", .group = "a"},
                                      {.id = "b1", .group = "b"}};
  const auto batch = sqs::batch(engine, options(), handler());
  EXPECT_EQ(batch(sqs_event(messages, "orders.fifo"), invocation()), failures({"a1", "a2"}));
  EXPECT_EQ(ends.of("a1"), "poison");
  EXPECT_THAT(ends.whole("a1").why, HasSubstr("twice"));
  EXPECT_THAT(effects.list(), ElementsAre("b1"));
}

// --- One key twice --------------------------------------------------------------------------------------------------

TEST_F(SqsBatchTest, RecordsWithOneKeyInABatchRunOnce) {
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) {
                                  o.key_source = KeySource::payload;
                                  o.key = "order";
                                }),
                                handler());
  const std::vector<Sent> messages = {{.id = "a", .body = R"({"order":1})"},
                                      {.id = "b", .body = R"({"order":2})"},
                                      {.id = "c", .body = R"({ "order" : 1, "more" : true })"},
                                      {.id = "d", .body = R"({"order":1.0})"}};
  EXPECT_EQ(batch(sqs_event(messages), invocation()), nothing_failed);
  EXPECT_THAT(effects.list(), UnorderedElementsAre("a", "b"));
  EXPECT_EQ(ends.of("c"), "duplicate");
  EXPECT_EQ(ends.of("d"), "duplicate");
  EXPECT_EQ(ends.whole("c").key, ends.whole("a").key);
}

TEST_F(SqsBatchTest, WhatFailsIsNotTriedAgainByItsTwinInTheSameBatch) {
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) {
                                  o.key_source = KeySource::record;
                                  o.key = "powertools_json(body).order";
                                }),
                                handler());
  const std::vector<Sent> messages = {{.id = "a", .body = R"({"order":1,"what":"boom"})"},
                                      {.id = "b", .body = R"({"order":1})"},
                                      {.id = "c", .body = R"({"order":1})"}};
  EXPECT_EQ(batch(sqs_event(messages), invocation()), failures({"a", "b", "c"}));
  EXPECT_THAT(effects.list(), ElementsAre("a"));
  EXPECT_EQ(ends.of("b"), "blocked");
  ends.clear();
  EXPECT_EQ(batch(sqs_event({messages[1], messages[2]}), invocation()), nothing_failed);
  EXPECT_THAT(effects.list(), ElementsAre("a", "b"));
}

TEST_F(SqsBatchTest, ATwinInAnotherGroupRunsIfTheFirstWasNeverBegun) {
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) {
                                  o.key_source = KeySource::payload;
                                  o.key = "order";
                                }),
                                handler());
  const std::vector<Sent> messages = {{.id = "a1", .body = R"({"order":1,"what":"boom"})", .group = "a"},
                                      {.id = "a2", .body = R"({"order":2})", .group = "a"},
                                      {.id = "b1", .body = R"({"order":2})", .group = "b"}};
  EXPECT_EQ(batch(sqs_event(messages, "orders.fifo"), invocation()), failures({"a1", "a2"}));
  EXPECT_THAT(effects.list(), ElementsAre("a1", "b1"));
}

TEST_F(SqsBatchTest, AMessageThatIsInTheBatchTwiceIsRunOnceAndReportedOnce) {
  BatchOptions o = options();
  o.observer = nullptr;
  const auto batch = sqs::batch(engine, o, handler());
  EXPECT_EQ(batch(sqs_event({{.id = "a", .body = "boom"}, {.id = "a", .body = "boom"}}), invocation()),
            failures({"a"}));
  EXPECT_EQ(effects.count("a"), 1U);
}

// --- Keys -----------------------------------------------------------------------------------------------------------

TEST_F(SqsBatchTest, DeduplicationIdsNameOperationsForLongerThanTheQueueRemembersThem) {
  const auto batch =
      sqs::batch(engine, options([](BatchOptions& o) { o.key_source = KeySource::deduplication_id; }), handler());
  const auto sent = [](const char* id, const char* group, const char* deduplication_id) {
    return Sent{.id = id, .group = group, .deduplication_id = deduplication_id};
  };
  EXPECT_EQ(batch(sqs_event({sent("a", "g", "order-1")}, "orders.fifo"), invocation()), nothing_failed);
  EXPECT_TRUE(stored("orders.fifo/g/order-1").has_value());
  clock->advance(6min);
  EXPECT_EQ(batch(sqs_event({sent("b", "g", "order-1")}, "orders.fifo"), invocation()), nothing_failed);
  EXPECT_EQ(ends.of("b"), "replayed");
  // Other messages: another group, another queue, and pairs that read the same when they are put together.
  EXPECT_EQ(
      batch(sqs_event({sent("c", "h", "order-1"), sent("d", "g/order", "1"), sent("e", "g", "order/1")}, "orders.fifo"),
            invocation()),
      nothing_failed);
  EXPECT_EQ(batch(sqs_event({sent("f", "g", "order-1")}, "others.fifo"), invocation()), nothing_failed);
  EXPECT_THAT(effects.list(), UnorderedElementsAre("a", "c", "d", "e", "f"));
  EXPECT_THROW(batch(sqs_event({{.id = "g"}}), invocation()), FunctionError) << "a standard queue has none";
}

TEST_F(SqsBatchTest, AKeyIsTakenFromTheRecordAsItCame) {
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) {
                                  o.key_source = KeySource::record;
                                  o.key = "[attributes.SenderId, body]";
                                }),
                                handler());
  // What only looks like the end of a string, of a record, and of the list.
  const std::vector<Sent> messages = {{.id = "a", .body = R"(\"}]}, {"messageId": "x"})"}, {.id = "b", .body = "]}\\"}};
  EXPECT_EQ(batch(sqs_event(messages), invocation()), nothing_failed);
  EXPECT_THAT(effects.list(), UnorderedElementsAre("a", "b"));
  EXPECT_NE(ends.whole("a").key, ends.whole("b").key);
}

TEST_F(SqsBatchTest, WithoutAKeyItIsRunUnprotectedOrPoisonAsPolicySays) {
  const auto keyed = [&](OnMissingKey what) {
    return options([&](BatchOptions& o) {
      o.key_source = KeySource::payload;
      o.key = "order";
      o.policy.emplace();
      o.policy->on_missing_key = what;
    });
  };
  EXPECT_EQ(sqs::batch(engine, keyed(OnMissingKey::run_unprotected), handler())(sqs_event({{.id = "a"}}), invocation()),
            nothing_failed);
  EXPECT_EQ(ends.of("a"), "unprotected");
  EXPECT_EQ(sqs::batch(engine, keyed(OnMissingKey::refuse), handler())(sqs_event({{.id = "b"}}), invocation()),
            failures({"b"}));
  EXPECT_EQ(ends.of("b"), "poison");
  EXPECT_THAT(effects.list(), ElementsAre("a"));
}

TEST_F(SqsBatchTest, NothingSaidItIsPoisonWithoutAKeyOrWithoutAnythingToCompare) {
  const auto of_payload = [&](std::string key, std::string validation) {
    return options([&](BatchOptions& o) {
      o.key_source = KeySource::payload;
      o.key = std::move(key);
      o.fingerprint = std::move(validation);
      o.policy = Policy{.lease = 20s};  // A policy for something else.
    });
  };
  const std::string order = R"({"order":1,"cents":5})";
  for (const auto& [key, validation, end] : {std::tuple("odrer", "", "poison"), std::tuple("order", "cent", "poison"),
                                             std::tuple("order", "cents", "executed")}) {
    ends.clear();
    sqs::batch(engine, of_payload(key, validation), handler())(sqs_event({{.id = "a", .body = order}}), invocation());
    EXPECT_EQ(ends.of("a"), end) << key << " " << validation;
  }
}

TEST_F(SqsBatchTest, TheScopeIsTheFunctionAndTheHandler) {
  const auto named = [&](const std::string& name, lambda::Environment environment) {
    return options([&](BatchOptions& o) {
      o.scope.clear();
      o.name = name;
      o.environment = std::move(environment);
    });
  };
  const lambda::Environment shop{.function_name = "shop", .handler = "bootstrap"};
  EXPECT_EQ(sqs::batch(engine, named("", shop), handler())(sqs_event({{.id = "a"}}), invocation()), nothing_failed);
  EXPECT_TRUE(stored("a", "shop/bootstrap").has_value());
  EXPECT_EQ(sqs::batch(engine, named("orders", shop), handler())(sqs_event({{.id = "b"}}), invocation()),
            nothing_failed);
  EXPECT_TRUE(stored("b", "shop/orders").has_value());
  EXPECT_THROW(sqs::batch(engine, named("", {}), handler()), Exception);
  EXPECT_THROW(sqs::batch(engine, named("a/b", shop), handler()), Exception);
}

TEST_F(SqsBatchTest, SwitchedOffItRunsEverythingAndClaimsNothing) {
  const auto batch = sqs::batch(
      engine, options([](BatchOptions& o) { o.environment = lambda::Environment{.disabled = "1"}; }), handler());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(batch(sqs_event({{.id = "a"}}), invocation()), nothing_failed);
    EXPECT_EQ(ends.of("a"), "unprotected");
    ends.clear();
  }
  EXPECT_EQ(effects.count("a"), 2U);
  EXPECT_EQ(records(), 0U);
}

TEST_F(SqsBatchTest, HoldNeedsAKeyThatSurvivesARedrive) {
  for (const Policy& policy : {Policy{.on_lapse = OnLapse::hold}, Policy{.on_throw = OnThrow::hold}}) {
    const auto with = [&](KeySource source, const std::string& key) {
      static_cast<void>(sqs::batch(engine, options([&](BatchOptions& o) {
                                     o.policy = policy;
                                     o.key_source = source;
                                     o.key = key;
                                   }),
                                   handler()));
    };
    EXPECT_THROW(with(KeySource::id, ""), Exception);
    EXPECT_THROW(with(KeySource::deduplication_id, ""), Exception);
    EXPECT_THROW(with(KeySource::record, "[messageId]"), Exception);
    EXPECT_NO_THROW(with(KeySource::record, "powertools_json(body).order"));
    EXPECT_NO_THROW(with(KeySource::payload, "order"));
  }
}

TEST_F(SqsBatchTest, OptionsThatDoNotFitAreRefusedBeforeAnythingIsRun) {
  const auto refused = [&](auto change) { EXPECT_THROW(sqs::batch(engine, options(change), handler()), Exception); };
  refused([](BatchOptions& o) { o.parallel = 0; });
  refused([](BatchOptions& o) { o.parallel = 1'001; });
  refused([](BatchOptions& o) { o.margin = -1ms; });
  refused([](BatchOptions& o) { o.key = "body"; });
  refused([](BatchOptions& o) { o.key_source = KeySource::record; });  // Another key with each receipt.
  refused([](BatchOptions& o) { o.fingerprint = "]["; });
  refused([](BatchOptions& o) {
    o.policy.emplace();
    o.policy->lease = 0ms;
  });
  refused([](BatchOptions& o) {
    o.key_source = KeySource::record;
    o.key = "nonsense(";
  });
}

// --- Dead ends ------------------------------------------------------------------------------------------------------

class DeadEndTest : public SqsBatchTest {
 protected:
  static constexpr const char* parked = "f/batch/parked";

  BatchOptions by_order(OnDeadEnd what) {
    return options([&](BatchOptions& o) {
      o.key_source = KeySource::payload;
      o.key = "order";
      o.fingerprint = "cents";
      o.on_poison = o.on_mismatch = o.on_unknown = what;
    });
  }
};

TEST_F(DeadEndTest, ABodyThatCannotBeReadIsReported) {
  const auto batch = sqs::batch(engine, by_order(OnDeadEnd::leave), handler());
  EXPECT_EQ(batch(sqs_event({{.id = "a", .body = R"({"order":1)"}, {.id = "b", .body = R"({"order":2,"cents":1})"}}),
                  invocation()),
            failures({"a"}));
  EXPECT_EQ(ends.of("a"), "poison");
  EXPECT_THAT(effects.list(), ElementsAre("b"));
  EXPECT_EQ(records(), 1U);
}

TEST_F(DeadEndTest, ABodyThatCannotBeReadIsKeptWholeForAPerson) {
  const auto batch = sqs::batch(engine, by_order(OnDeadEnd::park), handler());
  const std::string event = sqs_event({{.id = "a", .body = R"({"order":1)"}});
  EXPECT_EQ(batch(event, invocation()), nothing_failed);
  EXPECT_TRUE(ends.whole("a").parked);
  const Record record = stored("a", parked).value();
  EXPECT_EQ(record.state, State::unknown);
  EXPECT_EQ(record.expires_at, never);
  EXPECT_THAT(record.failure.message, HasSubstr("poison: "));
  EXPECT_EQ(step(record, "record"), event.substr(13, event.size() - 15)) << "to the last byte";
  ends.clear();

  // The response was lost, so that it comes again.
  clock->advance(1h);
  EXPECT_EQ(batch(event, invocation()), nothing_failed);
  EXPECT_TRUE(ends.whole("a").parked);
  EXPECT_EQ(stored("a", parked), record);
  EXPECT_THAT(effects.list(), IsEmpty());
}

TEST_F(DeadEndTest, WhatCannotBeKeptComesAgain) {
  const auto faulty = std::make_shared<FaultyStore>(store, [](const StoreCall& call) {
    return Fault{.kind =
                     call.operation == StoreCall::Operation::replace ? Fault::Kind::unavailable : Fault::Kind::none};
  });
  Engine unlucky(engine_options(faulty));
  const auto batch = sqs::batch(unlucky, by_order(OnDeadEnd::park), handler());
  EXPECT_EQ(while_time_passes([&] { return batch(sqs_event({{.id = "a", .body = "no JSON"}}), {}); }), failures({"a"}));
  EXPECT_THAT(ends.whole("a").why, HasSubstr("could not be parked"));
  EXPECT_FALSE(ends.whole("a").parked);
}

TEST_F(DeadEndTest, WhatWasBegunToBeKeptIsKeptWhenItComesAgainWhateverALapseMeans) {
  BatchOptions parking = by_order(OnDeadEnd::park);
  parking.policy.emplace();
  parking.policy->on_lapse = OnLapse::hold;
  const std::string event = sqs_event({{.id = "a", .body = "no JSON"}});
  {
    Engine dead(engine_options(store));  // Ends between the claim and the step.
    Claim claim = claimed(dead, parked, "a");
  }
  clock->advance(1h);
  const auto batch = sqs::batch(engine, parking, handler());
  EXPECT_EQ(batch(event, invocation()), nothing_failed);
  EXPECT_TRUE(ends.whole("a").parked);
  EXPECT_THAT(step(stored("a", parked).value(), "record"), HasSubstr("no JSON"));
}

TEST_F(DeadEndTest, ARecordOfItsNameThatDoesNotHaveItDoesNotCountAsKept) {
  Claim claim = claimed(engine, parked, "a");
  ASSERT_EQ(claim.hold("an empty one").kind, Finish::Kind::recorded);
  const auto batch = sqs::batch(engine, by_order(OnDeadEnd::park), handler());
  EXPECT_EQ(batch(sqs_event({{.id = "a", .body = "no JSON"}}), invocation()), failures({"a"}));
  EXPECT_FALSE(ends.whole("a").parked);
  EXPECT_THAT(ends.whole("a").why, HasSubstr("once resolve"));
}

TEST_F(DeadEndTest, WhatIsTooLargeToBeKeptWithItsReasonIsReportedAndNotClaimed) {
  const auto small = std::make_shared<SmallStore>(store, 20'000);
  Engine cramped(engine_options(small));
  const auto batch = sqs::batch(cramped, by_order(OnDeadEnd::park), handler());
  const std::string fits(10'000, 'x');
  const std::string fits_alone(18'000, 'x');
  EXPECT_EQ(batch(sqs_event({{.id = "a", .body = fits}, {.id = "b", .body = fits_alone}}), invocation()),
            failures({"b"}));
  EXPECT_THAT(step(stored("a", parked).value(), "record"), HasSubstr(fits));
  EXPECT_THAT(ends.whole("b").why, HasSubstr("too large to keep"));
  EXPECT_FALSE(stored("b", parked).has_value());
}

TEST_F(DeadEndTest, WithoutTimeToKeepARecordItIsReported) {
  BatchOptions parking = by_order(OnDeadEnd::park);
  parking.margin = 0ms;
  parking.parallel = 2;
  const auto batch = sqs::batch(engine, parking, [&](const Message&) {
    clock->advance(30s);
    throw sqs::PoisonMessage("hopeless");
  });
  EXPECT_EQ(batch(sqs_event({{.id = "a", .body = R"({"order":1,"cents":1})"}}), invocation(30s)), failures({"a"}));
  EXPECT_EQ(ends.of("a"), "poison");
  EXPECT_THAT(ends.whole("a").why, HasSubstr("could not be parked"));
}

TEST_F(DeadEndTest, AMessageThatTheHandlerGivesUpIsReportedOrKept) {
  const std::string event = sqs_event({{.id = "a", .body = R"({"order":1,"cents":1,"what":"hopeless"})"}});
  EXPECT_EQ(sqs::batch(engine, by_order(OnDeadEnd::leave), handler())(event, invocation()), failures({"a"}));
  EXPECT_EQ(ends.of("a"), "poison");
  ends.clear();
  EXPECT_EQ(sqs::batch(engine, by_order(OnDeadEnd::park), handler())(event, invocation()), nothing_failed);
  EXPECT_EQ(stored("a", parked)->state, State::unknown);
  EXPECT_THAT(stored("a", parked)->failure.message, HasSubstr("hopeless"));
  EXPECT_EQ(effects.count("a"), 2U);
  EXPECT_EQ(records(), 1U) << "the claim was released, as Policy::on_throw says";
}

TEST_F(DeadEndTest, AMismatchIsReportedOrKept) {
  const std::string first = sqs_event({{.id = "a", .body = R"({"order":1,"cents":100})"}});
  const std::string other = sqs_event({{.id = "b", .body = R"({"order":1,"cents":999})"}});
  const auto reports = sqs::batch(engine, by_order(OnDeadEnd::leave), handler());
  EXPECT_EQ(reports(first, invocation()), nothing_failed);
  EXPECT_EQ(reports(other, invocation()), failures({"b"}));
  EXPECT_EQ(ends.of("b"), "mismatch");
  ends.clear();
  EXPECT_EQ(sqs::batch(engine, by_order(OnDeadEnd::park), handler())(other, invocation()), nothing_failed);
  EXPECT_EQ(ends.of("b"), "mismatch");
  EXPECT_THAT(step(stored("b", parked).value(), "record"), HasSubstr("999"));
  EXPECT_THAT(effects.list(), ElementsAre("a"));
}

TEST_F(DeadEndTest, AMismatchWithinOneBatchIsFoundToo) {
  const auto batch = sqs::batch(engine, by_order(OnDeadEnd::leave), handler());
  EXPECT_EQ(batch(sqs_event({{.id = "a", .body = R"({"order":1,"cents":100})"},
                             {.id = "b", .body = R"({"order":1,"cents":999})"},
                             {.id = "c", .body = R"({"order":1,"cents":100})"}}),
                  invocation()),
            failures({"b"}));
  EXPECT_EQ(ends.of("b"), "mismatch");
  EXPECT_EQ(ends.of("c"), "replayed");
  EXPECT_THAT(effects.list(), ElementsAre("a"));
}

TEST_F(DeadEndTest, AnUnknownOutcomeIsReportedOrKept) {
  BatchOptions parking = by_order(OnDeadEnd::leave);
  parking.policy.emplace();
  parking.policy->on_throw = OnThrow::hold;
  const std::string event = sqs_event({{.id = "a", .body = R"({"order":1,"cents":1,"what":"boom"})"}});
  const auto reports = sqs::batch(engine, parking, handler());
  EXPECT_EQ(reports(event, invocation()), failures({"a"})) << "it threw";
  ends.clear();
  EXPECT_EQ(reports(event, invocation()), failures({"a"}));
  EXPECT_EQ(ends.of("a"), "unknown");
  ends.clear();
  EXPECT_EQ(sqs::batch(engine, by_order(OnDeadEnd::park), handler())(event, invocation()), nothing_failed);
  EXPECT_TRUE(ends.whole("a").parked);
  EXPECT_THAT(step(stored("a", parked).value(), "record"), HasSubstr("boom"));
  EXPECT_EQ(effects.count("a"), 1U);
}

// --- Time -----------------------------------------------------------------------------------------------------------

TEST_F(SqsBatchTest, WhatTheTimeDoesNotSufficeForIsReportedWithoutBeingBegun) {
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) {
                                  o.parallel = 1;
                                  o.margin = 2s;
                                }),
                                [&](const Message& message) {
                                  effects.add(message.id);
                                  clock->advance(3s);
                                });
  // 10 s: begun with 10, 7 and 4 s left, not with 1.
  EXPECT_EQ(batch(sqs_event({{.id = "a"}, {.id = "b"}, {.id = "c"}, {.id = "d"}, {.id = "e"}}), invocation(10s)),
            failures({"d", "e"}));
  EXPECT_THAT(effects.list(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(ends.of("d"), "out_of_time");
  EXPECT_EQ(records(), 3U) << "nothing was claimed for the others";
}

TEST_F(SqsBatchTest, AfterTheDeadlineNothingIsBegunWhateverTheMargin) {
  const auto batch = sqs::batch(engine, options([](BatchOptions& o) { o.margin = 0ms; }), handler());
  EXPECT_EQ(batch(sqs_event({{.id = "a"}}), invocation(0ms)), failures({"a"}));
  EXPECT_EQ(batch(sqs_event({{.id = "b"}}), invocation(-5s)), failures({"b"}));
  EXPECT_THAT(effects.list(), IsEmpty());
}

TEST_F(SqsBatchTest, WhereTimeRunsOutJustBeforeTheClaimNothingIsBegun) {
  // Each look at it takes 5 ms: 12 are left, and then 7.
  class SlowClock final : public Clock {
   public:
    explicit SlowClock(std::shared_ptr<ManualClock> clock) : clock_(std::move(clock)) {}
    [[nodiscard]] Time now() const noexcept override {
      const Time seen = clock_->now();
      clock_->advance(5ms);
      return seen;
    }
    [[nodiscard]] Uptime uptime() const noexcept override { return clock_->uptime(); }

   private:
    const std::shared_ptr<ManualClock> clock_;
  };
  EngineOptions slow = engine_options(store);
  slow.clock = std::make_shared<SlowClock>(clock);
  Engine slow_engine(std::move(slow));
  const auto batch = sqs::batch(slow_engine, options([](BatchOptions& o) {
                                  o.margin = 0ms;
                                  o.on_poison = OnDeadEnd::park;
                                }),
                                handler());
  EXPECT_EQ(batch(sqs_event({{.id = "a"}}), invocation(12ms)), failures({"a"}));
  EXPECT_EQ(ends.of("a"), "out_of_time");
  // The same on the way to keeping one that cannot be read.
  EXPECT_EQ(batch(sqs_event({{.id = "b", .more = R"("body": "twice", )"}}), invocation(12ms)), failures({"b"}));
  EXPECT_EQ(ends.of("b"), "poison");
  EXPECT_THAT(effects.list(), IsEmpty());
  EXPECT_EQ(records(), 0U);
}

TEST_F(SqsBatchTest, TheLeaseIsWhatIsLeftOfTheInvocation) {
  const auto batch = sqs::batch(engine, options(), [&](const Message& message) {
    EXPECT_GE(stored(message.id)->lease_until, clock->now() + 12s);
    EXPECT_LE(stored(message.id)->lease_until, clock->now() + 12s + 10ms) << "and the drift of clocks";
    EXPECT_EQ(timers->pending(), 1U) << "told when the lease has run out, and no heartbeat before";
    EXPECT_GT(timers->next().value(), clock->uptime() + 11s);
  });
  EXPECT_EQ(batch(sqs_event({{.id = "a"}}), invocation(12s)), nothing_failed);
}

TEST_F(SqsBatchTest, WithoutADeadlineTheLeaseIsThePolicys) {
  Policy policy;
  policy.lease = 9s;
  const auto batch = sqs::batch(engine, options([&](BatchOptions& o) { o.policy = policy; }),
                                [&](const Message& m) { EXPECT_EQ(stored(m.id)->lease_until, clock->now() + 9s); });
  EXPECT_EQ(batch(sqs_event({{.id = "a"}}), {}), nothing_failed);
}

TEST_F(SqsBatchTest, NobodyIsWaitedForBeyondTheEndOfTheInvocation) {
  Engine other(engine_options(store));
  Claim claim = claimed(other, "f/batch", "a");
  Policy policy;
  policy.on_conflict = OnConflict::wait;
  policy.wait = 1h;
  const auto batch = sqs::batch(engine, options([&](BatchOptions& o) { o.policy = policy; }), handler());
  const Invocation until = invocation(5s);
  EXPECT_EQ(while_time_passes([&] { return batch(sqs_event({{.id = "a"}}), until); }, 1), failures({"a"}));
  EXPECT_EQ(ends.of("a"), "conflict");
  EXPECT_LE(clock->now(), until.deadline - 1s);
}

// --- Events ---------------------------------------------------------------------------------------------------------

TEST_F(SqsBatchTest, AnEventThatIsNoneOfSqsIsRefusedBeforeAnythingIsRun) {
  const auto batch = sqs::batch(engine, options(), handler());
  const std::string one = sqs_event({{.id = "a"}});
  for (const std::string& event :
       {std::string(), std::string("{"), std::string("null"), std::string("{}"), std::string("\xff"),
        std::string(R"({"Records": {}})"), std::string(R"({"Records": [1]})"), std::string(R"({"Records": [{}]})"),
        std::string(R"({"\u0052ecords": [{"messageId": "a", "eventSource": "aws:sqs"}]})"),
        std::string(R"({"Records": [{"EventSource": "aws:sns", "Sns": {"MessageId": "a"}}]})"),
        std::string(R"({"Records": [{"messageId": "", "eventSource": "aws:sqs"}]})"), one + "x",
        // One that cannot be reported: all of it, or what it stands for would be gone.
        one.substr(0, one.size() - 2) + R"(, {"eventSource": "aws:sqs"}]})"}) {
    try {
      batch(event, invocation());
      ADD_FAILURE() << "no error for " << event;
    } catch (const FunctionError& error) {
      EXPECT_EQ(error.type(), "Once.InvalidEvent");
      EXPECT_THAT(error.what(), HasSubstr("this function takes batches of SQS messages"));
    }
  }
  EXPECT_THAT(effects.list(), IsEmpty());
  EXPECT_EQ(batch(R"({"Records": []})", invocation()), nothing_failed);
}

TEST_F(SqsBatchTest, AMessageIsGivenWithAllThatTheEventHas) {
  const auto batch = sqs::batch(engine, options(), [&](const Message& message) {
    EXPECT_EQ(message.id, "a");
    EXPECT_EQ(message.body, "line\n\xc3\xa9");
    EXPECT_EQ(message.receipt_handle, "handle");
    EXPECT_EQ(message.queue_arn, "arn:aws:sqs:us-east-2:123456789012:orders.fifo");
    EXPECT_TRUE(message.is_fifo());
    EXPECT_EQ(message.group_id, "g");
    EXPECT_EQ(message.deduplication_id, "d");
    EXPECT_EQ(message.receive_count, 3U);
    EXPECT_EQ(message.sent, Time(1'545'082'649'183ms));
    ASSERT_THAT(message.attributes, SizeIs(2));
    EXPECT_EQ(message.attribute("tenant")->value, "t-1");
    EXPECT_EQ(message.attribute("tenant")->type, "String");
    EXPECT_EQ(message.attribute("blob")->value, std::string("\0\xff", 2));
    EXPECT_EQ(message.attribute("none"), nullptr);
    EXPECT_TRUE(message.json.starts_with(R"({"messageId":"a")"));
    effects.add("checked");
  });
  EXPECT_EQ(
      batch(R"({"Records":[{"messageId":"a","receiptHandle":"handle","body":"line\n\u00e9","attributes":{)"
            R"("ApproximateReceiveCount":"3","SentTimestamp":"1545082649183","MessageGroupId":"g",)"
            R"("MessageDeduplicationId":"d"},"messageAttributes":{"tenant":{"stringValue":"t-1","dataType":"String",)"
            R"("stringListValues":[],"binaryListValues":[]},"blob":{"binaryValue":"AP8=","dataType":"Binary"}},)"
            R"("eventSource":"aws:sqs","eventSourceARN":"arn:aws:sqs:us-east-2:123456789012:orders.fifo"}]})",
            invocation()),
      nothing_failed);
  EXPECT_THAT(effects.list(), ElementsAre("checked"));
}

TEST_F(SqsBatchTest, IdsAreWrittenAsJson) {
  const auto batch = sqs::batch(engine, options(), handler());
  EXPECT_EQ(batch(sqs_event({{.id = R"(a"\b)", .body = "boom"}}), invocation()),
            R"({"batchItemFailures":[{"itemIdentifier":"a\"\\b"}]})");
}

// --- Messages that are not what they seem ---------------------------------------------------------------------------

TEST_F(SqsBatchTest, PipesPassesABareArray) {
  const auto batch = sqs::batch(engine, options(), handler());
  const std::vector<Sent> sent = {{.id = "a"}, {.id = "b", .body = "boom"}};
  EXPECT_EQ(batch(as_piped(sqs_event(sent)), invocation()), failures({"b"}));
  ends.clear();
  EXPECT_EQ(batch(as_piped(sqs_event({{.id = "a"}})), invocation()), nothing_failed);
  EXPECT_EQ(ends.of("a"), "replayed");
  EXPECT_EQ(batch("[]", invocation()), nothing_failed);
  EXPECT_THROW(batch("[1]", invocation()), FunctionError);
  EXPECT_THROW(batch(R"([{"body":"{}"}])", invocation()), FunctionError);
}

// A message of the extended client: each time that its payload is sent, it is a pointer to another object.
struct Pointers : SqsBatchTest {
  static std::string pointer(const std::string& key,
                             const std::string& kind = "software.amazon.payloadoffloading.Payload") {
    return R"([")" + kind + R"(S3Pointer",{"s3BucketName":"big","s3Key":")" + key + R"("}])";
  }
  static std::string notification(const std::string& message) {
    return R"({"Type":"Notification","MessageId":"n-1","TopicArn":"arn:aws:sns:eu-central-1:1:orders","Message":)" +
           json_string(message) + "}";
  }
  std::string end_of(const BatchOptions& with, const std::string& body, const std::string& id = "a") {
    const auto batch = sqs::batch(engine, with, handler());
    batch(sqs_event({{.id = id, .body = body}}), invocation());
    const std::string end = ends.of(id);
    if (end == "poison" && body.find("S3Pointer") != std::string::npos) {
      EXPECT_THAT(ends.whole(id).why, HasSubstr("the payload is not in the message but in s3://big/6f1d"));
    }
    ends.clear();
    return end;
  }
};

TEST_F(Pointers, AreNoPayloadToTakeAKeyFrom) {
  const auto keyed = [&](KeySource source, const std::string& key, const std::string& fingerprint = {}) {
    return options([&](BatchOptions& o) {
      o.key_source = source;
      o.key = key;
      o.fingerprint = fingerprint;
    });
  };
  for (const std::string& body :
       {pointer("6f1d"), pointer("6f1d", "com.amazon.sqs.javamessaging.Message"), notification(pointer("6f1d"))}) {
    SCOPED_TRACE(body);
    for (const BatchOptions& with :
         {keyed(KeySource::payload, ""), keyed(KeySource::payload, "order_id"),
          keyed(KeySource::payload, "[1].s3Key || Message"), keyed(KeySource::record, "body"),
          keyed(KeySource::record, "md5OfBody"), keyed(KeySource::record, "[messageId, body]"),
          keyed(KeySource::record, "powertools_json(body).order_id"), keyed(KeySource::record, "messageId", "body"),
          keyed(KeySource::id, "", "body"), keyed(KeySource::id, "", "powertools_json(body).cents")}) {
      EXPECT_EQ(end_of(with, body), "poison") << with.key << " " << with.fingerprint;
    }
    BatchOptions unprotected = keyed(KeySource::payload, "order_id");
    unprotected.policy.emplace().on_missing_key = OnMissingKey::run_unprotected;
    EXPECT_EQ(end_of(unprotected, body), "poison") << "the payload may have a key";
  }
  EXPECT_EQ(records(), 0U);
  EXPECT_THAT(effects.list(), IsEmpty());
}

TEST_F(Pointers, RunUnderKeysOfTheMessage) {
  EXPECT_EQ(end_of(options(), pointer("6f1d"), "a"), "executed");
  EXPECT_EQ(end_of(options(), pointer("6f1d"), "a"), "replayed");
  const BatchOptions by_record = options([](BatchOptions& o) {
    o.key_source = KeySource::record;
    o.key = "[eventSourceARN, messageId]";
    o.fingerprint = "attributes.SenderId";
  });
  EXPECT_EQ(end_of(by_record, pointer("6f1d"), "b"), "executed");
  EXPECT_EQ(end_of(by_record, pointer("6f1d"), "b"), "replayed");
  const BatchOptions by_notification = options([](BatchOptions& o) {
    o.key_source = KeySource::payload;
    o.key = "[TopicArn, MessageId]";
  });
  EXPECT_EQ(end_of(by_notification, notification(pointer("6f1d")), "c"), "executed");
  EXPECT_EQ(end_of(by_notification, notification(pointer("6f1d")), "d"), "replayed");
}

// SNS delivers a notification twice, as two messages.
TEST_F(Pointers, ARepeatedNotificationRunsOnce) {
  const BatchOptions of_recipe = options([](BatchOptions& o) {
    o.key_source = KeySource::payload;
    o.key = lambda::recipes::sns_in_sqs.key;
    o.fingerprint = lambda::recipes::sns_in_sqs.fingerprint;
  });
  EXPECT_EQ(end_of(of_recipe, notification("{}"), "a"), "executed");
  EXPECT_EQ(end_of(of_recipe, notification("{}"), "b"), "replayed");
  EXPECT_EQ(end_of(of_recipe, notification("{ }"), "c"), "mismatch");
  EXPECT_EQ(end_of(of_recipe, "{}", "d"), "poison") << "raw message delivery has no ids";
}

TEST_F(Pointers, AreReadableByTheWork) {
  const auto where = [](const std::string& body, std::vector<Message::Attribute> attributes = {}) {
    Message message;
    message.body = body;
    message.attributes = std::move(attributes);
    const auto payload = message.s3_payload();
    return payload ? payload->bucket + "/" + payload->key : "here";
  };
  EXPECT_EQ(where(pointer("6f1d")), "big/6f1d");
  EXPECT_EQ(where(notification(pointer("a/b"))), "big/a/b");
  EXPECT_EQ(where("moved", {{"ExtendedPayloadSize", "Number", "300000"}}), "/");
  for (const std::string& body :
       {std::string("{}"), std::string("S3Pointer"), std::string(R"(["S3Pointer",{}])"),
        std::string(R"(["S3Pointer",{"s3BucketName":"b","s3Key":1}])"), notification("S3Pointer"),
        R"({"Type":"Other","Message":)" + json_string(pointer("k")) + "}"}) {
    EXPECT_EQ(where(body), "here") << body;
  }
}

}  // namespace batch_test
}  // namespace once::testing
