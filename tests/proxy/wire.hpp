// Both ends of a proxy, byte by byte: a raw connection, and a server that does what a script says. Blocking, with a
// limit on every wait, so that what never comes fails a test and does not hang it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <once/frontends/http/message.hpp>

namespace once::proxy {

inline constexpr std::chrono::seconds patience{20};

// Opened once; waiting threads continue.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    news_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    if (!news_.wait_for(lock, patience, [&] { return open_; })) throw std::runtime_error("the gate stayed shut");
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  bool open_ = false;
};

struct Message {
  std::string first;  // The first line.
  http::Headers headers;
  std::string body;
  bool whole = true;  // The connection did not end within it.

  [[nodiscard]] unsigned status() const {
    return first.size() < 12 ? 0U : static_cast<unsigned>(std::stoul(first.substr(9, 3)));
  }
  [[nodiscard]] std::string header(std::string_view name) const {
    const std::string* const value = http::find_header(headers, name);
    return value == nullptr ? std::string() : *value;
  }
};

class Line {
 public:
  explicit Line(int fd) : fd_(fd) {
    const timeval limit{std::chrono::seconds(patience).count(), 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const int yes = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  static int connect_to(std::uint16_t port, int receive_buffer = 0) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer != 0) ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      ::close(fd);
      return -1;
    }
    return fd;
  }
  static Line to(std::uint16_t port, int receive_buffer = 0) {
    const int fd = connect_to(port, receive_buffer);
    if (fd < 0) throw std::runtime_error("cannot connect");
    return Line(fd);
  }
  Line(Line&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), tls_(std::move(other.tls_)), buffer_(std::move(other.buffer_)) {}
  Line& operator=(Line&&) = delete;
  ~Line() { close(); }

  [[nodiscard]] int fd() const noexcept { return fd_; }
  void close() {
    if (tls_) SSL_shutdown(tls_.get());
    cut();
  }
  // Without the goodbye that TLS has. The same as close() without TLS.
  void cut() {
    tls_.reset();
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

  // From here on with TLS. False: the handshake failed. `host`: to be in the server's certificate, if it is asked for.
  // `session`: to be resumed.
  bool begin_tls(SSL_CTX* context, bool as_server, const char* host = nullptr, SSL_SESSION* session = nullptr) {
    tls_.reset(SSL_new(context));
    if (session != nullptr) SSL_set_session(tls_.get(), session);
    SSL_set_fd(tls_.get(), fd_);
    if (host != nullptr) SSL_set1_host(tls_.get(), host);
    if ((as_server ? SSL_accept(tls_.get()) : SSL_connect(tls_.get())) == 1) return true;
    tls_.reset();
    return false;
  }
  [[nodiscard]] SSL* tls() const noexcept { return tls_.get(); }
  // Whether the other side has said goodbye before it ended the connection.
  [[nodiscard]] bool was_told_the_end() const { return (SSL_get_shutdown(tls_.get()) & SSL_RECEIVED_SHUTDOWN) != 0; }
  void reset() {  // RST, not FIN.
    const linger at_once{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
  }

  // False if the other side has gone.
  bool write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = tls_ ? SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                                : ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Whether the connection, of which everything else was read, ends with a reset. Waits for its end.
  [[nodiscard]] bool ends_with_reset() const {
    char byte = 0;
    return ::recv(fd_, &byte, 1, 0) < 0 && errno == ECONNRESET;
  }

  // Everything up to the end of the connection. A reset ends it as well.
  std::string read_all() {
    while (fill()) {
    }
    return std::exchange(buffer_, {});
  }

  // Up to and with `end`. Empty: the connection ended before.
  std::string read_until(std::string_view end) {
    for (;;) {
      if (const auto at = buffer_.find(end); at != std::string::npos) {
        std::string out = buffer_.substr(0, at + end.size());
        buffer_.erase(0, at + end.size());
        return out;
      }
      if (!fill()) return {};
    }
  }
  std::string read_bytes(std::size_t count) {
    while (buffer_.size() < count && fill()) {
    }
    count = std::min(count, buffer_.size());
    std::string out = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return out;
  }

  // A request that came whole.
  std::optional<Message> read_request() {
    auto message = read_message();
    if (message && !message->whole) return std::nullopt;
    return message;
  }

  // Empty: the connection ended before there was one. `bodiless`: an answer to HEAD.
  std::optional<Message> read_message(bool bodiless = false) {
    std::string head = read_until("\r\n\r\n");
    if (head.empty()) return std::nullopt;
    Message message;
    std::size_t at = head.find("\r\n");
    message.first = head.substr(0, at);
    for (at += 2; head.compare(at, 2, "\r\n") != 0;) {
      const auto end = head.find("\r\n", at);
      const auto colon = head.find(": ", at);
      message.headers.push_back({head.substr(at, colon - at), head.substr(colon + 2, end - colon - 2)});
      at = end + 2;
    }
    const bool is_answer = message.first.starts_with("HTTP/");
    const unsigned status = is_answer ? message.status() : 0;
    if (bodiless || (is_answer && (status < 200 || status == 204 || status == 304))) return message;
    if (message.header("Transfer-Encoding") == "chunked") {
      for (;;) {
        const std::string size = read_until("\r\n");
        const std::size_t bytes = size.empty() ? 0 : std::stoul(size, nullptr, 16);
        message.body += read_bytes(bytes);
        const std::string end = read_until("\r\n");
        message.whole = !size.empty() && !end.empty();
        if (bytes == 0 || !message.whole) return message;
      }
    }
    if (const std::string length = message.header("Content-Length"); !length.empty()) {
      message.body = read_bytes(std::stoul(length));
      message.whole = message.body.size() == std::stoul(length);
    } else if (is_answer) {
      message.body = read_all();
    }
    return message;
  }

 private:
  bool fill() {
    char bytes[65536];
    const ssize_t got =
        tls_ ? SSL_read(tls_.get(), bytes, static_cast<int>(sizeof bytes)) : ::recv(fd_, bytes, sizeof bytes, 0);
    if (got < 0 && (errno == EAGAIN)) throw std::runtime_error("nothing came in time");
    if (got <= 0) return false;
    buffer_.append(bytes, static_cast<std::size_t>(got));
    return true;
  }

  struct FreeTls {
    void operator()(SSL* ssl) const noexcept { SSL_free(ssl); }
  };
  int fd_;
  std::unique_ptr<SSL, FreeTls> tls_;
  std::string buffer_;
};

// "HTTP/1.1 201 Created", Content-Length, what else is given, and the body.
inline std::string answer_text(const std::string& status, const std::string& body, const std::string& lines = {}) {
  return "HTTP/1.1 " + status + "\r\n" + lines + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// A port of 127.0.0.1 that this test owns, and where none listens: connections are refused.
class Port {
 public:
  Port() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(fd_, any, size) != 0 || ::getsockname(fd_, any, &size) != 0) throw std::runtime_error("no port");
    number_ = ntohs(address.sin_port);
  }
  Port(Port&& other) noexcept : fd_(std::exchange(other.fd_, -1)), number_(other.number_) {}
  Port& operator=(Port&&) = delete;
  ~Port() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] std::uint16_t number() const noexcept { return number_; }

 private:
  int fd_;
  std::uint16_t number_ = 0;
};

// Every connection is passed to the script, on its own thread. When the script returns, it is closed.
class Upstream {
 public:
  using Script = std::function<void(Line&)>;

  explicit Upstream(Script script, Port port = {}) : script_(std::move(script)), port_(std::move(port)) {
    if (::listen(port_.fd(), 512) != 0) throw std::runtime_error("cannot listen");
    accepting_ = std::thread([this] { accept(); });
  }
  ~Upstream() {
    ::shutdown(port_.fd(), SHUT_RDWR);
    accepting_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
  }
  Upstream(const Upstream&) = delete;
  Upstream& operator=(const Upstream&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return port_.number(); }
  [[nodiscard]] std::size_t connections() const {
    const std::lock_guard lock(mutex_);
    return threads_.size();
  }

 private:
  void accept() {
    for (;;) {
      const int fd = ::accept4(port_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      const std::lock_guard lock(mutex_);
      open_.push_back(fd);
      threads_.emplace_back([this, fd] {
        Line line(fd);
        try {
          script_(line);
        } catch (const std::exception&) {  // It waited in vain; the test sees what it lacks.
        }
        const std::lock_guard closing(mutex_);
        open_.remove(fd);
        line.close();
      });
    }
  }

  Script script_;
  Port port_;
  mutable std::mutex mutex_;  // Of what follows.
  std::list<int> open_;
  std::list<std::thread> threads_;
  std::thread accepting_;
};

}  // namespace once::proxy
