// Pages for operators and their tools, for programs that are no proxy: the same as Proxy has with ProxyOptions::admin.
// Also the server of other requests under /v1, such as those of `once serve`.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <once/callback.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/proxy.hpp>

namespace once::proxy {

// The functions are called on the server's thread: they must not block and must not throw.
struct AdminOptions {
  Address listen = {};                          // Port 0: a free one, see AdminServer::port().
  unsigned listen_mode = 0600;                  // Of a Unix socket's file: who may connect. 0 to 0777.
  std::optional<std::uint32_t> only_user = {};  // Of a Unix socket: other users' connections are closed at once.
  // Of a Unix socket: http::Request::principal is "UID:PID" of the client, as the kernel knows it, and not its address.
  bool names_processes = false;
  std::optional<int> socket = {};               // A listening socket in place of `listen`, from now on the server's.
  std::optional<Certificate> certificate = {};  // As ProxyOptions::certificate. Empty: no TLS.
  // As ProxyOptions::client_ca_file. http::Request::principal then is the name of the client's certificate, and not its
  // address: its subject as RFC 4514 writes it or, without one, "URI:" and its only URI. Empty: it has neither.
  std::string client_ca_file = {};
  std::function<void(std::string_view)> on_notice = {};  // As ProxyOptions::on_notice: handshakes that failed.
  std::chrono::milliseconds idle{0};          // How long a connection is kept for its next request. 0: each has one.
  std::size_t most_connections = 64;          // Further ones take the place of those without a complete request.
  std::function<std::string()> metrics = {};  // The page /metrics. Required.
  // Why /readyz is 503: "stopping". Empty text: it is 200 if the engine's store answers and takes new operations. Empty
  // function: the same.
  std::function<std::string()> unready = {};
  bool probes_writes = true;  // False: /readyz only reads from the store.
  // These are as the members of ProxyOptions.
  std::function<void(const http::Request& request, Callback<void(OperatorsAnswer)> done)> operators = {};
  std::function<std::optional<http::Answer>(const http::Request& request)> refuse_metrics = {};
};

// Serves /healthz, /readyz and /metrics, on a thread of its own from its construction to its destruction.
class AdminServer {
 public:
  // Throws Exception: unavailable if it cannot listen, misuse for unusable certificates. The engine must outlive it.
  AdminServer(Engine& engine, AdminOptions options);
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;
  ~AdminServer();  // Closes all connections.

  // As Proxy::reload_certificates().
  void reload_certificates();

  [[nodiscard]] std::uint16_t port() const noexcept;  // Where it listens. 0: on a Unix socket.

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace once::proxy
