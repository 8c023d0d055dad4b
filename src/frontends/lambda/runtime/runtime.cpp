#include "once/frontends/lambda/runtime.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/platform/snapshot.hpp>

#include "frontends/lambda/runtime/trace_variable.hpp"
#include "frontends/lambda/runtime/worker.hpp"
#include "text/number.hpp"

namespace once::lambda {

namespace {

using runtime::AnyHandler;
using runtime::ErrorAnswer;
using runtime::printable;
using ProblemKind = RuntimeProblem::Kind;

constexpr unsigned max_concurrency = 1600;
constexpr unsigned max_attempts = 100;

// What is wrong with the options, or empty.
std::string wrong_with(const RuntimeOptions& options) {
  if (!runtime::parse_api(options.api)) {
    return "the address of the Runtime API must be HOST:PORT, as in 127.0.0.1:9001, and not '" +
           printable(options.api, 100) +
           "'. On Lambda AWS_LAMBDA_RUNTIME_API has it; on a laptop start the function "
           "with `once lambda invoke`";
  }
  if (options.concurrency < 1 || options.concurrency > max_concurrency) {
    return "concurrency must be from 1 to 1600, not " + std::to_string(options.concurrency);
  }
  if (options.attempts < 1 || options.attempts > max_attempts) {
    return "attempts must be from 1 to 100, not " + std::to_string(options.attempts);
  }
  if (options.snap_start && options.concurrency != 1) {
    return "a function with SnapStart handles one event at a time: concurrency must be 1, not " +
           std::to_string(options.concurrency);
  }
  if (options.pause < Millis{0} || options.pause > Millis{10'000}) return "pause must be from 0 to 10 s";
  return {};
}

void report_init(const RuntimeOptions& options, const std::string& message) {
  if (!options.on_problem) return;
  options.on_problem({.kind = ProblemKind::init_failed, .request_id = {}, .message = printable(message, 1000)});
}

// Also reports to the platform, if it can be reached.
int fail_init(const RuntimeOptions& options, const ErrorAnswer& failure, const std::string& message) {
  report_init(options, message);
  if (auto address = runtime::parse_api(options.api)) {
    RuntimeOptions usable = options;
    usable.concurrency = 1;
    usable.snap_start = false;
    if (!wrong_with(usable).empty()) usable = {.api = options.api, .on_problem = options.on_problem};
    runtime::Shared shared(usable, *std::move(address));
    runtime::Worker(shared).post_init_error(failure);
  }
  return 1;
}

// Waits for the restore, and calls the hooks after it. False: it was stopped, or the runtime ends.
bool restored(runtime::Worker& worker, runtime::Shared& shared) {
  if (!worker.wait_for_restore()) return false;
  try {
    after_restore();
    return true;
  } catch (const abi::__forced_unwind&) {
    throw;  // As below.
  } catch (...) {
    // An exception of a hook is a restore error, which the platform shows to the caller.
    const ErrorAnswer failure = runtime::describe_exception();
    const std::string message = failure.header() + ": " + failure.message;
    shared.failed = true;
    shared.report(ProblemKind::restore_failed, "", "a hook after the restore failed: " + message);
    worker.post_restore_error({"Runtime.AfterRestoreError", message});
    return false;
  }
}

int serve(const AnyHandler& handler, const RuntimeOptions& options) {
  runtime::Shared shared(options, *runtime::parse_api(options.api));
  const runtime::SigtermWatch sigterm(options.end_at_sigterm, shared.stop);
  const std::stop_callback on_stop(options.stop, [&shared] { shared.stop.set(); });
  std::vector<std::thread> threads;
  try {
    for (unsigned i = 1; i < options.concurrency; ++i) {
      threads.emplace_back([&] { runtime::Worker(shared).serve(handler); });
    }
  } catch (const std::system_error& error) {
    shared.fail("", std::string("cannot start ") + std::to_string(options.concurrency) + " threads: " + error.what());
  }
  runtime::Worker worker(shared);
  if (!options.snap_start || restored(worker, shared)) worker.serve(handler);
  for (std::thread& thread : threads) thread.join();
  return shared.failed ? 1 : 0;
}

}  // namespace

std::string_view to_string(RuntimeProblem::Kind kind) noexcept {
  switch (kind) {
    case ProblemKind::handler_failed:
      return "handler_failed";
    case ProblemKind::response_refused:
      return "response_refused";
    case ProblemKind::response_in_doubt:
      return "response_in_doubt";
    case ProblemKind::event_refused:
      return "event_refused";
    case ProblemKind::connection_lost:
      return "connection_lost";
    case ProblemKind::init_failed:
      return "init_failed";
    case ProblemKind::restore_failed:
      return "restore_failed";
    case ProblemKind::fatal:
      return "fatal";
  }
  return "?";
}

void log_problem(const RuntimeProblem& problem) {
  std::string line = "once: " + std::string(to_string(problem.kind)) + ": " + problem.message;
  if (!problem.request_id.empty()) line += " (request " + printable(problem.request_id, 256) + ")";
  line += '\n';
  // A failed write to the log cannot be reported.
  [[maybe_unused]] const ssize_t count = write(STDERR_FILENO, line.data(), line.size());
}

RuntimeOptions runtime_options_from_environment() {
  RuntimeOptions options;
  const char* const api = std::getenv("AWS_LAMBDA_RUNTIME_API");
  if (api == nullptr || *api == '\0') {
    throw Exception(ErrorKind::misuse,
                    "AWS_LAMBDA_RUNTIME_API is not set: this program is a Lambda function. On a laptop start it with "
                    "`once lambda invoke`");
  }
  options.api = api;
  // AWS, "Defined runtime environment variables".
  const char* const initialization = std::getenv("AWS_LAMBDA_INITIALIZATION_TYPE");
  options.snap_start = initialization != nullptr && std::string_view(initialization) == "snap-start";
  if (const char* const concurrency = std::getenv("AWS_LAMBDA_MAX_CONCURRENCY"); concurrency != nullptr) {
    const std::string_view text = concurrency;
    options.concurrency = text::parse_whole<decltype(options.concurrency)>(text).value_or(0);
    if (options.concurrency < 1 || options.concurrency > max_concurrency) {
      throw Exception(ErrorKind::misuse,
                      "AWS_LAMBDA_MAX_CONCURRENCY must be a number from 1 to 1600, not '" + printable(text, 100) + "'");
    }
  }
  return options;
}

int run(Function function) {
  RuntimeOptions options;
  try {
    options = runtime_options_from_environment();
  } catch (const Exception& error) {
    const char* const api = std::getenv("AWS_LAMBDA_RUNTIME_API");
    if (api != nullptr) options.api = api;
    return fail_init(options, {"Runtime.InvalidEnvironment", error.what()}, error.what());
  }
  return run(std::move(function), options);
}

int run(Function function, const RuntimeOptions& options) {
  if (const std::string wrong = wrong_with(options); !wrong.empty()) {
    return fail_init(options, {"Runtime.InvalidOptions", wrong}, wrong);
  }
  if (options.trace_in_environment && options.concurrency == 1) runtime::TraceVariable::enter();
  AnyHandler handler;
  try {
    if (auto* const whole = std::get_if<Handler>(&function)) {
      handler = std::move(*whole);
    } else if (auto* const streaming = std::get_if<StreamingHandler>(&function)) {
      handler = std::move(*streaming);
    } else if (const auto* const make = std::get_if<std::function<Handler()>>(&function)) {
      handler = (*make)();
    } else {
      handler = std::get<std::function<StreamingHandler()>>(function)();
    }
  } catch (const abi::__forced_unwind&) {
    throw;  // The thread is being cancelled, which must not be prevented.
  } catch (...) {
    // An exception of the factory is an init error, which the platform shows to the caller.
    const ErrorAnswer failure = runtime::describe_exception();
    return fail_init(options, failure,
                     "the handler could not be created: " + failure.header() + ": " + failure.message);
  }
  if (!std::visit([](const auto& callable) { return static_cast<bool>(callable); }, handler)) {
    return fail_init(options, {"Runtime.NoHandler", "there is no handler"}, "there is no handler");
  }
  if (options.snap_start) {
    try {
      before_snapshot();
    } catch (const abi::__forced_unwind&) {
      throw;  // As above.
    } catch (...) {
      const ErrorAnswer failure = runtime::describe_exception();
      const std::string message = failure.header() + ": " + failure.message;
      return fail_init(options, {"Runtime.BeforeSnapshotError", message},
                       "a hook before the snapshot failed: " + message);
    }
  }
  return serve(handler, options);
}

}  // namespace once::lambda
