// Which upstream is asked, and when one is left in peace. The clock is an argument.
#include "frontends/proxy/services.hpp"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace once::proxy {
namespace services_test {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ServicesTest : public ::testing::Test {
 protected:
  static std::vector<Service> named(int count) {
    std::vector<Service> all;
    for (int i = 0; i < count; ++i) all.push_back({.address = {"s" + std::to_string(i), 80}});
    return all;
  }
  [[nodiscard]] Services make(int count) {
    return {named(count), aside, [this](std::string_view text) { notices.emplace_back(text); }};
  }
  // A request that one has, and that is no trial.
  Services::Use use(std::size_t index) {
    ++requests;
    return {requests, index, false, now};
  }
  // The next `count` choices, one request after the other.
  std::string order(Services& services, int count, const std::vector<std::size_t>& tried = {}) const {
    std::string out;
    for (int i = 0; i < count; ++i) {
      const auto use = services.choose(tried, now);
      out += use ? std::to_string(use->index()) : "-";
    }
    return out;
  }

  Services::Clock::time_point now{seconds(1'000'000)};
  std::vector<std::string> notices;
  Aside aside;
  std::atomic<int> requests{0};
};

TEST_F(ServicesTest, EqualsTakeTurns) {
  Services services = make(3);
  EXPECT_EQ(order(services, 6), "012012");
  EXPECT_EQ(order(services, 2, {0, 2}), "11");
  EXPECT_EQ(order(services, 1, {0, 1, 2}), "-");
}

TEST_F(ServicesTest, TheOneWithTheFewestUnderWayIsAsked) {
  Services services = make(3);
  std::vector<Services::Use> held;
  for (int i = 0; i < 5; ++i) held.push_back(*services.choose({}, now));
  EXPECT_EQ(order(services, 3), "222");
  EXPECT_THAT(services.metrics_text(now), HasSubstr("once_proxy_upstream_active_requests{upstream=\"s0:80\"} 2\n"));
  held.clear();
  EXPECT_THAT(services.metrics_text(now), HasSubstr("once_proxy_upstream_active_requests{upstream=\"s0:80\"} 0\n"));
}

TEST_F(ServicesTest, OneThatCannotBeConnectedToIsPutAsideForLongerAndLonger) {
  Services services = make(2);
  for (const int limit : {1, 2, 4, 8, 16, 30, 30}) {
    services.unreachable(use(0), "refused", now);
    services.unreachable(use(0), "refused", now);  // By a request that was under way.
    EXPECT_THAT(notices, ElementsAre("upstream s0:80 is put aside for " + std::to_string(limit) + " s: refused"));
    notices.clear();
    EXPECT_EQ(order(services, 3), "111");
    now += seconds(limit) - std::chrono::milliseconds(1);
    EXPECT_EQ(order(services, 3), "111");
    now += std::chrono::milliseconds(1);
    EXPECT_THAT(order(services, 2), ::testing::AnyOf("01", "10"));
  }
  services.answered(use(0), 200, now);
  EXPECT_THAT(notices, ElementsAre("upstream s0:80 answers again"));
  services.unreachable(use(0), "refused", now);
  EXPECT_THAT(notices, ElementsAre("upstream s0:80 answers again", "upstream s0:80 is put aside for 1 s: refused"));
}

TEST_F(ServicesTest, ThreeTroublesInARowPutAside) {
  Services services = make(2);
  for (const unsigned status : {502U, 503U, 200U, 503U, 504U, 404U, 500U}) services.answered(use(1), status, now);
  services.troubled(use(1), "upstream-timeout", now);
  services.answered(use(1), 503, now);
  EXPECT_TRUE(notices.empty());
  services.troubled(use(1), "upstream-lost", now);
  EXPECT_THAT(notices, ElementsAre("upstream s1:80 is put aside for 1 s: upstream-lost"));
  EXPECT_EQ(order(services, 3), "000");
  EXPECT_THAT(services.metrics_text(now), HasSubstr("once_proxy_upstream_available{upstream=\"s1:80\"} 0\n"));
}

// The outcome of requests to a failing service is not known, so it gets none, except one that shows whether it has
// recovered.
TEST_F(ServicesTest, OneThatFailsGetsOneRequestAtATimeUntilThatIsGood) {
  Services services = make(1);
  for (int i = 0; i < 3; ++i) services.answered(use(0), 503, now);
  EXPECT_EQ(order(services, 2), "--");
  EXPECT_EQ(services.wait(now), Millis{1'000});
  for (const int limit : {2, 4, 8, 16, 30, 30}) {
    now += services.wait(now);
    notices.clear();
    const auto trial = services.choose({}, now);
    ASSERT_TRUE(trial);
    EXPECT_TRUE(trial->is_trial());
    EXPECT_EQ(order(services, 2), "--");
    services.answered(use(0), 200, now);  // One that was under way before says nothing.
    services.checked(0, "");              // Nor does a page for looks.
    EXPECT_EQ(order(services, 2), "--");
    services.answered(*trial, 504, now);
    EXPECT_THAT(notices,
                ElementsAre("upstream s0:80 is put aside for " + std::to_string(limit) + " s: it answered 504"));
  }
  now += services.wait(now);
  services.answered(*services.choose({}, now), 201, now);
  EXPECT_EQ(notices.back(), "upstream s0:80 answers again");
  EXPECT_EQ(order(services, 3), "000");
  EXPECT_EQ(services.wait(now), Millis{0});
}

TEST_F(ServicesTest, ATrialThatDoesNotEndHoldsUpTheNextOneForItsTimeOnly) {
  Services services = make(1);
  for (int i = 0; i < 3; ++i) services.troubled(use(0), "upstream-timeout", now);
  now += seconds(1);
  const auto trial = services.choose({}, now);
  EXPECT_EQ(order(services, 1), "-");
  now += seconds(1);
  EXPECT_EQ(order(services, 2), "0-");
}

TEST_F(ServicesTest, LateAnswersCountUnlessOthersWereAnsweredMeanwhile) {
  Services services = make(1);
  const auto slow = [&] { return services.choose({}, now); };
  std::vector<std::optional<Services::Use>> requests_under_way;
  for (int i = 0; i < 5; ++i) requests_under_way.push_back(slow());
  now += seconds(1);
  services.answered(use(0), 500, now);  // An answer all the same.
  now += seconds(59);
  for (const auto& use : requests_under_way) services.late(*use, "upstream-timeout", now);
  EXPECT_THAT(notices, ElementsAre());
  requests_under_way.clear();
  for (int i = 0; i < 3; ++i) requests_under_way.push_back(slow());
  now += seconds(60);
  services.answered(use(0), 503, now);  // No sign of health.
  for (const auto& use : requests_under_way) services.late(*use, "upstream-timeout", now);
  EXPECT_THAT(notices, ElementsAre("upstream s0:80 is put aside for 1 s: upstream-timeout"));
  now += seconds(1);
  const auto trial = slow();
  services.answered(use(0), 200, now + seconds(1));  // From before.
  services.late(*trial, "upstream-timeout", now);
  EXPECT_EQ(notices.back(), "upstream s0:80 is put aside for 2 s: upstream-timeout");
}

// Seen before: it was the quickest to be done, and so it got 938 of 1000 requests.
TEST_F(ServicesTest, OneThatAnswers500AtOnceIsPutAsideIfOthersAreLeft) {
  Services services = make(2);
  int to_broken = 0;
  std::vector<Services::Use> slow;
  for (int i = 0; i < 1'000; ++i) {
    auto chosen = services.choose({}, now);
    if (chosen->index() == 0) {
      services.answered(*chosen, 500, now);
      ++to_broken;
    } else {
      slow.push_back(std::move(*chosen));
    }
  }
  EXPECT_EQ(to_broken, 5);
  EXPECT_THAT(notices, ElementsAre("upstream s0:80 is put aside for 1 s: it answered 500"));
  now += seconds(1);
  services.answered(*services.choose({1}, now), 501, now);  // The trial.
  EXPECT_EQ(notices.back(), "upstream s0:80 is put aside for 2 s: it answered 501");
  for (int i = 0; i < 9; ++i) services.answered(use(1), 500, now);
  EXPECT_EQ(notices.size(), 2U);  // The last one: 500 is an answer.
  EXPECT_EQ(order(services, 2), "11");
  Services single = make(1);
  for (int i = 0; i < 9; ++i) single.answered(use(0), 500, now);
  EXPECT_EQ(order(single, 1), "0");
}

TEST_F(ServicesTest, SoManyMayBeAsideForTheir500sAtOnce) {
  for (const auto& [percent, most] : {std::pair{1U, 1U}, {50U, 2U}, {75U, 3U}, {100U, 3U}}) {
    aside.percent = percent;
    Services services = make(4);
    notices.clear();
    for (std::size_t one = 0; one < 4; ++one) {
      for (int i = 0; i < 5; ++i) services.answered(use(one), 500, now);
    }
    EXPECT_EQ(notices.size(), most) << percent;
  }
  // Those that fail are not counted against it: they are asked nothing, however many they are.
  Services services = make(2);
  for (std::size_t one = 0; one < 2; ++one) {
    for (int i = 0; i < 3; ++i) services.answered(use(one), 502, now);
  }
  EXPECT_EQ(order(services, 1), "-");
}

TEST_F(ServicesTest, BothMayBeSwitchedOff) {
  aside = {.after_failures = 0, .after_5xx = 0};
  Services services = make(2);
  for (int i = 0; i < 9; ++i) services.answered(use(0), i % 2 == 0 ? 503 : 500, now);
  EXPECT_TRUE(notices.empty());
}

TEST_F(ServicesTest, IfAllAreAsideOneIsAskedAllTheSame) {
  Services services = make(2);
  services.unreachable(use(1), "refused", now);
  services.unreachable(use(0), "refused", now + std::chrono::milliseconds(1));
  EXPECT_FALSE(services.any_available(now));
  EXPECT_EQ(order(services, 3), "111");
  EXPECT_EQ(order(services, 1, {1}), "-");  // But not both for one request.
  Services single = make(1);
  single.unreachable(use(0), "refused", now);
  EXPECT_EQ(order(single, 1), "0");
}

TEST_F(ServicesTest, OneThatIsNotWellIsNeverAsked) {
  Services services = make(2);
  services.checked(0, "refused");
  EXPECT_TRUE(notices.empty());  // Once may be chance.
  services.checked(0, "refused");
  services.checked(0, "refused");
  EXPECT_THAT(notices, ElementsAre("upstream s0:80 is unhealthy: refused"));
  EXPECT_EQ(order(services, 3), "111");
  services.checked(1, "x");
  services.checked(1, "x");
  EXPECT_EQ(order(services, 1), "-");
  EXPECT_FALSE(services.any_available(now));
  services.unreachable(use(0), "refused", now);
  services.checked(0, "");
  EXPECT_EQ(order(services, 2), "00");  // A good look ends its time aside.
}

TEST_F(ServicesTest, ThoseThatStayAreTheSame) {
  const auto notice = [this](std::string_view text) { notices.emplace_back(text); };
  Services before = make(3);
  EXPECT_THAT(before.change().added, ElementsAre("http://s0:80", "http://s1:80", "http://s2:80"));
  before.unreachable(use(1), "refused", now);
  before.checked(2, "x");
  before.checked(2, "x");
  std::optional<Services::Use> removed = before.choose({}, now);
  std::optional<Services::Use> kept;
  EXPECT_EQ(removed->index(), 0U);
  notices.clear();

  std::vector<Service> wanted = named(4);
  wanted.erase(wanted.begin());
  std::ranges::reverse(wanted);  // s3, s2, s1
  Services after(wanted, aside, notice, &before);
  EXPECT_THAT(after.change().added, ElementsAre("http://s3:80"));
  EXPECT_THAT(after.change().removed, ElementsAre("http://s0:80"));
  EXPECT_EQ(after.change().kept, 2U);
  EXPECT_EQ(after.id(1), before.id(2));
  EXPECT_EQ(after.find(before.id(1)), std::optional<std::size_t>(2));
  EXPECT_EQ(after.find(before.id(0)), std::nullopt);
  EXPECT_EQ(order(after, 3), "000");  // One is not well and one is aside, as they were.
  after.checked(1, "");
  EXPECT_THAT(notices, ElementsAre("upstream s2:80 is healthy again"));
  kept = after.choose({0}, now);
  EXPECT_EQ(kept->index(), 1U);
  // What the first one has begun is counted until it is over, and so is what both have.
  const std::string name = "once_proxy_upstream_active_requests{upstream=";
  EXPECT_THAT(after.metrics_text(now), HasSubstr(name + "\"s0:80\"} 1\n"));
  EXPECT_THAT(before.metrics_text(now), HasSubstr(name + "\"s2:80\"} 1\n"));
  EXPECT_THAT(after.metrics_text(now), ::testing::Not(HasSubstr("available{upstream=\"s0:80\"}")));

  // One that comes back while it is at work is the one it was; one that had ended is another.
  Services again(named(3), aside, notice, &after);
  EXPECT_EQ(again.id(0), before.id(0));
  EXPECT_THAT(again.metrics_text(now), HasSubstr(name + "\"s0:80\"} 1\n"));
  removed.reset();
  EXPECT_THAT(again.metrics_text(now), HasSubstr(name + "\"s0:80\"} 0\n"));
  Services without(wanted, aside, notice, &again);
  EXPECT_THAT(without.metrics_text(now), ::testing::Not(HasSubstr("s0:80")));
  Services anew(named(3), aside, notice, &without);
  EXPECT_NE(anew.id(0), before.id(0));
}

TEST_F(ServicesTest, OneThatSpeaksAnotherProtocolIsAnother) {
  const auto notice = [this](std::string_view text) { notices.emplace_back(text); };
  Services before(named(1), aside, notice);
  std::vector<Service> secured = named(1);
  secured.front().tls = true;
  Services after(secured, aside, notice, &before);
  EXPECT_THAT(after.change().added, ElementsAre("https://s0:80"));
  EXPECT_THAT(after.change().removed, ElementsAre("http://s0:80"));
  EXPECT_NE(after.id(0), before.id(0));
  EXPECT_FALSE(before.any_tls());
  EXPECT_TRUE(after.any_tls());
  // The same one twice is two, and one line for Prometheus.
  std::vector<Service> twice = named(1);
  twice.push_back(twice.front());
  Services both(twice, aside, notice, &before);
  EXPECT_EQ(both.change().kept, 1U);
  EXPECT_THAT(both.change().added, ElementsAre("http://s0:80"));
  const std::string text = both.metrics_text(now);
  EXPECT_EQ(text.find("available{"), text.rfind("available{"));
}

}  // namespace services_test
}  // namespace once::proxy
