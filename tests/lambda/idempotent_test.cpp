// once::lambda::idempotent(): keys, scopes, leases, policies, and the error types where there is no response.
#include <once/frontends/lambda/idempotent.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <once/engine/exceptions.hpp>
#include <once/error.hpp>

#include "handler_test.hpp"

namespace once::lambda {
namespace idempotent_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view order = R"({"id":"order-17","cents":500})";

class Idempotent : public HandlerTest {};

TEST_F(Idempotent, TheSameEventGetsTheSameResponse) {
  int runs = 0;
  std::string_view last;
  const Handler handler = idempotent(*process().engine, options(), [&](std::string_view event) {
    last = event;
    return "{\"charge\":" + std::to_string(++runs) + "}";
  });
  EXPECT_EQ(handler(order, invocation()), R"({"charge":1})");
  EXPECT_EQ(handler(order, invocation(30s, "req-2")), R"({"charge":1})");
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(last, order);
  EXPECT_EQ(record().state, State::completed);
  EXPECT_EQ(record().holder, "host:1 req-1");
  EXPECT_EQ(record().result.content_type, "application/json");
  EXPECT_EQ(handler(R"({"id":"order-18","cents":500})", invocation()), R"({"charge":2})");
  EXPECT_EQ(records().size(), 2U);
}

TEST_F(Idempotent, TheSelectedKeyIsALabelIfThatIsChosen) {
  Engine& engine = *process().engine;
  const auto work = [](std::string_view) { return std::string("{}"); };
  IdempotentOptions chosen = options();
  chosen.policy = Policy{.label = Label::all};
  EXPECT_EQ(idempotent(engine, chosen, work)(order, invocation()), "{}");
  EXPECT_EQ(record().label, "order-17");
  EXPECT_EQ(idempotent(engine, options(), work)(R"({"id":"order-18"})", invocation()), "{}");
  for (const Record& each : records()) EXPECT_NE(each.label, "order-18");
}

TEST_F(Idempotent, TheEventIsTheInputIfThatIsChosen) {
  Engine& engine = *process().engine;
  const auto work = [](std::string_view) { return std::string("{}"); };
  EXPECT_EQ(idempotent(engine, options(), work)(order, invocation()), "{}");
  EXPECT_EQ(record().input_bytes, 0U);
  IdempotentOptions chosen = options();
  chosen.name = "chosen";
  chosen.policy = Policy{.keep_input = true};
  chosen.input_without = {"cents"};
  EXPECT_EQ(idempotent(engine, chosen, work)(order, invocation()), "{}");
  ASSERT_EQ(records().size(), 2U);
  std::string inputs;
  for (const Record& each : records()) inputs += each.input;
  EXPECT_EQ(inputs, R"j({"id":"order-17","cents":"(left out)"})j");
  chosen.input_without = {"powertools_json(body).card"};
  EXPECT_THROW(idempotent(engine, chosen, work), Exception);
}

TEST_F(Idempotent, TheWorkTakesWhatItNeeds) {
  Engine& engine = *process().engine;
  int number = 0;
  const auto answer = [&](auto&& work) {
    return idempotent(engine, options(), std::forward<decltype(work)>(work))(
        "{\"id\":" + std::to_string(++number) + "}", invocation(30s, "req-9"));
  };
  EXPECT_EQ(answer([](std::string_view event) { return std::string(event); }), R"({"id":1})");
  EXPECT_EQ(answer([](std::string_view, const Invocation& of) { return of.request_id; }), "req-9");
  EXPECT_EQ(answer([](std::string_view, Context& context) { return std::to_string(context.attempt()); }), "1");
  EXPECT_EQ(answer([](std::string_view, const Invocation& of, Context& context) {
              EXPECT_TRUE(context.is_protected());
              EXPECT_EQ(context.derived_key("card").size(), 64U);
              EXPECT_FALSE(context.stop_token().stop_requested());
              return of.request_id + context.step("charge", [] { return std::string("!"); });
            }),
            "req-9!");
  EXPECT_EQ(answer([](const std::string& event) { return event; }), R"({"id":5})");
  EXPECT_EQ(answer([](std::string event, Context&) { return event + "."; }), R"({"id":6}.)");
  EXPECT_EQ(answer([](const std::string& event, const Invocation&, Context&) -> const char* {
              return event.empty() ? "" : "text";
            }),
            "text");
  EXPECT_EQ(answer([count = 0](std::string_view) mutable { return std::to_string(++count); }), "1");
  EXPECT_EQ(records().size(), 8U);
}

TEST_F(Idempotent, WithoutAnExpressionTheWholeEventIsTheKey) {
  int runs = 0;
  const Handler handler =
      idempotent(*process().engine, options(""), [&](std::string_view) { return std::to_string(++runs); });
  EXPECT_EQ(handler(R"({"a":1,"b":2})", invocation()), "1");
  EXPECT_EQ(handler(R"( { "b" : 2, "a" : 1.0 } )", invocation()), "1") << "blanks and order do not count";
  EXPECT_EQ(handler(R"({"a":1,"b":3})", invocation()), "2");
}

TEST_F(Idempotent, AnotherPayloadUnderTheSameKeyIsAMismatch) {
  IdempotentOptions with = options();
  with.fingerprint = "cents";
  int runs = 0;
  const Handler handler = idempotent(*process().engine, with, [&](std::string_view) { return std::to_string(++runs); });
  EXPECT_EQ(handler(order, invocation()), "1");
  EXPECT_EQ(handler(R"({"id":"order-17","cents":500,"retry":true})", invocation()), "1");
  EXPECT_EQ(error_of([&] { return handler(R"({"id":"order-17","cents":900})", invocation()); }), errors::mismatch);
  EXPECT_EQ(runs, 1);
}

TEST_F(Idempotent, FunctionAndNameAreTheScope) {
  Engine& engine = *process().engine;
  const auto scope = [&](const IdempotentOptions& with) {
    const std::size_t before = records().size();
    static_cast<void>(idempotent(engine, with, [](std::string_view) { return ""; })(order, invocation()));
    std::vector<Record> all = records();
    EXPECT_EQ(all.size(), before + 1) << "a key of its own";
    std::ranges::sort(all, {}, &Record::created_at);
    clock->advance(1s);
    return Key::from_stored(all.back().key).scope();
  };
  IdempotentOptions with = options();
  EXPECT_EQ(scope(with), "shop/pay-fn/bootstrap");
  with.name = "charge";
  EXPECT_EQ(scope(with), "shop/pay-fn/charge");
  with.function = "old-fn";
  EXPECT_EQ(scope(with), "shop/old-fn/charge");
  with.environment = Environment{};
  with.function.clear();
  EXPECT_EQ(scope(with), "shop/charge");
  with.scope = "payments of all";
  EXPECT_EQ(scope(with), "payments of all");
}

TEST_F(Idempotent, DialectsHaveTheIdsOfPowertools) {
  Engine& engine = *process().engine;
  const auto id = [&](keys::Dialect dialect, std::string name, std::string prefix = {}) {
    IdempotentOptions with = options("");
    with.dialect = dialect;
    with.function = "my-func";
    with.name = std::move(name);
    with.key_prefix = std::move(prefix);
    static_cast<void>(
        idempotent(engine, with, [](std::string_view) { return "{}"; })(R"({"a":1,"b":"x"})", invocation()));
    const Record stored = record();
    EXPECT_EQ(blocking::remove(*shared, stored.key, {stored.owner, stored.revision, 0}).status, AnswerStatus::done);
    return stored.key;
  };
  // What the libraries themselves gave for this event.
  EXPECT_EQ(id(keys::Dialect::powertools_python, "app.handler"),
            "my-func.app.handler#4f5f4713d180fb0cb1041f7caf4faaaa");
  EXPECT_EQ(id(keys::Dialect::powertools_typescript, ""), "my-func#dabOS+BPUHUxYEe3WpjY6w==");
  EXPECT_EQ(id(keys::Dialect::powertools_java, "handleRequest"),
            "my-func.handleRequest#75a6ce4be04f5075316047b75a98d8eb");
  EXPECT_EQ(id(keys::Dialect::powertools_python, "", "orders"), "orders#4f5f4713d180fb0cb1041f7caf4faaaa");
}

TEST_F(Idempotent, OptionsThatCannotBeAreRefusedWhenTheHandlerIsMade) {
  Engine& engine = *process().engine;
  const auto refusal = [&](auto change) -> std::string {
    IdempotentOptions with = options();
    change(with);
    try {
      static_cast<void>(idempotent(engine, with, [](std::string_view) { return ""; }));
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      return error.what();
    }
    return "not refused";
  };
  EXPECT_THAT(refusal([](IdempotentOptions& o) { o.key = "a ["; }), HasSubstr("key expression"));
  EXPECT_THAT(refusal([](IdempotentOptions& o) { o.environment = Environment{}; }), HasSubstr("name the handler"));
  EXPECT_THAT(refusal([](IdempotentOptions& o) { o.name = "a/b"; }), HasSubstr("without it"));
  EXPECT_THAT(refusal([](IdempotentOptions& o) { o.key_prefix = "p"; }), HasSubstr("key_prefix"));
  EXPECT_THAT(refusal([](IdempotentOptions& o) { o.dialect = keys::Dialect::powertools_python; }),
              HasSubstr("app.handler"));
  EXPECT_THAT(refusal([](IdempotentOptions& o) { o.scope = std::string(1'000, 's'); }), HasSubstr("1024"));
  EXPECT_THAT(refusal([](IdempotentOptions& o) { o.policy = Policy{.lease = 1ms}; }), HasSubstr("lease"));
  EXPECT_THAT(refusal([](IdempotentOptions& o) { o.environment->disabled = "maybe"; }), HasSubstr("ONCE_DISABLED"));
}

TEST_F(Idempotent, TheRecordHasTheTraceOfXRay) {
  Process& one = process();
  const Handler handler = idempotent(
      *one.engine, options(), [&](std::string_view, Context& context) { return context.trace().parent.xray_text(); });
  Invocation traced = invocation();
  traced.trace_id = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
  EXPECT_EQ(handler(order, traced), traced.trace_id);
  EXPECT_EQ(record().history.trace.xray_text(), traced.trace_id);
}

TEST_F(Idempotent, TheLeaseLastsUntilTheDeadlineAndIsTrustedThatLong) {
  Process& one = process([](EngineOptions& o) { o.policy.skew = 2s; });
  const Time deadline = clock->now() + 3s;
  const Handler handler = idempotent(*one.engine, options(), [&](std::string_view, Context& context) {
    const Millis over = record().lease_until - deadline;
    EXPECT_GE(over, 2s);
    EXPECT_LE(over, 2s + 10ms);
    timers->advance(2'999ms);
    EXPECT_FALSE(context.stop_token().stop_requested()) << "there is a millisecond left to run";
    EXPECT_EQ(context.step("late", [] { return std::string("step"); }), "step");
    EXPECT_EQ(record().lease_until - deadline, over) << "nor does a step prolong it";
    EXPECT_EQ(one.told(EventKind::renewed), 0U) << "no heartbeat: the platform freezes processes";
    return "done";
  });
  EXPECT_EQ(handler(order, invocation(3s)), "done");
  EXPECT_EQ(one.told(EventKind::renewal_lost), 0U);
}

TEST_F(Idempotent, AfterTheDeadlineTheWorkIsToldToStop) {
  Process& one = process();
  const Handler handler = idempotent(*one.engine, options(), [&](std::string_view, Context& context) {
    const std::stop_token stop = context.stop_token();
    timers->advance(3'100ms);
    EXPECT_TRUE(stop.stop_requested());
    return "late";
  });
  EXPECT_EQ(handler(order, invocation(3s)), "late") << "nobody took it over meanwhile";
  EXPECT_EQ(record().state, State::completed);
}

TEST_F(Idempotent, WithoutADeadlineThePolicysLeaseIsRenewed) {
  Process& one = process([](EngineOptions& o) { o.policy.lease = 9s; });
  const Handler handler = idempotent(*one.engine, options(), [&](std::string_view) {
    timers->advance(60s);
    EXPECT_GE(one.told(EventKind::renewed), 19U);
    return "done";
  });
  EXPECT_EQ(handler(order, Invocation{}), "done");
}

TEST_F(Idempotent, WithoutTimeLeftNothingIsBegun) {
  Process& one = process();
  int runs = 0;
  const Handler handler = idempotent(*one.engine, options(), [&](std::string_view) { return std::to_string(++runs); });
  for (const Millis left : {-1h, 0h}) {
    EXPECT_EQ(error_of([&] { return handler(order, invocation(left)); }), errors::no_time_left);
  }
  EXPECT_EQ(error_of([&] { return handler(order, invocation(9ms)); }), errors::no_time_left);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(records().size(), 0U);
  EXPECT_EQ(handler(order, invocation(10ms)), "1");
}

TEST_F(Idempotent, APolicyWithinADeadline) {
  Engine& engine = *process([](EngineOptions& o) { o.policy.skew = 2s; }).engine;
  const Policy base{.lease = 30s, .wait = 10s};
  const Policy short_one = within_deadline(engine, base, invocation(4s));
  EXPECT_EQ(short_one.wait, 2s) << "half of what is left is for the work";
  EXPECT_EQ(short_one.heartbeat, false);
  EXPECT_EQ(short_one.fixed_lease, true);
  EXPECT_GT(short_one.lease, 6s);
  EXPECT_LT(short_one.lease, 6'010ms);
  EXPECT_EQ(within_deadline(engine, base, invocation(15min)).wait, 10s);
  EXPECT_EQ(within_deadline(engine, base, invocation(24h)), base) << "no lease reaches that far";
  EXPECT_NO_THROW(check(within_deadline(engine, base, invocation(23h + 58min))));
  EXPECT_EQ(within_deadline(engine, base, Invocation{}), base);
}

TEST_F(Idempotent, AnEventWithoutAKeyRunsUnprotectedAndSaysSo) {
  Process& one = process();
  int runs = 0;
  IdempotentOptions chosen = options();
  chosen.policy = Policy{.on_missing_key = OnMissingKey::run_unprotected};
  const Handler handler = idempotent(*one.engine, chosen, [&](std::string_view, Context& context) {
    EXPECT_FALSE(context.is_protected());
    return std::to_string(++runs);
  });
  for (const std::string_view event : {"{}", R"({"id":null})", R"({"id":""})"}) {
    const std::string response = handler(event, invocation());
    EXPECT_EQ(response, std::to_string(runs));
  }
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(one.told(EventKind::unprotected), 3U);
  EXPECT_EQ(one.store->counts().calls, 0U);
}

// A policy of the engine or of one's own that is about something else changes none of it.
TEST_F(Idempotent, WhatNoPolicySaysIsThisFrontendsOwn) {
  Process& one = process([](EngineOptions& o) { o.policy.lease = 9s; });
  const auto handler = [&](std::optional<Policy> policy, keys::Dialect dialect = keys::Dialect::native) {
    IdempotentOptions with = options();
    with.policy = std::move(policy);
    with.dialect = dialect;
    with.name = "name";
    return idempotent(*one.engine, with, [](std::string_view) { return "{}"; });
  };
  for (const std::optional<Policy>& policy : {std::optional<Policy>(), std::optional<Policy>(Policy{.lease = 20s})}) {
    EXPECT_EQ(error_of([&] { return handler(policy)("{}", invocation()); }), errors::no_key);
    EXPECT_EQ(handler(policy, keys::Dialect::powertools_typescript)("{}", invocation()), "{}") << "as the library";
    const Handler busy = idempotent(*process().engine, options(), [&](std::string_view event, const Invocation& of) {
      IdempotentOptions same = options();
      same.policy = policy;
      const Handler duplicate = idempotent(*one.engine, same, [](std::string_view) { return "{}"; });
      EXPECT_EQ(error_of([&] { return duplicate(event, of); }), errors::conflict)
          << "at once: nobody drives the timers";
      return policy ? "1" : "0";
    });
    EXPECT_EQ(busy(policy ? R"({"id":1})" : R"({"id":0})", invocation()), policy ? "1" : "0");
  }
}

TEST_F(Idempotent, AnEventWithoutAKeyIsRefused) {
  IdempotentOptions with = options();
  int runs = 0;
  Process& one = process();
  const Handler handler = idempotent(*one.engine, with, [&](std::string_view) { return std::to_string(++runs); });
  EXPECT_EQ(error_of([&] { return handler("{}", invocation()); }), errors::no_key);
  EXPECT_EQ(error_of([&] { return handler("{", invocation()); }), errors::invalid_event);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(handler(order, invocation()), "1");
}

// ["user.uid", "productId"] over an event without a user would be one key for all users.
TEST_F(Idempotent, AKeyWithANullPartIsRefused) {
  IdempotentOptions with = options();
  with.key = "[user.uid, productId]";
  int runs = 0;
  Process& one = process();
  const auto run = [&](std::string_view event) {
    return idempotent(*one.engine, with, [&](std::string_view) { return std::to_string(++runs); })(event, invocation());
  };
  const std::string_view half = R"({"user":{"uid":null},"productId":10000})";
  EXPECT_EQ(error_of([&] { return run(half); }), errors::no_key);
  EXPECT_EQ(run(R"({"user":{"uid":"u-1"},"productId":10000})"), "1");
  with.allow_null_parts = true;
  EXPECT_EQ(run(half), "2");
}

TEST_F(Idempotent, TheHookSeesReplaysOnly) {
  IdempotentOptions with = options();
  with.on_replay = [](std::string response, const Record& record) {
    EXPECT_EQ(record.state, State::completed);
    response.insert(1, R"("replayed_after_s":)" + std::to_string((record.finished_at - record.created_at) / 1s) + ",");
    return response;
  };
  const Handler handler = idempotent(*process().engine, with, [&](std::string_view) {
    timers->advance(2s);
    return R"({"charge":1})";
  });
  EXPECT_EQ(handler(order, invocation()), R"({"charge":1})");
  EXPECT_EQ(handler(order, invocation()), R"({"replayed_after_s":2,"charge":1})");
  EXPECT_EQ(record().result.bytes, R"({"charge":1})");
}

TEST_F(Idempotent, SwitchedOffEverythingRunsUnprotectedAndSaysSo) {
  for (const char* const word : {"1", "true", "YES", "On"}) {
    Process& one = process();
    IdempotentOptions with = options();
    with.environment->disabled = word;
    int runs = 0;
    const Handler handler = idempotent(*one.engine, with, [&](std::string_view) { return std::to_string(++runs); });
    EXPECT_EQ(handler(order, invocation()), "1");
    EXPECT_EQ(handler(order, invocation()), "2");
    EXPECT_EQ(handler("not even JSON", invocation()), "3");
    EXPECT_EQ(one.told(EventKind::unprotected), 3U);
    EXPECT_EQ(one.store->counts().calls, 0U);
  }
  for (const char* const word : {"", "0", "False", "no", "off"}) {
    IdempotentOptions with = options();
    with.environment->disabled = word;
    with.name = std::string("name ") + word;
    int runs = 0;
    const Handler handler =
        idempotent(*process().engine, with, [&](std::string_view) { return std::to_string(++runs); });
    EXPECT_EQ(handler(order, invocation()) + handler(order, invocation()), "11") << word;
  }
}

TEST_F(Idempotent, TheEnvironmentIsTheProcesssUnlessItIsGiven) {
  const Environment own = Environment::of_process();
  EXPECT_EQ(own.disabled, "") << "the test itself runs protected";
  IdempotentOptions with = options();
  with.environment.reset();
  with.name = "charge";
  static_cast<void>(idempotent(*process().engine, with, [](std::string_view) { return ""; })(order, invocation()));
  EXPECT_THAT(record().key, StartsWith(own.function_name.empty() ? "shop/charge#" : "shop/" + own.function_name));
}

TEST_F(Idempotent, AWarmEnvironmentReplaysFromItsCache) {
  Process& warm = process([](EngineOptions& o) { o.cache_records = 100; });
  int runs = 0;
  IdempotentOptions with = options();
  with.fingerprint = "cents";
  const Handler handler = idempotent(*warm.engine, with, [&](std::string_view) { return std::to_string(++runs); });
  EXPECT_EQ(handler(order, invocation()), "1");
  const auto calls = warm.store->counts().calls;
  EXPECT_EQ(calls, 2U) << "claim and finish";
  warm.cut();
  EXPECT_EQ(handler(order, invocation()), "1") << "even while the store is down";
  EXPECT_EQ(error_of([&] { return handler(R"({"id":"order-17","cents":9})", invocation()); }), errors::mismatch);
  EXPECT_EQ(warm.store->counts().calls, calls);

  Process& cold = process([](EngineOptions& o) { o.cache_records = 100; });
  const Handler elsewhere = idempotent(*cold.engine, with, [&](std::string_view) { return std::to_string(++runs); });
  EXPECT_EQ(elsewhere(order, invocation()), "1");
  EXPECT_EQ(elsewhere(order, invocation()), "1");
  EXPECT_EQ(cold.store->counts().calls, 1U) << "what it found was kept";
}

TEST_F(Idempotent, AnEventThatCannotBeReadIsAnErrorAndNoEventWithoutAKey) {
  Process& one = process();
  int runs = 0;
  const Handler handler = idempotent(*one.engine, options("powertools_json(body).id"),
                                     [&](std::string_view) { return std::to_string(++runs); });
  for (const std::string_view event :
       {"", " ", "{", "order-17", R"({"body":"{"})", R"({"body":1})", R"({"body":null})", R"({"a":1,"a":2})"}) {
    EXPECT_EQ(error_of([&] { return handler(event, invocation()); }), errors::invalid_event) << event;
  }
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(one.store->counts().calls, 0U);
}

TEST_F(Idempotent, AnErrorOfTheWorkPassesThroughAndARetryRuns) {
  int runs = 0;
  const Handler handler = idempotent(*process().engine, options(), [&](std::string_view) -> std::string {
    if (++runs == 1) throw std::out_of_range("no such card");
    return "paid";
  });
  EXPECT_THROW(static_cast<void>(handler(order, invocation())), std::out_of_range);
  EXPECT_EQ(records().size(), 0U) << "released";
  EXPECT_EQ(handler(order, invocation()), "paid");
  EXPECT_EQ(runs, 2);
}

TEST_F(Idempotent, WhatTheWorkMeetsInAnEngineOfItsOwnIsNotTakenForThisOperations) {
  Process& process = this->process();
  const Handler handler = idempotent(*process.engine, options(), [&](std::string_view) -> std::string {
    throw Mismatch(ErrorKind::misuse, "another operation, which the work asked for", nullptr);
  });
  EXPECT_THROW(static_cast<void>(handler(R"({"id":1})", invocation())), Mismatch);
  EXPECT_TRUE(records().empty()) << "released";
}

TEST_F(Idempotent, AStoredFailureIsThrownAgainAsItWas) {
  IdempotentOptions with = options();
  with.policy = Policy{.on_throw = OnThrow::store};
  int runs = 0;
  const Handler handler = idempotent(*process().engine, with, [&](std::string_view event) -> std::string {
    ++runs;
    if (event == order) throw FunctionError("CardDeclined", "the card is declined");
    throw std::out_of_range("no such card");
  });
  for (int i = 0; i < 2; ++i) {
    try {
      static_cast<void>(handler(order, invocation()));
      FAIL();
    } catch (const FunctionError& error) {
      EXPECT_EQ(error.type(), "CardDeclined");
      EXPECT_STREQ(error.what(), "the card is declined");
    }
  }
  EXPECT_THROW(static_cast<void>(handler(R"({"id":1})", invocation())), std::out_of_range);
  EXPECT_EQ(error_of([&] { return handler(R"({"id":1})", invocation()); }), "std::out_of_range");
  EXPECT_EQ(runs, 2);
}

TEST_F(Idempotent, WhatIsTooLargeToKeepIsNotRunAgain) {
  IdempotentOptions with = options();
  with.policy = Policy{.max_inline_bytes = 10};
  int runs = 0;
  const Handler handler = idempotent(*process().engine, with, [&](std::string_view) {
    ++runs;
    return "\"a response of more than ten bytes\"";
  });
  EXPECT_EQ(handler(order, invocation()), "\"a response of more than ten bytes\"");
  EXPECT_EQ(error_of([&] { return handler(order, invocation()); }), errors::result_dropped);
  EXPECT_EQ(runs, 1);
}

TEST_F(Idempotent, NestedHandlersHaveRecordsOfTheirOwn) {
  // One store, one event, and both take the same key from it.
  Engine& engine = *process().engine;
  int charges = 0;
  int orders = 0;
  IdempotentOptions inner_options = options();
  inner_options.name = "charge";
  const Handler charge =
      idempotent(engine, inner_options, [&](std::string_view) { return "ch_" + std::to_string(++charges); });
  const Handler place = idempotent(engine, options(), [&](std::string_view event, const Invocation& of) {
    ++orders;
    const std::string charged = charge(event, of);
    if (orders == 1) throw std::runtime_error("the warehouse is down");
    return "order of " + charged + " and " + charge(event, of);
  });
  EXPECT_THROW(static_cast<void>(place(order, invocation())), std::runtime_error);
  ASSERT_EQ(records().size(), 1U) << "the outer claim was released, the inner result stays";
  EXPECT_EQ(record().key.substr(0, record().key.find('#')), "shop/pay-fn/charge");
  EXPECT_EQ(record().result.bytes, "ch_1");
  EXPECT_EQ(place(order, invocation()), "order of ch_1 and ch_1");
  EXPECT_EQ(place(order, invocation()), "order of ch_1 and ch_1");
  EXPECT_EQ(charge(order, invocation()), "ch_1");
  EXPECT_EQ(orders, 2);
  EXPECT_EQ(charges, 1);
  for (const Record& stored : records()) {
    const bool outer = stored.key.starts_with("shop/pay-fn/bootstrap#");
    EXPECT_EQ(stored.result.bytes, outer ? "order of ch_1 and ch_1" : "ch_1");
  }
}

TEST_F(Idempotent, ANestedHandlerWithTheSameNameIsRefusedInsteadOfWaitingForItsCaller) {
  Engine& engine = *process([](EngineOptions& o) { o.policy.on_conflict = OnConflict::wait; }).engine;
  int charges = 0;
  const Handler charge = idempotent(engine, options(), [&](std::string_view) { return std::to_string(++charges); });
  const Handler place = idempotent(engine, options(), [&](std::string_view event, const Invocation& of) {
    EXPECT_EQ(charge(R"({"id":"another"})", of), "1") << "another key is another operation";
    return charge(event, of);
  });
  try {
    static_cast<void>(place(order, invocation()));
    FAIL();
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_THAT(error.what(), HasSubstr("a name or a key of its own"));
  }
  EXPECT_EQ(charge(order, invocation()), "2") << "afterwards it is an operation like any other";
}

TEST_F(Idempotent, AResponseOfAnyBytesIsReplayedAsItWas) {
  const std::string bytes("\xFF\0\xC3(", 4);
  for (const std::string& response : {std::string(), bytes, std::string("no JSON")}) {
    const std::string event = "{\"id\":" + std::to_string(records().size()) + "}";
    const Handler handler = idempotent(*process().engine, options(), [&](std::string_view) { return response; });
    EXPECT_EQ(handler(event, invocation()), response);
    EXPECT_EQ(handler(event, invocation()), response);
  }
  EXPECT_EQ(records().size(), 3U);
}

TEST(LambdaErrors, RetriesAreForWhatPasses) {
  for (const auto type : {errors::conflict, errors::claim_lost, errors::store_unavailable, errors::not_recorded,
                          errors::no_time_left, errors::records_failed}) {
    EXPECT_TRUE(retry_helps(type)) << type;
  }
  for (const auto type : {errors::mismatch, errors::outcome_unknown, errors::result_dropped, errors::store_failed,
                          errors::declined, errors::no_key, errors::invalid_event, std::string_view("CardDeclined")}) {
    EXPECT_FALSE(retry_helps(type)) << type;
  }
}

}  // namespace idempotent_test
}  // namespace once::lambda
