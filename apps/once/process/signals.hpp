// The signals that end or stop the program.
#pragma once

#include <csignal>
#include <initializer_list>
#include <optional>

#include <once/time.hpp>

#include "platform/file.hpp"

namespace once::cli {

// Takes the signals that would end or stop `once`, for the whole process, while it exists. Make it on the main thread,
// before any other thread. Ignored signals stay ignored.
class Signals {
 public:
  Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() = default;  // They stay blocked: the process is about to end.

  struct Signal {
    int number = 0;
    bool sent = false;  // Sent by a process, only to us: the command did not get it. Otherwise by the terminal, to the
                        // whole group.
  };
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  std::optional<Signal> next();  // Does not block.

  [[nodiscard]] const sigset_t& old_mask() const noexcept { return old_mask_; }
  [[nodiscard]] const struct sigaction& old_pipe() const noexcept { return old_pipe_; }
  [[nodiscard]] const struct sigaction& old_child() const noexcept { return old_child_; }

  // SIGXFSZ would end `once` without a word when it writes beyond RLIMIT_FSIZE. Ignored, the write fails, and the error
  // names the file. For main(), before any other thread. Commands get the disposition of before.
  static void ignore_file_size_limit() noexcept;
  [[nodiscard]] static const struct sigaction& old_file_size_limit() noexcept;

  static bool asks_for_end(int signal) noexcept;  // HUP, INT, QUIT, TERM.
  static bool ends_us(int signal) noexcept;       // Those, and all others whose default is to end a process.
  [[noreturn]] static void die_of(int signal);    // Dies of the signal, as if it had never been blocked.
  static void stop_ourselves();                   // Until SIGCONT.

 private:
  Fd fd_;
  sigset_t old_mask_{};
  struct sigaction old_pipe_ {};
  struct sigaction old_child_ {};
};

// Ignores SIGPIPE, and blocks SIGTERM, SIGINT and `more` for the whole process: for sigwait() or a signalfd. For
// services, before any other thread.
sigset_t block_end_signals(std::initializer_list<int> more);
// Waits for the next of the blocked signals. 0: none came within `limit`, of which 0 is none.
int next_signal(const sigset_t& signals, Millis limit);

// Wakes a poll() from another thread.
class Wakeup {
 public:
  Wakeup();
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void set() const noexcept;
  void clear() const noexcept;

 private:
  Fd fd_;
};

// For a loop that should end at a good place: while one exists, the first SIGINT or SIGTERM is only noted, and a second
// one ends the program as usual. Ignored signals stay ignored. One object at a time.
class FirstSignal {
 public:
  FirstSignal();
  FirstSignal(const FirstSignal&) = delete;
  FirstSignal& operator=(const FirstSignal&) = delete;
  ~FirstSignal();

  [[nodiscard]] bool came() const { return came_within(Millis{0}); }
  [[nodiscard]] bool came_within(Millis time) const;  // Waits for it.

 private:
  struct sigaction old_int_ {};
  struct sigaction old_term_ {};
};

}  // namespace once::cli
