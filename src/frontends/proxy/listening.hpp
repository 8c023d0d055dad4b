// Listening sockets.
#pragma once

#include <cstdint>

#include <boost/asio/basic_socket_acceptor.hpp>

#include <once/frontends/proxy.hpp>

#include "frontends/proxy/net.hpp"

namespace once::proxy {

using Acceptor = net::basic_socket_acceptor<tcp, Executor>;

// Throws Exception(unavailable). Resolves a name, which blocks.
Acceptor listen_on(const Address& address, net::io_context& io);
std::uint16_t port_of(const Acceptor& acceptor);
void close(Acceptor& acceptor);  // accept_one() gives false.

// False: the acceptor was closed. A connection that failed must not end the others.
Task<bool> accept_one(Acceptor& acceptor, Socket& socket);

}  // namespace once::proxy
