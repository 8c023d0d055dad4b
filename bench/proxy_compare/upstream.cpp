// The service behind the proxies that are compared: one thread, one constant answer.
//
// Prints its port. A request for /held is not answered before it is told to: a line on standard input, "count" or
// "answer", is answered with a line of how many requests there have been; "answer" answers those that are held as well.
// Ends with its standard input.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr std::string_view answer =
    "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 64\r\n\r\n"
    "{\"id\":\"ch_1001\",\"object\":\"charge\",\"amount\":500,\"status\":\"paid\"}\n";

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

class Upstream {
 public:
  Upstream() : poll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (poll_ < 0) fail("epoll_create1");
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0) fail("bind");
    if (::listen(listener_, 4096) != 0) fail("listen");
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    std::printf("%u\n", unsigned{ntohs(address.sin_port)});
    std::fflush(stdout);
    watch(listener_);
    watch(STDIN_FILENO);
  }

  void serve() {
    std::array<epoll_event, 256> events{};
    for (;;) {
      const int count = ::epoll_wait(poll_, events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) {
        const int fd = events.at(static_cast<std::size_t>(i)).data.fd;
        if (fd == STDIN_FILENO) {
          if (!obey()) return;
        } else if (fd == listener_) {
          accept();
        } else {
          read(fd);
        }
      }
    }
  }

 private:
  void watch(int fd) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
  }

  bool obey() {
    std::array<char, 64> line{};
    const ssize_t got = ::read(STDIN_FILENO, line.data(), line.size());
    if (got <= 0) return false;
    if (std::string_view(line.data(), static_cast<std::size_t>(got)).starts_with("answer")) {
      for (const int fd : std::exchange(held_, {})) say(fd);
    }
    std::printf("%llu\n", static_cast<unsigned long long>(requests_));
    std::fflush(stdout);
    return true;
  }

  void accept() {
    for (;;) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) return;
      const int yes = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      watch(fd);
    }
  }

  void read(int fd) {
    std::array<char, 16384> bytes{};
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got <= 0) {
      ::close(fd);
      unread_.erase(fd);
      return;
    }
    std::string& unread = unread_[fd];
    unread.append(bytes.data(), static_cast<std::size_t>(got));
    while (const std::size_t size = request_size(unread)) {
      ++requests_;
      if (unread.find(" /held") < unread.find('\r')) {
        held_.push_back(fd);
      } else {
        say(fd);
      }
      unread.erase(0, size);
    }
  }

  // Of the request that it begins with, 0 if that is not there yet. Whoever asks is a proxy, and measured: it frames.
  static std::size_t request_size(const std::string& bytes) {
    const std::size_t end = bytes.find("\r\n\r\n");
    if (end == std::string::npos) return 0;
    std::size_t body = 0;
    for (std::size_t at = bytes.find("\r\n"); at < end; at = bytes.find("\r\n", at + 2)) {
      constexpr std::string_view name = "content-length:";
      if (at + 2 + name.size() < end && ::strncasecmp(bytes.data() + at + 2, name.data(), name.size()) == 0) {
        body = std::strtoul(bytes.data() + at + 2 + name.size(), nullptr, 10);
      }
    }
    const std::size_t size = end + 4 + body;
    return bytes.size() < size ? 0 : size;
  }

  static void say(int fd) {
    if (::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(answer.size())) {
      std::fputs("upstream: an answer did not go out\n", stderr);  // The client has disconnected.
    }
  }

  int poll_;
  int listener_ = -1;
  std::uint64_t requests_ = 0;
  std::unordered_map<int, std::string> unread_;
  std::vector<int> held_;
};

}  // namespace

int main() { Upstream().serve(); }
