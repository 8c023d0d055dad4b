// Starts the server that clients share, unless it runs.
#pragma once

#include <optional>

#include <once/error.hpp>
#include <once/time.hpp>

#include "platform/file.hpp"
#include "serve/place.hpp"

namespace once::cli {

// In the process that is to become the server: others wait for it. Its end, also by a signal, ends their wait.
class Starting {
 public:
  Starting(Fd lock, Fd report) : lock_(std::move(lock)), report_(std::move(report)) {}

  // A server that was there before may need a moment to end. Waits until it has let the socket go, at most ten seconds.
  static void await_end_of_last(const ServerPlace& place);
  void up();                        // Clients can connect.
  void failed(const Error& error);  // The starter shows this.

 private:
  Fd lock_;    // Nobody else starts one.
  Fd report_;  // A pipe to the starter.
};

// Returns in this process when a server answers at the place, with an empty result. If none did, it has been started:
// by fork, and in the new process this returns a Starting. That has a session of its own, no standard input and output,
// standard error to the log, none of the other open files, and, unless the store is seen from the working directory,
// the root directory as its own. So this must be called before other threads start.
//
// Only processes of this user count as servers. Of several starters at once, one starts it. Any of the processes may be
// killed at any time: what is left is a socket or a lock that nobody holds, and the next starter goes on. Throws
// Exception(unavailable) if the server does not come up, or does not answer; or of the kind that it failed with.
std::optional<Starting> start_unless_up(const ServerPlace& place);

}  // namespace once::cli
