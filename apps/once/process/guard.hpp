// The guard: a small process between `once` and the command. It keeps three promises that `once` alone cannot keep:
// - If `once` is killed with SIGKILL, the command and all its processes are killed too.
// - If the claim is lost, the command and all its processes are ended.
// - They are ended in time even if `once` itself is stopped or stuck.
// The lease may end while the host sleeps, or while `once` is stopped. Nobody could renew it then, and perhaps nobody
// else took the claim. So the guard pauses the command and all its processes (SIGSTOP) rather than ending them. It
// continues them (SIGCONT) when `once` has renewed the lease, and kills them if the claim is lost, `once` dies, or has
// tried for one more lease. While `once` is stopped it tries nothing, and they stay paused. For example:
//
// 1. A laptop sleeps for an hour. Its backup has a lease of 30 s.
// 2. It wakes. The guard's timer comes too late, so the guard pauses the backup.
// 3. `once` renews the claim, whose record is still its own, and tells the guard, which continues the backup.
//
// The guard only waits, so little can go wrong with it. If a command was killed, or asked to end and failed, its
// remaining processes are ended too: it may run again, and must not meet them. A command that ends by itself may leave
// processes running.
//
//   once ── guard ── command ── what the command starts
//
// The guard is the parent of the command, and adopts its orphans (PR_SET_CHILD_SUBREAPER). If the guard dies, the
// command is killed (PR_SET_PDEATHSIG). The command is in the process group of `once`, as with env, nice or flock, so
// it gets the terminal's signals directly. The guard has a session of its own: a signal to that group, or to all
// processes of the session, does not reach it. So `kill -9` of the group ends what the command started in other groups,
// too.
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
  int output_reader = -1;              // The other ends of the last two, to read a survivor's output.
  int error_reader = -1;
  sigset_t signal_mask{};        // What the command starts with …
  struct sigaction on_pipe {};   // … for SIGPIPE …
  struct sigaction on_child {};  // … and SIGCHLD.
  bool waits = false;            // The command begins with the order `start`, and its environment is read then.
  bool survive = false;          // The command continues when `once` is killed.
  std::int64_t grace_ns = 0;     // Between SIGTERM and SIGKILL, for the processes of a killed command.
};

// A message of `once` to the guard.
struct GuardOrder {
  enum class Kind : std::uint32_t {
    signal,       // Send signal `value` to the command.
    interrupted,  // The command was asked to end, by the terminal or by a `signal` order.
    lease,  // End the command at `value` (nanoseconds of CLOCK_BOOTTIME), kill it at `limit`. Replaces the last one,
            // and continues a paused command if it is about the future. `patience`: the longest pause.
    end,    // End the command now, kill it at `limit`.
    start,  // Begin, with GuardOptions::waits.
  };
  Kind kind = Kind::signal;
  std::int64_t value = 0;
  std::int64_t limit = 0;
  std::int64_t patience = 0;
};

// A message of the guard to `once`.
struct GuardReport {
  enum class Kind : std::uint32_t {
    started,      // The command runs; `value` is its process id.
    not_started,  // It could not be executed; `value` is the errno. The last report.
    ended,        // `value` is its wait status. The last report.
    ready,        // With GuardOptions::waits: all processes exist. The first report.
  };
  Kind kind = Kind::started;
  std::int32_t value = 0;
  bool out_of_time = false;  // ended: the guard ended it, for the lease or for the order to.
};

struct Guard {
  pid_t pid = -1;
  int socket = -1;  // SOCK_SEQPACKET; each packet is a GuardOrder or a GuardReport. Closing it kills the command.
};

// Forks the guard, which starts the command. Signals should be blocked. Throws Exception: unavailable if no process can
// be started; misuse if its clock would be another (unshare(CLONE_NEWTIME)).
Guard start_guard(const GuardOptions& options);

// The error for a process that cannot be started because of this errno.
std::string no_process_text(int error);

}  // namespace once::cli
