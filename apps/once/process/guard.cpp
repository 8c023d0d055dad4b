#include "process/guard.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <once/error.hpp>

#include "platform/host_boot.hpp"
#include "process/signals.hpp"
#include "text/number.hpp"

// Everything below main's half runs in the fork of a process with threads: it calls nothing that locks or allocates.

namespace once::cli {

namespace {

constexpr int exec_failed_status = 127;
constexpr std::int64_t no_moment = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t look_again_ns = 10'000'000;    // For processes that were forked meanwhile.
constexpr std::int64_t pause_again_ns = 100'000'000;  // For those that somebody else has continued.
constexpr std::size_t max_paused = 1024;              // More are continued without asking who stopped them.
constexpr int max_passes = 64;

std::int64_t boottime() noexcept {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// The command's process, up to its execve(). `go`: it waits until this pipe has a byte; if the pipe ends, so does the
// process. -1: it does not wait.
[[noreturn]] void become_command(const GuardOptions& options, pid_t guard, int exec_error, int go) noexcept {
  if (!options.survive) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guard) _exit(exec_failed_status);  // It died before we asked.
  }
  prctl(PR_SET_NAME, "once-command");
  const bool connected = (options.input == STDIN_FILENO || dup2(options.input, STDIN_FILENO) >= 0) &&
                         dup2(options.output, STDOUT_FILENO) >= 0 && dup2(options.error, STDERR_FILENO) >= 0;
  if (connected && go >= 0) {
    char byte = 0;
    ssize_t count = 0;
    do count = read(go, &byte, 1);
    while (count < 0 && errno == EINTR);
    if (count != 1) _exit(exec_failed_status);
  }
  if (connected) {
    sigaction(SIGPIPE, &options.on_pipe, nullptr);
    sigaction(SIGCHLD, &options.on_child, nullptr);
    sigaction(SIGXFSZ, &Signals::old_file_size_limit(), nullptr);
    sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr);
    execvpe(options.arguments[0], options.arguments, options.environment);
  }
  const int why = errno;
  if (write(exec_error, &why, sizeof why) != static_cast<ssize_t>(sizeof why)) _exit(exec_failed_status);
  _exit(exec_failed_status);
}

class GuardLoop {
 public:
  GuardLoop(const GuardOptions& options, int socket) noexcept : options_(options), socket_(socket) {}

  [[noreturn]] void run() noexcept {
    prctl(PR_SET_NAME, "once-guard");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    // Not killed by the death of `once`: the command's processes must be ended first.
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    close_what_is_not_ours();
    start();
    leave_standard_streams();
    setsid();  // After the fork: the command stays in the group of `once`.
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigaddset(&child, SIGCONT);  // For the whole process group, also for what is paused.
    children_ = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    timer_ = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    for (;;) step();
  }

 private:
  // Closes above all the store's files: a lock on one would live as long as the guard. Descriptors that the caller of
  // `once` passes to the command have no FD_CLOEXEC.
  void close_what_is_not_ours() const noexcept {
    const int directory = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) {  // No /proc: try every number.
      constexpr int most = 4096;
      for (int fd = 3; fd < most; ++fd) close_if_not_ours(fd);
      return;
    }
    for_each_number(directory, [&](int fd, std::string_view) {
      if (fd != directory) close_if_not_ours(fd);
    });
    close(directory);
  }

  void close_if_not_ours(int fd) const noexcept {
    if (fd < 3 || fd == socket_ || fd == options_.input || fd == options_.output || fd == options_.error) return;
    if (options_.survive && (fd == options_.output_reader || fd == options_.error_reader)) return;
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) != 0) close(fd);
  }

  // The entries of a directory that are numbers, without allocating.
  template <class Each>
  static void for_each_number(int directory, Each&& each) noexcept {
    alignas(dirent64) std::array<char, 8192> entries;
    for (;;) {
      const ssize_t count = getdents64(directory, entries.data(), entries.size());
      if (count <= 0) return;
      for (ssize_t at = 0; at < count;) {
        dirent64 entry_head;
        std::memcpy(&entry_head, entries.data() + at, offsetof(dirent64, d_name));
        const std::string_view name = entries.data() + at + offsetof(dirent64, d_name);
        if (const auto number = text::parse_whole<int>(name)) each(*number, name);
        at += entry_head.d_reclen;
      }
    }
  }

  void start() noexcept {
    int exec_error[2] = {-1, -1};
    int go[2] = {-1, -1};
    const pid_t guard = getpid();
    if (pipe2(exec_error, O_CLOEXEC) != 0) give_up(errno);
    if (options_.waits && pipe2(go, O_CLOEXEC) != 0) give_up(errno);
    command_ = fork();
    if (command_ < 0) give_up(errno);
    if (command_ == 0) {
      if (options_.waits) close(go[1]);
      become_command(options_, guard, exec_error[1], go[0]);
    }
    close(exec_error[1]);
    exec_error_ = exec_error[0];
    if (!options_.waits) return learn_how_it_began();
    close(go[0]);
    go_ = go[1];
    report({.kind = GuardReport::Kind::ready, .value = command_});
  }

  void let_it_begin() noexcept {
    if (go_ < 0) return;
    if (boottime() >= term_at_) {  // Its lease is over: the host slept, or `once` was stopped.
      if (command_ > 0) kill(command_, SIGKILL);
      give_up(ECANCELED);
    }
    const ssize_t count = write(go_, "", 1);
    close(std::exchange(go_, -1));
    if (count != 1) give_up(ECANCELED);  // It was killed before.
    learn_how_it_began();
  }

  void learn_how_it_began() noexcept {
    int why = 0;
    ssize_t count = 0;
    do count = read(exec_error_, &why, sizeof why);
    while (count < 0 && errno == EINTR);
    close(exec_error_);
    if (count == static_cast<ssize_t>(sizeof why)) give_up(why);
    begun_ = true;
    report({.kind = GuardReport::Kind::started, .value = command_});
  }

  [[noreturn]] void give_up(int why) noexcept {
    report({.kind = GuardReport::Kind::not_started, .value = why});
    _exit(0);
  }

  // So that a reader of a pipe does not wait for the guard.
  void leave_standard_streams() const noexcept {
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; ++fd) {
      if (null >= 0)
        dup2(null, fd);
      else
        close(fd);
    }
    for (const int fd : {options_.input, options_.output, options_.error, null}) {
      if (fd > 2) close(fd);
    }
  }

  void report(const GuardReport& what) const noexcept {
    // No receiver: `once` is dead, and the loop will see that.
    if (send(socket_, &what, sizeof what, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET) _exit(1);
  }

  void step() noexcept {
    std::array<pollfd, 3> waits{};
    waits[0] = {.fd = children_, .events = POLLIN, .revents = 0};
    waits[1] = {.fd = timer_, .events = POLLIN, .revents = 0};
    waits[2] = {.fd = alone_ ? -1 : socket_, .events = POLLIN, .revents = 0};
    if (poll(waits.data(), waits.size(), -1) < 0) return;
    if (waits[2].revents != 0) hear();
    if (waits[1].revents != 0) {
      std::uint64_t count = 0;
      if (read(timer_, &count, sizeof count) < 0 && errno != EAGAIN) _exit(1);
      act();
    }
    if (waits[0].revents != 0) {
      signalfd_siginfo info{};
      bool continued = false;
      while (read(children_, &info, sizeof info) > 0) continued = continued || info.ssi_signo == SIGCONT;
      if (continued && is_paused_) act();
    }
    reap();
  }

  void hear() noexcept {
    GuardOrder order;
    const ssize_t count = recv(socket_, &order, sizeof order, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count != static_cast<ssize_t>(sizeof order)) {  // `once` is gone.
      alone_ = true;
      if (!begun_) {  // Its process ends with the pipe that it waits for.
        if (command_ > 0) kill(command_, SIGKILL);
        _exit(0);
      }
      if (options_.survive && !is_paused_) {
        term_at_ = kill_at_ = no_moment;
        swallow_output();
      }
      end_by(0);
      return act();
    }
    switch (order.kind) {
      case GuardOrder::Kind::start:
        return let_it_begin();
      case GuardOrder::Kind::signal:
        if (is_paused_ && order.value == SIGCONT) return;
        if (command_ > 0) kill(command_, static_cast<int>(order.value));
        return;
      case GuardOrder::Kind::interrupted:
        interrupted_ = true;
        return;
      case GuardOrder::Kind::lease:
        if (ending_) return;
        term_at_ = order.value;
        kill_at_ = order.limit;
        patience_ = order.patience;
        if (is_paused_ && boottime() < term_at_) continue_all();
        return act();
      case GuardOrder::Kind::end:
        end_by(order.limit);
        return act();
    }
  }

  // Ends the command: SIGTERM now, SIGKILL at this moment. What is paused is killed at once, because it could only act
  // on SIGTERM if it was continued; all of it together, because the kernel continues the stopped processes of a group
  // that lost its parent.
  void end_by(std::int64_t kill_at) noexcept {
    term_at_ = 0;
    kill_at_ = is_paused_ ? 0 : std::min(kill_at_, kill_at);
    patience_ = 0;
    if (!is_paused_) return;
    is_paused_ = false;
    for_each_descendant([](pid_t process, char) { kill(process, SIGKILL); });
  }

  // Does what is due now, and sets the timer for the next deadline.
  void act() noexcept {
    const std::int64_t now = boottime();
    if (!is_paused_ && is_unrenewable(now)) {
      is_paused_ = true;
      paused_count_ = 0;
      give_up_at_ = now + patience_;
    }
    if (is_paused_) {
      // It slept again, or `once` is still stopped: it cannot have tried to renew the lease.
      if (now >= give_up_at_ + patience_ || is_stopped(state_of_once().value_or('?'))) give_up_at_ = now + patience_;
      pause_all();
      if (now < give_up_at_) return wake_at(std::min(give_up_at_, now + pause_again_ns));
      end_by(0);
    }
    if (now >= kill_at_) {
      ending_ = true;
      signal_tree(SIGKILL);
    } else if (now >= term_at_) {
      if (!ending_) signal_tree(SIGTERM);
      ending_ = true;
    }
    std::int64_t next = ending_ ? kill_at_ : std::min(term_at_, kill_at_);
    if (next == no_moment)
      next = 0;  // Off.
    else if (next <= now)
      next = now + look_again_ns;
    wake_at(next);
  }

  void wake_at(std::int64_t next) const noexcept {
    itimerspec when{};
    when.it_value = {.tv_sec = next / 1'000'000'000, .tv_nsec = next % 1'000'000'000};
    timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
  }

  // Whether the lease came near its end while nobody could renew it: the host slept, so that the timer is late, or
  // `once` is stopped. On a busy machine the timer is a little late too; then the command has half of its time to end.
  [[nodiscard]] bool is_unrenewable(std::int64_t now) const noexcept {
    if (ending_ || alone_ || patience_ <= 0 || now < term_at_) return false;
    const std::optional<char> state = state_of_once();
    if (!state) return false;  // Not all descendants could be paused.
    return now >= term_at_ + (kill_at_ - term_at_) / 2 || is_stopped(*state);
  }

  // Empty without a /proc of this PID namespace.
  [[nodiscard]] static std::optional<char> state_of_once() noexcept {
    const int directory = open_our_proc();
    if (directory < 0) return std::nullopt;
    const char state = stat_of(directory, getppid()).state;
    close(directory);
    return state;
  }

  static bool is_stopped(char state) noexcept { return state == 'T' || state == 't'; }

  // Stops the command and all its descendants, until none is found that runs: what is stopped forks no more.
  void pause_all() noexcept {
    for (int pass = 0; pass < max_passes; ++pass) {
      bool found = false;
      for_each_descendant([&](pid_t process, char state) {
        if (is_stopped(state) || has_ended(state)) return;
        found = pause(process) || found;
      });
      if (!found) return;
    }
  }

  // True if it was not paused before.
  bool pause(pid_t process) noexcept {
    if (kill(process, SIGSTOP) != 0) return false;  // It has ended, or belongs to another user.
    if (is_known(process)) return false;
    if (paused_count_ < max_paused) paused_[paused_count_] = process;
    ++paused_count_;
    return true;
  }

  [[nodiscard]] bool is_known(pid_t process) const noexcept {
    const auto end = paused_.begin() + static_cast<std::ptrdiff_t>(std::min(paused_count_, max_paused));
    return std::find(paused_.begin(), end, process) != end;
  }

  // Continues what was paused, not what somebody else had stopped before.
  void continue_all() noexcept {
    is_paused_ = false;
    for_each_descendant([&](pid_t process, char) {
      if (paused_count_ > max_paused || is_known(process)) kill(process, SIGCONT);
    });
  }

  void reap() noexcept {
    none_left_ = false;
    for (;;) {
      int status = 0;
      const pid_t child = waitpid(-1, &status, WNOHANG);
      if (child == 0) break;
      if (child < 0) {
        if (errno == EINTR) continue;
        none_left_ = errno == ECHILD;
        break;
      }
      if (child == command_) {
        status_ = status;
        command_ = 0;
      }
    }
    if (command_ != 0) return;
    if (!begun_) give_up(ECANCELED);  // It was killed while it waited.
    if (!ending_ && !none_left_ && came_to_no_end_of_its_own()) {
      clearing_ = true;
      end_by(boottime() + options_.grace_ns);
      return act();
    }
    if (ending_ && !none_left_) {
      // The command's orphans are our children now: end them next.
      signal_tree(boottime() >= kill_at_ ? SIGKILL : SIGTERM);
      return;
    }
    report({.kind = GuardReport::Kind::ended, .value = status_, .out_of_time = ending_ && !clearing_});
    _exit(0);
  }

  [[nodiscard]] bool came_to_no_end_of_its_own() const noexcept {
    return WIFSIGNALED(status_) || (interrupted_ && WEXITSTATUS(status_) != 0);
  }

  // Signals the command and its orphans, or all our children. Their children become ours when they end. Finds them in
  // /proc by their parent, because not every kernel has /proc/<pid>/task/<tid>/children (CONFIG_PROC_CHILDREN).
  void signal_tree(int signal) const noexcept {
    if (command_ > 0) kill(command_, signal);
    const int directory = open_our_proc();
    if (directory >= 0) {
      for_each_number(directory, [&](int process, std::string_view) {
        if (process != command_ && stat_of(directory, process).parent == getpid()) kill(process, signal);
      });
      close(directory);
      return;
    }
    // waitid() knows our children, whatever /proc shows. Four million calls take about a second.
    constexpr pid_t most = 4'194'304;  // PID_MAX_LIMIT (proc(5)).
    for (pid_t process = 2; process <= most; ++process) {
      siginfo_t ended{};
      const bool is_ours = waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT) == 0;
      if (is_ours && process != command_) kill(process, signal);
    }
  }

  // -1 without /proc, and for that of another PID namespace, where our children have other numbers.
  static int open_our_proc() noexcept {
    const int directory = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return -1;
    std::array<char, 32> self;
    const ssize_t count = readlinkat(directory, "self", self.data(), self.size());
    const bool is_ours = count > 0 && text::parse_whole<pid_t>(
                                          std::string_view(self.data(), static_cast<std::size_t>(count))) == getpid();
    if (is_ours) return directory;
    close(directory);
    return -1;
  }

  // Calls `each` with the number and state of the command and of each other process below the guard.
  template <class Each>
  void for_each_descendant(Each&& each) const noexcept {
    const int directory = open_our_proc();
    if (command_ > 0) {
      const char state = directory < 0 ? '?' : stat_of(directory, command_).state;
      each(command_, state == '?' ? 'R' : state);
    }
    if (directory < 0) return;
    const pid_t guard = getpid();
    for_each_number(directory, [&](int process, std::string_view) {
      if (process == command_) return;
      const Stat found = stat_of(directory, process);
      pid_t above = found.parent;
      while (above > 1 && above != guard) above = stat_of(directory, above).parent;
      if (above == guard) each(static_cast<pid_t>(process), found.state);
    });
    close(directory);
  }

  struct Stat {
    char state = '?';
    pid_t parent = 0;  // 0: no such process.
  };

  static bool has_ended(char state) noexcept { return state == 'Z' || state == 'X' || state == '?'; }

  // proc(5), /proc/<pid>/stat: number, (name), state, number of the parent. A name may contain anything, also ')'.
  static Stat stat_of(int directory, pid_t process) noexcept {
    std::array<char, 512> text;
    constexpr std::string_view file_name = "/stat";
    char* path_end = std::to_chars(text.data(), text.data() + text.size() - file_name.size() - 1, process).ptr;
    path_end = std::copy(file_name.begin(), file_name.end(), path_end);
    *path_end = '\0';
    const int file = openat(directory, text.data(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return {};
    const ssize_t count = read(file, text.data(), text.size());
    close(file);
    if (count <= 0) return {};
    const std::string_view stat(text.data(), static_cast<std::size_t>(count));
    constexpr std::size_t to_state = 2;   // ") S 1": from the bracket to the state,
    constexpr std::size_t to_parent = 4;  // and to the number.
    const auto bracket = stat.rfind(')');
    if (bracket == std::string_view::npos || bracket + to_parent >= stat.size()) return {};
    Stat out{.state = stat[bracket + to_state], .parent = 0};
    std::from_chars(stat.data() + bracket + to_parent, stat.data() + stat.size(), out.parent);
    return out;
  }

  // `once` no longer reads the command's output. It is read here, so that the command does not die of SIGPIPE.
  [[noreturn]] void swallow_output() noexcept {
    std::array<pollfd, 2> waits{};
    waits[0] = {.fd = options_.output_reader, .events = POLLIN, .revents = 0};
    waits[1] = {.fd = options_.error_reader, .events = POLLIN, .revents = 0};
    std::array<char, 65536> waste{};
    while (waits[0].fd >= 0 || waits[1].fd >= 0) {
      if (poll(waits.data(), waits.size(), -1) < 0) continue;
      for (pollfd& wait : waits) {
        if (wait.revents == 0) continue;
        const ssize_t count = read(wait.fd, waste.data(), waste.size());
        if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) wait.fd = -1;
      }
    }
    _exit(0);
  }

  const GuardOptions& options_;
  const int socket_;
  int children_ = -1;
  int timer_ = -1;
  int exec_error_ = -1;  // Gets the errno of its execve().
  int go_ = -1;          // Lets it begin, with GuardOptions::waits.
  bool begun_ = false;
  pid_t command_ = -1;  // 0: it has ended.
  int status_ = 0;
  std::int64_t term_at_ = no_moment;
  std::int64_t kill_at_ = no_moment;
  std::int64_t patience_ = 0;    // The longest pause.
  std::int64_t give_up_at_ = 0;  // Paused: until when.
  bool is_paused_ = false;
  std::array<pid_t, max_paused> paused_{};
  std::size_t paused_count_ = 0;  // May be more than there is room for.
  bool ending_ = false;
  bool clearing_ = false;  // The command has ended, and its remaining processes are being ended.
  bool interrupted_ = false;
  bool alone_ = false;      // `once` is gone.
  bool none_left_ = false;  // No child is left.
};

}  // namespace

std::string no_process_text(int error) {
  return std::string("cannot start another process: ") + std::strerror(error) +
         (error == EAGAIN ? ": raise the limit of processes (ulimit -u, TasksMax=, a container's limit of pids)" : "");
}

Guard start_guard(const GuardOptions& options) {
  if (!children_share_clock()) {  // The guard would see another time than that of the lease.
    throw Exception(ErrorKind::misuse,
                    "this process made a time namespace for its children, whose clock is another: start once as a "
                    "child of whatever made the namespace (unshare --fork)");
  }
  int sockets[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    throw Exception(ErrorKind::unavailable, std::string("cannot create a socket pair: ") + std::strerror(errno));
  }
  const pid_t pid = fork();
  if (pid == 0) {
    close(sockets[0]);
    GuardLoop(options, sockets[1]).run();
  }
  const int why = errno;
  close(sockets[1]);
  if (pid < 0) {
    close(sockets[0]);
    throw Exception(ErrorKind::unavailable, no_process_text(why));
  }
  return {.pid = pid, .socket = sockets[0]};
}

}  // namespace once::cli
