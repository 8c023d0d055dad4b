#include <gtest/gtest.h>

#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "platform/word_lock.hpp"

namespace once {
namespace word_lock_test {

// More threads than processors, and an owner that gives its processor away: most of them find it taken, and sleep.
TEST(WordLock, lets_one_thread_in_at_a_time) {
  constexpr int threads = 8;
  constexpr int rounds = 2'000;
  WordLock lock;
  int inside = 0;
  int count = 0;
  std::latch ready(threads);
  {
    std::vector<std::jthread> pool;
    for (int i = 0; i < threads; ++i) {
      pool.emplace_back([&] {
        ready.arrive_and_wait();
        for (int round = 0; round < rounds; ++round) {
          const std::lock_guard guard(lock);
          EXPECT_EQ(++inside, 1);
          if (round % 8 == 0) std::this_thread::yield();
          ++count;
          --inside;
        }
      });
    }
  }
  EXPECT_EQ(count, threads * rounds);
}

}  // namespace word_lock_test
}  // namespace once
