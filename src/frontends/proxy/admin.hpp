// Pages for an operator's tools: is the proxy alive, is it ready, what has it counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/callback.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/proxy.hpp>
#include <once/time.hpp>

#include "frontends/proxy/listening.hpp"
#include "frontends/proxy/loop.hpp"
#include "tls/context.hpp"

namespace once::proxy {

inline constexpr Millis most_admin_patience{5'000};

// What the last probe of the store's writes has found. Belongs to the loop.
struct WriteProbe {
  bool is_running = false;
  std::optional<Uptime> ended_at = {};             // By the engine's clock.
  std::string store = {};                          // Its name. After a move it is another one.
  std::string refusal = {};                        // Why it failed, or "".
  std::vector<Callback<void(bool)>> waiting = {};  // Those who asked while it ran.
};

struct AdminPages {
  std::shared_ptr<const tls::ServerContext> certificate = {};  // Null: no TLS. Replaced on the loop's thread only.
  std::optional<std::uint32_t> only_user = {};  // Of a Unix socket: other users' connections are closed at once.
  // Of a Unix socket: http::Request::principal is "UID:PID" of the client, as the kernel knows it, and not its address.
  bool names_processes = false;
  bool names_certificates = false;          // The same of the client's certificate: see tls::certificate_name().
  Listener listener = Listener::operators;  // For what is reported of failed handshakes.
  Millis patience{0};                       // For reading a request, and for each write of an answer.
  Millis idle{0};  // How long a connection is kept for its next request. 0: each has one request.
  std::size_t most_connections = 64;
  bool is_ending = false;  // No connection is kept.
  Engine* engine = nullptr;
  bool probes_writes = true;             // /readyz: also for stores that are not charged for it. See serve_admin().
  std::function<std::string()> unready;  // Why it is not ready, or "". May be empty.
  std::function<std::string()> metrics;
  std::function<void(const http::Request& request, Callback<void(OperatorsAnswer)> done)> operators;  // May be empty.
  std::function<std::optional<http::Answer>(const http::Request& request)> refuse_metrics;            // May be empty.
  std::function<void(std::string_view)> notice = {};  // ProxyOptions::on_notice. May be empty.
  bool told_of_reads = false;                         // That the store cannot be read; or written.
  bool told_of_writes = false;
  // Open connections, and those without a complete request, oldest first.
  std::size_t connections = 0;
  std::list<Connection*> reading = {};
  WriteProbe probe = {};
};

// One connection, with one request unless AdminPages::idle says otherwise. GET and HEAD: /healthz is always 200.
// /readyz is 200, or 503 as AdminPages::unready says, while the store gives no answer, or while it takes no new
// operation: that is tried at most once in ten seconds, for all who ask, with a record of its own (operate::probe), in
// stores that remove expired records only by sweep(), as others charge for writes. With the query "replays", /readyz
// leaves this out. /metrics is AdminPages::metrics. /v1 and /console, and paths below them, with any method, are for
// AdminPages::operators. If the most connections are open, closes the one that has waited longest without a complete
// request, or this one if there is none. A stream (OperatorsAnswer) holds its connection, and ends with it. `pages`
// must outlive it, and belongs to the loop.
Task<void> serve_admin(Loop& loop, Socket socket, AdminPages& pages);

// The same for each connection, until the acceptor is closed. It belongs to the loop.
Task<void> accept_admin(Loop& loop, Acceptor& acceptor, AdminPages& pages);

}  // namespace once::proxy
