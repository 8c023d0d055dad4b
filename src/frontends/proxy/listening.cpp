#include "frontends/proxy/listening.hpp"

#include <string>

#include <boost/asio/redirect_error.hpp>

#include <once/error.hpp>

namespace once::proxy {

namespace {

constexpr Millis no_room_pause{50};  // When no file descriptor is left for another connection.

tcp::endpoint resolve(const Address& address) {
  error_code error;
  const auto literal = net::ip::make_address(address.host, error);
  if (!error) return {literal, address.port};
  net::io_context io;
  const auto found =
      tcp::resolver(io).resolve(address.host, std::to_string(address.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    throw Exception(ErrorKind::unavailable, "cannot find the address of " + address.host + ": " + error.message());
  }
  return found.begin()->endpoint();
}

}  // namespace

Acceptor listen_on(const Address& address, net::io_context& io) {
  const tcp::endpoint endpoint = resolve(address);
  Acceptor acceptor(io);
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error) {
    throw Exception(ErrorKind::unavailable, "cannot listen on " + address.host + " port " +
                                                std::to_string(address.port) + ": " + error.message());
  }
  return acceptor;
}

std::uint16_t port_of(const Acceptor& acceptor) {
  error_code error;
  return acceptor.local_endpoint(error).port();
}

void close(Acceptor& acceptor) {
  error_code ignored;
  acceptor.close(ignored);
}

Task<bool> accept_one(Acceptor& acceptor, Socket& socket) {
  Timer pause(acceptor.get_executor());
  while (acceptor.is_open()) {
    error_code error;
    co_await acceptor.async_accept(socket, net::redirect_error(use_task, error));
    if (!error) co_return true;
    if (error == net::error::operation_aborted || error == net::error::bad_descriptor) break;
    pause.expires_after(error == net::error::connection_aborted ? Millis{0} : no_room_pause);
    co_await pause.async_wait(net::redirect_error(use_task, error));
  }
  co_return false;
}

}  // namespace once::proxy
