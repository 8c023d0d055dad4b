// Sessions of the console: their two halves, their ends, and the bounds on links and attempts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <once/fingerprint.hpp>
#include <once/testing/manual_time.hpp>

#include "operators/sessions.hpp"

namespace once::operators {
namespace sessions_test {

using namespace std::chrono_literals;

class SessionsTest : public ::testing::Test {
 protected:
  bool lives(const Sessions::Halves& halves) { return sessions.find(halves.cookie, halves.header).has_value(); }

  std::shared_ptr<once::testing::ManualClock> clock = std::make_shared<once::testing::ManualClock>();
  Sessions sessions{clock};
};

TEST_F(SessionsTest, NeedsBothHalvesOfOneSession) {
  const auto one = sessions.open({.name = "alice"});
  const auto other = sessions.open({.name = "bob", .reads_only = true});
  EXPECT_EQ(sessions.find(one.cookie, one.header)->identity.name, "alice");
  EXPECT_FALSE(sessions.find(one.cookie, one.header)->identity.reads_only);
  EXPECT_TRUE(sessions.find(other.cookie, other.header)->identity.reads_only);
  EXPECT_FALSE(sessions.find(one.cookie, other.header));
  EXPECT_FALSE(sessions.find(one.cookie, ""));
  EXPECT_FALSE(sessions.find("", one.header));
  EXPECT_FALSE(sessions.find(one.header, one.cookie));
  EXPECT_FALSE(sessions.find("", ""));
}

TEST_F(SessionsTest, MakesSecretsOf128BitsEach) {
  std::set<std::string> secrets;
  for (int i = 0; i < 20; ++i) {
    const auto halves = sessions.open({.name = "alice"});
    secrets.insert({halves.cookie, halves.header, sessions.new_link({.name = "alice"})});
  }
  EXPECT_EQ(secrets.size(), 60U);
  for (const std::string& secret : secrets) EXPECT_THAT(secret, ::testing::MatchesRegex("[0-9a-f]{32}"));
}

TEST_F(SessionsTest, EndsWhenItIsToldTo) {
  const auto one = sessions.open({.name = "alice"});
  const auto other = sessions.open({.name = "alice"});
  sessions.end(one.cookie, other.header);
  EXPECT_TRUE(lives(one));
  sessions.end(one.cookie, one.header);
  EXPECT_FALSE(lives(one));
  EXPECT_TRUE(lives(other));
}

TEST_F(SessionsTest, EndsAfterHalfAnHourWithoutUse) {
  const auto used = sessions.open({.name = "alice"});
  const auto idle = sessions.open({.name = "alice"});
  clock->advance(30min - 1ns);
  EXPECT_TRUE(lives(used));
  clock->advance(1ns);
  EXPECT_FALSE(lives(idle));
  EXPECT_TRUE(lives(used));
}

TEST_F(SessionsTest, EndsAfterTwelveHoursOfUse) {
  const auto one = sessions.open({.name = "alice"});
  for (int i = 1; i < 48; ++i) {
    clock->advance(15min);
    EXPECT_TRUE(lives(one)) << i;
  }
  clock->advance(15min);
  EXPECT_FALSE(lives(one));
}

TEST_F(SessionsTest, DoesNotAskUtcForItsAge) {
  const auto one = sessions.open({.name = "alice"});
  clock->jump(24h);
  EXPECT_TRUE(lives(one));
}

TEST_F(SessionsTest, KeepsSoManyAndEndsTheOneUnusedForLongest) {
  std::vector<Sessions::Halves> all;
  for (std::size_t i = 0; i < Sessions::most_sessions; ++i) {
    all.push_back(sessions.open({.name = "alice"}));
    clock->advance(1s);
  }
  EXPECT_TRUE(lives(all[0]));
  const auto more = sessions.open({.name = "alice"});
  EXPECT_FALSE(lives(all[1]));
  EXPECT_TRUE(lives(all[0]));
  EXPECT_TRUE(lives(more));
}

TEST_F(SessionsTest, EndsWithTheTokenItBeganWith) {
  const auto alice = sessions.open({.name = "alice"}, sha256("token"));
  const auto bob = sessions.open({.name = "bob"}, sha256("another"));
  const auto by_link = sessions.open({.name = "alice"});
  sessions.end_unless([](const Sha256&, const Identity&) { return true; });
  EXPECT_TRUE(lives(alice));
  EXPECT_TRUE(lives(bob));
  sessions.end_unless([](const Sha256& credential, const Identity& identity) {
    return credential == sha256("another") && identity.name == "bob";
  });
  EXPECT_FALSE(lives(alice));
  EXPECT_TRUE(lives(bob));
  EXPECT_TRUE(lives(by_link));
}

TEST_F(SessionsTest, IsUsedByItsNumberToo) {
  const auto first = sessions.open({.name = "alice"});
  const auto second = sessions.open({.name = "alice"});
  const auto number = sessions.find(first.cookie, first.header)->number;
  EXPECT_NE(number, 0U);
  EXPECT_NE(number, sessions.find(second.cookie, second.header)->number);
  EXPECT_FALSE(sessions.use(0));
  clock->advance(20min);
  EXPECT_TRUE(sessions.use(number));
  clock->advance(20min);
  EXPECT_TRUE(lives(first));
  EXPECT_FALSE(lives(second));
  sessions.end(first.cookie, first.header);
  EXPECT_FALSE(sessions.use(number));
}

TEST_F(SessionsTest, TakesALinkOnce) {
  const std::string link = sessions.new_link({.name = "alice", .reads_only = true});
  EXPECT_FALSE(sessions.take_link("another"));
  EXPECT_FALSE(sessions.take_link(""));
  const auto taken = sessions.take_link(link);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->name, "alice");
  EXPECT_TRUE(taken->reads_only);
  EXPECT_FALSE(sessions.take_link(link));
}

TEST_F(SessionsTest, TakesALinkWithinAMinute) {
  const std::string one = sessions.new_link({.name = "alice"});
  const std::string other = sessions.new_link({.name = "alice"});
  clock->advance(60s - 1ns);
  EXPECT_TRUE(sessions.take_link(one));
  clock->advance(1ns);
  EXPECT_FALSE(sessions.take_link(other));
}

TEST_F(SessionsTest, KeepsSoManyLinks) {
  const std::string first = sessions.new_link({.name = "alice"});
  const std::string second = sessions.new_link({.name = "alice"});
  for (std::size_t i = 1; i < Sessions::most_links; ++i) sessions.new_link({.name = "alice"});
  EXPECT_FALSE(sessions.take_link(first));
  EXPECT_TRUE(sessions.take_link(second));
}

TEST_F(SessionsTest, BarsFurtherAttemptsOfAnAddressUntilTheFailuresAreAMinuteOld) {
  for (std::size_t i = 0; i < Sessions::most_failures; ++i) EXPECT_TRUE(sessions.count_failure("10.0.0.1"));
  EXPECT_FALSE(sessions.count_failure("10.0.0.1"));
  EXPECT_TRUE(sessions.count_failure("10.0.0.2"));
  clock->advance(60s - 1ns);
  EXPECT_FALSE(sessions.count_failure("10.0.0.1"));
  clock->advance(1ns);
  EXPECT_TRUE(sessions.count_failure("10.0.0.1"));
}

TEST_F(SessionsTest, LooksAtSoManyFailuresOfAllAddresses) {
  for (std::size_t i = 0; i < Sessions::most_failures_in_all; ++i) {
    EXPECT_TRUE(sessions.count_failure("2001:db8::" + std::to_string(i)));
  }
  EXPECT_FALSE(sessions.count_failure("2001:db8::ffff"));
  clock->advance(60s);
  EXPECT_TRUE(sessions.count_failure("2001:db8::ffff"));
}

}  // namespace sessions_test
}  // namespace once::operators
