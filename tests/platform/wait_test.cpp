#include "platform/wait.hpp"

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace once {
namespace wait_test {

TEST(Wait, ACompletionInsideTheCallNeedsNoOther) {
  EXPECT_EQ(wait_for<int>([](Callback<void(int)> done) { done(17); }), 17);
}

TEST(Wait, AValueIsMovedThrough) {
  const auto value = wait_for<std::unique_ptr<std::string>>(
      [](Callback<void(std::unique_ptr<std::string>)> done) { done(std::make_unique<std::string>("x")); });
  EXPECT_EQ(*value, "x");
}

// Many threads wait at once for one that completes in another order; each wait object lives on a stack that is used
// anew at once, which is where a wake that comes too late would show under the sanitizers.
TEST(Wait, ManySleepersAreEachWokenWithTheirOwn) {
  std::mutex mutex;
  std::deque<std::pair<int, Callback<void(int)>>> queue;
  std::atomic<bool> stop{false};
  std::thread completer([&] {
    while (!stop) {
      std::deque<std::pair<int, Callback<void(int)>>> taken;
      {
        const std::lock_guard lock(mutex);
        taken.swap(queue);
      }
      for (auto at = taken.rbegin(); at != taken.rend(); ++at) at->second(at->first * 3);
      if (taken.empty()) std::this_thread::yield();
    }
  });
  std::vector<std::thread> sleepers;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 16; ++i) {
    sleepers.emplace_back([&, i] {
      for (int n = 0; n < 500; ++n) {
        const int asked = i * 1000 + n;
        const int got = wait_for<int>([&](Callback<void(int)> done) {
          const std::lock_guard lock(mutex);
          queue.emplace_back(asked, std::move(done));
        });
        if (got != asked * 3) ++wrong;
      }
    });
  }
  for (std::thread& sleeper : sleepers) sleeper.join();
  stop = true;
  completer.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Wait, AWakeIsKeptBackUntilTheCompletionsAreGone) {
  Callback<void(int)> first;
  Callback<void(int)> second;
  std::atomic<int> ready{0};
  std::atomic<bool> gone{false};
  std::atomic<int> too_early{0};
  const auto waits = [&](Callback<void(int)>& its) {
    const int got = wait_for<int>([&](Callback<void(int)> done) {
      its = std::move(done);
      ++ready;
      ready.notify_one();
    });
    if (!gone) ++too_early;
    return got;
  };
  std::vector<std::thread> sleepers;
  sleepers.emplace_back([&] { EXPECT_EQ(waits(first), 1); });
  sleepers.emplace_back([&] { EXPECT_EQ(waits(second), 2); });
  for (int seen = 0; (seen = ready) < 2;) ready.wait(seen);
  {
    const WakesAfter completions;
    first(1);
    second(2);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // A chance to be wrong.
    gone = true;
  }
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(too_early, 0);
}

TEST(Wait, ACompletionThatWaitsKeepsNobodyBack) {
  Callback<void(int)> first;
  std::atomic<bool> ready{false};
  std::atomic<bool> returned{false};
  std::thread sleeper([&] {
    wait_for<int>([&](Callback<void(int)> done) {
      first = std::move(done);
      ready = true;
      ready.notify_one();
    });
    returned = true;
    returned.notify_one();
  });
  ready.wait(false);
  {
    const WakesAfter completions;
    const WakesAfter inner;
    first(1);
    std::thread other;
    wait_for<int>([&](Callback<void(int)> done) {
      other = std::thread([&returned, done = std::move(done)]() mutable {
        returned.wait(false);  // It would never return.
        done(1);
      });
    });
    other.join();
  }
  sleeper.join();
}

}  // namespace wait_test
}  // namespace once
