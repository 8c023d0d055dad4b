#include "process/signals.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include <once/error.hpp>

namespace once::cli {

namespace {

constexpr std::array taken_signals = {SIGHUP,  SIGINT,  SIGQUIT,  SIGTERM, SIGUSR1,
                                      SIGUSR2, SIGALRM, SIGWINCH, SIGCONT, SIGTSTP};

[[noreturn]] void cannot(const char* what) {
  throw Exception(ErrorKind::unavailable, std::string("cannot ") + what + ": " + std::strerror(errno));
}

const Wakeup* noted = nullptr;  // For the handler.

struct sigaction old_file_size {};  // As it was at the start of the program.

extern "C" void note_signal(int /*signal*/) {
  const int error = errno;
  noted->set();
  errno = error;
}

}  // namespace

Signals::Signals() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : taken_signals) sigaddset(&taken, signal);
  if (sigprocmask(SIG_BLOCK, &taken, &old_mask_) != 0) cannot("block signals");
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  if (sigaction(SIGPIPE, &ignore, &old_pipe_) != 0) cannot("ignore SIGPIPE");
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;  // If the caller ignores it, we could not learn how the command ended.
  if (sigaction(SIGCHLD, &standard, &old_child_) != 0) cannot("set up SIGCHLD");
  fd_.reset(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) cannot("create a signal descriptor");
}

std::optional<Signals::Signal> Signals::next() {
  signalfd_siginfo info{};
  const ssize_t count = read(fd_.get(), &info, sizeof info);
  if (count != static_cast<ssize_t>(sizeof info)) return std::nullopt;
  // sigaction(2): SI_USER, SI_QUEUE and SI_TKILL, which processes give, are 0 or less; the terminal's is SI_KERNEL.
  return Signal{.number = static_cast<int>(info.ssi_signo), .sent = info.ssi_code <= 0};
}

void Signals::ignore_file_size_limit() noexcept {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &ignore, &old_file_size);
}

const struct sigaction& Signals::old_file_size_limit() noexcept { return old_file_size; }

bool Signals::asks_for_end(int signal) noexcept {
  return signal == SIGHUP || signal == SIGINT || signal == SIGQUIT || signal == SIGTERM;
}

bool Signals::ends_us(int signal) noexcept { return signal != SIGWINCH && signal != SIGCONT && signal != SIGTSTP; }

void Signals::die_of(int signal) {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  raise(signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  _exit(128 + signal);  // It does not end a process.
}

// With the original signal, not SIGSTOP. In an orphaned process group (setpgid(2)) SIGTSTP stops no process, so the
// command continues, and so must we.
void Signals::stop_ourselves() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  raise(SIGTSTP);
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);  // Stopped here, until SIGCONT.
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
}

sigset_t block_end_signals(std::initializer_list<int> more) {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  for (const int signal : more) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

int next_signal(const sigset_t& signals, Millis limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(limit - seconds).count()};
  for (;;) {
    const int signal = sigtimedwait(&signals, nullptr, limit == Millis{0} ? nullptr : &time);
    if (signal > 0) return signal;
    if (errno == EAGAIN) return 0;
  }
}

Wakeup::Wakeup() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) cannot("create an event descriptor");
}

void Wakeup::set() const noexcept {
  const std::uint64_t one = 1;
  // It fails only if it was set 2^64 - 2 times already.
  [[maybe_unused]] const ssize_t count = write(fd_.get(), &one, sizeof one);
}

void Wakeup::clear() const noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t read_bytes = read(fd_.get(), &count, sizeof count);
}

FirstSignal::FirstSignal() {
  static const Wakeup wakeup;
  wakeup.clear();
  noted = &wakeup;
  struct sigaction note {};
  note.sa_handler = note_signal;
  note.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  const auto take = [&](int signal, struct sigaction& old) {
    sigaction(signal, nullptr, &old);
    if (old.sa_handler != SIG_IGN) sigaction(signal, &note, nullptr);
  };
  take(SIGINT, old_int_);
  take(SIGTERM, old_term_);
}

FirstSignal::~FirstSignal() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
}

bool FirstSignal::came_within(Millis time) const {
  pollfd one{.fd = noted->fd(), .events = POLLIN, .revents = 0};
  const auto most = std::int64_t{std::numeric_limits<int>::max()};
  // Interrupted by the signal itself: it is noted by then.
  while (poll(&one, 1, static_cast<int>(std::min<std::int64_t>(time.count(), most))) < 0 && errno == EINTR) {
  }
  return one.revents != 0;
}

}  // namespace once::cli
