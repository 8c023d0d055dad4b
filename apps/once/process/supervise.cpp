#include "process/supervise.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "process/guard.hpp"

extern char** environ;

namespace once::cli {

namespace {

constexpr std::size_t chunk_bytes = 65536;
constexpr std::size_t blocking_write_bytes = 4096;  // PIPE_BUF: the room in a pipe that poll() promises.

[[noreturn]] void fail(const char* what) {
  throw Exception(ErrorKind::unavailable, std::string("cannot ") + what + ": " + std::strerror(errno));
}

Uptime boottime_left(Uptime until) { return std::max(until - system_clock()->uptime(), Uptime{0}); }

// A terminal of its own, as large as ours. It leaves line ends as they are, as a pipe does.
void open_terminal(Fd& reader, Fd& writer) {
  winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  for (const int ours : {STDOUT_FILENO, STDERR_FILENO, STDIN_FILENO}) {
    winsize seen{};
    if (ioctl(ours, TIOCGWINSZ, &seen) != 0 || seen.ws_col == 0) continue;
    size = seen;
    break;
  }
  int ends[2] = {-1, -1};
  if (openpty(&ends[0], &ends[1], nullptr, nullptr, &size) != 0) fail("open a terminal for the command (--tty)");
  reader.reset(ends[0]);
  writer.reset(ends[1]);
  termios settings{};
  if (tcgetattr(writer.get(), &settings) != 0) fail("set up the command's terminal");
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  if (tcsetattr(writer.get(), TCSANOW, &settings) != 0) fail("set up the command's terminal");
  for (const int end : ends) {
    if (fcntl(end, F_SETFD, FD_CLOEXEC) != 0) fail("set up the command's terminal");
  }
}

// One stream of the command: copies its pipe, or terminal, to the recorder and to our own stream.
class Pump {
 public:
  Pump(Stream stream, int target, bool terminal = false)
      : stream_(stream), target_(target), buffer_(chunk_bytes, '\0') {
    if (terminal) {
      open_terminal(reader_, writer_);
    } else {
      int ends[2] = {-1, -1};
      if (pipe2(ends, O_CLOEXEC) != 0) fail("create a pipe");
      reader_.reset(ends[0]);
      writer_.reset(ends[1]);
    }
    if (fcntl(reader_.get(), F_SETFL, O_NONBLOCK) != 0) fail("set up a pipe");
    struct stat kind {};
    if (fstat(target, &kind) != 0) {
      broken_ = true;  // The program was started without this stream.
    } else if (S_ISREG(kind.st_mode)) {
      write_bytes_ = chunk_bytes;
    } else if (S_ISFIFO(kind.st_mode)) {
      // O_NONBLOCK would apply to all processes that share the pipe, so we open it again. If that is not allowed, small
      // writes are enough.
      own_.reset(open(("/proc/self/fd/" + std::to_string(target)).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
      if (own_) {
        target_ = own_.get();
        write_bytes_ = chunk_bytes;
      }
    } else if (S_ISSOCK(kind.st_mode)) {
      socket_ = true;
      write_bytes_ = chunk_bytes;
    }
  }

  [[nodiscard]] int reader() const noexcept { return reader_.get(); }
  [[nodiscard]] int writer() const noexcept { return writer_.get(); }
  void started() { writer_.reset(); }

  [[nodiscard]] bool open_end() const noexcept { return static_cast<bool>(reader_); }
  [[nodiscard]] bool pending() const noexcept { return from_ < to_; }
  [[nodiscard]] bool idle() const noexcept { return !reader_ && !pending(); }
  [[nodiscard]] int error() const noexcept { return error_; }

  [[nodiscard]] pollfd read_wait() const noexcept {
    return {.fd = pending() ? -1 : reader_.get(), .events = POLLIN, .revents = 0};
  }
  [[nodiscard]] pollfd write_wait() const noexcept {
    return {.fd = pending() ? target_ : -1, .events = POLLOUT, .revents = 0};
  }

  // Reads up to one buffer. False if there was nothing.
  bool take(Recorder& recorder) {
    if (!reader_ || pending()) return false;
    const ssize_t count = read(reader_.get(), buffer_.data(), buffer_.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) {  // EIO: nobody has the terminal open any more.
      reader_.reset();
      return false;
    }
    from_ = 0;
    to_ = static_cast<std::size_t>(count);
    recorder.add(stream_, std::string_view(buffer_).substr(0, to_));
    if (broken_) from_ = to_;
    return true;
  }

  // Writes as much as the target takes now.
  void pass() {
    while (pending()) {
      const std::size_t wanted = std::min(to_ - from_, write_bytes_);
      const ssize_t count = socket_ ? send(target_, buffer_.data() + from_, wanted, MSG_DONTWAIT | MSG_NOSIGNAL)
                                    : write(target_, buffer_.data() + from_, wanted);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count < 0) {
        // Our reader is gone. The command does not notice, and its output is kept for replays.
        if (errno != EPIPE) error_ = errno;
        give_up();
        return;
      }
      from_ += static_cast<std::size_t>(count);
      if (write_bytes_ == blocking_write_bytes) return;  // More might block: ask poll() again.
    }
  }

  void give_up() {
    broken_ = true;
    from_ = to_ = 0;
  }

  // Only the present contents of the pipe: a process that still has it might write forever.
  void take_rest(Recorder& recorder) {
    int left = 0;
    if (!reader_ || ioctl(reader_.get(), FIONREAD, &left) != 0) left = 0;
    rest_ = static_cast<std::size_t>(std::max(left, 0));
    ending_ = true;
    go_on_ending(recorder);
  }
  void go_on_ending(Recorder& recorder) {
    while (ending_ && reader_ && !pending() && rest_ > 0) {
      if (!take(recorder)) break;
      rest_ -= std::min(rest_, to_);
      pass();
    }
    if (ending_ && (rest_ == 0 || !reader_)) reader_.reset();
  }
  [[nodiscard]] bool ending() const noexcept { return ending_; }

 private:
  const Stream stream_;
  int target_;
  Fd own_;
  Fd reader_;
  Fd writer_;
  std::string buffer_;
  std::size_t from_ = 0;
  std::size_t to_ = 0;
  std::size_t write_bytes_ = blocking_write_bytes;
  std::size_t rest_ = 0;
  bool socket_ = false;
  bool broken_ = false;
  bool ending_ = false;
  int error_ = 0;
};

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& string : strings) out.push_back(const_cast<char*>(string.c_str()));
  out.push_back(nullptr);
  return out;
}

// The command's environment, in memory that it shares with `once`: its process is forked before the claim, whose token
// it gets.
class SharedEnvironment {
 public:
  explicit SharedEnvironment(std::size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) fail("get memory for the command's environment");
  }
  SharedEnvironment(const SharedEnvironment&) = delete;
  SharedEnvironment& operator=(const SharedEnvironment&) = delete;
  ~SharedEnvironment() { munmap(memory_, bytes_); }

  [[nodiscard]] char* const* entries() const noexcept { return static_cast<char* const*>(memory_); }

  // The pointers, then the texts. False: there is no room for them.
  bool set(const std::vector<std::string>& variables) noexcept {
    if (room_for(variables) > bytes_) return false;
    auto* const pointers = static_cast<char**>(memory_);
    char* at = reinterpret_cast<char*>(pointers + variables.size() + 1);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      pointers[i] = at;
      at = std::copy_n(variables[i].c_str(), variables[i].size() + 1, at);
    }
    pointers[variables.size()] = nullptr;
    return true;
  }

  static std::size_t room_for(const std::vector<std::string>& variables) noexcept {
    std::size_t bytes = sizeof(char*);
    for (const std::string& variable : variables) bytes += sizeof(char*) + variable.size() + 1;
    return bytes;
  }

 private:
  const std::size_t bytes_;
  void* memory_;
};

class Supervision final : public PreparedCommand {
 public:
  Supervision(SuperviseOptions options, Signals& signals)
      : options_(std::move(options)),
        signals_(signals),
        environment_(
            SharedEnvironment::room_for(options_.environment.empty() ? environment_with({}) : options_.environment) +
            room_for_ours),
        output_(Stream::output, STDOUT_FILENO, options_.terminal),
        error_(Stream::error, STDERR_FILENO) {
    prepare();
  }

  Supervision(const Supervision&) = delete;
  Supervision& operator=(const Supervision&) = delete;
  ~Supervision() override {
    // A surviving command is not waited for.
    if (guard_ > 0 && (!options_.survive || !begun_)) end_guard();
  }

  [[nodiscard]] SuperviseOptions& options() noexcept override { return options_; }

  Supervised run(Recorder& recorder) override {
    recorder_ = &recorder;
    try {
      tell_lease();  // First, so that the guard never watches over a command without knowing when it must end.
      if (!begin()) return result_;
      while (!done()) {
        turn();
      }
    } catch (const std::exception& error) {
      throw CommandUnwatched(ErrorKind::unavailable,
                             std::string("the command was stopped, because once could not watch it: ") + error.what());
    }
    end_guard();
    result_.output_error = output_.error() != 0 ? output_.error() : error_.error();
    return result_;
  }

 private:
  void prepare() {
    const std::vector<char*> arguments = pointers(options_.command);
    GuardOptions guard;
    guard.arguments = arguments.data();
    guard.environment = environment_.entries();
    guard.waits = true;
    guard.input = options_.input;
    guard.output = output_.writer();
    guard.error = options_.terminal ? output_.writer() : error_.writer();
    guard.output_reader = output_.reader();
    guard.error_reader = error_.reader();
    guard.signal_mask = signals_.old_mask();
    guard.on_pipe = signals_.old_pipe();
    guard.on_child = signals_.old_child();
    guard.survive = options_.survive;
    guard.grace_ns = Uptime(options_.grace).count();
    const Guard started = start_guard(guard);
    guard_ = started.pid;
    guard_socket_.reset(started.socket);
    output_.started();
    error_.started();
    GuardReport report;
    ssize_t count = 0;
    do count = recv(guard_socket_.get(), &report, sizeof report, 0);
    while (count < 0 && errno == EINTR);
    const bool is_whole = count == static_cast<ssize_t>(sizeof report);
    if (is_whole && report.kind == GuardReport::Kind::ready) return;
    end_guard();
    throw Exception(ErrorKind::unavailable,
                    is_whole ? no_process_text(report.value) : "the process that guards the command was killed");
  }

  // False: it could not begin, as result_ says.
  bool begin() {
    const auto refuse = [&](int why) {
      result_.kind = Supervised::Kind::not_started;
      result_.error = why;
      end_guard();
      return false;
    };
    if (!environment_.set(options_.environment)) return refuse(E2BIG);
    const GuardOrder start{.kind = GuardOrder::Kind::start};
    if (send(guard_socket_.get(), &start, sizeof start, MSG_NOSIGNAL) < 0) return refuse(ECANCELED);
    begun_ = true;
    return true;
  }

  // Closing the socket makes it end the rest of the command.
  void end_guard() {
    guard_socket_.reset();
    int status = 0;
    while (waitpid(guard_, &status, 0) < 0 && errno == EINTR) {
    }
    guard_ = -1;
  }

  [[nodiscard]] bool done() const noexcept {
    if (!command_over_) return false;
    return result_.kind == Supervised::Kind::not_started || (output_.idle() && error_.idle());
  }

  void turn() {
    std::array<pollfd, 7> waits{};
    waits[0] = {.fd = options_.take_signals ? signals_.fd() : -1, .events = POLLIN, .revents = 0};
    waits[1] = {.fd = command_over_ ? -1 : guard_socket_.get(), .events = POLLIN, .revents = 0};
    waits[2] = {.fd = options_.changed == nullptr ? -1 : options_.changed->fd(), .events = POLLIN, .revents = 0};
    waits[3] = output_.read_wait();
    waits[4] = error_.read_wait();
    waits[5] = output_.write_wait();
    waits[6] = error_.write_wait();
    int timeout = -1;
    if (command_over_ && !output_.ending()) timeout = poll_timeout(boottime_left(output_wait_until_));
    const int ready = poll(waits.data(), waits.size(), timeout);
    if (ready < 0) {
      if (errno == EINTR) return;
      fail("wait for the command");
    }
    if (waits[0].revents != 0) on_signals();
    if (waits[2].revents != 0) {
      options_.changed->clear();
      tell_lease();
    }
    // Output before the end: it was there first.
    for (Pump* const pump : {&output_, &error_}) {
      const bool readable = waits[pump == &output_ ? 3 : 4].revents != 0;
      const bool writable = waits[pump == &output_ ? 5 : 6].revents != 0;
      if (readable && !pump->ending()) pump->take(*recorder_);
      if (readable || writable) pump->pass();
      if (pump->ending()) pump->go_on_ending(*recorder_);
    }
    if (waits[1].revents != 0) on_report();
    if (command_over_ && !output_.ending() && boottime_left(output_wait_until_) == Uptime{0}) {
      if (result_.interrupted_by != 0) give_up_output();  // The signal may have come just before the end was known.
      output_.take_rest(*recorder_);
      error_.take_rest(*recorder_);
    }
  }

  void on_signals() {
    while (const auto signal = signals_.next()) {
      if (Signals::asks_for_end(signal->number)) {
        result_.interrupted_by = signal->number;
        order({.kind = GuardOrder::Kind::interrupted});
        if (command_over_) give_up_output();  // Only the output is still waited for.
      }
      if (signal->sent) order({.kind = GuardOrder::Kind::signal, .value = signal->number});
      if (signal->number == SIGTSTP) Signals::stop_ourselves();
    }
  }

  // Later output is kept, but does not wait for a reader.
  void give_up_output() {
    output_.give_up();
    error_.give_up();
  }

  void on_report() {
    GuardReport report;
    const ssize_t count = recv(guard_socket_.get(), &report, sizeof report, MSG_DONTWAIT);
    // ECONNRESET: the guard ended before it read our last order. Returned once, before the guard's own reports.
    if (count < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) return;
    if (count != static_cast<ssize_t>(sizeof report)) {
      result_.kind = Supervised::Kind::guard_died;
      return command_is_over();
    }
    switch (report.kind) {
      case GuardReport::Kind::ready:
      case GuardReport::Kind::started:
        return;
      case GuardReport::Kind::not_started:
        result_.kind = Supervised::Kind::not_started;
        result_.error = report.value;
        return command_is_over();
      case GuardReport::Kind::ended:
        result_.out_of_time = report.out_of_time;
        result_.end.signaled = WIFSIGNALED(report.value);
        result_.end.code =
            static_cast<std::uint8_t>(result_.end.signaled ? WTERMSIG(report.value) : WEXITSTATUS(report.value));
        return command_is_over();
    }
  }

  void command_is_over() {
    command_over_ = true;
    output_wait_until_ = system_clock()->uptime() + options_.output_wait;
  }

  void order(const GuardOrder& what) {
    // If the guard is gone, on_report() sees it.
    if (guard_socket_ && send(guard_socket_.get(), &what, sizeof what, MSG_NOSIGNAL) < 0 && errno != EPIPE &&
        errno != ECONNRESET) {
      fail("talk to the guard process");
    }
  }

  void tell_lease() {
    if (!options_.end_when_lost || command_over_) return;
    if (options_.lost && options_.lost()) {
      const Uptime kill_at = system_clock()->uptime() + options_.grace;
      return order({.kind = GuardOrder::Kind::end, .value = 0, .limit = kill_at.count()});
    }
    const std::optional<Uptime> deadline = options_.deadline ? options_.deadline() : std::nullopt;
    if (!deadline) return;
    // Killed before another attempt may begin. Asked to end shortly before that, so that a late renewal does not end
    // it.
    const Uptime early = std::min<Uptime>(options_.grace, Uptime(options_.lease) / 6);
    order({.kind = GuardOrder::Kind::lease,
           .value = (*deadline - early).count(),
           .limit = deadline->count(),
           .patience = Uptime(options_.lease).count()});
  }

  // Besides the environment of `once`: the variables of an operation.
  static constexpr std::size_t room_for_ours = std::size_t{64} * 1024;

  SuperviseOptions options_;
  Signals& signals_;
  SharedEnvironment environment_;
  Recorder* recorder_ = nullptr;
  Pump output_;
  Pump error_;
  pid_t guard_ = -1;
  Fd guard_socket_;
  bool begun_ = false;
  bool command_over_ = false;
  Uptime output_wait_until_{};
  Supervised result_;
};

}  // namespace

std::unique_ptr<PreparedCommand> prepare_command(SuperviseOptions options, Signals& signals) {
  return std::make_unique<Supervision>(std::move(options), signals);
}

Supervised supervise(SuperviseOptions options, Signals& signals, Recorder& recorder) {
  return Supervision(std::move(options), signals).run(recorder);
}

TracePtr trace_from_environment() {
  const char* const parent = std::getenv("TRACEPARENT");
  const char* const state = std::getenv("TRACESTATE");
  return parent == nullptr ? nullptr : trace_from(parent, state == nullptr ? "" : state);
}

void add_trace(std::vector<std::pair<std::string, std::string>>& variables, const TraceContext& trace) {
  if (trace.parent.empty()) return;
  variables.emplace_back("TRACEPARENT", trace.parent.text());
  variables.emplace_back("TRACESTATE", trace.state);
}

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& ours) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(ours.begin(), ours.end(), [&](const auto& pair) { return pair.first == name; });
    if (!replaced) out.emplace_back(text);
  }
  for (const auto& [name, value] : ours) {
    // The environment cannot contain NUL: such a value is left out, not cut.
    if (value.find('\0') == std::string::npos) out.push_back(name + "=" + value);
  }
  return out;
}

std::vector<std::string> environment_of_command(const std::vector<std::pair<std::string, std::string>>& ours) {
  std::vector<std::string> out = environment_with(ours);
  std::erase_if(out, [](const std::string& entry) { return entry.starts_with("ONCE_DISABLED="); });
  return out;
}

int poll_timeout(std::chrono::nanoseconds left) {
  return static_cast<int>(std::clamp<Millis::rep>(std::chrono::ceil<Millis>(left).count(), 0, 60'000));
}

}  // namespace once::cli
