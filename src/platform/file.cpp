#include "platform/file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <time.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <once/error.hpp>

namespace once {

namespace {

sigset_t file_size_signal() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  return set;
}

}  // namespace

bool set_mode_and_owner(int fd, unsigned mode, const struct stat& model) noexcept {
  if (geteuid() == 0 && fchown(fd, model.st_uid, model.st_gid) != 0 && errno != EPERM && errno != EINVAL) return false;
  return fchmod(fd, mode) == 0;
}

NoFileSizeSignal::NoFileSizeSignal() noexcept {
  const sigset_t set = file_size_signal();
  pthread_sigmask(SIG_BLOCK, &set, &old_mask_);
  sigset_t pending{};
  was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

NoFileSizeSignal::~NoFileSizeSignal() {
  const int error = errno;  // Why a write failed.
  const sigset_t set = file_size_signal();
  constexpr timespec at_once{};
  // Ours is taken. One that was there before stays.
  if (!was_pending_) sigtimedwait(&set, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  errno = error;
}

std::optional<std::uint64_t> file_size_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

std::string file_size_limit_text() {
  const std::optional<std::uint64_t> limit = file_size_limit();
  if (!limit) return {};
  return " (this process may write files of up to " + std::to_string(*limit) +
         " bytes: RLIMIT_FSIZE, as by ulimit -f or LimitFSIZE=)";
}

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

std::string read_token_file(const std::string& path, std::size_t max_bytes) {
  const auto bad = [&](const std::string& why) { return Exception(ErrorKind::misuse, "the token file " + path + why); };
  struct stat kind {};
  if (stat(path.c_str(), &kind) != 0) throw bad(std::string(" cannot be read: ") + std::strerror(errno));
  if (!S_ISREG(kind.st_mode)) throw bad(" is not a regular file");
  if ((kind.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    throw bad(" can be opened by every user of this host: chmod o-rwx it (in Kubernetes: defaultMode: 0440)");
  }
  std::string text;
  const int error = read_file(path, max_bytes, text);
  if (error == EFBIG) throw bad(" is longer than " + std::to_string(max_bytes / 1024) + " KiB");
  if (error != 0) throw bad(std::string(" cannot be read: ") + std::strerror(error));
  return text;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {  // Another process made it non-blocking.
      pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
      if (poll(&wait, 1, -1) < 0 && errno != EINTR) return false;
      continue;
    }
    if (count < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace once
