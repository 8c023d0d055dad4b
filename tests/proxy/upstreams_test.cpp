// Several upstreams: who is asked, and that nobody is asked twice.
#include "proxy_test.hpp"

namespace once::proxy {
namespace {

using ::testing::HasSubstr;

class UpstreamsTest : public ProxyTest {
 protected:
  ~UpstreamsTest() override {
    proxy.reset();  // Before those that it knows.
  }
  static Service at(std::uint16_t port) { return {.address = {"127.0.0.1", port}}; }
  // A port where nobody listens.
  static std::uint16_t nobody() {
    const Upstream gone([](Line&) {});
    return gone.port();
  }
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
  const std::uint16_t gone = nobody();
  options.upstreams = {at(gone), at(good.port())};
  start_for(0);
  for (int i = 1; i <= 4; ++i) EXPECT_EQ(ask(post("k" + std::to_string(i))).body, "run " + std::to_string(i));
  EXPECT_EQ(ask(post("")).body, "run 5");
  const std::string metrics = page("/metrics").body;
  EXPECT_THAT(metrics,
              HasSubstr("once_proxy_upstream_available{upstream=\"127.0.0.1:" + std::to_string(gone) + "\"} 0"));
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
  const std::uint16_t gone = nobody();
  options.upstreams = {at(gone), at(nobody())};
  start_for(0);
  EXPECT_EQ(ask(post("k")).status(), 503U);
  EXPECT_EQ(logged(0).fate, "released");
  EXPECT_EQ(page("/readyz").body, "no upstream is available\n");
  Upstream back(counting(), gone);
  EXPECT_EQ(ask(post("k")).body, "run 1");  // There is none but those aside, and this one is asked first.
  EXPECT_EQ(page("/readyz").status(), 200U);
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
  EXPECT_EQ(logged(1).fate, "released");
  EXPECT_EQ(runs(), 1U);
  well = true;
  page_with("/readyz", "ready");
  EXPECT_EQ(ask(post("b")).status(), 200U);
}

}  // namespace
}  // namespace once::proxy
