// Runs the command to its end: copies and records its output, forwards signals, ends it when its claim is lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/time.hpp>
#include <once/trace.hpp>

#include "operators/run_result.hpp"
#include "output/names.hpp"
#include "process/signals.hpp"

namespace once::cli {

struct SuperviseOptions {
  std::vector<std::string> command;
  std::vector<std::string> environment;  // "NAME=value", all of it.
  int input = 0;
  bool survive = false;       // See GuardOptions.
  bool terminal = false;      // Its standard output and error are one terminal, whose output is standard output's.
  bool take_signals = true;   // Take signals from `signals` and forward them. If false, several commands may be
                              // supervised at once, each on a thread that lives as long as its command.
  bool end_when_lost = true;  // End the command when its claim is lost, or in time before.
  Millis grace{5'000};        // Between SIGTERM and SIGKILL then, and for the processes of a killed command.
  Millis output_wait{1'000};  // How long after the command's end its output is waited for, if others hold it open.

  // For a command under a claim; empty without one.
  const Wakeup* changed = nullptr;                  // Set when one of these may have changed.
  std::function<std::optional<Uptime>()> deadline;  // Claim::deadline().
  std::function<bool()> lost;
  Millis lease{30'000};
};

struct Supervised {
  enum class Kind {
    ended,        // `end` says how.
    not_started,  // It could not be executed: `error` is the errno. Nothing was run.
    guard_died,   // The guard was killed, and the command with it. How far it got is not known, and its processes may
                  // still run.
  };
  Kind kind = Kind::ended;
  CommandEnd end;
  int error = 0;
  bool out_of_time = false;  // Ended because its claim was lost, or about to be.
  int interrupted_by = 0;    // The last signal that asks for an end (Signals::asks_for_end()).
  int output_error = 0;      // errno of a write to standard output or error that failed, other than EPIPE.
};

// The command was started, but could no longer be watched. It was ended with all its processes, unless
// SuperviseOptions::survive. How far it got is not known.
class CommandUnwatched : public Exception {
 public:
  using Exception::Exception;
};

// A command whose processes and pipes exist, but which has not begun. It is made before the claim, because the system
// may refuse them: at the limit of processes, for example. Destroyed before run(): nothing was run.
class PreparedCommand {
 public:
  virtual ~PreparedCommand() = default;

  [[nodiscard]] virtual SuperviseOptions& options() noexcept = 0;  // May be changed until run().

  // Begins the command, and returns after its end. Call it once. Throws CommandUnwatched. With take_signals, call it on
  // the main thread.
  virtual Supervised run(Recorder& recorder) = 0;
};

// Uses `command`, `input`, `survive`, `terminal` and `grace`; the other options may follow. Throws
// Exception(unavailable).
std::unique_ptr<PreparedCommand> prepare_command(SuperviseOptions options, Signals& signals);

// Both at once.
Supervised supervise(SuperviseOptions options, Signals& signals, Recorder& recorder);

// TRACEPARENT and TRACESTATE, as OpenTelemetry passes contexts in environment variables. Null: none, or invalid.
TracePtr trace_from_environment();
// Adds them for a command. An empty context adds nothing.
void add_trace(std::vector<std::pair<std::string, std::string>>& variables, const TraceContext& trace);
// Our environment with these variables instead of those of the same names. A value with NUL, which an environment
// cannot contain, is left out, not cut.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& ours);
// The same for a command whose work is made idempotent here. ONCE_DISABLED was said to this program: what the command
// calls in turn stays protected.
std::vector<std::string> environment_of_command(const std::vector<std::pair<std::string, std::string>>& ours);

// For poll(), which takes milliseconds in an int: at most a minute, then check again.
int poll_timeout(std::chrono::nanoseconds left);

}  // namespace once::cli
