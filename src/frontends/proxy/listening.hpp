// Listening sockets.
#pragma once

#include <cstdint>
#include <string>

#include <boost/asio/basic_socket_acceptor.hpp>

#include <once/frontends/proxy.hpp>

#include "frontends/proxy/net.hpp"
#include "platform/file.hpp"

namespace once::proxy {

using Acceptor = net::basic_socket_acceptor<Stream, Executor>;

// The file of a Unix socket that this process listens on. A lock beside it ends with the process: so the file of one
// that was killed is replaced, and two processes never replace each other's.
class SocketFile {
 public:
  SocketFile() = default;
  // Takes the lock, and removes a file that nobody listens on. Throws Exception(unavailable).
  explicit SocketFile(std::string path);

  void made();             // After bind(2): the file is ours.
  void remove() noexcept;  // If it is still ours. Then another process may listen.

 private:
  std::string path_;
  Fd lock_;
  dev_t device_ = 0;
  ino_t number_ = 0;  // 0: not made.
};

// Of a socket's file. Anything else is left as it is, and is an error: a link, or a file that took its place.
error_code set_mode(const std::string& path, unsigned mode);

// Throws Exception(unavailable). Resolves a name, which blocks.
Acceptor listen_on(const Address& address, net::io_context& io);
// The same for Address::socket.
Acceptor listen_on(const Address& address, unsigned mode, net::io_context& io, SocketFile& file);
// A socket that listens already. Takes it, also if it throws.
Acceptor take_listening(int socket, net::io_context& io);
std::uint16_t port_of(const Acceptor& acceptor);
void close(Acceptor& acceptor);  // accept_one() gives false.

// False: the acceptor was closed. A connection that failed must not end the others.
Task<bool> accept_one(Acceptor& acceptor, Socket& socket);

}  // namespace once::proxy
