// Where `once serve` listens, what its clients must show, and which tenant each one is. docs/serve.md has the rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <once/frontends/admin.hpp>
#include <once/frontends/http/message.hpp>
#include <once/time.hpp>

#include "operators/admin_token.hpp"
#include "serve/claims.hpp"
#include "serve/passed_socket.hpp"
#include "settings/reload_changes.hpp"

namespace CLI {
class App;
}

namespace once::cli {

using operators::AdminToken;
using operators::MadeTokenFile;

struct EntranceFlags {
  std::string listen = {};
  std::string listen_mode = "0600";
  std::string tls_cert = {};
  std::string tls_key = {};
  std::string client_ca = {};
  std::string token_file = {};
  std::string tenants = {};
  std::string watch_interval = "10s";
};
void add_entrance_flags(CLI::App& command, EntranceFlags& flags);

// What tells one tenant from another.
enum class TenantsBy : std::uint8_t {
  none,         // All clients are one.
  uid,          // The user at the other end of a Unix socket: "uid-1000".
  token,        // The name of the token.
  certificate,  // The client certificate: tls::certificate_name().
};

class Entrance {
 public:
  // Throws Exception(misuse): flags that do not go together, or that leave open who may use whose claims.
  explicit Entrance(const EntranceFlags& flags);

  void set(proxy::AdminOptions& options);  // Once.

  // An answer that refuses the request. Otherwise empty, and `client` says whose it is. Thread-safe.
  [[nodiscard]] std::optional<http::Answer> refuse(const http::Request& request, ClaimsClient& client) const;
  // The same for /metrics, which is of all tenants: refused if there are any.
  [[nodiscard]] std::optional<http::Answer> refuse_metrics(const http::Request& request) const;

  [[nodiscard]] std::string where(std::uint16_t port) const;  // For people.
  // The file with the token that was made because none was named. Null: none was.
  [[nodiscard]] const MadeTokenFile* made_token() const noexcept { return made_.get(); }

  [[nodiscard]] Millis watch_interval() const noexcept { return watch_interval_; }
  // Reads the files of certificates and tokens again. Reports errors; then what was read before stays in force.
  void reload(proxy::AdminServer& server);
  // Called at intervals: the same, if a certificate's file has other contents that it also had at the last call. It may
  // be half written, and a certificate comes before its key.
  void look(proxy::AdminServer& server);

 private:
  [[nodiscard]] bool needs_own_token() const;  // Throws, as the constructor does.
  [[nodiscard]] TenantsBy tenants_by(const std::string& said) const;
  [[nodiscard]] std::optional<http::Answer> refuse_user(const http::Request& request, ClaimsClient& client) const;
  [[nodiscard]] FileDigests digests() const;

  const EntranceFlags flags_;
  std::optional<PassedSocket> passed_;
  const proxy::Address address_;
  const bool on_socket_;
  const unsigned mode_;
  const Millis watch_interval_;
  std::unique_ptr<MadeTokenFile> made_;
  AdminToken token_;
  const TenantsBy tenants_by_;
  const std::uint32_t unmapped_user_;  // Stands for all users that this user namespace does not know.
  FileDigests in_force_;
  FileDigests seen_;     // At the last look.
  FileDigests refused_;  // Not tried again.
};

}  // namespace once::cli
