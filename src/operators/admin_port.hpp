// --admin of commands that are no proxy: probes, metrics and the operators' API on a port.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <once/engine/engine.hpp>
#include <once/frontends/admin.hpp>
#include <once/frontends/proxy.hpp>

#include "operators/admin_token.hpp"
#include "operators/audit_log.hpp"
#include "operators/console.hpp"
#include "operators/operators.hpp"
#include "operators/store_access.hpp"

namespace once::operators {

// The same for the proxy. A port alone is reachable only from this host. Throws Exception(misuse) naming `what`.
proxy::Address parse_admin(const std::string& address, const std::string& what);
// Throws Exception(misuse): another host than this one needs a token.
void check_admin(const proxy::Address& address, bool has_token);

// AdminOptions::refuse_metrics: the token, if there is one; otherwise a loopback port refuses other hosts' names. The
// token must outlive it.
std::function<std::optional<http::Answer>(const http::Request&)> metrics_guard(const AdminToken& token,
                                                                               const proxy::Address& address);

struct AdminPortOptions {
  std::string address;  // Empty: no port.
  std::string token_file;
  std::string metrics_token_file;
  std::string console_origin;  // See console_host().
  std::string audit_log;       // Empty: none.
};

class AdminPort {
 public:
  // Throws Exception, as AdminToken and AdminServer do. The engine must outlive it. `metrics` and `unready`: as in
  // AdminOptions. `sources`: as for Operators.
  AdminPort(const AdminPortOptions& options, const StoreAccess& access, Engine& engine,
            std::function<std::string()> metrics, std::function<std::string()> unready, OverviewSources sources = {});
  AdminPort(const AdminPort&) = delete;
  AdminPort& operator=(const AdminPort&) = delete;
  ~AdminPort();

  // As Operators::ask_by().
  void ask_by(const Reconciler& reconciler) {
    if (operators_) operators_->ask_by(reconciler);
  }
  // As Operators::stop_bulk().
  void stop_bulk() {
    if (operators_) operators_->stop_bulk();
  }

  // Where the token is that was made because none was named. Null: none was.
  [[nodiscard]] const MadeTokenFile* made_token() const noexcept { return made_.get(); }

  [[nodiscard]] std::uint16_t port() const noexcept { return server_ ? server_->port() : 0; }  // 0: none.

 private:
  std::unique_ptr<MadeTokenFile> made_;
  AdminToken token_;
  AdminToken metrics_token_;
  std::optional<AuditLog> audit_;
  std::optional<Console> console_;
  std::optional<Operators> operators_;
  std::optional<proxy::AdminServer> server_;  // Uses the others.
};

}  // namespace once::operators
