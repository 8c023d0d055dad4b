#include "process/lambda_environment.hpp"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <once/platform/system.hpp>

namespace once::cli {

namespace {

constexpr Millis lambda_shutdown{2'000};  // Between SIGTERM and SIGKILL at the end.

std::string task_root(const std::string& program) {
  std::error_code error;
  const auto path = std::filesystem::absolute(program, error);
  return error ? "." : path.parent_path().lexically_normal().string();
}

}  // namespace

void LambdaEnvironment::start(const InvokeOptions& options, const Fd& null, const Signals& signals) {
  std::vector<std::pair<std::string, std::string>> variables = {
      {"AWS_LAMBDA_RUNTIME_API", api->address()},
      {"AWS_LAMBDA_FUNCTION_NAME", options.name},
      {"AWS_LAMBDA_FUNCTION_VERSION", "$LATEST"},
      {"AWS_LAMBDA_FUNCTION_MEMORY_SIZE", std::to_string(options.memory)},
      {"AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/" + options.name},
      {"AWS_LAMBDA_LOG_STREAM_NAME", "$LATEST"},
      {"AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"},
      {"LAMBDA_TASK_ROOT", task_root(options.program)},
      {"_HANDLER", options.handler},
      {"TZ", ":UTC"},
  };
  if (options.threads > 1) variables.emplace_back("AWS_LAMBDA_MAX_CONCURRENCY", std::to_string(options.threads));
  for (const std::string& variable : options.environment) {
    const auto equals = variable.find('=');
    std::erase_if(variables, [&](const auto& one) { return one.first == variable.substr(0, equals); });
    variables.emplace_back(variable.substr(0, equals), variable.substr(equals + 1));
  }
  std::vector<std::string> words = environment_with(variables);
  std::string program = options.program;
  std::vector<char*> entries;
  entries.reserve(words.size() + 1);
  for (std::string& word : words) entries.push_back(word.data());
  entries.push_back(nullptr);
  const std::array<char*, 2> arguments{program.data(), nullptr};
  GuardOptions how;
  how.arguments = arguments.data();
  how.environment = entries.data();
  how.input = null.get();
  how.output = STDERR_FILENO;  // Standard output is for the responses.
  how.error = STDERR_FILENO;
  how.signal_mask = signals.old_mask();
  how.on_pipe = signals.old_pipe();
  how.on_child = signals.old_child();
  const Guard made = start_guard(how);
  socket.reset(made.socket);
  guard = made.pid;
  ending = asked = false;
  given = 0;
  started = Steady::now();
  kill_at.reset();
}

void LambdaEnvironment::order(const GuardOrder& what) const {
  // If the guard is gone, reading its end shows that.
  if (alive()) send(socket.get(), &what, sizeof what, MSG_NOSIGNAL);
}

void LambdaEnvironment::kill(std::string_view why) {
  if (!alive() || ending) return;
  ending = true;
  why_ending = why;
  order({.kind = GuardOrder::Kind::end, .value = 0, .limit = 0});
}

void LambdaEnvironment::end(std::string_view why) {
  if (!alive() || ending) return;
  ending = true;
  why_ending = why;
  order({.kind = GuardOrder::Kind::end, .value = 0, .limit = shutdown_limit()});
}

std::int64_t LambdaEnvironment::shutdown_limit() {
  return (system_clock()->uptime() + std::chrono::nanoseconds(lambda_shutdown)).count();
}

std::optional<LambdaEnvironment::Death> LambdaEnvironment::read_report() {
  GuardReport report;
  const ssize_t count = recv(socket.get(), &report, sizeof report, MSG_DONTWAIT);
  // ECONNRESET: it ended before it read our last order. Returned once, before the guard's own reports.
  if (count < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) return std::nullopt;
  Death death{.how = "its guard process was killed, and so was the function"};
  if (count == static_cast<ssize_t>(sizeof report)) {
    if (report.kind == GuardReport::Kind::started) return std::nullopt;
    if (report.kind == GuardReport::Kind::not_started) {
      death.cannot_execute = report.value;
    } else {
      death.how = WIFSIGNALED(report.value)
                      ? "the function died of signal " + std::to_string(WTERMSIG(report.value))
                      : "the function ended with exit code " + std::to_string(WEXITSTATUS(report.value));
    }
  }
  if (ending) death.how = why_ending;
  socket.reset();
  int status = 0;
  while (waitpid(guard, &status, 0) < 0 && errno == EINTR) {
  }
  ending = false;
  kill_at.reset();
  rest_until.reset();
  thaw_at.reset();
  dying = true;
  return death;
}

}  // namespace once::cli
