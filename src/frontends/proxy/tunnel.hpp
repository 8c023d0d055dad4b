// Two connections made one: bytes both ways, until both have ended or nobody has said anything for long.
#pragma once

#include <cstdint>

#include <once/time.hpp>

#include "frontends/proxy/loop.hpp"

namespace once::proxy {

struct TunnelEnd {
  std::uint64_t up_bytes = 0;    // From the client.
  std::uint64_t down_bytes = 0;  // To it.
  enum class Kind : std::uint8_t {
    ended,   // Each side said that it had no more to say.
    idle,    // No byte either way in `idle`.
    broken,  // One of them broke off, or the proxy ends.
  } kind = Kind::ended;
};

// Both connections are closed after it, unless `ended`. What one side says last gets to the other: the end of one
// direction is passed on, and the other direction goes on.
Task<TunnelEnd> run_tunnel(Loop& loop, Connection& client, Connection& upstream, Millis idle, Millis write_limit);

}  // namespace once::proxy
