// The header in which a balancer names the client, before a connection's first byte. Versions 1 and 2 of the PROXY
// protocol (HAProxy, doc/proxy-protocol.txt).
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
  std::size_t more = 0;  // incomplete: this many more bytes surely belong to the header.
  // complete:
  std::optional<net::ip::address>
      client;        // Empty: the balancer's own connection (LOCAL, UNKNOWN), such as a health check.
  bool tls = false;  // The client speaks TLS with the balancer (PP2_TYPE_SSL).
};

// Of version 2, with all its fields. Longer headers are malformed.
inline constexpr std::size_t most_proxy_header_bytes = 4096;

ProxyHeader read_proxy_header(std::string_view bytes);

}  // namespace once::proxy
