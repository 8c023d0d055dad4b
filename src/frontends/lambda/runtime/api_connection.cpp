#include "frontends/lambda/runtime/api_connection.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>

#include "frontends/lambda/runtime/stopping.hpp"
#include "text/number.hpp"

namespace once::lambda::runtime {

namespace bhttp = boost::beast::http;
using BeastError = boost::system::error_code;

namespace {

constexpr std::size_t read_bytes = 16384;
constexpr std::uint32_t max_head_bytes = 65536;

std::string system_error_text(int error) { return std::generic_category().message(error); }

}  // namespace

std::string ApiAddress::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + port;
}

std::optional<ApiAddress> parse_api(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return std::nullopt;
  }
  const auto number = text::parse_whole<std::uint16_t>(port).value_or(0);
  if (host.empty() || host.find_first_of("/ \r\n") != std::string_view::npos || number == 0) {
    return std::nullopt;
  }
  return ApiAddress{std::string(host), std::string(port)};
}

class ApiConnection::Parser : public bhttp::response_parser<bhttp::string_body> {};

void ApiConnection::disconnect() noexcept {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  buffer_.clear();
  broken_ = false;
}

bool ApiConnection::connect_if_needed() {
  if (fd_ >= 0) {
    char byte = 0;
    const ssize_t count = recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    disconnect();  // Closed, or unexpected bytes.
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(address_.host.c_str(), address_.port.c_str(), &hints, &list); error != 0) {
    return fail("its address cannot be found: " + std::string(gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(list, &freeaddrinfo);
  int error = ENOENT;
  for (const addrinfo* found = list; found != nullptr; found = found->ai_next) {
    fd_ = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
    if (fd_ >= 0 && connect_to(*found)) {
      const int yes = 1;
      setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      return true;
    }
    error = errno;
    disconnect();
  }
  return fail("cannot connect: " + system_error_text(error));
}

bool ApiConnection::send_all(std::span<const std::string_view> parts) {
  std::array<iovec, 4> vectors{};
  std::size_t count = 0;
  for (const std::string_view part : parts) {
    if (!part.empty()) vectors.at(count++) = {.iov_base = const_cast<char*>(part.data()), .iov_len = part.size()};
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  while (message.msg_iovlen > 0) {
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      problem_ = "connection lost while sending: " + system_error_text(errno);
      broken_ = true;
      return false;
    }
    auto left = static_cast<std::size_t>(sent);
    while (message.msg_iovlen > 0 && left >= message.msg_iov->iov_len) {
      left -= message.msg_iov->iov_len;
      ++message.msg_iov;
      --message.msg_iovlen;
    }
    if (message.msg_iovlen > 0) {
      message.msg_iov->iov_base = static_cast<char*>(message.msg_iov->iov_base) + left;
      message.msg_iov->iov_len -= left;
    }
  }
  return true;
}

Trouble ApiConnection::read_answer(ApiAnswer& answer, std::size_t body_limit, const StopFlag* stop) {
  Parser parser;
  parser.header_limit(max_head_bytes);
  parser.body_limit(body_limit);
  parser.eager(true);
  for (;;) {
    while (buffer_.size() > 0 && !parser.is_done()) {
      BeastError error;
      const std::size_t used = parser.put(buffer_.data(), error);
      buffer_.consume(used);
      if (error == bhttp::error::need_more) break;
      if (error == bhttp::error::body_limit) {
        answer = std::move(parser.get());
        disconnect();
        return Trouble::too_large;
      }
      if (error) {
        fail("its answer is not HTTP: " + error.message());
        return Trouble::lost;
      }
      if (used == 0) break;
    }
    if (parser.is_done()) break;
    if (stop != nullptr && !parser.got_some()) {
      const Trouble trouble = wait_readable(*stop);
      if (trouble != Trouble::none) return trouble;
    }
    if (const Trouble trouble = receive(parser); trouble != Trouble::none) return trouble;
    if (parser.is_done()) break;
  }
  const bool keep = parser.keep_alive() && !broken_;
  answer = parser.release();
  if (!keep || buffer_.size() > 0) disconnect();
  return Trouble::none;
}

bool ApiConnection::connect_to(const addrinfo& to) const {
  if (connect(fd_, to.ai_addr, to.ai_addrlen) == 0) return true;
  if (errno != EINTR) return false;
  // Interrupted by a signal, it continues asynchronously (connect(2)).
  pollfd wait{.fd = fd_, .events = POLLOUT, .revents = 0};
  while (poll(&wait, 1, -1) < 0) {
    if (errno != EINTR) return false;
  }
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return false;
  errno = error;
  return error == 0;
}

bool ApiConnection::fail(std::string problem) {
  if (!broken_) problem_ = std::move(problem);  // The first one counts.
  disconnect();
  return false;
}

Trouble ApiConnection::wait_readable(const StopFlag& stop) {
  std::array<pollfd, 2> waits{
      {{.fd = fd_, .events = POLLIN, .revents = 0}, {.fd = stop.fd(), .events = POLLIN, .revents = 0}}};
  while (poll(waits.data(), waits.size(), -1) < 0) {
    if (errno == EINTR) continue;
    fail("cannot wait: " + system_error_text(errno));
    return Trouble::lost;
  }
  if (waits[0].revents != 0) return Trouble::none;  // An event that has come is still handled.
  disconnect();
  return Trouble::stopped;
}

Trouble ApiConnection::receive(Parser& parser) {
  const auto space = buffer_.prepare(read_bytes);
  ssize_t count = 0;
  do {
    count = recv(fd_, space.data(), space.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    buffer_.commit(static_cast<std::size_t>(count));
    return Trouble::none;
  }
  BeastError error;
  if (count == 0 && parser.got_some()) parser.put_eof(error);
  if (count == 0 && !error && parser.is_done()) return Trouble::none;  // A body that ends with the connection.
  fail(count < 0 ? "connection lost: " + system_error_text(errno)
                 : (parser.got_some() ? "connection closed within an answer" : "connection closed without an answer"));
  return Trouble::lost;
}

}  // namespace once::lambda::runtime
