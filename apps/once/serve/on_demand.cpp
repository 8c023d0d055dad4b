#include "serve/on_demand.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace once::cli {

namespace {

using Steady = std::chrono::steady_clock;

constexpr std::chrono::seconds patience{60};         // For a server to come up, or another starter's to.
constexpr std::chrono::seconds answer_patience{10};  // For an answer of one that is up.
constexpr std::chrono::seconds end_patience{10};
constexpr std::chrono::milliseconds pause{5};
constexpr std::string_view is_up = "up";

[[noreturn]] void cannot(const std::string& what, int number) {
  throw Exception(ErrorKind::unavailable, "cannot " + what + ": " + std::strerror(number));
}

// ---- the server that may be there

// Whether a server of this user answers there. False: nobody does, or one that is ending.
bool is_answering(const ServerPlace& place) {
  const std::string path = place.socket();
  const std::string there = "the server at " + path;
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) cannot("make a socket", errno);
  const timeval limit{.tv_sec = answer_patience.count(), .tv_usec = 0};
  for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO}) {
    setsockopt(socket.get(), SOL_SOCKET, option, &limit, sizeof limit);
  }
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  path.copy(to.sun_path, sizeof to.sun_path - 1);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED) return false;
    if (errno == EAGAIN) throw Exception(ErrorKind::unavailable, there + " takes no connection: it hangs");
    cannot("connect to " + there, errno);
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) cannot("find out who is " + there, errno);
  if (peer.uid != geteuid()) {
    throw Exception(ErrorKind::unavailable, there + " belongs to user " + std::to_string(peer.uid));
  }
  constexpr std::string_view request = "GET /v1/version HTTP/1.1\r\nHost: once\r\nConnection: close\r\n\r\n";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return false;
  }
  std::string answer;
  std::array<char, 4096> piece{};
  for (;;) {
    const ssize_t count = ::recv(socket.get(), piece.data(), piece.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      throw Exception(ErrorKind::unavailable,
                      there + " (process " + std::to_string(peer.pid) + ") does not answer. Its log is " + place.log());
    }
    if (count <= 0) break;
    answer.append(piece.data(), static_cast<std::size_t>(count));
  }
  return answer.starts_with("HTTP/1.1 200 ");
}

// Empty: another starter has it.
Fd take_lock(const std::string& path) {
  Fd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) cannot("open the lock " + path, errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) cannot("take the lock " + path, errno);
    return {};
  }
  struct stat ours {};
  struct stat named {};
  // It may have been removed since, as what is old in /tmp.
  const bool is_named = fstat(lock.get(), &ours) == 0 && stat(path.c_str(), &named) == 0 &&
                        ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
  return is_named ? std::move(lock) : Fd();
}

// ---- the new server

void write_whole(const Fd& to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(to.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // The starter has gone.
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

void close_all_but(int one, int two) {
  const auto close_between = [](unsigned first, unsigned last) {
    if (first > last || syscall(SYS_close_range, first, last, 0U) == 0) return;
    constexpr long most = 65'536;  // Linux before 5.9.
    const auto end = std::min(last, static_cast<unsigned>(std::clamp(sysconf(_SC_OPEN_MAX), 0L, most)));
    for (unsigned fd = first; fd <= end; ++fd) close(static_cast<int>(fd));
  };
  const auto low = static_cast<unsigned>(std::min(one, two));
  const auto high = static_cast<unsigned>(std::max(one, two));
  close_between(STDERR_FILENO + 1, low - 1);
  close_between(low + 1, high - 1);
  close_between(high + 1, ~0U);
}

// In the process that becomes the server: of what it has from the starter, and from whoever started that, only the
// environment is left, and the two files.
void leave_the_starter(const ServerPlace& place, int log, int lock, int report) {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) cannot("open /dev/null", errno);
  for (const auto& [from, to] :
       {std::pair(nothing, STDIN_FILENO), std::pair(nothing, STDOUT_FILENO), std::pair(log, STDERR_FILENO)}) {
    if (dup2(from, to) < 0) cannot("leave the standard streams", errno);
  }
  close_all_but(lock, report);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) std::signal(signal, SIG_DFL);
  std::signal(SIGPIPE, SIG_IGN);  // The starter may be gone.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!place.in_working_directory && chdir("/") != 0) cannot("change to /", errno);
}

// What the new process said until it was up or ended.
std::string await_report(const Fd& report, const ServerPlace& place) {
  const auto until = Steady::now() + patience;
  std::string text;
  std::array<char, 4096> piece{};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Steady::now()).count();
    pollfd wait{.fd = report.get(), .events = POLLIN, .revents = 0};
    const int ready = poll(&wait, 1, static_cast<int>(std::max<decltype(left)>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      throw Exception(ErrorKind::unavailable, "the server is not up after " + std::to_string(patience.count()) +
                                                  " s. Its log is " + place.log());
    }
    const ssize_t count = read(report.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
}

// Calls fork() twice, so that the server is nobody's child, and no session's leader. Empty in the starter.
std::optional<Starting> start_server(const ServerPlace& place, Fd lock) {
  Fd log(open(place.log().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log) cannot("open the server's log " + place.log(), errno);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) cannot("make a pipe", errno);
  Fd from(ends[0]);
  Fd report(ends[1]);
  const pid_t child = fork();
  if (child < 0) cannot("start a process", errno);
  if (child == 0) {
    setsid();
    const pid_t server = fork();
    if (server != 0) {
      Starting starting(std::move(lock), std::move(report));
      if (server < 0)
        starting.failed({ErrorKind::unavailable, std::string("cannot start a process: ") + std::strerror(errno)});
      _exit(0);
    }
    const int lock_number = lock.get();
    const int report_number = report.get();
    std::optional<Starting> starting(std::in_place, std::move(lock), std::move(report));
    from.reset();
    try {
      leave_the_starter(place, log.release(), lock_number, report_number);
    } catch (const Exception& error) {
      starting->failed(error.error());
      throw;
    }
    return starting;
  }
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  report.reset();
  const std::string text = await_report(from, place);
  if (text == is_up) return std::nullopt;
  if (text.empty()) {
    throw Exception(ErrorKind::unavailable, "the server ended before it was up. Its log is " + place.log());
  }
  throw Exception(static_cast<ErrorKind>(text.front() - '0'),
                  "the server did not start: " + text.substr(1) + ". Its log is " + place.log());
}

}  // namespace

void Starting::await_end_of_last(const ServerPlace& place) {
  const std::string path = place.socket() + ".lock";  // Held as long as the socket is there: proxy::SocketFile.
  const auto until = Steady::now() + end_patience;
  while (Steady::now() < until) {
    const Fd lock(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    std::this_thread::sleep_for(pause);
  }
}

void Starting::up() {
  write_whole(report_, is_up);
  report_.reset();
  lock_.reset();
}

void Starting::failed(const Error& error) {
  write_whole(report_, static_cast<char>('0' + static_cast<int>(error.kind)) + error.message);
  report_.reset();
}

std::optional<Starting> start_unless_up(const ServerPlace& place) {
  const auto until = Steady::now() + patience;
  for (;;) {
    if (is_answering(place)) return std::nullopt;
    if (Fd lock = take_lock(place.lock())) {
      if (is_answering(place)) return std::nullopt;  // Since the lock was taken.
      return start_server(place, std::move(lock));
    }
    if (Steady::now() > until) {
      throw Exception(ErrorKind::unavailable, "another process has held " + place.lock() + " for " +
                                                  std::to_string(patience.count()) +
                                                  " s to start the server. Its log is " + place.log());
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace once::cli
