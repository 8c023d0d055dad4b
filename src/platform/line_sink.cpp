#include "platform/line_sink.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <string>

namespace once {

LineSink::LineSink(int descriptor) : descriptor_(descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return;  // Each write will say so.
  if (S_ISSOCK(status.st_mode)) kind_ = Kind::socket;
  if (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) return;
  // O_NONBLOCK belongs to what was opened, which other processes share: so it is opened again.
  kind_ = Kind::pipe;
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  own_.reset(open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

bool LineSink::write(std::string_view line) noexcept {
  std::string whole;
  if (torn_.load(std::memory_order_relaxed) && torn_.exchange(false)) {  // A disk was full within a line.
    whole.append("\n").append(line);
    line = whole;
  }
  const ssize_t written = write_some(line);
  if (written > 0 && static_cast<std::size_t>(written) < line.size()) torn_ = true;
  if (written <= 0 && !whole.empty()) torn_ = true;
  return written == static_cast<ssize_t>(line.size());
}

ssize_t LineSink::write_some(std::string_view line) noexcept {
  ssize_t written = 0;
  do {
    switch (kind_) {
      case Kind::file:
        written = ::write(descriptor_, line.data(), line.size());
        break;
      case Kind::pipe:
        written = write_to_pipe(line);
        break;
      case Kind::socket:
        written = send(descriptor_, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    }
  } while (written < 0 && errno == EINTR);
  return written;
}

// A library must not change how its program takes SIGPIPE, so this thread does not take one that comes of the write.
ssize_t LineSink::write_to_pipe(std::string_view line) noexcept {
  if (!own_) {  // It could not be opened again. Another process may still fill the pipe between these two calls.
    pollfd room{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (poll(&room, 1, 0) != 1) return -1;
  }
  sigset_t pipe_signal;
  sigset_t before;
  sigset_t pending;
  sigemptyset(&pipe_signal);
  sigemptyset(&pending);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  if (sigismember(&before, SIGPIPE) == 1) sigpending(&pending);  // Otherwise it would have been delivered.
  const ssize_t written = ::write(own_ ? own_.get() : descriptor_, line.data(), line.size());
  const int error = errno;
  if (written < 0 && error == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    constexpr timespec at_once{};
    sigtimedwait(&pipe_signal, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

}  // namespace once
