// Which upstream is asked, and when one is left in peace. The clock is an argument.
#include "frontends/proxy/services.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace once::proxy {
namespace {

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
    return {named(count), [this](std::string_view text) { notices.emplace_back(text); }};
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
    services.unreachable(0, "refused", now);
    services.unreachable(0, "refused", now);  // By a request that was under way.
    EXPECT_THAT(notices, ElementsAre("upstream s0:80 is put aside for " + std::to_string(limit) + " s: refused"));
    notices.clear();
    EXPECT_EQ(order(services, 3), "111");
    now += seconds(limit) - std::chrono::milliseconds(1);
    EXPECT_EQ(order(services, 3), "111");
    now += std::chrono::milliseconds(1);
    EXPECT_THAT(order(services, 2), ::testing::AnyOf("01", "10"));
  }
  services.answered(0, 200, now);
  EXPECT_THAT(notices, ElementsAre("upstream s0:80 is back"));
  services.unreachable(0, "refused", now);
  EXPECT_THAT(notices, ElementsAre("upstream s0:80 is back", "upstream s0:80 is put aside for 1 s: refused"));
}

TEST_F(ServicesTest, ThreeTroublesInARowPutAside) {
  Services services = make(2);
  for (const unsigned status : {502U, 503U, 200U, 503U, 504U, 404U, 500U}) services.answered(1, status, now);
  services.troubled(1, "upstream-timeout", now);
  services.answered(1, 503, now);
  EXPECT_TRUE(notices.empty());
  services.troubled(1, "upstream-lost", now);
  EXPECT_THAT(notices, ElementsAre("upstream s1:80 is put aside for 1 s: upstream-lost"));
  EXPECT_EQ(order(services, 3), "000");
  EXPECT_THAT(services.metrics_text(now), HasSubstr("once_proxy_upstream_available{upstream=\"s1:80\"} 0\n"));
}

TEST_F(ServicesTest, IfAllAreAsideOneIsAskedAllTheSame) {
  Services services = make(2);
  services.unreachable(1, "refused", now);
  services.unreachable(0, "refused", now + std::chrono::milliseconds(1));
  EXPECT_FALSE(services.any_available(now));
  EXPECT_EQ(order(services, 3), "111");
  EXPECT_EQ(order(services, 1, {1}), "-");  // But not both for one request.
  Services single = make(1);
  single.unreachable(0, "refused", now);
  EXPECT_EQ(order(single, 1), "0");
}

TEST_F(ServicesTest, OneThatIsNotWellIsNeverAsked) {
  Services services = make(2);
  services.checked(0, "refused");
  EXPECT_TRUE(notices.empty());  // Once may be chance.
  services.checked(0, "refused");
  services.checked(0, "refused");
  EXPECT_THAT(notices, ElementsAre("upstream s0:80 is not well: refused"));
  EXPECT_EQ(order(services, 3), "111");
  services.checked(1, "x");
  services.checked(1, "x");
  EXPECT_EQ(order(services, 1), "-");
  EXPECT_FALSE(services.any_available(now));
  services.unreachable(0, "refused", now);
  services.checked(0, "");
  EXPECT_EQ(order(services, 2), "00");  // A good look ends its time aside.
}

}  // namespace
}  // namespace once::proxy
