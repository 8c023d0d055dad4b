// An execution environment of `once lambda invoke`: an API, and the function's process, if any.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <once/frontends/lambda/local_api.hpp>

#include "process/guard.hpp"
#include "process/supervise.hpp"
#include "settings/lambda_options.hpp"

namespace once::cli {

struct LambdaEnvironment {
  using Steady = std::chrono::steady_clock;

  std::unique_ptr<lambda::LocalApi> api;
  Fd socket;  // Of the guard; open while the process lives.
  pid_t guard = -1;
  bool ending = false;              // It was ordered to end.
  std::string why_ending;           // The reason given for its open invocations.
  bool asked = false;               // The process has asked for an event.
  std::size_t given = 0;            // Events given to the process.
  std::size_t open = 0;             // Jobs that were submitted and have not ended.
  std::set<std::size_t> not_given;  // Those of them that no process has got.
  bool dying = false;               // Its process has ended, and its open invocations are not all settled.
  Steady::time_point started{};
  std::optional<Steady::time_point> kill_at;
  std::optional<Steady::time_point> rest_until;  // The process is not frozen before it asks for an event, or this time.
  std::optional<Steady::time_point> thaw_at;     // It is frozen.

  [[nodiscard]] bool alive() const noexcept { return static_cast<bool>(socket); }

  // Starts a process; `null` is its standard input. On the main thread. Throws Exception(unavailable).
  void start(const InvokeOptions& options, const Fd& null, const Signals& signals);

  void order(const GuardOrder& what) const;
  void kill(std::string_view why);  // Kills it and all its processes with SIGKILL.
  void end(std::string_view why);   // It ends by itself, or is ended a moment later.
  [[nodiscard]] static std::int64_t shutdown_limit();

  // How the process ended, for people, after its guard has reported it.
  struct Death {
    std::string how;
    int cannot_execute = 0;  // An errno: it was never started.
  };
  std::optional<Death> read_report();
};

}  // namespace once::cli
