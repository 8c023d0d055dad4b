// What stands before the first byte of a connection that a balancer hands on: who is behind it. Versions 1 and 2 of the
// PROXY protocol (HAProxy, doc/proxy-protocol.txt).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "frontends/proxy/net.hpp"

namespace once::proxy {

struct ProxyHeader {
  enum class Kind : std::uint8_t { incomplete, complete, malformed };
  Kind kind = Kind::incomplete;
  std::size_t more = 0;  // incomplete: so many bytes can be read, and none of them is behind it.
  // complete:
  std::optional<net::ip::address> client;  // Empty: it speaks for itself (LOCAL, UNKNOWN), as to look at our health.
  bool tls = false;                        // The client speaks TLS with the balancer, which says so (PP2_TYPE_SSL).
};

// Of version 2: with what it tells beside addresses. Longer ones are malformed.
inline constexpr std::size_t most_proxy_header_bytes = 4096;

ProxyHeader read_proxy_header(std::string_view bytes);

}  // namespace once::proxy
