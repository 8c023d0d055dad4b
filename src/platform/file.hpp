// File descriptors, and small files whole.
#pragma once

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace once {

// A file descriptor that is closed once. Closing it leaves errno as it was.
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
    const int error = errno;  // Why what was done with the file failed.
    if (fd_ >= 0) close(fd_);
    errno = error;
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// For a file that this process has just made: its mode, whatever the umask, and, if this process is root's, the owner
// and group of `model`, which is for the same users. SQLite does that for its side files. False: see errno.
bool set_mode_and_owner(int fd, unsigned mode, const struct stat& model) noexcept;

// While it lives, a write of this thread beyond RLIMIT_FSIZE only fails (EFBIG). Otherwise the kernel sends the thread
// SIGXFSZ too, which ends the process, and a library must not change what signals do in a program. Its end leaves errno
// as it was.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() noexcept;
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;
  ~NoFileSizeSignal();

 private:
  sigset_t old_mask_{};
  bool was_pending_ = false;
};

// RLIMIT_FSIZE in bytes; empty: no limit. And as a part of an error message, " (... RLIMIT_FSIZE ...)", or empty.
std::optional<std::uint64_t> file_size_limit() noexcept;
std::string file_size_limit_text();

// 0 and the bytes in `out`, or errno. EFBIG: there are more than `max_bytes`, and `out` begins with these. Blocks.
int read_all(int fd, std::size_t max_bytes, std::string& out);
int read_file(const std::string& path, std::size_t max_bytes, std::string& out);

// The bytes of a file of tokens. Blocks. Throws Exception(misuse) with a message for people: the file cannot be read,
// is no regular file, is longer, or can be opened by every user of the host.
std::string read_token_file(const std::string& path, std::size_t max_bytes);

// Writes everything, to any kind of descriptor. False: see errno. Blocks.
bool write_all(int fd, std::string_view bytes);

}  // namespace once
