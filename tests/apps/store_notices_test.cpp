// The reports to an operator about a failing store.
#include "output/store_notices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <once/error.hpp>
#include <once/testing/manual_time.hpp>

namespace once::cli {
namespace {

using ::testing::ElementsAre;

TEST(StoreNotices, AStoreThatFailsIsToldAtOnceAndThenNowAndThen) {
  std::vector<std::string> said;
  const auto clock = std::make_shared<once::testing::ManualClock>();
  StoreNotices notices(clock, [&](std::string_view text) { said.emplace_back(text); });
  const auto fail = [&](const char* message) {
    const Error error{ErrorKind::misuse, message};
    notices.tell({.kind = EventKind::store_error, .error = &error});
  };
  notices.tell({.kind = EventKind::claimed});
  const Error doubt{ErrorKind::in_doubt, "late"};
  notices.tell({.kind = EventKind::unrecorded, .error = &doubt});  // A store_error came with it.
  EXPECT_THAT(said, ElementsAre());
  fail("AccessDenied\n");
  EXPECT_THAT(said, ElementsAre("store: AccessDenied\\n"));
  clock->advance(std::chrono::milliseconds(29'999));
  fail("AccessDenied");
  fail("no table");
  EXPECT_EQ(said.size(), 1U);
  clock->advance(std::chrono::milliseconds(1));
  fail("late");
  EXPECT_THAT(said, ElementsAre("store: AccessDenied\\n", "store: late (and 2 more failures since the last line)"));
  clock->advance(std::chrono::hours(1));
  fail("gone");
  EXPECT_EQ(said.back(), "store: gone");
}

}  // namespace
}  // namespace once::cli
