// "once: 120000 records removed ..." on a terminal, when something takes longer than two seconds.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include <once/platform/system.hpp>

#include "platform/file.hpp"

namespace once::cli {

class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)), on_(isatty(STDERR_FILENO) == 1) {}

  void tell(std::uint64_t records) {
    constexpr std::uint64_t look_every = 256;  // Reading the clock costs more than a record.
    if (++calls_ % look_every == 1) show(records);
  }
  // The same, for callers that have read many records since the last call.
  void show(std::uint64_t records) {
    if (!on_) return;
    const Uptime now = system_clock()->uptime();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    shown_ = true;
    write_all(STDERR_FILENO, "\ronce: " + std::to_string(records) + " records " + what_ + " ...");
  }
  void end() {
    if (std::exchange(shown_, false)) write_all(STDERR_FILENO, "\r\x1b[K");
  }

 private:
  const std::string what_;
  const bool on_;
  bool shown_ = false;
  std::uint64_t calls_ = 0;
  Uptime next_ = system_clock()->uptime() + std::chrono::seconds(2);
};

}  // namespace once::cli
