#include "frontends/lambda/runtime/stopping.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <thread>

namespace once::lambda::runtime {

namespace {

std::atomic<int> sigterm_target{-1};
std::atomic<int> sigterm_handlers{0};                  // Running now, on any thread.
static_assert(std::atomic<int>::is_always_lock_free);  // A signal's handler reads it.

extern "C" void once_lambda_on_sigterm(int) {
  const int error = errno;
  ++sigterm_handlers;
  const int target = sigterm_target;
  if (target >= 0) StopFlag::set(target);
  --sigterm_handlers;
  errno = error;
}

}  // namespace

StopFlag::StopFlag() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw std::system_error(errno, std::generic_category(), "cannot create an event descriptor");
}

void StopFlag::set(int fd) noexcept {
  const std::uint64_t one = 1;
  // Fails only if it was set 2^64 - 2 times already.
  [[maybe_unused]] const ssize_t count = write(fd, &one, sizeof one);
}

bool StopFlag::wait(Millis limit) const noexcept {
  pollfd poll_fd{.fd = fd(), .events = POLLIN, .revents = 0};
  int count = 0;
  do {  // The signal that interrupted the wait may have set it.
    count = poll(&poll_fd, 1, static_cast<int>(limit.count()));
  } while (count < 0 && errno == EINTR);
  return count > 0;
}

SigtermWatch::SigtermWatch(bool wanted, const StopFlag& flag) {
  if (!wanted || sigaction(SIGTERM, nullptr, &old_) != 0) return;
  if ((old_.sa_flags & SA_SIGINFO) != 0 || old_.sa_handler != SIG_DFL)
    return;  // The program handles or ignores SIGTERM itself.
  sigterm_target = flag.fd();
  struct sigaction ours {};
  ours.sa_handler = once_lambda_on_sigterm;
  ours.sa_flags = SA_RESTART;  // The work's system calls must not be interrupted.
  active_ = sigaction(SIGTERM, &ours, nullptr) == 0;
}

SigtermWatch::~SigtermWatch() {
  if (!active_) return;
  sigaction(SIGTERM, &old_, nullptr);
  sigterm_target = -1;
  while (sigterm_handlers != 0) std::this_thread::yield();  // Waits for them, because the descriptor will be closed.
}

}  // namespace once::lambda::runtime
