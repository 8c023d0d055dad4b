#include "platform/home.hpp"

#include <memory>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "platform/wait.hpp"

namespace once {
namespace {

class NoBody final : public Home {
 public:
  bool bring(Callback<void()>&) override { return false; }
};

TEST(Home, IsAThreadsOwnUntilItLeaves) {
  const auto outer = std::make_shared<NoBody>();
  const auto inner = std::make_shared<NoBody>();
  EXPECT_EQ(home(), nullptr);
  {
    const AtHome first(outer);
    EXPECT_EQ(home(), outer);
    {
      const AtHome second(inner);
      EXPECT_EQ(home(), inner);
      std::thread([] { EXPECT_EQ(home(), nullptr); }).join();
    }
    EXPECT_EQ(home(), outer);
  }
  EXPECT_EQ(home(), nullptr);
  EXPECT_EQ(outer.use_count(), 1);
}

// Otherwise its answer would be brought to the waiting thread.
TEST(Home, IsNoneForWhatAThreadSleepsFor) {
  const auto here = std::make_shared<NoBody>();
  const AtHome at_home(here);
  const auto begun_at =
      wait_for<std::shared_ptr<Home>>([](Callback<void(std::shared_ptr<Home>)> done) { done(home()); });
  EXPECT_EQ(begun_at, nullptr);
  EXPECT_EQ(home(), here);
}

}  // namespace
}  // namespace once
