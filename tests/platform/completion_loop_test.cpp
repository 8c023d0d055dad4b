#include "platform/completion_loop.hpp"

#include <memory>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "platform/wait.hpp"

namespace once {
namespace completion_loop_test {

class NoBody final : public CompletionLoop {
 public:
  bool try_post(Callback<void()>&) override { return false; }
};

TEST(CompletionLoop, IsAThreadsOwnUntilItLeaves) {
  const auto outer = std::make_shared<NoBody>();
  const auto inner = std::make_shared<NoBody>();
  EXPECT_EQ(completion_loop(), nullptr);
  {
    const CompletionLoopScope first(outer);
    EXPECT_EQ(completion_loop(), outer);
    {
      const CompletionLoopScope second(inner);
      EXPECT_EQ(completion_loop(), inner);
      std::thread([] { EXPECT_EQ(completion_loop(), nullptr); }).join();
    }
    EXPECT_EQ(completion_loop(), outer);
  }
  EXPECT_EQ(completion_loop(), nullptr);
  EXPECT_EQ(outer.use_count(), 1);
}

// Otherwise its answer would be brought to the waiting thread.
TEST(CompletionLoop, IsNoneForWhatAThreadSleepsFor) {
  const auto here = std::make_shared<NoBody>();
  const CompletionLoopScope scope(here);
  const auto begun_at = wait_for<std::shared_ptr<CompletionLoop>>(
      [](Callback<void(std::shared_ptr<CompletionLoop>)> done) { done(completion_loop()); });
  EXPECT_EQ(begun_at, nullptr);
  EXPECT_EQ(completion_loop(), here);
}

}  // namespace completion_loop_test
}  // namespace once
