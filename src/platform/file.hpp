// File descriptors, and small files whole.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

namespace once {

// A file descriptor that is closed once.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// 0 and the bytes in `out`, or errno. EFBIG: there are more than `max_bytes`, and `out` begins with these. Blocks.
int read_all(int fd, std::size_t max_bytes, std::string& out);
int read_file(const std::string& path, std::size_t max_bytes, std::string& out);

}  // namespace once
