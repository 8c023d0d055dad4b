#include "platform/file.hpp"

#include <fcntl.h>

#include <array>
#include <cerrno>

namespace once {

int read_all(int fd, std::size_t max_bytes, std::string& out) {
  out.clear();
  std::array<char, std::size_t{64} * 1024> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
  while (true) {
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return 0;
    out.append(buffer.data(), static_cast<std::size_t>(count));
    if (out.size() > max_bytes) return EFBIG;
  }
}

int read_file(const std::string& path, std::size_t max_bytes, std::string& out) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file ? read_all(file.get(), max_bytes, out) : errno;
}

}  // namespace once
