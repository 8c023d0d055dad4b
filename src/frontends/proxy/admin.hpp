// What an operator's tools ask the proxy: is it alive, is it ready, what has it counted.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include <once/callback.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/http/message.hpp>
#include <once/time.hpp>

#include "frontends/proxy/loop.hpp"
#include "tls/context.hpp"

namespace once::proxy {

struct AdminPages {
  std::shared_ptr<const tls::ServerContext> certificate;  // Null: plainly. Replaced on the loop's thread only.
  Millis patience{0};                                     // For a request, and for each step of an answer to be taken.
  Engine* engine = nullptr;
  std::function<bool()> draining;
  std::function<bool()> upstream_available;
  std::function<std::string()> metrics;
  std::function<void(const http::Request& request, Callback<void(http::Answer)> done)> operators;  // May be empty.
  std::function<std::optional<http::Answer>(const http::Request& request)> refuse_metrics;         // May be empty.
  // Open connections, and of those the ones whose request is not there yet, the oldest first.
  std::size_t connections = 0;
  std::list<Connection*> reading;
};

// One connection, one request. GET and HEAD of
//   /healthz  200 as long as there is somebody to answer,
//   /readyz   200, or 503 while it drains, or without an upstream, or when the store does not answer,
//   /metrics  Metrics::text().
// Paths below /v1/, with any method, are for AdminPages::operators. With 64 connections open already, the one that has
// kept its request back for the longest is closed; if all are being answered, this one is. `pages` must outlive it, and
// belongs to the loop.
Task<void> serve_admin(Loop& loop, Socket socket, AdminPages& pages);

}  // namespace once::proxy
