#include "serve/entrance.hpp"

#include <CLI/CLI.hpp>
#include <string_view>
#include <utility>

#include <once/error.hpp>

#include "operators/answers.hpp"
#include "operators/requests.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "settings/access.hpp"
#include "text/ascii.hpp"
#include "text/number.hpp"

namespace once::cli {

namespace {

using operators::operators_problem;
using operators::values_of;

constexpr std::string_view by_systemd = "systemd";

proxy::Address address_in(const EntranceFlags& flags) {
  std::string listen = flags.listen;
  if (listen.empty()) {
    const std::string folder = variable("XDG_RUNTIME_DIR");
    if (folder.empty()) {
      misuse(
          "--listen is missing, and XDG_RUNTIME_DIR is not set: name a socket, as in --listen "
          "unix:/run/once/serve.sock");
    }
    listen = "unix:" + folder + "/once-serve.sock";
  }
  const bool is_port = listen.find_first_not_of("0123456789") == std::string::npos;
  return proxy::parse_listen(is_port ? "127.0.0.1:" + listen : listen, "--listen");
}

unsigned mode_in(const EntranceFlags& flags, bool on_socket, bool is_passed) {
  const std::string& text = flags.listen_mode;
  if (text.size() < 3 || text.size() > 4 || text.find_first_not_of("01234567") != std::string::npos) {
    misuse("--listen-mode must be an octal number, such as 0600 or 0660");
  }
  const auto mode = static_cast<unsigned>(std::stoul(text, nullptr, 8));
  if (mode > 0777 || mode == 0) misuse("--listen-mode must be 0001 to 0777");
  if (text == EntranceFlags().listen_mode) return mode;
  if (is_passed) misuse("--listen-mode: the socket's file is systemd's, with SocketMode= of its unit");
  if (!on_socket) misuse("--listen-mode is of a Unix socket's file, and --listen is an address: use --token-file");
  return mode;
}

// proc(5), /proc/sys/kernel/overflowuid.
std::uint32_t read_unmapped_user() {
  constexpr std::uint32_t usual = 65534;
  constexpr std::size_t most_bytes = 32;
  std::string text;
  if (read_file("/proc/sys/kernel/overflowuid", most_bytes, text) != 0) return usual;
  return text::parse_whole<std::uint32_t>(text::trim(text)).value_or(usual);
}

http::Answer nameless(std::string_view detail) {
  return operators_problem("no-tenant", 403, "The client has no name for its tenant", detail);
}

}  // namespace

void add_entrance_flags(CLI::App& command, EntranceFlags& flags) {
  command.add_option("--listen", flags.listen,
                     "unix:PATH, [HOST:]PORT, or systemd for the socket of a socket unit. Other than loopback\n"
                     "addresses need TLS (default: unix:$XDG_RUNTIME_DIR/once-serve.sock)");
  command.add_option("--listen-mode", flags.listen_mode, "Mode of the Unix socket's file: who may connect")
      ->capture_default_str();
  command.add_option("--tls-cert", flags.tls_cert,
                     "PEM file: clients must use TLS 1.2 or later; the server's certificate comes first");
  command.add_option("--tls-key", flags.tls_key, "PEM file with the certificate's key");
  command.add_option("--client-ca", flags.client_ca,
                     "PEM file: clients must show a certificate signed by one of these, and no token");
  command.add_option("--token-file", flags.token_file,
                     "A file with the token that an address requires, or with a line for each tenant: its name and\n"
                     "the token's SHA-256 (default on a loopback address: a new token, in a file whose path is\n"
                     "printed)");
  command
      .add_option("--tenants", flags.tenants,
                  "What tells tenants apart, who never see each other's claims. Required for a Unix socket that\n"
                  "other users can open (default: certificate with --client-ca, token where --token-file names\n"
                  "tenants, otherwise none)")
      ->check(CLI::IsMember({"none", "uid", "token", "certificate"}));
  command
      .add_option("--watch-interval", flags.watch_interval,
                  "How often to look for other contents of the certificates' files, or off. SIGHUP reads them too")
      ->capture_default_str();
}

Entrance::Entrance(const EntranceFlags& flags)
    : flags_(flags),
      passed_(flags.listen == by_systemd ? std::optional(take_passed_socket()) : std::nullopt),
      address_(passed_ ? passed_->address : address_in(flags)),
      on_socket_(!address_.socket.empty()),
      mode_(mode_in(flags, on_socket_, passed_.has_value())),
      watch_interval_(parse_interval(flags.watch_interval, "--watch-interval")),
      made_(needs_own_token() ? std::make_unique<MadeTokenFile>() : nullptr),
      token_(made_ ? made_->path() : flags.token_file, "--token-file", operators::TokenLines::tenants),
      tenants_by_(tenants_by(flags.tenants)),
      unmapped_user_(read_unmapped_user()),
      in_force_(digests()) {
  token_.follow();
}

bool Entrance::needs_own_token() const {
  const bool has_tls = !flags_.tls_cert.empty();
  if (has_tls != !flags_.tls_key.empty()) misuse("--tls-cert and --tls-key go together: name both files");
  if (!flags_.client_ca.empty() && !has_tls) misuse("--client-ca needs TLS: add --tls-cert and --tls-key");
  if (on_socket_) {
    if (has_tls) misuse("--tls-cert is for an address: a Unix socket's clients are on this host");
    if (!flags_.token_file.empty()) {
      misuse("--token-file is for an address: who may use a Unix socket, the mode of its file says");
    }
    return false;
  }
  if (!has_tls && !proxy::is_loopback(address_)) {
    misuse("--listen: without TLS this server listens on a Unix socket or a loopback address only, not on " +
           address_.host + ": add --tls-cert and --tls-key");
  }
  if (!flags_.client_ca.empty() && !flags_.token_file.empty()) {
    misuse("--client-ca and --token-file both say who a client is: use one of them");
  }
  if (!flags_.client_ca.empty() || !flags_.token_file.empty()) return false;
  if (!proxy::is_loopback(address_)) {
    misuse("--listen " + address_.host + " needs --token-file or --client-ca: they say who may use it");
  }
  return true;  // Every user of this host can connect to a loopback address.
}

TenantsBy Entrance::tenants_by(const std::string& said) const {
  const auto must_be = [&](std::string_view word, bool is_possible, const std::string& why) {
    if (said == word && !is_possible) misuse("--tenants " + said + why);
  };
  must_be("uid", on_socket_, " is for a Unix socket, whose clients' users the kernel knows");
  must_be("certificate", !flags_.client_ca.empty(), " needs client certificates: add --client-ca");
  must_be("token", token_.names(), " needs a --token-file with lines of a tenant's name and a token's SHA-256");
  if (said == "none") return TenantsBy::none;
  if (said == "uid") return TenantsBy::uid;
  constexpr unsigned of_others = 077;
  if (on_socket_ && (passed_ || (mode_ & of_others) != 0)) {
    misuse(
        "other users can open this socket, and nothing says whether they share their claims: add --tenants uid (each "
        "user has claims of its own) or --tenants none (all users are one, and get each other's results)");
  }
  if (!flags_.client_ca.empty()) return TenantsBy::certificate;
  return token_.names() ? TenantsBy::token : TenantsBy::none;
}

void Entrance::set(proxy::AdminOptions& options) {
  options.listen = address_;
  options.listen_mode = mode_;
  if (passed_) options.socket = passed_->socket.release();
  options.names_processes = on_socket_;
  if (!flags_.tls_cert.empty()) options.certificate = {.file = flags_.tls_cert, .key_file = flags_.tls_key};
  options.client_ca_file = flags_.client_ca;
  options.on_notice = [](std::string_view text) { say(std::string(text)); };
}

std::optional<http::Answer> Entrance::refuse(const http::Request& request, ClaimsClient& client) const {
  if (on_socket_) return refuse_user(request, client);
  if (flags_.client_ca.empty()) {
    std::optional<operators::KnownToken> bearer;
    if (auto refused = token_.refuse(request, &bearer)) return refused;
    if (tenants_by_ == TenantsBy::token) client.tenant = bearer->identity.name;
    return std::nullopt;
  }
  // A browser shows its user's certificate for any page.
  if (!values_of(request, "Origin").empty() || !values_of(request, "Sec-Fetch-Site").empty()) {
    return operators_problem("forbidden", 403, "Not for browsers", "Pages in browsers are not served.");
  }
  if (tenants_by_ == TenantsBy::certificate) client.tenant = request.principal;
  if (tenants_by_ == TenantsBy::certificate && client.tenant.empty()) {
    return nameless("Its certificate has neither a subject nor exactly one URI.");
  }
  return std::nullopt;
}

// http::Request::principal is "UID:PID".
std::optional<http::Answer> Entrance::refuse_user(const http::Request& request, ClaimsClient& client) const {
  const std::string_view who = request.principal;
  const auto colon = who.find(':');
  const auto user = text::parse_whole<std::uint32_t>(who.substr(0, colon));
  if (colon != std::string_view::npos) {
    client.process = text::parse_whole<std::int64_t>(who.substr(colon + 1)).value_or(0);
  }
  if (tenants_by_ != TenantsBy::uid) return std::nullopt;
  if (!user || *user == unmapped_user_) {
    return nameless("Its user is none of this server's user namespace, where several such users look the same.");
  }
  client.tenant = "uid-" + std::to_string(*user);
  return std::nullopt;
}

std::optional<http::Answer> Entrance::refuse_metrics(const http::Request& request) const {
  ClaimsClient client;
  if (auto refused = refuse(request, client)) return refused;
  if (tenants_by_ == TenantsBy::none) return std::nullopt;
  return operators_problem("forbidden", 403, "Not for tenants", "The metrics are of all tenants: --admin serves them.");
}

std::string Entrance::where(std::uint16_t port) const {
  return on_socket_ ? "unix:" + address_.socket : address_.host + " port " + std::to_string(port);
}

FileDigests Entrance::digests() const {
  Given files;
  for (const auto& [name, path] : {std::pair<const char*, const std::string&>("tls-cert", flags_.tls_cert),
                                   std::pair<const char*, const std::string&>("tls-key", flags_.tls_key),
                                   std::pair<const char*, const std::string&>("client-ca", flags_.client_ca)}) {
    if (!path.empty()) files[name].words = {path};
  }
  return digests_of_files(files, {});
}

void Entrance::reload(proxy::AdminServer& server) {
  FileDigests now = digests();
  try {
    token_.reload();
    server.reload_certificates();
  } catch (const Exception& error) {
    refused_ = std::move(now);
    return say("not reloaded, the old contents stay in force: " + std::string(error.what()), LogLevel::err);
  }
  in_force_ = std::move(now);
  refused_.clear();
  say("files read again");
}

void Entrance::look(proxy::AdminServer& server) {
  FileDigests now = digests();
  const bool rests = now == std::exchange(seen_, now);
  if (rests && now != in_force_ && now != refused_) reload(server);
}

}  // namespace once::cli
