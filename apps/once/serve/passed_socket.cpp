#include "serve/passed_socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "output/text.hpp"
#include "settings/access.hpp"
#include "text/number.hpp"

namespace once::cli {

namespace {

constexpr int first_passed = 3;  // SD_LISTEN_FDS_START

std::optional<int> option_of(int socket, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return getsockopt(socket, SOL_SOCKET, name, &value, &size) == 0 ? std::optional(value) : std::nullopt;
}

std::string path_of(const sockaddr_un& own, socklen_t size) {
  constexpr std::size_t head = offsetof(sockaddr_un, sun_path);
  if (size <= head) return "unnamed";
  const std::string_view path(own.sun_path, std::min<std::size_t>(size - head, sizeof own.sun_path));
  if (path.front() == '\0') return "@" + std::string(path.substr(1));  // The abstract namespace.
  return std::string(path.substr(0, path.find('\0')));
}

std::optional<proxy::Address> address_of(int socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0) return std::nullopt;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (own.ss_family == AF_UNIX) {
    sockaddr_un path{};
    std::memcpy(&path, &own, std::min<std::size_t>(size, sizeof path));
    return proxy::Address{.socket = path_of(path, size)};
  }
  if (own.ss_family == AF_INET) {
    sockaddr_in ip{};
    std::memcpy(&ip, &own, sizeof ip);
    if (inet_ntop(AF_INET, &ip.sin_addr, text.data(), text.size()) == nullptr) return std::nullopt;
    return proxy::Address{.host = text.data(), .port = ntohs(ip.sin_port)};
  }
  if (own.ss_family == AF_INET6) {
    sockaddr_in6 ip{};
    std::memcpy(&ip, &own, sizeof ip);
    if (inet_ntop(AF_INET6, &ip.sin6_addr, text.data(), text.size()) == nullptr) return std::nullopt;
    return proxy::Address{.host = text.data(), .port = ntohs(ip.sin6_port)};
  }
  return std::nullopt;
}

}  // namespace

PassedSocket take_passed_socket() {
  const auto process = text::parse_whole<pid_t>(variable("LISTEN_PID"));
  const auto count = text::parse_whole<int>(variable("LISTEN_FDS"));
  for (const char* const name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) unsetenv(name);
  if (!process || *process != getpid() || !count) {
    misuse("--listen systemd takes the socket of a socket unit, and none was passed (LISTEN_PID, LISTEN_FDS)");
  }
  if (*count != 1) misuse("--listen systemd takes one socket, and " + std::to_string(*count) + " were passed");
  PassedSocket passed{.socket = Fd(first_passed), .address = {}};
  if (fcntl(first_passed, F_SETFD, FD_CLOEXEC) != 0 || option_of(first_passed, SO_TYPE) != SOCK_STREAM ||
      option_of(first_passed, SO_ACCEPTCONN) != 1) {
    misuse("--listen systemd: what was passed is no listening stream socket (ListenStream=, Accept=no)");
  }
  const auto address = address_of(first_passed);
  if (!address) misuse("--listen systemd: what was passed is neither a Unix socket nor of TCP");
  passed.address = *address;
  return passed;
}

}  // namespace once::cli
