#include "process/mcp_server.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "output/exit_codes.hpp"
#include "process/guard.hpp"
#include "process/supervise.hpp"

namespace once::cli {

namespace {

std::vector<char*> as_pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& string : strings) out.push_back(const_cast<char*>(string.c_str()));
  out.push_back(nullptr);
  return out;
}

void make_pipe(Fd& reader, Fd& writer, bool our_end_reads) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Exception(ErrorKind::unavailable, std::string("cannot create a pipe: ") + std::strerror(errno));
  }
  reader.reset(ends[0]);
  writer.reset(ends[1]);
  if (fcntl(our_end_reads ? ends[0] : ends[1], F_SETFL, O_NONBLOCK) != 0) {
    throw Exception(ErrorKind::unavailable, std::string("cannot set up a pipe: ") + std::strerror(errno));
  }
}

}  // namespace

McpServer::McpServer(const std::vector<std::string>& command, const Signals& signals) {
  Fd its_input;
  Fd its_output;
  make_pipe(its_input, input_, false);
  make_pipe(output_, its_output, true);
  const std::vector<std::string> variables = environment_of_command({});
  const std::vector<char*> arguments = as_pointers(command);
  const std::vector<char*> environment = as_pointers(variables);
  GuardOptions options;
  options.arguments = arguments.data();
  options.environment = environment.data();
  options.input = its_input.get();
  options.output = its_output.get();
  options.error = STDERR_FILENO;
  options.signal_mask = signals.old_mask();
  options.on_pipe = signals.old_pipe();
  options.on_child = signals.old_child();
  options.grace_ns = Uptime(Millis{1'000}).count();
  const Guard started = start_guard(options);
  guard_process_ = started.pid;
  guard_.reset(started.socket);
}

McpServer::~McpServer() {
  guard_.reset();  // It ends the server.
  int status = 0;
  while (waitpid(guard_process_, &status, 0) < 0 && errno == EINTR) {
  }
}

void McpServer::read_report() {
  GuardReport report;
  const ssize_t count = recv(guard_.get(), &report, sizeof report, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) return;
  if (count != static_cast<ssize_t>(sizeof report)) {
    has_ended_ = true;
    return;
  }
  if (report.kind == GuardReport::Kind::not_started) start_error_ = report.value;
  if (report.kind == GuardReport::Kind::ended) status_ = report.value;
  has_ended_ = report.kind == GuardReport::Kind::not_started || report.kind == GuardReport::Kind::ended;
}

std::string McpServer::how() const {
  if (start_error_ != 0) return std::string("the server cannot be executed: ") + std::strerror(start_error_);
  if (!has_ended_) return "the server has closed its output";
  if (!status_) return "the process that guards the server was killed, and the server with it";
  if (WIFSIGNALED(*status_)) return "the server was ended by signal " + std::to_string(WTERMSIG(*status_));
  return "the server ended with exit code " + std::to_string(WEXITSTATUS(*status_));
}

int McpServer::exit_code() const noexcept {
  if (start_error_ != 0) return start_error_ == ENOENT ? exit_not_found : exit_cannot_execute;
  if (!status_) return exit_signal_base + SIGKILL;
  return WIFSIGNALED(*status_) ? exit_signal_base + WTERMSIG(*status_) : WEXITSTATUS(*status_);
}

void McpServer::end(Millis within) {
  const GuardOrder order{
      .kind = GuardOrder::Kind::end, .value = 0, .limit = (system_clock()->uptime() + within).count()};
  // If the guard is gone, a report tells.
  [[maybe_unused]] const ssize_t count = send(guard_.get(), &order, sizeof order, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace once::cli
