#include "process/interrupt.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>

#include "process/supervise.hpp"

namespace once::cli {

namespace {

const Wakeup* noted = nullptr;  // For the handler.

extern "C" void note_interrupt(int /*signal*/) {
  const int error = errno;
  noted->set();
  errno = error;
}

}  // namespace

Interrupt::Interrupt() {
  static const Wakeup wakeup;
  wakeup.clear();
  noted = &wakeup;
  struct sigaction note {};
  note.sa_handler = note_interrupt;
  note.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  const auto take = [&](int signal, struct sigaction& old) {
    sigaction(signal, nullptr, &old);
    if (old.sa_handler != SIG_IGN) sigaction(signal, &note, nullptr);
  };
  take(SIGINT, old_int_);
  take(SIGTERM, old_term_);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
}

bool Interrupt::asked_within(Millis time) const {
  pollfd one{.fd = noted->fd(), .events = POLLIN, .revents = 0};
  const auto most = std::int64_t{std::numeric_limits<int>::max()};
  // Interrupted by the signal itself: it is noted by then.
  while (poll(&one, 1, static_cast<int>(std::min<std::int64_t>(time.count(), most))) < 0 && errno == EINTR) {
  }
  return one.revents != 0;
}

}  // namespace once::cli
