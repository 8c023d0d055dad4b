#include "process/mcp_command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/error.hpp>
#include <once/platform/system.hpp>
#include <once/reconcile.hpp>

#include "frontends/mcp/lines.hpp"
#include "frontends/mcp/lister.hpp"
#include "frontends/mcp/session.hpp"
#include "frontends/mcp/suggestion.hpp"
#include "frontends/mcp/words.hpp"
#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "process/mcp_server.hpp"
#include "process/supervise.hpp"
#include "process/sweeper.hpp"
#include "settings/mcp_file.hpp"
#include "settings/spans.hpp"

namespace once::cli {

namespace {

constexpr std::size_t piece_bytes = 65536;
constexpr std::size_t max_unsent_bytes = std::size_t{1} << 20;  // In one direction: above it, its source is not read.
constexpr Millis grace{2'000};                                  // For the server, from SIGTERM to SIGKILL.
constexpr Millis leave{
    5'000};  // For the server, from the end of its input to SIGTERM; and for last lines to the client.
constexpr Millis linger{1'000};          // For the server, from the end of its output to its own.
constexpr Millis list_timeout{120'000};  // Some servers are installed at their first start.

// What is read at once. False: there is nothing now. At the end of the stream, `is_over` becomes true.
template <class Take>
bool read_piece(int fd, std::string& buffer, bool& is_over, Take&& take) {
  buffer.resize(piece_bytes);
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count <= 0) {
    is_over = true;
    return false;
  }
  take(std::string_view(buffer).substr(0, static_cast<std::size_t>(count)));
  return true;
}

// Our standard output, which may be anything and belongs to others too: it is not made non-blocking.
class ClientPipe {
 public:
  ClientPipe() {
    struct stat kind {};
    if (fstat(STDOUT_FILENO, &kind) != 0) return;
    is_socket_ = S_ISSOCK(kind.st_mode);
    if (S_ISFIFO(kind.st_mode)) own_.reset(open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    is_small_ = !is_socket_ && !own_;
  }

  void add(std::string_view line) {
    if (is_broken_) return;
    text_.append(line);
    text_ += '\n';
  }
  [[nodiscard]] std::size_t unsent() const noexcept { return text_.size() - sent_; }
  [[nodiscard]] pollfd wait() const noexcept {
    return {.fd = unsent() == 0 ? -1 : fd(), .events = POLLOUT, .revents = 0};
  }
  [[nodiscard]] bool is_broken() const noexcept { return is_broken_; }

  // Writes what fits now, after poll().
  void pass() {
    constexpr std::size_t promised_by_poll = 4096;  // PIPE_BUF
    while (unsent() != 0) {
      const std::size_t wanted = is_small_ ? std::min(unsent(), promised_by_poll) : unsent();
      const char* const from = text_.data() + sent_;
      const ssize_t count =
          is_socket_ ? send(STDOUT_FILENO, from, wanted, MSG_DONTWAIT | MSG_NOSIGNAL) : write(fd(), from, wanted);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) break;
      if (count < 0) {
        is_broken_ = true;
        sent_ = text_.size();
        break;
      }
      sent_ += static_cast<std::size_t>(count);
      if (is_small_) break;
    }
    if (unsent() == 0) text_.clear(), sent_ = 0;
    if (sent_ > max_unsent_bytes) text_.erase(0, std::exchange(sent_, 0));
  }

 private:
  [[nodiscard]] int fd() const noexcept { return own_ ? own_.get() : STDOUT_FILENO; }

  Fd own_;
  std::string text_;
  std::size_t sent_ = 0;
  bool is_socket_ = false;
  bool is_small_ = false;
  bool is_broken_ = false;
};

// What the engine's threads report.
class Reports {
 public:
  struct Report {
    mcp::CallNumber call = 0;
    std::optional<Begin> begin = {};
    std::optional<Finish> finish = {};
    Callback<void(Finding)> ask = {};  // The question is due, and this takes what was found out.
    std::optional<Reconciled> reconciled = {};
  };
  void add(Report report) {
    const std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
    wakeup_.set();
  }
  std::vector<Report> take() {
    wakeup_.clear();
    const std::lock_guard lock(mutex_);
    return std::exchange(reports_, {});
  }
  [[nodiscard]] int fd() const noexcept { return wakeup_.fd(); }

 private:
  Wakeup wakeup_;
  std::mutex mutex_;
  std::vector<Report> reports_;
};

std::string random_id() {
  std::array<std::uint8_t, 8> bytes{};
  system_random()->fill(bytes);
  return "once-" + to_hex(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

class Mcp {
 public:
  Mcp(const McpFile& file, const mcp::Rules& rules, const McpOptions& options, std::vector<std::string> command)
      : file_(file),
        options_(options),
        command_(std::move(command)),
        session_(rules, {.answer_timeout = file.answer_timeout,
                         .max_requests = file.max_requests,
                         .max_waiting_bytes = file.buffer_limit,
                         .own_id = random_id()}),
        from_client_({.max_bytes = file.message_limit}),
        from_server_({.max_bytes = file.message_limit}) {}

  int run() {
    Signals signals;  // Before there are threads.
    signals_ = &signals;
    StoreOptions store = options_.store;
    if (store.url.empty()) store.url = file_.store;
    if (store.offload.empty()) store.offload = file_.offload;
    const StoreAccess access = open_access(store, Missing::create);
    require_bytes(access.url);
    require_shared(*access.store, false);
    const Spans spans(span_options(SpanKind::server, SpanKind::client));
    EngineOptions engine_options;
    engine_options.store = access.store;
    engine_options.offload = access.offload;
    engine_options.tracer = spans.tracer();
    engine_options.policy.max_inline_bytes = usable_bytes(*access.store);
    engine_options.holder = who() + ":" + std::to_string(getpid()) + " once mcp";
    engine_options.observer = service_log_observer(log_options(options_.log));
    engine_ = std::make_unique<Engine>(std::move(engine_options));
    reconciler_.emplace(ReconcileOptions{.store = access.store,
                                         .ask = [](const RecordPtr&, Callback<void(Finding)>) {},  // See reconcile().
                                         .tries = 0,  // Each call asks once.
                                         .at_once = 64,
                                         .observer = engine_->options().observer});
    std::optional<Sweeper> sweeper;
    if (file_.sweep_interval > Millis{0}) {
      sweeper.emplace(
          SweeperOptions{.store = access.store, .offload = access.offload, .interval = file_.sweep_interval});
    }
    server_.emplace(command_, signals);
    while (!is_over()) turn();
    return end();
  }

 private:
  struct Line {
    std::string text;
    mcp::CallNumber call = 0;
    std::size_t sent = 0;
  };

  static Uptime now() { return system_clock()->uptime(); }

  // Nothing is left to do: the server is gone, what it did is recorded, and the client has its answers.
  [[nodiscard]] bool is_over() const {
    return refused_ || (server_is_gone_ && !session_.has_calls() && releases_ == 0);
  }

  // ---- one turn of the loop

  void turn() {
    carry_out();
    if (is_over()) return;
    leave_if_idle();
    const bool reads_client = !client_is_gone_ && unsent_to_server_ < max_unsent_bytes;
    const bool reads_server =
        !server_is_gone_ && client_.unsent() < max_unsent_bytes && session_.reply_bytes() <= file_.buffer_limit;
    std::array<pollfd, 7> waits{};
    waits[0] = {.fd = signals_->fd(), .events = POLLIN, .revents = 0};
    waits[1] = {.fd = reports_->fd(), .events = POLLIN, .revents = 0};
    waits[2] = {.fd = server_is_gone_ ? -1 : server_->reports(), .events = POLLIN, .revents = 0};
    waits[3] = {.fd = reads_client ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
    waits[4] = {.fd = reads_server ? server_->output() : -1, .events = POLLIN, .revents = 0};
    waits[5] = client_.wait();
    waits[6] = {.fd = to_server_.empty() ? -1 : server_->input(), .events = POLLOUT, .revents = 0};
    if (poll(waits.data(), waits.size(), timeout()) < 0 && errno != EINTR) {
      throw Exception(ErrorKind::unavailable, std::string("cannot wait for the server: ") + std::strerror(errno));
    }
    if (waits[0].revents != 0) on_signals();
    if (waits[1].revents != 0) on_reports();
    if (waits[4].revents != 0) read_server();
    if (waits[2].revents != 0) on_server_report();
    if (waits[3].revents != 0) read_client();
    if (waits[5].revents != 0) client_.pass();
    if (waits[6].revents != 0) pass_to_server();
    if (client_.is_broken()) client_goes();
    session_.tick(now());
    if (stop_at_ && now() >= *stop_at_) server_goes("once was told to end");
    if (leave_at_ && now() >= *leave_at_) {
      leave_at_.reset();
      if (server_->output() < 0) server_goes(server_->how());
      if (!server_is_gone_) server_->end(grace);
    }
  }

  [[nodiscard]] int timeout() const {
    std::optional<Uptime> first = session_.deadline();
    for (const std::optional<Uptime>& other : {stop_at_, leave_at_}) {
      if (other && (!first || *other < *first)) first = other;
    }
    return first ? poll_timeout(*first - now()) : -1;
  }

  void carry_out() {
    for (;;) {
      std::vector<mcp::Action> actions = session_.take();
      if (actions.empty()) return;
      for (mcp::Action& action : actions) carry_out(action);
    }
  }

  void carry_out(mcp::Action& action) {
    using Kind = mcp::Action::Kind;
    switch (action.kind) {
      case Kind::to_client:
        return client_.add(action.text);
      case Kind::to_server:
        unsent_to_server_ += action.text.size() + 1;
        to_server_.push_back({.text = std::move(action.text) + "\n", .call = action.call});
        return;
      case Kind::begin:
        return begin(action.call, std::move(*action.request));
      case Kind::complete:
      case Kind::complete_as_failure:
      case Kind::complete_without_result:
      case Kind::hold:
        return finish(action);
      case Kind::release:
        return release(action);
      case Kind::reconcile:
        return reconcile(action.call, action.record);
      case Kind::found:
        if (auto answer = answers_.extract(action.call)) answer.mapped()(std::move(action.finding));
        return;
      case Kind::unprotected:
        return engine_->tell_unprotected("tool " + escaped(action.text), "");
      case Kind::note:
        return say(escaped(action.text), action.level);
      case Kind::refuse:
        for (const std::string& mistake : split(action.text, '\n')) say(mistake, LogLevel::err);
        refused_ = true;
        return;
    }
  }

  // ---- claims

  void begin(mcp::CallNumber call, Request request) {
    try {
      engine_->begin(std::move(request), [call, reports = reports_](Begin begin) {
        reports->add({.call = call, .begin = std::move(begin)});
      });
    } catch (const Exception& error) {
      Begin begin;
      begin.error = error.error();
      say("cannot claim: " + begin.error.message, LogLevel::err);
      reports_->add({.call = call, .begin = std::move(begin)});
    }
  }

  void finish(mcp::Action& action) {
    using Kind = mcp::Action::Kind;
    Claim& claim = claims_.at(action.call);
    FinishDone done = [call = action.call, reports = reports_](Finish finish) {
      reports->add({.call = call, .finish = std::move(finish)});
    };
    if (action.kind == Kind::hold) return claim.hold(action.text, std::move(done));
    Result result = Result::inlined(std::move(action.text), std::string(mcp::tool_content_type));
    if (action.kind == Kind::complete_without_result) {
      result.placement = Placement::dropped;
      result.size = file_.message_limit + 1;
    }
    if (action.kind == Kind::complete_as_failure) return claim.complete_as_failure(std::move(result), std::move(done));
    claim.complete(std::move(result), std::move(done));
  }

  void release(const mcp::Action& action) {
    const auto found = claims_.find(action.call);
    if (found == claims_.end()) return;
    const auto claim = std::make_shared<Claim>(std::move(found->second));
    claims_.erase(found);
    ++releases_;
    claim->release(action.text, [claim, reports = reports_](Finish) { reports->add({}); });
  }

  void reconcile(mcp::CallNumber call, const RecordPtr& record) {
    const AskService by = [call, reports = reports_](const RecordPtr&, Callback<void(Finding)> answer) {
      reports->add({.call = call, .ask = std::move(answer)});
    };
    reconciler_->ask(record, by, [call, reports = reports_](Reconciled reconciled) {
      reports->add({.call = call, .reconciled = std::move(reconciled)});
    });
  }

  void on_reports() {
    for (Reports::Report& report : reports_->take()) {
      if (report.begin) {
        if (report.begin->claim) claims_[report.call] = std::move(report.begin->claim);
        session_.began(report.call, *report.begin);
      } else if (report.finish) {
        session_.ended(report.call, *report.finish);
        claims_.erase(report.call);
      } else if (report.ask) {
        answers_[report.call] = std::move(report.ask);
        session_.question(report.call, now());
      } else if (report.reconciled) {
        session_.reconciled(report.call, *report.reconciled);
      } else {
        --releases_;
      }
      carry_out();
    }
  }

  // ---- the client

  void read_client() {
    bool is_end = false;
    read_piece(STDIN_FILENO, buffer_, is_end, [&](std::string_view piece) {
      from_client_.take(piece, {.line = [&](std::string&& line) { session_.from_client(std::move(line)); },
                                .too_long = [&](const std::string& id,
                                                std::uint64_t bytes) { session_.too_long_from_client(id, bytes); }});
    });
    if (is_end) client_goes();
  }

  void client_goes() {
    if (client_is_gone_) return;
    client_is_gone_ = true;
    session_.client_gone();
    if (session_.has_calls()) stop_at_ = now() + file_.stop_within;
  }

  void on_signals() {
    while (const auto signal = signals_->next()) {
      if (signal->number == SIGTSTP) Signals::stop_ourselves();
      if (!Signals::ends_us(signal->number)) continue;
      if (client_is_gone_ && was_signalled_) server_goes("once was told to end");
      if (leave_at_) leave_at_ = now();
      was_signalled_ = true;
      client_goes();
    }
  }

  // ---- the server

  // The client is gone, and no call runs: so the server is told by the end of its input.
  void leave_if_idle() {
    if (!client_is_gone_ || session_.has_calls() || server_->input() < 0) return;
    stop_at_.reset();
    leave_at_ = now() + leave;
    server_->close_input();
    to_server_.clear();
  }

  void pass_to_server() {
    while (!to_server_.empty()) {
      Line& line = to_server_.front();
      if (line.sent == 0 && line.call != 0) {
        const auto claim = claims_.find(line.call);
        const bool may = session_.may_send(line.call, claim != claims_.end() && claim->second.is_ours(), now());
        carry_out();
        if (!may) {
          drop_line();
          continue;
        }
      }
      const std::string_view rest = std::string_view(line.text).substr(line.sent);
      const ssize_t count = write(server_->input(), rest.data(), rest.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count < 0) {  // It reads no more, so it is about to end.
        server_->close_input();
        leave_at_ = now() + leave;
        return;
      }
      line.sent += static_cast<std::size_t>(count);
      if (line.sent == line.text.size()) drop_line();
    }
  }

  void drop_line() {
    unsent_to_server_ -= to_server_.front().text.size();
    to_server_.pop_front();
  }

  void read_server() {
    bool is_end = false;
    read_server_piece(is_end);
    if (!is_end) return;
    server_->close_output();
    leave_at_ = now() + linger;  // Most likely it has ended, and the guard is about to report how.
  }

  bool read_server_piece(bool& is_end) {
    return read_piece(server_->output(), buffer_, is_end, [&](std::string_view piece) {
      from_server_.take(piece, {.line = [&](std::string&& line) { session_.from_server(std::move(line)); },
                                .too_long = [&](const std::string& id,
                                                std::uint64_t bytes) { session_.too_long_from_server(id, bytes); }});
    });
  }

  void on_server_report() {
    server_->read_report();
    if (!server_->has_ended()) return;
    // What it wrote before its end. Others may still have the pipe open, so its end is not waited for.
    bool is_end = false;
    while (server_->output() >= 0 && read_server_piece(is_end)) carry_out();
    server_goes(server_->how());
  }

  void server_goes(const std::string& why) {
    if (server_is_gone_) return;
    server_is_gone_ = true;
    stop_at_.reset();
    leave_at_.reset();
    session_.server_gone(why);
    if (!server_->has_ended()) server_->end(grace);
    server_->close_input();
    to_server_.clear();
    unsent_to_server_ = 0;
    carry_out();
  }

  // ---- the end

  int end() {
    carry_out();
    // Its last answers say what must not be called again.
    const Uptime until = now() + leave;
    while (client_.unsent() != 0 && now() < until) {
      pollfd wait = client_.wait();
      if (poll(&wait, 1, poll_timeout(until - now())) > 0) client_.pass();
    }
    if (!server_->has_ended()) server_->end(grace);
    while (!server_->has_ended()) {
      pollfd wait{.fd = server_->reports(), .events = POLLIN, .revents = 0};
      if (poll(&wait, 1, -1) > 0) server_->read_report();
    }
    if (refused_) return exit_usage;
    if (client_is_gone_ && server_->start_error() == 0) return exit_ok;
    say(server_->how(), LogLevel::warning);
    return server_->exit_code();
  }

  const McpFile& file_;
  const McpOptions& options_;
  const std::vector<std::string> command_;
  mcp::Session session_;
  mcp::LineReader from_client_;
  mcp::LineReader from_server_;
  std::unique_ptr<Engine> engine_;
  std::optional<Reconciler> reconciler_;
  std::map<mcp::CallNumber, Callback<void(Finding)>> answers_;  // Of questions that the server was asked.
  std::optional<McpServer> server_;
  Signals* signals_ = nullptr;
  std::shared_ptr<Reports> reports_ = std::make_shared<Reports>();
  ClientPipe client_;
  std::string buffer_;
  std::deque<Line> to_server_;
  std::size_t unsent_to_server_ = 0;
  std::map<mcp::CallNumber, Claim> claims_;
  std::size_t releases_ = 0;        // Claims that are being released.
  std::optional<Uptime> stop_at_;   // What runs may finish until then.
  std::optional<Uptime> leave_at_;  // The server, told to end by the end of its input, has time until then.
  bool client_is_gone_ = false;
  bool server_is_gone_ = false;
  bool was_signalled_ = false;
  bool refused_ = false;
};

McpFile read_rules(const McpOptions& options) {
  if (options.config.empty()) misuse("--config is missing: the file of rules, as `once mcp --suggest` writes it");
  std::vector<Complaint> complaints;
  McpFile file = read_mcp_file(options.config, complaints);
  if (!complaints.empty()) {
    for (const Complaint& complaint : complaints) say(to_string(complaint), LogLevel::err);
    misuse("nothing was started: " + options.config + " has mistakes");
  }
  if (!options.principal.empty()) file.rules.principal = options.principal;
  file.rules.run = options.run;
  return file;
}

// The server's tools, by a client that lists them and leaves.
mcp::Lister list_tools(const std::vector<std::string>& command, const Signals& signals) {
  McpServer server(command, signals);
  mcp::Lister lister(ONCE_VERSION);
  mcp::LineReader lines({.max_bytes = std::size_t{64} * 1024 * 1024});
  std::string buffer;
  std::string unsent;
  const Uptime until = system_clock()->uptime() + list_timeout;
  while (!lister.is_done()) {
    for (const std::string& line : lister.take()) unsent += line + "\n";
    const Uptime now = system_clock()->uptime();
    if (now >= until) throw Exception(ErrorKind::unavailable, "the server did not list its tools within 2m");
    std::array<pollfd, 3> waits{{{.fd = server.reports(), .events = POLLIN, .revents = 0},
                                 {.fd = server.output(), .events = POLLIN, .revents = 0},
                                 {.fd = unsent.empty() ? -1 : server.input(), .events = POLLOUT, .revents = 0}}};
    poll(waits.data(), waits.size(), poll_timeout(until - now));
    bool is_end = false;
    if (waits[1].revents != 0) {
      read_piece(server.output(), buffer, is_end, [&](std::string_view piece) {
        lines.take(piece, {.line = [&](std::string&& line) { lister.from_server(line); },
                           .too_long = [](const std::string&, std::uint64_t) {}});
      });
    }
    if (waits[0].revents != 0 && waits[1].revents == 0) server.read_report();
    if ((is_end || server.has_ended()) && !lister.is_done()) {
      const ErrorKind kind = server.start_error() != 0 ? ErrorKind::misuse : ErrorKind::unavailable;
      throw Exception(kind, server.how() + " before it listed its tools");
    }
    if (waits[2].revents != 0) {
      const ssize_t count = write(server.input(), unsent.data(), unsent.size());
      if (count > 0) unsent.erase(0, static_cast<std::size_t>(count));
    }
  }
  if (!lister.error().empty()) throw Exception(ErrorKind::misuse, lister.error());
  return lister;
}

std::string what_happens(const mcp::ToolRule* rule, const mcp::Tool& tool, bool trusts_hint) {
  using Kind = mcp::ToolRule::Kind;
  if (rule == nullptr && trusts_hint && tool.says_read_only) return "passes: it says that it is read-only";
  if (rule == nullptr || rule->kind == Kind::none) return "refused: it has no rule";
  if (rule->pin != tool.pin) return "refused: it has changed since its rule was written";
  if (rule->kind == Kind::read_only) return "passes: read-only";
  if (rule->kind == Kind::unprotected) return "passes: unprotected, may act twice";
  return "once for each: " + mcp::key_words(*rule);
}

}  // namespace

int mcp_command(const McpOptions& options, const std::vector<std::string>& command) {
  const McpFile file = read_rules(options);
  const mcp::Rules rules(file.rules);
  return Mcp(file, rules, options, command).run();
}

int mcp_check(const McpOptions& options, const std::vector<std::string>& command) {
  const McpFile file = read_rules(options);
  const mcp::Rules rules(file.rules);
  const Signals signals;
  const mcp::Lister lister = list_tools(command, signals);
  const mcp::Fit found = mcp::fit(rules, lister.tools());
  for (const std::string& mistake : found.mistakes) say(mistake, LogLevel::err);
  for (const std::string& changed : found.changed) say(changed, LogLevel::warning);
  Table table({"TOOL", "CALLS"});
  for (const auto& [name, tool] : lister.tools().all()) {
    table.add({escaped(name), escaped(what_happens(rules.find(name), tool, file.rules.trusts_read_only_hint))});
  }
  const int code = !found.mistakes.empty() ? exit_usage : !found.changed.empty() ? exit_found_problems : exit_ok;
  return print(table.take(), code);
}

int mcp_suggest(const std::vector<std::string>& command) {
  const Signals signals;
  const mcp::Lister lister = list_tools(command, signals);
  return print(mcp::suggestion(lister.tools(), lister.server()));
}

}  // namespace once::cli
