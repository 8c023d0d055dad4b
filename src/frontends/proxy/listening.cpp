#include "frontends/proxy/listening.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <boost/asio/local/stream_protocol.hpp>
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

Exception cannot_listen(const std::string& where, const std::string& why) {
  return {ErrorKind::unavailable, "cannot listen on " + where + ": " + why};
}

// 0: somebody listens there. Otherwise errno, ECONNREFUSED if nobody does.
int probe(const std::string& path) {
  const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  path.copy(to.sun_path, sizeof to.sun_path - 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return 0;
  return errno == EAGAIN ? 0 : errno;  // Its queue is full.
}

}  // namespace

SocketFile::SocketFile(std::string path) : path_(std::move(path)) {
  const std::string beside = path_ + ".lock";
  const auto fail = [&](const std::string& why) { throw cannot_listen("unix:" + path_, why); };
  lock_.reset(::open(beside.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) fail("its lock " + beside + " cannot be opened: " + std::strerror(errno));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    fail(errno == EWOULDBLOCK ? "another process listens there, and holds " + beside
                              : "its lock " + beside + " cannot be taken: " + std::strerror(errno));
  }
  struct stat there {};
  if (::lstat(path_.c_str(), &there) != 0) {
    if (errno != ENOENT) fail(std::strerror(errno));
    return;
  }
  if (!S_ISSOCK(there.st_mode)) fail("there is a file that is not a socket");
  // Not one of ours, or of an owner that was killed.
  const int error = probe(path_);
  if (error == 0) fail("another program listens there");
  if (error != ECONNREFUSED)
    fail(std::string("whether another program listens there is not known: ") + std::strerror(error));
  if (::unlink(path_.c_str()) != 0) fail(std::string("an old socket cannot be removed: ") + std::strerror(errno));
}

void SocketFile::made() {
  struct stat there {};
  if (::lstat(path_.c_str(), &there) != 0) return;
  device_ = there.st_dev;
  number_ = there.st_ino;
}

void SocketFile::remove() noexcept {
  struct stat there {};
  const bool is_ours =
      number_ != 0 && ::lstat(path_.c_str(), &there) == 0 && there.st_dev == device_ && there.st_ino == number_;
  if (is_ours) ::unlink(path_.c_str());
  number_ = 0;
  lock_.reset();
}

error_code set_mode(const std::string& path, unsigned mode) {
  const auto failed = [](int number) { return error_code(number, boost::system::system_category()); };
  const Fd file(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat there {};
  if (!file || ::fstat(file.get(), &there) != 0) return failed(errno);
  if (!S_ISSOCK(there.st_mode)) return failed(ENOTSOCK);
  // No chmod of Linux before 6.6 takes such a descriptor, or stops at a link.
  const std::string same = "/proc/self/fd/" + std::to_string(file.get());
  return ::chmod(same.c_str(), mode) == 0 ? error_code() : failed(errno);
}

Acceptor listen_on(const Address& address, unsigned mode, net::io_context& io, SocketFile& file) {
  file = SocketFile(address.socket);
  const Stream::endpoint endpoint(net::local::stream_protocol::endpoint(address.socket));
  Acceptor acceptor(io);
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) {
    file.made();
    // Nobody can connect before listen(2).
    error = set_mode(address.socket, mode);
  }
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error) {
    file.remove();
    throw cannot_listen("unix:" + address.socket, error.message());
  }
  return acceptor;
}

Acceptor listen_on(const Address& address, net::io_context& io) {
  const Stream::endpoint endpoint(resolve(address));
  Acceptor acceptor(io);
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error) {
    throw cannot_listen(address.host + " port " + std::to_string(address.port), error.message());
  }
  return acceptor;
}

Acceptor take_listening(int socket, net::io_context& io) {
  Fd owned(socket);
  Acceptor acceptor(io);
  int family = 0;
  socklen_t size = sizeof family;
  error_code error;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0) {
    error.assign(errno, boost::system::system_category());
  } else {
    acceptor.assign(Stream(family, 0), socket, error);
  }
  if (error) throw cannot_listen("the socket that was passed", error.message());
  static_cast<void>(owned.release());
  return acceptor;
}

std::uint16_t port_of(const Acceptor& acceptor) {
  error_code error;
  const Stream::endpoint own = acceptor.local_endpoint(error);
  if (error || own.data()->sa_family == AF_UNIX) return 0;
  tcp::endpoint ip;
  std::memcpy(ip.data(), own.data(), std::min<std::size_t>(own.size(), ip.capacity()));
  return ip.port();
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
