// The guard: a small process between `once` and the command. It is what makes three promises hold that `once` alone
// cannot keep: whoever kills `once` with SIGKILL takes the command with it, and all that the command has started; a
// command whose claim is lost is ended together with all that it has started; and it is ended in time even if `once`
// itself is stopped or stuck. The guard does nothing but wait, so that nothing can go wrong with it.
// What lives on behind a command that was killed, or asked to end and failed, is ended too: that command counts as one
// that may run again, beside nothing of its last attempt. A command that ends by itself may leave processes running.
//
//   once ── guard ── command ── what the command starts
//
// The guard is the parent of the command, adopts what loses its parent below it (PR_SET_CHILD_SUBREAPER), and the
// command is killed if the guard dies (PR_SET_PDEATHSIG). All of them are in the process group of `once`, as with env,
// nice or flock, so that the terminal's signals reach the command by themselves.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include <once/time.hpp>

namespace once::cli {

struct GuardOptions {
  char* const* arguments = nullptr;    // Of the command, null-terminated; the first is looked for in PATH.
  char* const* environment = nullptr;  // Null-terminated.
  int input = 0;                       // Becomes the command's standard input …
  int output = 1;                      // … standard output …
  int error = 2;                       // … and standard error.
  int output_reader = -1;              // The other ends of the last two: a survivor's output is read from them.
  int error_reader = -1;
  sigset_t signal_mask{};        // What the command starts with …
  struct sigaction on_pipe {};   // … for SIGPIPE …
  struct sigaction on_child {};  // … and SIGCHLD.
  bool survive = false;          // The command goes on when `once` is killed.
  std::int64_t grace_ns = 0;     // Between SIGTERM and SIGKILL for what a killed command leaves behind.
};

// What `once` tells the guard.
struct GuardOrder {
  enum class Kind : std::uint32_t {
    signal,       // Pass signal `value` on to the command.
    interrupted,  // Somebody asked for an end. From the terminal, or with a `signal` of its own.
    lease,  // End the command at `value` (nanoseconds of CLOCK_BOOTTIME), kill it at `limit`. Replaces the last one.
    end,    // End the command now, kill it at `limit`.
  };
  Kind kind = Kind::signal;
  std::int64_t value = 0;
  std::int64_t limit = 0;
};

// What the guard tells `once`.
struct GuardReport {
  enum class Kind : std::uint32_t {
    started,      // The command runs; `value` is its process id.
    not_started,  // It could not be executed; `value` is the errno. The last report.
    ended,        // `value` is its wait status. The last report.
  };
  Kind kind = Kind::started;
  std::int32_t value = 0;
  bool out_of_time = false;  // ended: the guard ended it, for the lease or for the order to.
};

struct Guard {
  pid_t pid = -1;
  int socket = -1;  // SOCK_SEQPACKET; each packet is one GuardOrder or GuardReport. Closing it kills the command.
};

// Forks the guard and lets it start the command. Must be called on the main thread: the guard dies with the thread that
// made it. Signals should be blocked. Throws Exception(unavailable) if there is no process to be had.
Guard start_guard(const GuardOptions& options);

}  // namespace once::cli
