#include "platform/command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "platform/file.hpp"

namespace once {

namespace {

constexpr std::size_t max_output_bytes = std::size_t{64} << 10U;
constexpr int nap_ms = 20;  // How late the cancellation, or the end of the command, may be noticed.

// The words of a POSIX shell's command line, without expansions and operators. Empty: an open quote.
std::optional<std::vector<std::string>> split(std::string_view command) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'' && i + 1 < command.size() &&
               (quote == 0 || command[i + 1] == '"' || command[i + 1] == '\\')) {
      words.back() += command[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) return {};
  return words;
}

// Killed and waited for, unless it has ended.
class Child {
 public:
  explicit Child(pid_t pid) noexcept : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (ended_) return;
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  // Its exit status, 128 + a signal's number, or 0 if other code of this process takes all exit statuses (as with
  // SIGCHLD ignored: waitpid(2)). Empty: it runs.
  std::optional<int> status() noexcept {
    int raw = 0;
    const pid_t pid = waitpid(pid_, &raw, WNOHANG);
    if (pid == 0 || (pid < 0 && errno == EINTR)) return {};
    ended_ = true;
    if (pid < 0) return 0;
    return WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  }

 private:
  const pid_t pid_;
  bool ended_ = false;
};

// Ours, with `variables` in it.
std::vector<char*> environment_with(const std::vector<std::string>& variables) {
  std::vector<char*> all;
  const auto is_replaced = [&](std::string_view entry) {
    const std::string_view name = entry.substr(0, entry.find('=') + 1);
    return std::ranges::any_of(variables, [&](std::string_view other) { return other.starts_with(name); });
  };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_replaced(*entry)) all.push_back(*entry);
  }
  for (const std::string& entry : variables) all.push_back(const_cast<char*>(entry.c_str()));
  all.push_back(nullptr);
  return all;
}

// 0 or errno. The child's standard output is `out`, and its standard error `errors`, unless that is -1.
int spawn(const std::vector<std::string>& words, const std::vector<std::string>& variables, int out, int errors,
          pid_t& pid) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  if (errors >= 0) posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // The command must not inherit ignored or blocked signals.
  sigset_t none;
  sigset_t usual;
  sigemptyset(&none);
  sigfillset(&usual);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> environment = environment_with(variables);
  const int error = posix_spawnp(&pid, arguments.front(), &actions, &attributes, arguments.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// What it wrote at last, for a message.
std::string last_words(const Fd& errors) {
  constexpr off_t most = 1'000;
  const off_t size = errors ? lseek(errors.get(), 0, SEEK_END) : 0;
  std::array<char, most> bytes{};
  const ssize_t count = size > 0 ? pread(errors.get(), bytes.data(), bytes.size(), std::max<off_t>(size - most, 0)) : 0;
  std::string words(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  while (words.ends_with('\n')) words.pop_back();
  return words.empty() ? words : ": " + clean_text(words);
}

}  // namespace

std::string output_of(std::string_view command, const CommandRun& run) {
  const auto fail = [&](ErrorKind kind, const std::string& what) {
    // Without the command, whose arguments may be secret.
    throw Exception(kind, run.name + " " + what);
  };
  const auto words = split(command);
  if (!words) fail(ErrorKind::misuse, "has a quote that is left open");
  if (words->empty() || words->front().empty()) fail(ErrorKind::misuse, "names no command");

  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    fail(ErrorKind::unavailable, std::string("cannot run: ") + std::strerror(errno));
  const Fd out(ends[0]);
  Fd in(ends[1]);
  const Fd errors(run.keeps_errors ? memfd_create("once-command", MFD_CLOEXEC) : -1);
  if (run.keeps_errors && !errors) fail(ErrorKind::unavailable, std::string("cannot run: ") + std::strerror(errno));
  pid_t pid = 0;
  if (const int error = spawn(*words, run.variables, in.get(), errors.get(), pid); error != 0) {
    fail(ErrorKind::misuse, "cannot be started: " + words->front() + ": " + std::strerror(error));
  }
  in.reset();
  Child child(pid);

  const Uptime end = system_clock()->uptime() + run.limit;
  // Waits for the pipe, or a short time.
  const auto nap = [&](int fd) {
    if (run.given_up && run.given_up()) fail(ErrorKind::unavailable, "was given up, as nobody waits for it any more");
    if (system_clock()->uptime() >= end) {
      fail(ErrorKind::unavailable, "did not end within " + std::to_string(run.limit.count() / 1000) + " s");
    }
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    return poll(&one, 1, nap_ms) > 0;
  };
  std::string text;
  std::array<char, 4096> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
  while (true) {
    if (!nap(out.get())) continue;
    const ssize_t count = read(out.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > max_output_bytes) fail(ErrorKind::misuse, "printed more than 64 KiB");
  }
  std::optional<int> status;
  while (!(status = child.status())) nap(-1);
  if (*status != 0) {
    fail(*status == run.misuse_status ? ErrorKind::misuse : ErrorKind::unavailable,
         "failed with status " + std::to_string(*status) + last_words(errors));
  }
  return text;
}

}  // namespace once
