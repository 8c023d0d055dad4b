#include "process/ask_command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/key.hpp>
#include <once/platform/system.hpp>

#include "operators/run_result.hpp"
#include "platform/file.hpp"
#include "process/supervise.hpp"

namespace once::cli {

namespace {

constexpr int nap_ms = 10;  // How late the command's end may be noticed.

std::vector<std::string> ask_environment(const AskCommand& ask, const Record& unknown) {
  const Key key = Key::from_stored(unknown.key);
  return environment_of_command({{"ONCE_KEY", std::string(key.name())},
                                 {"ONCE_SCOPE", key.scope()},
                                 {"ONCE_LABEL", unknown.label},
                                 {"ONCE_ATTEMPT", std::to_string(unknown.attempt)},
                                 {"ONCE_TOKEN", std::to_string(unknown.token)},
                                 {"ONCE_HOLDER", unknown.holder},
                                 {"ONCE_CREATED_MS", std::to_string(unix_ms(unknown.created_at))},
                                 {"ONCE_DERIVED_KEY", derived_key(unknown.key, ask.derive_name)}});
}

// 0 or errno. The command leads a process group, so that all of it can be killed.
int spawn_shell(const AskCommand& ask, const Record& unknown, int out, pid_t& pid) {
  std::vector<std::string> environment = ask_environment(ask, unknown);
  std::vector<char*> variables;
  variables.reserve(environment.size() + 1);
  for (std::string& variable : environment) variables.push_back(variable.data());
  variables.push_back(nullptr);
  std::array<std::string, 3> words{"sh", "-c", ask.command};
  std::array<char*, 4> arguments{words[0].data(), words[1].data(), words[2].data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  sigset_t none;  // It must not inherit ignored or blocked signals.
  sigset_t usual;
  sigemptyset(&none);
  sigfillset(&usual);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int error = posix_spawn(&pid, "/bin/sh", &actions, &attributes, arguments.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// Reads what is there. False: the end.
bool read_some(int fd, Recorder& recorder) {
  std::array<char, 16'384> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
  for (;;) {
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count > 0) {
      recorder.add(Stream::output, {buffer.data(), static_cast<std::size_t>(count)});
    } else if (count == 0 || errno != EINTR) {
      return count != 0 && errno == EAGAIN;
    }
  }
}

// Waits for the command, and kills it with its group if that takes too long. Empty, with the reason: it was killed.
std::optional<CommandEnd> wait_for_end(const AskCommand& ask, pid_t pid, int out, Recorder& recorder,
                                       std::string& why) {
  const Uptime end = system_clock()->uptime() + ask.timeout;
  bool is_open = true;
  bool killed = false;
  for (;;) {
    std::array<pollfd, 2> waits{{{.fd = is_open ? out : -1, .events = POLLIN, .revents = 0},
                                 {.fd = killed ? -1 : ask.wake, .events = POLLIN, .revents = 0}}};
    poll(waits.data(), waits.size(), nap_ms);
    if (is_open) is_open = read_some(out, recorder);
    int raw = 0;
    const pid_t waited = waitpid(pid, &raw, WNOHANG);
    if (waited == pid) {
      if (is_open) read_some(out, recorder);
      if (killed) return std::nullopt;
      CommandEnd ended;
      ended.signaled = WIFSIGNALED(raw);
      ended.code = static_cast<std::uint8_t>(ended.signaled ? WTERMSIG(raw) : WEXITSTATUS(raw));
      return ended;
    }
    if (waited < 0 && errno != EINTR) {
      why = "its end cannot be known";
      return std::nullopt;
    }
    if (killed) continue;
    if (ask.gives_up && ask.gives_up()) {
      why = "once is ending";
    } else if (system_clock()->uptime() >= end) {
      why = "it did not end within " + std::to_string(ask.timeout.count()) + " ms";
    } else {
      continue;
    }
    killed = true;
    kill(-pid, SIGKILL);
  }
}

}  // namespace

Finding ask_command(const AskCommand& ask, const Record& unknown) {
  const auto not_known = [](const std::string& why) { return Finding::not_known("the reconcile command: " + why); };
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return not_known(std::strerror(errno));
  const Fd out(ends[0]);
  Fd in(ends[1]);
  if (fcntl(out.get(), F_SETFL, O_NONBLOCK) != 0) return not_known(std::strerror(errno));
  pid_t pid = 0;
  if (const int error = spawn_shell(ask, unknown, in.get(), pid); error != 0) return not_known(std::strerror(error));
  in.reset();
  Recorder recorder(ask.output_limit);
  std::string why;
  const std::optional<CommandEnd> ended = wait_for_end(ask, pid, out.get(), recorder, why);
  if (!ended) return not_known(why);
  const std::string code = ended->text();
  const auto result = [&] {
    return Result::inlined(ask.output_limit == 0 ? Recorder(0).finish(*ended) : recorder.finish(*ended),
                           std::string(run_content_type));
  };
  if (ended->signaled) return not_known(code);
  switch (ended->code) {
    case happened_code:
      return Finding::happened(result(), "the reconcile command ended with " + code);
    case not_done_code:
      return Finding::not_done("the reconcile command ended with " + code);
    case failed_code: {
      Finding failed = Finding::failed({.code = code, .message = "the reconcile command ended with " + code},
                                       "the reconcile command ended with " + code);
      failed.result = result();
      return failed;
    }
    default:
      return not_known(code);
  }
}

namespace {

AskCommand until_set(AskCommand ask, const Wakeup& over, const std::atomic<bool>& ending) {
  ask.wake = over.fd();
  ask.gives_up = [&ending] { return ending.load(); };
  return ask;
}

ReconcileOptions asking(ReconcileOptions options, const AskCommand& ask) {
  options.ask = ask_blocking([&ask](const Record& record) { return ask_command(ask, record); });
  return options;
}

}  // namespace

Asking::Asking(AskCommand ask, ReconcileOptions options)
    : ask_(until_set(std::move(ask), over_, ending_)), reconciler_(asking(std::move(options), ask_)) {}

void Asking::run(Millis pause) {
  while (!ending_) {
    pollfd wait{.fd = over_.fd(), .events = POLLIN, .revents = 0};
    poll(&wait, 1, poll_timeout(pause));
    if (!ending_) reconciler_.pass();
  }
}

void Asking::end() noexcept {
  ending_ = true;
  over_.set();
}

}  // namespace once::cli
