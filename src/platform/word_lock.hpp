// A lock of one word, for the short sections that every call passes: no call into the C library while it is free.
#pragma once

#include <atomic>

namespace once {

// Not recursive. A thread that finds it taken sleeps until it is free, by std::atomic's wait(), which spins for a few
// dozen instructions at most. unlock() does not touch the word after it has freed it, so the next owner may destroy it.
// Why not std::mutex: docs/decisions/cost-of-a-call.md.
class WordLock {
 public:
  WordLock() = default;
  WordLock(const WordLock&) = delete;
  WordLock& operator=(const WordLock&) = delete;

  void lock() noexcept {
    int seen = is_free;
    if (!word_.compare_exchange_strong(seen, is_taken, std::memory_order_acquire, std::memory_order_relaxed)) wait();
  }
  void unlock() noexcept {
    if (word_.exchange(is_free, std::memory_order_release) == is_awaited) word_.notify_one();
  }

 private:
  static constexpr int is_free = 0;
  static constexpr int is_taken = 1;
  static constexpr int is_awaited = 2;  // Taken, and a thread may sleep.

  [[gnu::noinline, gnu::cold]] void wait() noexcept {
    while (word_.exchange(is_awaited, std::memory_order_acquire) != is_free) {
      word_.wait(is_awaited, std::memory_order_relaxed);
    }
  }

  std::atomic<int> word_{is_free};
};

}  // namespace once
