// Looks at the health of the upstreams, one by one, for as long as the loop is not closed.
#pragma once

#include <cstddef>
#include <memory>

#include <once/frontends/proxy.hpp>

#include "frontends/proxy/loop.hpp"
#include "frontends/proxy/services.hpp"

namespace once::proxy {

// Asks for options.health_path every options.health_interval on a connection of its own.
Task<void> watch_health(Loop& loop, const ProxyOptions& options, std::size_t index);

}  // namespace once::proxy
