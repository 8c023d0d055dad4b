// Asking the service about operations whose outcome is unknown.
#include <once/frontends/http/endpoint.hpp>
#include <once/frontends/http/rules.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/reconcile.hpp>
#include <once/testing/manual_time.hpp>

#include "proxy_test.hpp"

namespace once::proxy {
namespace reconcile_test {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class ReconcilingTest : public ProxyTest {
 protected:
  ReconcilingTest() {
    rules.reconcile = "GET /charges?key={key}";
    rules.reconcile_settle = 0ms;
    options.reconcile_interval = 1h;
    manual = std::make_shared<once::testing::ManualClock>();
    clock = manual;
    timers = std::make_shared<once::testing::ManualTimers>(manual);
    store = std::make_shared<once::testing::FaultyStore>(std::shared_ptr<Store>(stores::make_memory_store(manual)),
                                                         once::testing::no_faults());
  }

  // Answers a GET with what was said; after anything else the connection ends, as if the service had died.
  [[nodiscard]] Upstream::Script dying() {
    return [this](Line& line) {
      while (auto request = line.read_request()) {
        const bool asks = request->first.starts_with("GET ");
        got(std::move(*request));
        if (!asks || !line.write(said()) || said().ends_with("half")) return;
      }
    };
  }
  // Like that for the first request; later ones are answered.
  [[nodiscard]] Upstream::Script dying_once() {
    return [this](Line& line) {
      while (auto request = line.read_request()) {
        const bool asks = request->first.starts_with("GET ");
        const std::size_t number = got(std::move(*request));
        if (number == 1) return;
        if (!line.write(asks ? said() : answer_text("201 Created", "run " + std::to_string(number)))) return;
      }
    };
  }

  // Leaves the key unknown.
  void lose(const std::string& key, const std::string& lines = {}) {
    EXPECT_EQ(ask(post(key, "cents=500", lines)).status(), 502U);
  }

  std::shared_ptr<once::testing::ManualClock> manual;
};

TEST_F(ReconcilingTest, WhatTookPlaceBecomesTheStoredAnswer) {
  start(dying());
  lose("order-1");
  say(answer_text("200 OK", "charge 7", "Content-Type: text/plain\r\nX-Charge: 7\r\nSet-Cookie: s=1\r\n"));
  const Message answer = ask(post("order-1", "cents=500", "X-Client: a\r\nContent-Type: text/x\r\n"));
  EXPECT_EQ(answer.status(), 200U);
  EXPECT_EQ(answer.body, "charge 7");
  EXPECT_EQ(answer.header("X-Charge"), "7");
  EXPECT_EQ(answer.header("Set-Cookie"), "");
  EXPECT_EQ(answer.header("Idempotent-Replayed"), "true");
  EXPECT_EQ(logged(1).outcome, RequestOutcome::replayed);
  ASSERT_EQ(runs(), 2U);
  const Message question = request(1);
  EXPECT_EQ(question.first, "GET /charges?key=order-1 HTTP/1.1");
  EXPECT_EQ(question.header("X-Client"), "a");
  EXPECT_EQ(question.header("Host"), "shop");
  EXPECT_EQ(question.header("Idempotency-Key"), "");
  EXPECT_EQ(question.header("Content-Type"), "");
  EXPECT_EQ(question.header("Content-Length"), "");
  EXPECT_EQ(ask(post("order-1")).body, "charge 7");
  EXPECT_EQ(runs(), 2U);
  const Record record = records().at(0);
  EXPECT_EQ(record.history.entries.back().who, "reconcile");
  EXPECT_EQ(record.history.entries.back().why, "the service was asked, and answered 200");
}

TEST_F(ReconcilingTest, WhatDidNotTakePlaceRunsForTheClientThatAsked) {
  rules.reconcile_not_done = {404};
  start(dying_once());
  lose("k");
  say(answer_text("404 Not Found", "no such charge"));
  EXPECT_EQ(ask(post("k")).body, "run 3");
  EXPECT_EQ(request(1).first, "GET /charges?key=k HTTP/1.1");
  EXPECT_EQ(logged(1).outcome, RequestOutcome::executed);
}

TEST_F(ReconcilingTest, ThatCountsOnlyAfterTheSettleTime) {
  rules.reconcile_not_done = {404};
  rules.reconcile_settle.reset();  // As the answer's timeout and the lease: 1 minute at least.
  start(dying_once());
  lose("k");
  say(answer_text("404 Not Found", "no such charge"));
  EXPECT_THAT(ask(post("k")).body, HasSubstr("urn:once:problem:outcome-unknown"));
  manual->advance(59'999ms);
  EXPECT_THAT(ask(post("k")).body, HasSubstr("urn:once:problem:outcome-unknown"));
  EXPECT_EQ(runs(), 3U);  // Two questions.
  manual->advance(1ms);
  EXPECT_EQ(ask(post("k")).body, "run 5");
}

TEST_F(ReconcilingTest, EveryOtherAnswerDecidesNothing) {
  rules.reconcile_not_done = {410};
  start(dying());
  int number = 0;
  for (const char* const status : {"404 Not Found", "400 Bad Request", "401 Unauthorized", "403 Forbidden",
                                   "429 Too Many Requests", "500 Internal Server Error", "502 Bad Gateway",
                                   "503 Service Unavailable", "302 Found", "202 Accepted", "206 Partial Content"}) {
    const std::string key = "k" + std::to_string(++number);
    lose(key);
    say(answer_text(status, "x"));
    EXPECT_THAT(ask(post(key)).body, HasSubstr("urn:once:problem:outcome-unknown")) << status;
  }
  lose("list");
  say(answer_text("200 OK", " []\n"));
  EXPECT_THAT(ask(post("list")).body, HasSubstr("urn:once:problem:outcome-unknown"));
  lose("broken");
  say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
  EXPECT_THAT(ask(post("broken")).body, HasSubstr("urn:once:problem:outcome-unknown"));
  for (const Record& record : records()) EXPECT_EQ(record.state, State::unknown);
}

TEST_F(ReconcilingTest, AsksWithPausesAndGivesUp) {
  start(dying());
  lose("k");
  say(answer_text("500 Internal Server Error", "x"));
  std::size_t before = runs();
  for (int i = 0; i < 3; ++i) ask(post("k"));
  EXPECT_EQ(runs(), before + 1);
  for (int i = 0; i < 20; ++i) {
    manual->advance(1h);
    ask(post("k"));
  }
  EXPECT_EQ(runs(), before + 16);
  EXPECT_TRUE(has_given_up(records().at(0)));
}

TEST_F(ReconcilingTest, AKeyCannotChangeTheQuestion) {
  start(dying());
  say(answer_text("200 OK", "found"));
  lose("a&key=b#/../%2F{key}?c=d");
  EXPECT_EQ(ask(post("a&key=b#/../%2F{key}?c=d")).body, "found");
  EXPECT_EQ(request(1).first, "GET /charges?key=a%26key%3Db%23%2F..%2F%252F%7Bkey%7D%3Fc%3Dd HTTP/1.1");
}

TEST_F(ReconcilingTest, APathTakesOnlyPlainKeys) {
  rules.reconcile = "GET /charges/{key}";
  start(dying());
  say(answer_text("200 OK", "found"));
  for (const char* const key : {"..", ".", "a/../b", "a%2Fb", "a?b"}) {
    lose(key);
    const std::size_t before = runs();
    EXPECT_THAT(ask(post(key)).body, HasSubstr("urn:once:problem:outcome-unknown")) << key;
    EXPECT_EQ(runs(), before) << key;
  }
  lose("order-1.a_b~c");
  EXPECT_EQ(ask(post("order-1.a_b~c")).body, "found");
  EXPECT_EQ(request(runs() - 1).first, "GET /charges/order-1.a_b~c HTTP/1.1");
}

TEST_F(ReconcilingTest, AsksByItselfAfterARestartToo) {
  start(dying());
  lose("k");
  proxy.reset();
  say(answer_text("200 OK", "charge 7"));
  options.reconcile_interval = 1ms;
  proxy = std::make_unique<Proxy>(*engine, rules, options);
  const auto until = std::chrono::steady_clock::now() + patience;
  while (records().at(0).state == State::unknown && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(1ms);  // Between two looks, not in place of one.
  }
  const std::size_t before = runs();
  EXPECT_EQ(request(1).first, "GET /charges?key=k HTTP/1.1");
  EXPECT_EQ(ask(post("k")).body, "charge 7");
  EXPECT_EQ(runs(), before);
}

// A question of the proxy's own has no client, and a service that tells clients apart would answer for another one.
TEST_F(ReconcilingTest, AsksForAClientOnlyWithItsHeaders) {
  rules.principal = http::Principal::header("X-Shop");
  options.reconcile_interval = 1ms;
  start(dying());
  lose("k", "X-Shop: one\r\n");
  lose("k", "X-Shop: two\r\n");
  http::Endpoints endpoints(*engine, rules);
  for (const Record& record : records()) EXPECT_EQ(endpoints.find_shared(Key::from_stored(record.key)), nullptr);
  say(answer_text("200 OK", "of two"));
  EXPECT_EQ(ask(post("k", "cents=500", "X-Shop: two\r\n")).body, "of two");
  ASSERT_EQ(runs(), 3U);
  EXPECT_EQ(request(2).header("X-Shop"), "two");
}

TEST_F(ReconcilingTest, FindsTheRulesOfARecord) {
  http::Options named = rules;
  named.route = "pay";
  http::Options other = rules;
  other.scope = "other";
  const http::Routes routes(rules, {{"/orders/{id}/pay", rules}, {"/named/{id}", named}, {"/other", other}});
  upstream = std::make_unique<Upstream>(dying());
  engine = std::make_unique<Engine>(EngineOptions{.store = store, .clock = clock, .timers = timers});
  http::Endpoints endpoints(*engine, routes);
  const auto found = [&](std::string_view target) {
    const http::Request request{.method = "POST", .target = target, .headers = {{"Idempotency-Key", "k"}}};
    const http::Endpoint* const by_request = endpoints.find(request);
    const auto examined = by_request->rules().examine(request);
    return endpoints.find_shared(examined.operation->key) == by_request;
  };
  EXPECT_TRUE(found("/charges"));
  EXPECT_TRUE(found("/orders/17/pay"));
  EXPECT_TRUE(found("/named/1"));
  EXPECT_TRUE(found("/other"));
  for (const std::string_view stored : {"shop#k", "shop/POST /charges x#k", "#k", " #k", "  #k", "a b c#k"}) {
    EXPECT_EQ(endpoints.find_shared(Key::from_stored(stored)), nullptr) << stored;
  }
}

TEST(ReconcileOptions, AreRefusedIfTheyCouldMisleadTheProxy) {
  const auto refused = [](const std::string& request, std::vector<unsigned> not_done = {}) {
    http::Options options{.principal = http::Principal::shared()};
    options.reconcile = request;
    options.reconcile_not_done = std::move(not_done);
    try {
      http::Rules rules(std::move(options));
    } catch (const Exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused("GET /charges?key={key}", {404, 410}), "");
  EXPECT_THAT(refused("POST /charges?key={key}"), HasSubstr("must be a GET"));
  EXPECT_THAT(refused("/charges?key={key}"), HasSubstr("must be a GET"));
  EXPECT_THAT(refused("GET charges?key={key}"), HasSubstr("begins with a slash"));
  EXPECT_THAT(refused("GET /charges"), HasSubstr("must have {key}"));
  EXPECT_THAT(refused("GET /charges?key={key}&of={client}"), HasSubstr("placeholder that is not {key}"));
  EXPECT_THAT(refused("GET /charges?key={key} HTTP/1.1"), HasSubstr("percent-encoded"));
  EXPECT_THAT(refused("GET /charges?key={key}\r\nX: y"), HasSubstr("percent-encoded"));
  for (const unsigned status : {200U, 302U, 401U, 403U, 408U, 409U, 429U, 500U, 503U, 0U, 999U}) {
    EXPECT_THAT(refused("GET /charges?key={key}", {status}), HasSubstr("says nothing about the operation")) << status;
  }
}

}  // namespace reconcile_test
}  // namespace once::proxy
