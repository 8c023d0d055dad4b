// Preloaded into a program (LD_PRELOAD), kills it with SIGKILL before its N-th step, or stops it there.
//
// A step is a system call by which others can see what the program does: on a socket or a file, sending, writing,
// syncing, connecting, closing; and one that has received something, before the program knows of it. How often it looks
// in vain varies, so that is none. Steps are counted from the first connection that is accepted.
//
//   ONCE_KILL_BEFORE   N, from 1 on; not set or 0: it lives
//   ONCE_KILL_LOG      a file that gets the name of each step, a line each
//   ONCE_KILL_FROM     connect: they are counted from the first connection that it makes, which is none itself
//   ONCE_KILL_SIGNAL   STOP: it is stopped in place of killed; after SIGCONT it goes on with the step
//   ONCE_KILL_MARK     a file that is made when it is killed or stopped; programs that find it there live
//
// And for who comes after it, so that no test waits for a lease:
//
//   ONCE_CLOCK_AHEAD_S   its clocks are so many seconds ahead: the wall clock, and the one that tells of steps of that
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>

namespace {

struct Plan {
  Plan() {
    if (const char* const before = std::getenv("ONCE_KILL_BEFORE")) kill_before = std::atol(before);
    if (const char* const path = std::getenv("ONCE_KILL_LOG")) {
      log = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    if (const char* const from = std::getenv("ONCE_KILL_FROM")) from_connect = std::string_view(from) == "connect";
    if (const char* const name = std::getenv("ONCE_KILL_SIGNAL"))
      signal = std::string_view(name) == "STOP" ? SIGSTOP : SIGKILL;
    mark = std::getenv("ONCE_KILL_MARK");
  }
  // Makes the mark, unless it is there.
  [[nodiscard]] bool is_first() const {
    if (mark == nullptr) return true;
    const int fd = ::open(mark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) ::syscall(SYS_close, fd);
    return fd >= 0;
  }
  long kill_before = 0;
  int log = -1;
  bool from_connect = false;
  int signal = SIGKILL;
  const char* mark = nullptr;
};

const Plan& plan() {
  static const Plan plan;
  return plan;
}

std::atomic<bool> armed{false};
std::atomic<long> steps{0};

void step(const char* name, int fd) {
  if (!armed.load()) return;
  const int error = errno;
  struct stat about {};
  if (::fstat(fd, &about) == 0 && (S_ISSOCK(about.st_mode) || S_ISREG(about.st_mode))) {
    const long number = ++steps;
    if (plan().log >= 0) {
      const std::string line = std::string(name) + "\n";
      static_cast<void>(::syscall(SYS_write, plan().log, line.data(), line.size()));
    }
    if (number == plan().kill_before && plan().is_first()) ::raise(plan().signal);
  }
  errno = error;
}

// What the program would have called.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// `function`(fd, ...) is a step and then what it was.
#define PUBLIC extern "C" __attribute__((visibility("default")))
#define STEP(result, function, parameters, ...)                       \
  PUBLIC result function parameters {                                 \
    static auto* const original = next<result parameters>(#function); \
    step(#function, fd);                                              \
    return original(__VA_ARGS__);                                     \
  }

STEP(ssize_t, send, (int fd, const void* data, size_t size, int flags), fd, data, size, flags)
STEP(ssize_t, sendmsg, (int fd, const msghdr* message, int flags), fd, message, flags)
STEP(ssize_t, write, (int fd, const void* data, size_t size), fd, data, size)
STEP(ssize_t, writev, (int fd, const iovec* parts, int count), fd, parts, count)
STEP(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t at), fd, data, size, at)
STEP(ssize_t, pwrite64, (int fd, const void* data, size_t size, off64_t at), fd, data, size, at)
STEP(int, fsync, (int fd), fd)
STEP(int, fdatasync, (int fd), fd)
STEP(int, ftruncate, (int fd, off_t size), fd, size)
STEP(int, ftruncate64, (int fd, off64_t size), fd, size)
STEP(int, close, (int fd), fd)

PUBLIC int clock_gettime(clockid_t id, timespec* time) {
  static auto* const original = next<int(clockid_t, timespec*)>("clock_gettime");
  static const char* const ahead = std::getenv("ONCE_CLOCK_AHEAD_S");
  const int result = original(id, time);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_BOOTTIME) && ahead != nullptr)
    time->tv_sec += std::atol(ahead);
  return result;
}

PUBLIC int connect(int fd, const sockaddr* address, socklen_t size) {
  static auto* const original = next<int(int, const sockaddr*, socklen_t)>("connect");
  step("connect", fd);
  const int result = original(fd, address, size);
  if (plan().from_connect) armed.store(true);
  return result;
}

PUBLIC ssize_t recv(int fd, void* data, size_t size, int flags) {
  static auto* const original = next<ssize_t(int, void*, size_t, int)>("recv");
  const ssize_t got = original(fd, data, size, flags);
  if (got > 0) step("recv", fd);
  return got;
}

PUBLIC ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto* const original = next<ssize_t(int, msghdr*, int)>("recvmsg");
  const ssize_t got = original(fd, message, flags);
  if (got > 0) step("recvmsg", fd);
  return got;
}

PUBLIC int accept(int listener, sockaddr* address, socklen_t* size) {
  static auto* const original = next<int(int, sockaddr*, socklen_t*)>("accept");
  const int fd = original(listener, address, size);
  if (fd >= 0) armed.store(true);
  return fd;
}

PUBLIC int accept4(int listener, sockaddr* address, socklen_t* size, int flags) {
  static auto* const original = next<int(int, sockaddr*, socklen_t*, int)>("accept4");
  const int fd = original(listener, address, size, flags);
  if (fd >= 0) armed.store(true);
  return fd;
}
