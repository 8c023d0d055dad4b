// The listening socket that a service manager passes: the protocol of sd_listen_fds(3).
#pragma once

#include <once/frontends/proxy.hpp>

#include "platform/file.hpp"

namespace once::cli {

struct PassedSocket {
  Fd socket;
  proxy::Address address;  // Where it listens. Of an unnamed Unix socket: "unnamed".
};

// Takes the socket, closes it for child processes, and removes LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES from the
// environment. Call it once, before other threads use the environment. Throws Exception(misuse) unless exactly one
// listening stream socket was passed to this process.
PassedSocket take_passed_socket();

}  // namespace once::cli
