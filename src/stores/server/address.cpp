#include "stores/server/address.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "text/ascii.hpp"

namespace once::stores {

namespace {

[[noreturn]] void misuse(const std::string& what) { throw Exception(ErrorKind::misuse, what); }

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_loopback(const std::string& host) { return host == "127.0.0.1" || host == "::1"; }

void check_host(ServerOptions& options, const std::string& name) {
  if (options.port == 0) misuse(name + ": the port is missing");
  if (options.host == "localhost" && !options.tls) options.host = "127.0.0.1";
  const bool is_name = std::ranges::all_of(
      options.host, [](char c) { return text::is_letter_or_digit(c) || c == '-' || c == '.' || c == ':' || c == '_'; });
  if (!is_name) misuse(name + ": the host has characters that no name and no address has");
  if (!options.tls && !is_loopback(options.host)) {
    misuse(name +
           ": without TLS anybody on the way could read the token and the results, and change them. Leave out tls=0, "
           "which is for 127.0.0.1 and ::1");
  }
  if (!options.tls && !(options.ca_file + options.cert_file + options.key_file).empty()) {
    misuse(name + ": ca_file, cert_file and key_file are for TLS: leave out tls=0");
  }
  if (options.cert_file.empty() != options.key_file.empty()) {
    misuse(name + ": a client certificate needs cert_file and key_file");
  }
  if (!options.cert_file.empty()) {
    if (!options.token_file.empty()) misuse(name + ": a server takes a token or a client certificate, not both");
    return;
  }
  if (options.token_file.empty()) options.token_file = variable("ONCE_TOKEN_FILE");
  if (options.token_file.empty()) misuse(name + ": it needs a token: name its file in token_file= or ONCE_TOKEN_FILE");
}

}  // namespace

ServerOptions checked(ServerOptions options) {
  const std::string name = name_of(options);
  const bool is_on_demand = !options.on_demand.empty();
  const int named =
      (options.host.empty() ? 0 : 1) + (is_on_demand ? 1 : 0) + (options.socket.empty() || is_on_demand ? 0 : 1);
  if (named == 0) misuse("no server is named: set ServerOptions::host, socket or on_demand");
  if (named > 1) misuse(name + ": name a host, a socket or a store, and not more than one of them");
  if (options.timeout < Millis{1} || options.timeout > std::chrono::hours(1)) {
    misuse(name + ": timeout must be from 1ms to 1h");
  }
  if (!options.socket.empty()) {
    if (options.socket.front() != '/') misuse(name + ": the socket's path must begin with a slash");
    if (options.socket.size() >= sizeof sockaddr_un{}.sun_path) {
      misuse(name + ": the socket's path has more than " + std::to_string(sizeof sockaddr_un{}.sun_path - 1) +
             " bytes");
    }
  }
  if (!options.host.empty()) {
    check_host(options, name);
  } else if (!(options.token_file + options.ca_file + options.cert_file + options.key_file).empty() || !options.tls) {
    misuse(name + ": token_file, ca_file, cert_file, key_file and tls are for a server at an address");
  }
  if (is_on_demand && options.program.empty()) {
    options.program = variable("ONCE_PROGRAM");
    if (options.program.empty()) options.program = "once";
  }
  return options;
}

std::string name_of(const ServerOptions& options) {
  if (!options.on_demand.empty()) {  // Without what may be a password.
    std::string store = options.on_demand.substr(0, options.on_demand.find('?'));
    const std::size_t slashes = store.find("://");
    const std::size_t at = store.rfind('@');
    if (slashes != std::string::npos && at != std::string::npos) store.erase(slashes + 3, at - slashes - 2);
    return "once+" + store;
  }
  if (options.host.empty()) return "once://" + options.socket;
  const bool v6 = options.host.find(':') != std::string::npos;
  return "once://" + (v6 ? "[" + options.host + "]" : options.host) + ":" + std::to_string(options.port);
}

std::string distrust(const Peer& peer, bool is_on_demand) {
  const std::string whose = "belongs to user " + std::to_string(peer.user);
  if (is_on_demand) return peer.user == peer.own ? std::string() : whose;
  if (peer.user == peer.own || peer.user == 0 || peer.user == peer.directory_owner || !peer.is_open_to_all) return {};
  return whose + ", and every user can write its directory: use one that only the server's user can write";
}

std::optional<Error> check_peer(int socket, const std::string& path, bool is_on_demand) {
  const auto fail = [&](ErrorKind kind, const std::string& why) {
    return Error{kind, "the server at " + path + " " + why};
  };
  ucred credentials{};
  socklen_t size = sizeof credentials;
  struct stat directory {};
  const std::string above = path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 || stat(above.c_str(), &directory) != 0) {
    return fail(ErrorKind::unavailable, std::string("cannot be looked at: ") + std::strerror(errno));
  }
  const std::string why = distrust({.user = credentials.uid,
                                    .own = geteuid(),
                                    .directory_owner = directory.st_uid,
                                    .is_open_to_all = (directory.st_mode & S_IWOTH) != 0},
                                   is_on_demand);
  if (why.empty()) return std::nullopt;
  return fail(ErrorKind::misuse, why);
}

}  // namespace once::stores
