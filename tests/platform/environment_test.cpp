// What ONCE_LEASE, ONCE_RETENTION, ONCE_FAILURE_RETENTION, ONCE_EXPECT and ONCE_WAIT say.
#include <once/platform/environment.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <once/error.hpp>

namespace once {
namespace environment_test {

class Environment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static void clear() {
    for (const char* const name :
         {"ONCE_LEASE", "ONCE_RETENTION", "ONCE_FAILURE_RETENTION", "ONCE_EXPECT", "ONCE_WAIT", "ONCE_DISABLED"})
      unsetenv(name);
  }
  Policy read() {
    return policy_from_environment([this](std::string_view text) { told.emplace_back(text); });
  }
  std::string refusal(const char* name, const char* value) {
    setenv(name, value, 1);
    std::string text;
    try {
      read();
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      text = error.what();
    }
    unsetenv(name);
    return text;
  }
  std::vector<std::string> told;
};

TEST_F(Environment, SaysNothingWhereNothingIsSet) {
  EXPECT_EQ(read(), Policy{});
  setenv("ONCE_LEASE", "", 1);
  EXPECT_EQ(read(), Policy{});
  EXPECT_TRUE(told.empty());
}

TEST_F(Environment, SaysWhatIsSetAndIsToldOnce) {
  setenv("ONCE_LEASE", "5m", 1);
  EXPECT_EQ(read(), Policy{.lease = std::chrono::minutes(5)});
  setenv("ONCE_RETENTION", "3d", 1);
  setenv("ONCE_WAIT", "250ms", 1);
  EXPECT_EQ(read(), (Policy{.lease = std::chrono::minutes(5),
                            .retention = std::chrono::hours(72),
                            .wait = Millis{250},
                            .on_conflict = OnConflict::wait}));
  ASSERT_THAT(told, ::testing::ElementsAre("ONCE_LEASE=5m", "ONCE_LEASE=5m, ONCE_RETENTION=3d, ONCE_WAIT=250ms"));
  setenv("ONCE_EXPECT", "10m", 1);
  EXPECT_EQ(read().expected, std::chrono::minutes(10));
  setenv("ONCE_WAIT", "0s", 1);
  EXPECT_EQ(read().on_conflict, OnConflict::fail);
}

TEST_F(Environment, ARetentionMayNeverEndAndFailuresHaveTheirOwn) {
  setenv("ONCE_RETENTION", "never", 1);
  setenv("ONCE_FAILURE_RETENTION", "1h", 1);
  EXPECT_EQ(read(), (Policy{.retention = keep_forever, .failure_retention = std::chrono::hours(1)}));
  EXPECT_THAT(told, ::testing::ElementsAre("ONCE_RETENTION=never, ONCE_FAILURE_RETENTION=1h"));
}

TEST_F(Environment, ProtectionIsSwitchedOffByAWordOnly) {
  EXPECT_FALSE(is_disabled_by_environment());
  for (const char* const word : {"1", "true", "YES", "on"}) {
    setenv("ONCE_DISABLED", word, 1);
    EXPECT_TRUE(is_disabled_by_environment()) << word;
  }
  for (const char* const word : {"", "0", "False", "no", "off"}) {
    setenv("ONCE_DISABLED", word, 1);
    EXPECT_FALSE(is_disabled_by_environment()) << word;
  }
  for (const char* const word : {"ture", "2", "disabled", " "}) {
    setenv("ONCE_DISABLED", word, 1);
    EXPECT_THROW(static_cast<void>(is_disabled_by_environment()), Exception) << word;
  }
}

TEST_F(Environment, RefusesWhatIsNoTimeOrOutOfRangeByName) {
  using ::testing::HasSubstr;
  using ::testing::StartsWith;
  for (const char* const bad : {"5", "five", "5 m", "-5m", "5M", "99999999999d", "5m5s", " 5m"}) {
    EXPECT_THAT(refusal("ONCE_LEASE", bad), StartsWith(std::string("ONCE_LEASE=") + bad + " is not a duration")) << bad;
  }
  EXPECT_THAT(refusal("ONCE_LEASE", "9ms"), StartsWith("ONCE_LEASE=9ms: policy lease is 9 ms; it must be 10 to"));
  EXPECT_THAT(refusal("ONCE_RETENTION", "0s"), HasSubstr("policy retention is 0 ms"));
  EXPECT_THAT(refusal("ONCE_FAILURE_RETENTION", "0s"), HasSubstr("policy failure_retention is 0 ms"));
  EXPECT_THAT(refusal("ONCE_LEASE", "never"), StartsWith("ONCE_LEASE=never is not a duration"));
  EXPECT_THAT(refusal("ONCE_EXPECT", "0s"), HasSubstr("policy expected"));
  EXPECT_THAT(refusal("ONCE_WAIT", "2d"), HasSubstr("policy wait"));
  EXPECT_TRUE(told.empty()) << "nothing is told of settings that are refused";
}

}  // namespace environment_test
}  // namespace once
