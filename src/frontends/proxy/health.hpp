// Looks at the health of an upstream, for as long as it is one and the loop is not closed.
#pragma once

#include <cstdint>
#include <memory>

#include <once/frontends/proxy.hpp>

#include "frontends/proxy/loop.hpp"
#include "frontends/proxy/services.hpp"

namespace once::proxy {

// Asks the one with this id for options.health_path every options.health_interval on a connection of its own, as long
// as it is among the loop's.
Task<void> watch_health(Loop& loop, const ProxyOptions& options, std::uint64_t id);

}  // namespace once::proxy
