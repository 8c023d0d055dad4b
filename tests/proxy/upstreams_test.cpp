// Several upstreams: which one gets a request, and that no request is sent twice.
#include <list>
#include <thread>

#include <once/error.hpp>

#include "proxy_test.hpp"

namespace once::proxy {
namespace upstreams_test {

using ::testing::HasSubstr;

class UpstreamsTest : public ProxyTest {
 protected:
  ~UpstreamsTest() override {
    proxy.reset();  // Before those that it knows.
  }
  static Service at(std::uint16_t port) { return {.address = {"127.0.0.1", port}}; }
  Message page(const std::string& target) {
    Line line = Line::to(proxy->admin_port());
    line.write("GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n");
    return line.read_message().value();
  }
  // Until the page says so.
  Message page_with(const std::string& target, const std::string& text) {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
      Message answer = page(target);
      if (answer.body.find(text) != std::string::npos) return answer;
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error("never said: " + text);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // Between two looks, not in place of one.
    }
  }
  [[nodiscard]] static Upstream::Script saying(const std::string& who) {
    return [who](Line& line) {
      while (line.read_request()) line.write(answer_text("200 OK", who));
    };
  }
};

TEST_F(UpstreamsTest, RequestsGoRound) {
  options.threads = 1;
  Upstream a(saying("a"));
  Upstream b(saying("b"));
  options.upstreams = {at(a.port()), at(b.port())};
  start_for(0);
  std::string order;
  for (int i = 0; i < 6; ++i) order += ask(i % 2 == 0 ? post("") : post("k" + std::to_string(i))).body;
  EXPECT_THAT(order, ::testing::AnyOf("ababab", "bababa"));
}

TEST_F(UpstreamsTest, AnotherOneIsAskedOnlyIfNothingWentOut) {
  options.admin = Address{"127.0.0.1", 0};
  Upstream good(counting());
  const Port gone;
  options.upstreams = {at(gone.number()), at(good.port())};
  start_for(0);
  for (int i = 1; i <= 4; ++i) EXPECT_EQ(ask(post("k" + std::to_string(i))).body, "run " + std::to_string(i));
  EXPECT_EQ(ask(post("")).body, "run 5");
  const std::string metrics = page("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("once_proxy_upstream_available{upstream=\"127.0.0.1:" + std::to_string(gone.number()) +
                                 "\"} 0"));
  EXPECT_THAT(metrics,
              HasSubstr("once_proxy_upstream_available{upstream=\"127.0.0.1:" + std::to_string(good.port()) + "\"} 1"));
  EXPECT_EQ(page("/readyz").status(), 200U);
}

TEST_F(UpstreamsTest, WhatWentOutOnceGoesToNobodyElse) {
  options.threads = 1;
  const auto taking = [this](Line& line) {
    if (auto request = line.read_request()) got(std::move(*request));  // And closes without a word.
  };
  Upstream a(taking);
  Upstream b(taking);
  options.upstreams = {at(a.port()), at(b.port())};
  start_for(0);
  EXPECT_EQ(ask(post("k")).status(), 502U);
  EXPECT_THAT(ask(post("k")).body, HasSubstr("outcome-unknown"));
  EXPECT_EQ(ask(post("")).status(), 502U);
  EXPECT_EQ(runs(), 2U);
}

TEST_F(UpstreamsTest, IfAllAreDownItIs503AndTheClaimIsReleased) {
  options.admin = Address{"127.0.0.1", 0};
  Port gone;
  const Port nobody;
  options.upstreams = {at(gone.number()), at(nobody.number())};
  start_for(0);
  EXPECT_EQ(ask(post("k")).status(), 503U);
  EXPECT_EQ(logged(0).fate, "release");
  EXPECT_EQ(page("/readyz").body, "no upstream is available\n");
  Upstream back(counting(), std::move(gone));
  EXPECT_EQ(ask(post("k")).body, "run 1");  // There is none but those aside, and this one is asked first.
  EXPECT_EQ(page("/readyz").status(), 200U);
}

// An outage leaves as many unknown records as are needed to detect it; later requests are released.
TEST_F(UpstreamsTest, AServiceThatKeepsFailingIsSentNothing) {
  options.aside = {.time = std::chrono::hours(1), .time_limit = std::chrono::hours(1)};
  const auto failing = [this](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      line.write(answer_text("504 Gateway Timeout", ""));
    }
  };
  Upstream only(failing);
  options.upstreams = {at(only.port())};
  start_for(0);
  for (std::size_t i = 0; i < 20; ++i) {
    const Message answer = ask(post("k" + std::to_string(i)));
    EXPECT_EQ(answer.status(), i < 3 ? 504U : 503U) << i;
    EXPECT_EQ(logged(i).fate, i < 3 ? "ambiguous" : "release") << i;
    EXPECT_EQ(logged(i).cause, i < 3 ? "" : "upstream-aside") << i;
    EXPECT_EQ(answer.header("Retry-After"), i < 3 ? "" : "3600") << i;
  }
  EXPECT_EQ(runs(), 3U);
}

// An earlier fault: three simultaneous late answers of one slow report stopped all payments for a second.
TEST_F(UpstreamsTest, ASlowPageDoesNotPutAsideAServiceThatAnswersOthersMeanwhile) {
  options.aside = {.time = std::chrono::hours(1), .time_limit = std::chrono::hours(1)};
  options.timeouts.answer = Millis{2'000};
  Upstream only([this](Line& line) {
    while (auto request = line.read_request()) {
      const bool slow = request->first.starts_with("GET /report");
      got(std::move(*request));
      if (slow) return static_cast<void>(line.read_all());
      line.write(answer_text("201 Created", "paid"));
    }
  });
  options.upstreams = {at(only.port())};
  start_for(0);
  std::list<Line> slow;
  for (int i = 0; i < 3; ++i) {
    slow.push_back(client());
    slow.back().write("GET /report HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  while (runs() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // Between two looks.
  EXPECT_EQ(ask(post("k")).body, "paid");
  for (Line& line : slow) EXPECT_EQ(line.read_message()->status(), 504U);
  EXPECT_EQ(ask(post("l")).body, "paid");
}

TEST_F(UpstreamsTest, OneThatIsNotWellGetsNothing) {
  options.admin = Address{"127.0.0.1", 0};
  options.health_path = "/healthz";
  options.health_interval = Millis{10};
  std::atomic<bool> well{true};
  const auto script = [&](Line& line) {
    while (auto request = line.read_request()) {
      const bool look = request->first == "GET /healthz HTTP/1.1";
      if (!look) got(std::move(*request));
      line.write(answer_text(look && !well ? "500 Broken" : "200 OK", "x"));
    }
  };
  Upstream only(script);
  options.upstreams = {at(only.port())};
  start_for(0);
  EXPECT_EQ(ask(post("a")).status(), 200U);
  well = false;
  page_with("/readyz", "no upstream");
  EXPECT_EQ(ask(post("b")).status(), 503U);
  EXPECT_EQ(logged(1).fate, "release");
  EXPECT_EQ(runs(), 1U);
  well = true;
  page_with("/readyz", "ready");
  EXPECT_EQ(ask(post("b")).status(), 200U);
}

// Requests that are under way end where they are, and connections that stay are used again.
TEST_F(UpstreamsTest, OthersTakeTheirPlaceWhileRequestsAreUnderWay) {
  options.threads = 1;
  options.admin = Address{"127.0.0.1", 0};
  const auto holding = [this](Line& line) {
    while (auto request = line.read_request()) {
      const bool held = request->first.starts_with("POST");
      got(std::move(*request));
      if (held) {
        arrived.open();
        go.wait();
      }
      if (!line.write(answer_text("200 OK", "old"))) return;
    }
  };
  Upstream old(holding);
  Upstream stays(saying("stays"));
  Upstream added(saying("added"));
  options.upstreams = {at(old.port()), at(stays.port())};
  start_for(0);
  const std::string get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  EXPECT_THAT(ask(get).body + ask(get).body, ::testing::AnyOf("oldstays", "staysold"));  // Both have a kept connection.
  Line held = client();
  Line other = client();
  held.write(post("k"));
  other.write(post("l"));  // One of the two goes to the old one, and is held there. The other one ends.
  arrived.wait();
  page_with("/metrics", "once_requests_total{outcome=\"executed\"} 1\n");

  const UpstreamChange change = proxy->set_upstreams({at(stays.port()), at(added.port())});
  EXPECT_THAT(change.added, ::testing::ElementsAre("http://127.0.0.1:" + std::to_string(added.port())));
  EXPECT_THAT(change.removed, ::testing::ElementsAre("http://127.0.0.1:" + std::to_string(old.port())));
  EXPECT_EQ(change.kept, 1U);
  std::string order;
  for (int i = 0; i < 4; ++i) order += ask(get).body + ' ';
  EXPECT_THAT(order, ::testing::AnyOf("stays added stays added ", "added stays added stays "));
  EXPECT_EQ(stays.connections(), 1U);
  const std::string active = "once_proxy_upstream_active_requests{upstream=\"127.0.0.1:" + std::to_string(old.port());
  EXPECT_THAT(page("/metrics").body, HasSubstr(active + "\"} 1\n"));

  go.open();
  const std::string bodies = held.read_message()->body + other.read_message()->body;
  EXPECT_THAT(bodies, ::testing::AnyOf("oldstays", "staysold"));
  page_with("/metrics", "once_requests_total{outcome=\"executed\"} 2\n");
  EXPECT_THAT(page("/metrics").body, ::testing::Not(HasSubstr(active)));
  // The same connections' next requests go to those that there are, and nothing is kept that goes to the old one.
  for (Line* const line : {&held, &other}) {
    line->write(get);
    EXPECT_THAT(line->read_message()->body, ::testing::AnyOf("stays", "added"));
  }
  EXPECT_EQ(runs(), 2U);
}

TEST_F(UpstreamsTest, OneThatIsNotWellStaysSoAndANewOneIsLookedAt) {
  options.threads = 1;
  options.admin = Address{"127.0.0.1", 0};
  options.health_path = "/healthz";
  options.health_interval = Millis{10};
  std::atomic<bool> well{false};
  const auto script = [&](Line& line) {
    while (auto request = line.read_request()) {
      const bool look = request->first == "GET /healthz HTTP/1.1";
      if (!look) got(std::move(*request));
      line.write(answer_text(look && !well ? "500 Broken" : "200 OK", "x"));
    }
  };
  Upstream first(script);
  Upstream second(script);
  options.upstreams = {at(first.port())};
  start_for(0);
  page_with("/readyz", "no upstream");
  proxy->set_upstreams({at(first.port()), at(second.port())});
  const std::string available = "once_proxy_upstream_available{upstream=\"127.0.0.1:";
  EXPECT_THAT(page("/metrics").body, HasSubstr(available + std::to_string(first.port()) + "\"} 0\n"));
  page_with("/metrics", available + std::to_string(second.port()) + "\"} 0\n");
  EXPECT_EQ(ask(post("k")).status(), 503U);
  proxy->set_upstreams({at(second.port())});
  well = true;
  page_with("/readyz", "ready");
  EXPECT_EQ(ask(post("k")).status(), 200U);
}

TEST_F(UpstreamsTest, AListThatCannotBeChangesNothing) {
  Upstream only(counting());
  options.upstreams = {at(only.port())};
  options.upstream_ca_file = "/nowhere.pem";
  start_for(0);
  EXPECT_THROW(proxy->set_upstreams({}), Exception);
  EXPECT_THROW(proxy->set_upstreams({at(0)}), Exception);
  EXPECT_THROW(proxy->set_upstreams({{.address = {"127.0.0.1", only.port()}, .tls = true}}), Exception);
  EXPECT_EQ(ask(post("k")).body, "run 1");
}

// Under load, for the thread sanitizer too: no request fails while upstreams change.
TEST_F(UpstreamsTest, ChangesUnderLoadLoseNothing) {
  options.health_path = "/healthz";
  options.health_interval = Millis{1};
  std::list<Upstream> all;
  for (int i = 0; i < 3; ++i) all.emplace_back(saying("x"));
  std::vector<Service> services;
  for (const Upstream& one : all) services.push_back(at(one.port()));
  options.upstreams = services;
  start_for(0);
  std::atomic<int> good{0};
  std::atomic<bool> over{false};
  std::vector<std::jthread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      Line line = client();
      for (int i = 0; !over; ++i) {
        if (!line.write(post(i % 2 == 0 ? "" : std::to_string(c) + "-" + std::to_string(i)))) return;
        const auto answer = line.read_message();
        if (!answer || answer->status() != 200) return;
        ++good;
      }
    });
  }
  for (std::size_t round = 0; round < 60; ++round) {
    std::vector<Service> some = services;
    some.erase(some.begin() + static_cast<std::ptrdiff_t>(round % services.size()));
    proxy->set_upstreams(std::move(some));
    const int seen = good;
    const auto until = std::chrono::steady_clock::now() + patience;
    while (good < seen + 8 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    ASSERT_GE(good, seen + 8) << "round " << round;
  }
  over = true;
  clients.clear();
  const std::lock_guard lock(mutex);
  for (const LogLine& line : log) EXPECT_EQ(line.status, 200U) << line.cause;
}

}  // namespace upstreams_test
}  // namespace once::proxy
