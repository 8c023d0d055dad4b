#include "stores/open_server.hpp"

#include <charconv>
#include <string>
#include <utility>

#include <once/error.hpp>

#include "stores/url.hpp"

namespace once::stores {

namespace {

constexpr std::string_view plain = "once:";
constexpr std::string_view on_demand = "once+";
constexpr std::string_view forms =
    "write once:///run/once.sock for a Unix socket, once://HOST:PORT for an address, or once+sqlite:/path/to/once.db "
    "for "
    "a server that is started on demand";

ServerOptions of_store(std::string_view text) {
  const Url store(text, "URL after once+");
  if (is_server_url(text)) store.refuse("it names a server: write the store's URL after once+");
  if (store.scheme() == "memory") {
    store.refuse("memory: is the memory of one process, and the server would be another one: name a file");
  }
  for (const char* const name : {"fallback", "seal_command"}) {
    if (store.has(name)) store.refuse(std::string(name) + "= does not go with a server that is started on demand");
  }
  ServerOptions options;
  options.on_demand = text;
  return options;
}

// "HOST:PORT", "[::1]:PORT".
void take_address(const Url& url, std::string_view address, ServerOptions& options) {
  if (address.ends_with('/')) address.remove_suffix(1);
  const std::size_t colon = address.rfind(':');
  std::string_view host = address.substr(0, colon);
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) host = host.substr(1, host.size() - 2);
  if (address.find('/') != std::string_view::npos) {
    url.refuse("a socket's path begins with a third slash, and an address has no path: " + std::string(forms));
  }
  if (host.empty() || colon == std::string_view::npos || has_brackets != (host.find(':') != std::string_view::npos)) {
    url.refuse("the host and its port are missing: " + std::string(forms));
  }
  const std::string_view digits = address.substr(colon + 1);
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), options.port);
  if (failed != std::errc() || end != digits.data() + digits.size() || options.port == 0) {
    url.refuse("the port must be a number from 1 to 65535");
  }
  options.host = host;
}

ServerOptions take_server(Url& url) {
  ServerOptions options;
  if (url.path().find('@') != std::string::npos) {  // Not shown: it may be a secret.
    throw Exception(
        ErrorKind::misuse,
        "the server's URL has a user or a token in it, where logs and other users would see it: name a file "
        "with the token in token_file= or ONCE_TOKEN_FILE");
  }
  if (!url.path().starts_with("//")) url.refuse(std::string(forms));
  const std::string_view where = std::string_view(url.path()).substr(2);
  if (const auto timeout = url.take_duration("timeout")) options.timeout = *timeout;
  if (where.starts_with('/')) {
    options.socket = where;
    for (const char* const name : {"token_file", "ca_file", "cert_file", "key_file", "tls"}) {
      if (url.has(name)) url.refuse(std::string(name) + "= is for an address: who may use a socket, its mode says");
    }
    url.refuse_rest("timeout");
    return options;
  }
  take_address(url, where, options);
  options.tls = url.take_flag("tls").value_or(true);
  for (auto& [name, into] : {std::pair<const char*, std::string&>("token_file", options.token_file),
                             {"ca_file", options.ca_file},
                             {"cert_file", options.cert_file},
                             {"key_file", options.key_file}}) {
    const auto value = url.take_text(name);
    if (value && value->empty()) url.refuse(std::string(name) + "= names no file");
    if (value) into = *value;
  }
  url.refuse_rest("token_file, ca_file, cert_file, key_file, tls, timeout");
  return options;
}

}  // namespace

bool is_server_url(std::string_view url) noexcept { return url.starts_with(plain) || url.starts_with(on_demand); }

ServerOptions server_options(std::string_view text) {
  if (text.starts_with(on_demand)) return of_store(text.substr(on_demand.size()));
  Url url(text);
  return take_server(url);
}

std::unique_ptr<Store> open_server(std::string_view url) { return make_server_store(server_options(url)); }

}  // namespace once::stores
