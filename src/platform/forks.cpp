#include "platform/forks.hpp"

#include <pthread.h>

#include <atomic>

namespace once {

namespace {

std::atomic<unsigned> forks_counted{0};

}  // namespace

unsigned forks() noexcept {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks_counted.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return forks_counted.load(std::memory_order_relaxed);
}

}  // namespace once
