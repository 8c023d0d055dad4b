#include "aws/read_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace once::aws {

int read_file(const std::string& path, std::size_t max_bytes, std::string& out) {
  out.clear();
  struct File {
    ~File() {
      if (fd >= 0) close(fd);
    }
    int fd;
  } const file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return errno;
  std::array<char, 16 * 1024> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
  while (true) {
    const ssize_t count = read(file.fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return 0;
    out.append(buffer.data(), static_cast<std::size_t>(count));
    if (out.size() > max_bytes) return EFBIG;
  }
}

}  // namespace once::aws
