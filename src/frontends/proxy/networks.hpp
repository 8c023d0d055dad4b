// Addresses of clients, and networks whose word about them counts.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>
#include <once/frontends/proxy.hpp>

#include "frontends/proxy/net.hpp"

namespace once::proxy {

// One that came over IPv4 to a socket for both is what it is (RFC 4291, section 2.5.5.2).
net::ip::address plain_address(const net::ip::address& address);

bool contains(std::span<const Network> networks, const net::ip::address& address);

// Who the client is behind proxies that are trusted, as X-Forwarded-For has it: from its end, the first address that is
// not one of theirs (nginx: real_ip_recursive on). `peer`: who has sent the message. What is no address ends the list.
net::ip::address client_behind(const std::vector<http::HeaderView>& headers, const net::ip::address& peer,
                               std::span<const Network> trusted);

}  // namespace once::proxy
