// Parses and checks options.
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

#include <boost/asio/ip/address.hpp>

#include <once/error.hpp>
#include <once/frontends/proxy.hpp>

#include "text/number.hpp"
#include "text/percent.hpp"

namespace once::proxy {

namespace {

Exception misuse(const std::string& what) { return {ErrorKind::misuse, what}; }

constexpr std::string_view unix_prefix = "unix:";

Address unix_socket(std::string_view path, std::string_view what) {
  constexpr std::size_t most = sizeof(sockaddr_un::sun_path) - 1;
  if (!path.starts_with('/') || path.size() > most || path.find('\0') != std::string_view::npos) {
    throw misuse(std::string(what) + " must have an absolute path of at most " + std::to_string(most) +
                 " bytes after unix:, as in unix:/run/once/proxy.sock, not '" + std::string(path) + "'");
  }
  return {.host = {}, .port = 0, .socket = std::string(path)};
}

// Segments that every server reads in one way.
bool is_plain_path(std::string_view path) {
  const auto is_plain = [](char c) { return text::is_unreserved(c) || c == '/'; };
  const std::string closed = std::string(path) + '/';
  const auto has = [&](const char* what) { return closed.find(what) != std::string::npos; };
  return path.starts_with('/') && std::ranges::all_of(path, is_plain) && !has("//") && !has("/./") && !has("/../");
}

}  // namespace

void check(const ProxyOptions& options) {
  const Timeouts& t = options.timeouts;
  for (const Millis limit :
       {t.idle, t.head, t.body, t.connect, t.answer, t.tunnel, t.upstream_idle, options.health_interval,
        options.reconcile_interval, options.aside.time, options.aside.time_limit}) {
    if (limit < Millis{1} || limit > std::chrono::hours(24)) throw misuse("a timeout must be 1ms to 24h");
  }
  if (options.max_head_bytes < 1024 || options.max_head_bytes > 1024 * 1024) {
    throw misuse("max_head_bytes must be 1 KiB to 1 MiB");
  }
  if (options.aside.percent == 0 || options.aside.percent > 100) {
    throw misuse("the percentage of upstreams put aside at once must be 1 to 100");
  }
  if (options.aside.time_limit < options.aside.time) {
    throw misuse("the longest time aside must not be less than the first one");
  }
  if (std::min(options.max_buffered_bytes, options.max_buffered_bytes_per_client) < 1024 * 1024) {
    throw misuse("the limits of buffered bodies must be at least 1 MiB");
  }
  if (options.max_connections == 0) throw misuse("max_connections must be at least 1");
  if (options.threads > 256) throw misuse("threads must be at most 256");
  if (options.upstreams.empty()) throw misuse("at least one upstream is required");
  for (const Service& service : options.upstreams) {
    const Address& to = service.address;
    if (to.socket.empty() && (to.host.empty() || to.port == 0)) throw misuse("an upstream needs a host and a port");
    if (service.path != options.upstreams.front().path) {
      throw misuse("all upstreams must have the same path: they are one service");
    }
  }
  if (options.listen_mode > 0777) throw misuse("the mode of the Unix socket must be 0 to 0777");
  if (options.listen_mode != ProxyOptions().listen_mode && !options.listen.host.empty()) {
    throw misuse("listen_mode is of a Unix socket's file: listen on unix:PATH, or restrict an address by other means");
  }
  const std::string& path = options.health_path;
  if (!path.empty() && (!path.starts_with('/') || path.find_first_of(" \r\n\t") != std::string::npos)) {
    throw misuse("the path for health checks must begin with a slash and have no blanks");
  }
  for (const auto& c : {options.certificate, options.admin_certificate, options.upstream_certificate}) {
    if (c && (c->file.empty() || c->key_file.empty())) {
      throw misuse("a certificate and its key go together: name both files");
    }
  }
  if (options.admin_certificate && !options.admin) {
    throw misuse("a certificate for operators needs an address where they connect (admin)");
  }
  if (!options.client_ca_file.empty() && !options.certificate) {
    throw misuse("client-ca needs TLS: name the listener's own certificate and key too (tls-cert, tls-key)");
  }
}

void check(const http::Routes& rules, const ProxyOptions& options) {
  const auto look = [&](const http::Options& own) {
    if (!own.protect) return;
    if (own.principal.is_given() && options.client_ca_file.empty()) {
      throw misuse(
          "principal-certificate needs client certificates: name the authorities that sign them (client-ca), and the "
          "listener's own certificate");
    }
    const auto is_ours = [](const std::string& name) { return http::same_name(name, "Client-Cert"); };
    if (!options.client_ca_file.empty() && std::ranges::any_of(own.principal.reads(), is_ours)) {
      throw misuse(
          "the header Client-Cert is written by the proxy for the service, and a client could send anything in it: "
          "with "
          "client-ca, use principal-certificate");
    }
  };
  look(rules.otherwise);
  for (const http::Route& route : rules.routes) look(route.options);
}

Address parse_address(std::string_view text, std::string_view what) {
  const auto bad = [&] {
    return misuse(std::string(what) + " must be HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080, not '" +
                  std::string(text) + "'");
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) throw bad();
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    throw bad();
  }
  const auto port = text::parse_whole<std::uint16_t>(digits);
  if (host.empty() || !port) throw bad();
  return {.host = std::string(host), .port = *port};
}

Address parse_listen(std::string_view text, std::string_view what) {
  if (text.starts_with(unix_prefix)) return unix_socket(text.substr(unix_prefix.size()), what);
  return parse_address(text, what);
}

bool is_loopback(const Address& address) {
  if (!address.socket.empty()) return true;
  boost::system::error_code error;
  const auto literal = boost::asio::ip::make_address(address.host, error);
  return error ? address.host == "localhost" : literal.is_loopback();
}

Service parse_service(std::string_view url, std::string_view what) {
  constexpr std::string_view plain = "http://";
  constexpr std::string_view secure = "https://";
  Service service{.address = {}, .tls = url.starts_with(secure), .path = {}};
  std::string_view rest = url;
  const bool has_scheme = service.tls || url.starts_with(plain);
  rest.remove_prefix(has_scheme ? (service.tls ? secure : plain).size() : 0);
  const auto bad = [&](const char* why) {
    return misuse(std::string(what) + " must be http://HOST:PORT, https://HOST:PORT or unix:PATH, " + why + ", not '" +
                  std::string(url) + "'");
  };
  const auto take_path = [&](std::size_t at) {
    std::string_view path = rest.substr(std::min(at, rest.size()));
    rest = rest.substr(0, at);
    if (path.ends_with('/')) path.remove_suffix(1);
    if (!path.empty() && !is_plain_path(path)) {
      throw bad("with a path of letters, digits, '-', '_', '~' and '.' at most");
    }
    service.path = path;
  };
  if (rest.starts_with(unix_prefix)) {
    if (service.tls) throw bad("and a Unix socket has no name that a certificate could show");
    rest.remove_prefix(unix_prefix.size());
    const auto colon = rest.find(':');
    if (colon != std::string_view::npos) {
      take_path(colon + 1);
      rest.remove_suffix(1);
    }
    service.address = unix_socket(rest, what);
    return service;
  }
  take_path(rest.find('/'));
  if (!has_scheme || rest.empty() || rest.find_first_of("?#@") != std::string_view::npos) {
    throw bad("without a user or query");
  }
  const bool has_port = rest.find(':') != std::string_view::npos && !rest.ends_with(']');
  const std::string whole = std::string(rest) + (has_port ? "" : service.tls ? ":443" : ":80");
  service.address = parse_address(whole, what);
  return service;
}

std::string_view to_string(RequestOutcome outcome) noexcept {
  switch (outcome) {
    case RequestOutcome::executed:
      return "executed";
    case RequestOutcome::replayed:
      return "replayed";
    case RequestOutcome::conflict:
      return "conflict";
    case RequestOutcome::mismatch:
      return "mismatch";
    case RequestOutcome::unknown:
      return "unknown";
    case RequestOutcome::refused:
      return "refused";
    case RequestOutcome::passed:
      return "passed";
    case RequestOutcome::unprotected:
      return "unprotected";
    case RequestOutcome::error:
      return "error";
  }
  return "?";
}

}  // namespace once::proxy
