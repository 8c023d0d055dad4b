// What an invocation tells the operations in it: its tenant is in their keys, and its deadline bounds them.
#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <once/engine/exceptions.hpp>
#include <once/engine/within_invocation.hpp>
#include <once/error.hpp>
#include <once/frontends/lambda/batch.hpp>
#include <once/frontends/lambda/http.hpp>
#include <once/idempotent.hpp>

#include "batch_test.hpp"
#include "handler_test.hpp"

namespace once::lambda {
namespace invocation_test {

using ::testing::HasSubstr;

constexpr std::string_view order_event = R"({"id":"order-17","cents":500})";

class InvocationFactsTest : public HandlerTest {
 protected:
  [[nodiscard]] Invocation of_tenant(std::string tenant, Millis left = 30s) const {
    Invocation of = invocation(left);
    of.tenant_id = std::move(tenant);
    return of;
  }
  [[nodiscard]] std::vector<std::string> keys() const {
    std::vector<std::string> out;
    for (const Record& each : records()) out.push_back(each.key);
    std::ranges::sort(out);
    return out;
  }
};

TEST_F(InvocationFactsTest, TenantsGetNoOtherTenantsResult) {
  int runs = 0;
  const Handler handler =
      idempotent(*process().engine, options(), [&](std::string_view) { return std::to_string(++runs); });
  EXPECT_EQ(handler(order_event, of_tenant("blue")), "1");
  EXPECT_EQ(handler(order_event, of_tenant("green")), "2");
  EXPECT_EQ(handler(order_event, of_tenant("blue")), "1");
  EXPECT_EQ(handler(order_event, of_tenant("green")), "2");
  EXPECT_EQ(handler(order_event, invocation()), "3");
  std::vector<std::string> scopes;
  for (const std::string& key : keys()) scopes.push_back(Key::from_stored(key).scope());
  EXPECT_THAT(scopes, ::testing::UnorderedElementsAre("shop/pay-fn/bootstrap", "shop/pay-fn/bootstrap/@tenant=blue",
                                                      "shop/pay-fn/bootstrap/@tenant=green"));
}

TEST_F(InvocationFactsTest, TenantsWithSpecialCharactersKeepApart) {
  Engine& engine = *process().engine;
  int runs = 0;
  const Handler handler = idempotent(engine, options(), [&](std::string_view) { return std::to_string(++runs); });
  const std::vector<std::string> tenants{"a",
                                         "a#b",
                                         "a/b",
                                         "a%2Fb",
                                         "*",
                                         " ",
                                         "a/@tenant=a",
                                         std::string(256, 'x'),
                                         std::string(256, '/'),
                                         std::string(255, '/')};
  for (int round = 0; round < 2; ++round) {
    for (const std::string& tenant : tenants) handler(order_event, of_tenant(tenant));
  }
  EXPECT_EQ(runs, static_cast<int>(tenants.size()));
}

TEST_F(InvocationFactsTest, DialectsRefuseTenantsUnlessChosen) {
  int runs = 0;
  IdempotentOptions with = options();
  with.dialect = keys::Dialect::powertools_typescript;
  const auto work = [&](std::string_view) { return std::to_string(++runs); };
  EXPECT_EQ(error_of([&] { return idempotent(*process().engine, with, work)(order_event, of_tenant("blue")); }),
            errors::tenant_not_in_key);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(idempotent(*process().engine, with, work)(order_event, invocation()), "1");
  with.tenant_in_dialect = true;
  const Handler chosen = idempotent(*process().engine, with, work);
  EXPECT_EQ(chosen(order_event, of_tenant("blue")), "2");
  EXPECT_EQ(chosen(order_event, of_tenant("green")), "3");
  EXPECT_EQ(chosen(order_event, of_tenant("blue")), "2");
  EXPECT_EQ(chosen(order_event, invocation()), "1") << "without a tenant the ids are the library's";
}

TEST_F(InvocationFactsTest, BatchesKeepTenantsApart) {
  std::atomic<int> runs{0};
  BatchOptions batch_options;
  batch_options.environment = Environment{.function_name = "f", .handler = "h", .disabled = {}};
  const Handler batch = sqs::batch(*process().engine, batch_options, [&](const sqs::Message&) { ++runs; });
  const std::string event = once::testing::sqs_event(once::testing::ten_messages());
  for (const char* const tenant : {"blue", "green", "blue"}) {
    EXPECT_EQ(batch(event, of_tenant(tenant)), once::testing::nothing_failed);
  }
  EXPECT_EQ(runs, 20);
  for (const std::string& key : keys()) EXPECT_THAT(key, HasSubstr("f/h/@tenant="));
}

TEST_F(InvocationFactsTest, HttpRequestsKeepTenantsApart) {
  int runs = 0;
  HttpOptions with{.routes = once::http::Options{.principal = once::http::Principal::shared()}};
  with.environment = Environment{.function_name = "f", .handler = {}, .disabled = {}};
  const Handler handler = http(*process().engine, with, [&](const once::http::Request&, once::http::Execution&) {
    return once::http::Answer{.status = 201, .reason = {}, .headers = {}, .body = std::to_string(++runs)};
  });
  const std::string event = R"({"version":"2.0","rawPath":"/charges","rawQueryString":"","headers":)"
                            R"({"idempotency-key":"k-1"},"body":"{}","isBase64Encoded":false,)"
                            R"("requestContext":{"http":{"method":"POST","path":"/charges"}}})";
  EXPECT_THAT(handler(event, of_tenant("blue")), HasSubstr(R"("body":"1")"));
  EXPECT_THAT(handler(event, of_tenant("green")), HasSubstr(R"("body":"2")"));
  EXPECT_THAT(handler(event, of_tenant("blue")), HasSubstr(R"("body":"1")"));
}

// --- operations in a handler ---

class OperationInHandler : public InvocationFactsTest {
 protected:
  // A handler without a key of its own, as of once::lambda::run().
  template <class Work>
  static void in_invocation(const Invocation& of, Work&& work) {
    const WithinInvocation within({.deadline = of.deadline, .tenant = of.tenant_id});
    work();
  }
};

TEST_F(OperationInHandler, DeadlineBoundsLease) {
  Engine& engine = *process([](EngineOptions& o) { o.policy.skew = 0ms; }).engine;
  const auto charge = once::idempotent(engine, {.name = "charge"}, [&](const std::string& id) {
    const Record record = records().back();
    const Millis lease = std::chrono::floor<Millis>(record.lease_until - clock->now());
    EXPECT_GE(lease, 2s);
    EXPECT_LT(lease, 2'010ms) << "not the usual 30 s";
    return id;
  });
  in_invocation(invocation(2s), [&] { EXPECT_EQ(charge("order-17"), "order-17"); });
}

TEST_F(OperationInHandler, LongDeadlineReplacesHeartbeats) {
  Engine& engine = *process([](EngineOptions& o) { o.policy.skew = 0ms; }).engine;
  const auto charge = once::idempotent(engine, {.name = "charge"}, [&](const std::string& id) {
    EXPECT_GE(records().back().lease_until, clock->now() + 60s);
    return id;
  });
  in_invocation(invocation(60s), [&] { charge("order-17"); });
}

TEST_F(OperationInHandler, DeadlineBoundsWait) {
  const auto own_timers = std::make_shared<once::testing::ManualTimers>(clock);
  Engine& holder = *process([&](EngineOptions& o) { o.timers = own_timers; }).engine;
  Begin held = holder.begin(Request{.key = Key("shop/charge", "order-17"), .policy = Policy{.lease = 60s}});
  ASSERT_EQ(held.kind, Begin::Kind::claimed);
  Engine& engine = *process().engine;
  const auto charge = once::idempotent(engine, {.name = "charge", .key = [](const std::string& id) { return id; }},
                                       [](const std::string& id) { return id; });
  const Time before = clock->now();
  std::atomic<bool> over{false};
  std::thread caller([&, of = invocation(2s)] {
    in_invocation(of, [&] { EXPECT_THROW(charge("order-17"), Conflict); });
    over = true;
  });
  while (!over) {
    if (timers->pending() > 0) timers->run_next();
  }
  caller.join();
  EXPECT_LE(clock->now() - before, 1'100ms) << "half of what is left, not 10 s";
  held.claim.release("the test is over");
}

TEST_F(OperationInHandler, NothingRunsWithoutTime) {
  Engine& engine = *process([](EngineOptions& o) { o.policy.on_store_down = OnStoreDown::run_unprotected; }).engine;
  int runs = 0;
  const auto charge = once::idempotent(engine, {.name = "charge"}, [&](const std::string& id) {
    ++runs;
    return id;
  });
  in_invocation(invocation(9ms), [&] { EXPECT_THROW(charge("order-17"), NoTimeLeft); });
  in_invocation(invocation(-5s), [&] { EXPECT_THROW(charge("order-17"), NoTimeLeft); });
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(records().empty());
}

TEST_F(OperationInHandler, ShorterFixedLeaseStays) {
  Engine& engine = *process([](EngineOptions& o) { o.policy.skew = 0ms; }).engine;
  const auto charge =
      once::idempotent(engine, {.name = "charge", .policy = {.lease = 1s, .heartbeat = false, .fixed_lease = true}},
                       [&](const std::string& id) {
                         EXPECT_LE(records().back().lease_until, clock->now() + 1s);
                         return id;
                       });
  in_invocation(invocation(60s), [&] { charge("order-17"); });
}

TEST_F(OperationInHandler, TenantIsInItsKey) {
  Engine& engine = *process().engine;
  int runs = 0;
  const auto charge = once::idempotent(engine, {.name = "charge", .key = [](const std::string& id) { return id; }},
                                       [&](const std::string&) { return std::to_string(++runs); });
  const Handler handler = idempotent(engine, options(""), [&](std::string_view) { return charge("order-17"); });
  EXPECT_EQ(handler(R"({"n":1})", of_tenant("blue")), "1");
  EXPECT_EQ(handler(R"({"n":2})", of_tenant("green")), "2");
  EXPECT_EQ(handler(R"({"n":3})", of_tenant("blue")), "1");
  EXPECT_THAT(keys(), ::testing::IsSupersetOf({std::string("shop/charge/@tenant=blue#order-17"),
                                               std::string("shop/charge/@tenant=green#order-17")}));
}

TEST_F(OperationInHandler, OtherThreadsShareTheOnlyInvocation) {
  Engine& engine = *process().engine;
  const auto charge = once::idempotent(engine, {.name = "charge", .key = [](const std::string& id) { return id; }},
                                       [](const std::string& id) { return id; });
  in_invocation(of_tenant("blue"), [&] { std::thread([&] { charge("order-17"); }).join(); });
  EXPECT_EQ(record().key, "shop/charge/@tenant=blue#order-17");
}

TEST_F(OperationInHandler, ThreadsAmongTenantsAreRefused) {
  Engine& engine = *process().engine;
  const auto charge = once::idempotent(engine, {.name = "charge"}, [](const std::string& id) { return id; });
  in_invocation(of_tenant("blue"), [&] {
    std::thread([&] {
      in_invocation(of_tenant("green"),
                    [&] { std::thread([&] { EXPECT_THROW(charge("order-17"), Exception); }).join(); });
    }).join();
  });
  EXPECT_TRUE(records().empty());
}

TEST_F(OperationInHandler, KeysThatNameTenantsAreChecked) {
  Engine& engine = *process().engine;
  const auto run = [&](const std::string& scope) {
    return engine.run(Request{.key = Key(scope, "order-17")}, [] { return std::string("done"); }).kind;
  };
  EXPECT_THROW(run("shop/charge/@tenant=blue"), Exception) << "in no invocation";
  in_invocation(of_tenant("blue"), [&] {
    EXPECT_EQ(run("shop/charge"), Outcome::Kind::executed);
    EXPECT_EQ(run("shop/charge/@tenant=blue"), Outcome::Kind::replayed);
    EXPECT_THROW(run("shop/charge/@tenant=green"), Exception);
  });
  EXPECT_EQ(record().key, "shop/charge/@tenant=blue#order-17");
}

}  // namespace invocation_test
}  // namespace once::lambda
