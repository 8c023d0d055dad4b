// What an operator's tools ask the proxy: is it alive, is it ready, what has it counted.
#pragma once

#include <functional>
#include <string>

#include <once/engine/engine.hpp>

#include "frontends/proxy/loop.hpp"

namespace once::proxy {

struct AdminPages {
  Engine* engine = nullptr;
  std::function<bool()> draining;
  std::function<std::string()> metrics;
};

// One connection, one request. GET and HEAD of
//   /healthz  200 as long as there is somebody to answer,
//   /readyz   200, or 503 while it drains or when the store does not answer,
//   /metrics  Metrics::text().
// `pages` must outlive it.
Task<void> serve_admin(Loop& loop, Socket socket, const AdminPages& pages);

}  // namespace once::proxy
