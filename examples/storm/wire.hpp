// The messages of the storm's processes: plain structs in packets of local sockets (SOCK_SEQPACKET).
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

namespace storm {

// Text of bounded length inside a packet; longer text is cut.
template <std::size_t Size>
struct Text {
  std::array<char, Size> bytes{};

  Text() = default;
  Text(std::string_view text) { text.copy(bytes.data(), Size - 1); }
  [[nodiscard]] std::string str() const { return bytes.data(); }
};

// Where a frozen owner stops: its lease ends meanwhile.
enum class Freeze : std::uint8_t { no, after_the_charge, before_the_answer };

// Director to worker: charge this order. The next one comes when this one is answered.
struct Job {
  std::uint32_t order = 0;
  std::int64_t cents = 0;
  Freeze freeze = Freeze::no;
};

// Worker to director.
struct Note {
  enum class Kind : std::uint8_t {
    event,     // One of the engine's: `event` is a once::EventKind.
    freezing,  // About to stop itself.
    answer,    // The receipt is in `text`.
    repeat,    // No answer (a conflict, a lost claim): ask again.
    broken,    // Something that must not happen; `text` says what.
  };
  Kind kind = Kind::event;
  std::uint8_t event = 0;
  Text<256> text = {};
};

// Worker to bank. The same key twice is one charge; no key is always a new one.
struct Charge {
  Text<72> key;
  std::uint32_t order = 0;
  std::int64_t cents = 0;
};
struct Charged {
  std::uint32_t number = 0;  // Of the charge in the ledger.
};

class Socket {
 public:
  explicit Socket(int fd = -1) noexcept : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }

  // False: the other side has ended.
  template <class Packet>
  [[nodiscard]] bool send(const Packet& packet) const {
    static_assert(std::is_trivially_copyable_v<Packet>);
    for (;;) {
      if (::send(fd_, &packet, sizeof packet, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof packet)) return true;
      if (errno == EPIPE || errno == ECONNRESET) return false;
      if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "send");
    }
  }
  template <class Packet>
  [[nodiscard]] bool receive(Packet& packet) const {
    static_assert(std::is_trivially_copyable_v<Packet>);
    for (;;) {
      const ssize_t got = recv(fd_, &packet, sizeof packet, 0);
      if (got == static_cast<ssize_t>(sizeof packet)) return true;
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return false;
      if (got > 0 || errno != EINTR) throw std::system_error(errno, std::generic_category(), "recv");
    }
  }

 private:
  int fd_;
};

}  // namespace storm
