// Joins two connections: copies bytes both ways, until both have ended or neither has sent for long.
#pragma once

#include <cstdint>

#include <once/time.hpp>

#include "frontends/proxy/loop.hpp"

namespace once::proxy {

struct TunnelEnd {
  std::uint64_t up_bytes = 0;    // From the client.
  std::uint64_t down_bytes = 0;  // To it.
  enum class Kind : std::uint8_t {
    ended,   // Both sides ended their direction.
    idle,    // No byte either way in `idle`.
    broken,  // A connection broke, or the proxy ends.
  } kind = Kind::ended;
};

// Closes both connections, unless `ended`. The end of one direction is passed on, and the other direction continues.
Task<TunnelEnd> run_tunnel(Loop& loop, Connection& client, Connection& upstream, Millis idle, Millis write_limit);

}  // namespace once::proxy
