// Stops a runtime.
#pragma once

#include <csignal>

#include <once/time.hpp>

#include "platform/file.hpp"

namespace once::lambda::runtime {

// Set once; every waiting thread sees it. Throws std::system_error if it cannot be made.
class StopFlag {
 public:
  StopFlag();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }  // Readable once it is set.
  void set() const noexcept { set(fd()); }
  static void set(int fd) noexcept;  // Also in a signal's handler.
  [[nodiscard]] bool is_set() const noexcept { return wait(Millis{0}); }
  [[nodiscard]] bool wait(Millis limit) const noexcept;  // Waits at most `limit`. True: it is set.

 private:
  const Fd fd_;
};

// While it lives, SIGTERM sets the flag, unless the program handles or ignores that signal itself. Only one may exist.
class SigtermWatch {
 public:
  SigtermWatch(bool wanted, const StopFlag& flag);
  SigtermWatch(const SigtermWatch&) = delete;
  SigtermWatch& operator=(const SigtermWatch&) = delete;
  ~SigtermWatch();

 private:
  struct sigaction old_ {};
  bool active_ = false;
};

}  // namespace once::lambda::runtime
