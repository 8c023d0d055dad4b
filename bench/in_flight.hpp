// Shared by benchmarks: processor time, and running a constant number of operations at once.
#pragma once

#include <sys/resource.h>

#include <atomic>
#include <functional>
#include <latch>
#include <utility>

namespace once::bench {

// Of this process so far, all threads, user and system.
inline double cpu_us() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

// Starts the operation with this number (from 0), and calls back when it is over, from any thread, with its success.
using Start = std::function<void(int, std::function<void(bool)>)>;

// Keeps `in_flight` operations running until all are done. Returns how many failed.
inline int keep_in_flight(int operations, int in_flight, const Start& start) {
  struct Loop {
    const Start& start;
    const int operations;
    std::atomic<int> begun{0};
    std::atomic<int> failed{0};
    std::latch over;

    void next() {
      const int number = begun.fetch_add(1);
      if (number >= operations) return over.count_down();
      start(number, [this](bool good) {
        if (!good) ++failed;
        next();
      });
    }
  };
  Loop loop{.start = start, .operations = operations, .over = std::latch(in_flight)};
  for (int i = 0; i < in_flight; ++i) loop.next();
  loop.over.wait();
  return loop.failed;
}

}  // namespace once::bench
