// Addresses of clients, and networks that are trusted to name them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>
#include <once/frontends/proxy.hpp>

#include "frontends/proxy/net.hpp"

namespace once::proxy {

// Converts an IPv4-mapped IPv6 address to IPv4 (RFC 4291, section 2.5.5.2).
net::ip::address plain_address(const net::ip::address& address);

bool contains(std::span<const Network> networks, const net::ip::address& address);

// The client's address behind trusted proxies: the last address in X-Forwarded-For that is not a trusted proxy's
// (nginx: real_ip_recursive on). `peer`: the sender of the message. An invalid address ends the list.
net::ip::address client_behind(const std::vector<http::HeaderView>& headers, const net::ip::address& peer,
                               std::span<const Network> trusted);

}  // namespace once::proxy
