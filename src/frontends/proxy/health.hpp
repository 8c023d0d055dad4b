// Checks the health of an upstream, until it is removed or the loop is closed.
#pragma once

#include <cstdint>
#include <memory>

#include <once/frontends/proxy.hpp>

#include "frontends/proxy/loop.hpp"
#include "frontends/proxy/services.hpp"

namespace once::proxy {

// Requests options.health_path from the upstream with this id every options.health_interval, on a new connection, while
// the loop has that upstream.
Task<void> watch_health(Loop& loop, const ProxyOptions& options, std::uint64_t id);

}  // namespace once::proxy
