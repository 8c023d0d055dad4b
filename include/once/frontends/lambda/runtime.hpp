// A custom runtime for AWS Lambda: main() of a function in C++.
//
//   int main() {
//     return once::lambda::run([](std::string_view event, const once::lambda::Invocation& invocation) {
//       return charge(event, invocation.request_id);
//     });
//   }
//
// It asks the Runtime API (AWS, "Using the Lambda runtime API for custom runtimes", version 2018-06-01) for the next
// event, calls the handler, posts its response, and repeats. The same program runs on provided.al2023, in a container
// image, under AWS's Runtime Interface Emulator and under `once lambda invoke`. docs/lambda.md says what happens in
// each fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <variant>

#include <once/frontends/lambda/invocation.hpp>
#include <once/time.hpp>

namespace once::lambda {

// A response that is sent while it is made (AWS, "Response streaming for Lambda functions": function URLs with invoke
// mode RESPONSE_STREAM, and InvokeWithResponseStream; up to 200 MB). Other callers get it whole.
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;

  // Call it before the first write. Default: "application/octet-stream". Control characters are replaced.
  virtual void content_type(std::string_view type) = 0;

  // Call it before the first write, instead of content_type(). `json`: status and headers of a function URL's answer,
  // {"statusCode": 200, "headers": {"Content-Type": "text/html"}, "cookies": ["a=b"]}.
  virtual void http_head(std::string_view json) = 0;

  // Sends the bytes as one chunk, unless empty. Blocks while the platform accepts no more. Throws
  // Exception(unavailable) if the platform will accept no more. Do not catch it: run() reports it to the operator.
  virtual void write(std::string_view bytes) = 0;
};

// Writes the response to the stream. An exception before the first write becomes an error answer, as with a Handler. A
// later one ends the stream, with its type and message in the trailers.
using StreamingHandler =
    std::function<void(std::string_view event, const Invocation& invocation, ResponseStream& response)>;

// A function: a handler, or a factory that makes one. The factory is called once, before the first event. Its exception
// is reported as an init error, which the platform shows to callers.
using Function = std::variant<Handler, StreamingHandler, std::function<Handler()>, std::function<StreamingHandler()>>;

// A problem to report. It never contains an event, a response, or the message of a handler's exception.
struct RuntimeProblem {
  // What went wrong, and whether run() goes on.
  enum class Kind : std::uint8_t {
    handler_failed,     // The handler threw. Its caller got an error answer; `message` has its type.
    response_refused,   // The platform refused a response or error answer. The invocation failed for its caller.
    response_in_doubt,  // The connection was lost while an answer was posted, and the platform has not confirmed it.
    event_refused,      // An event was over RuntimeOptions::max_event_bytes. It got an error answer.
    connection_lost,    // The connection was lost during a request for an event. The request is repeated.
    init_failed,     // The handler could not be created or a hook before the snapshot failed (with its message), or the
                     // options are invalid. run() returns 1.
    restore_failed,  // A hook after the restore failed (with its message). run() returns 1.
    fatal,           // The platform does not answer, or answers 500. run() returns 1.
  };
  Kind kind = Kind::fatal;      // The last three end run().
  std::string request_id = {};  // Empty: no invocation is concerned.
  std::string message = {};     // A sentence for the operator: what happened and what follows. Printable ASCII.
};
std::string_view to_string(RuntimeProblem::Kind kind) noexcept;  // "response_refused" and so on.

// Writes "once: <kind>: <message> (request <id>)" and a newline to file descriptor 2, in one write(2): on Lambda that
// is the function's log. The default of RuntimeOptions::on_problem.
void log_problem(const RuntimeProblem& problem);

// How run() serves invocations.
struct RuntimeOptions {
  // HOST:PORT of the Runtime API, IPv6 in brackets.
  std::string api = {};

  // How many invocations run at once, each on its own thread; the first is the one that calls run(). 1 to 1600, the
  // platform's own limit. Use more than 1 only where the platform offers it (Lambda Managed Instances: AWS's API
  // reference, PerExecutionEnvironmentMaxConcurrency).
  unsigned concurrency = 1;

  // A larger event gets an error answer of type Runtime.EventTooLarge, and the handler is not called.
  std::size_t max_event_bytes = 2 * lambda::max_event_bytes;

  // A larger response of a Handler is not sent. It becomes an error answer of type Function.ResponseSizeTooLarge, as on
  // the platform.
  std::size_t max_response_bytes = lambda::max_event_bytes;

  // SnapStart: the platform takes a snapshot of this process when it is initialised, and serves events from copies of
  // it. After the handler was made, run() calls before_snapshot() (once/platform/snapshot.hpp), waits until it is
  // restored, and calls after_restore(). An exception of a hook before is an init error of type
  // Runtime.BeforeSnapshotError, one after a restore error of type Runtime.AfterRestoreError; hooks after the restore
  // have 10 s. Needs concurrency 1. (AWS, "Implementing SnapStart hooks for container images".)
  bool snap_start = false;

  // With concurrency 1: sets the environment variable _X_AMZN_TRACE_ID to each invocation's trace id, for X-Ray's SDKs.
  // Not for two runtimes in one process.
  bool trace_in_environment = true;

  // At SIGTERM, running invocations finish, then run() returns 0. Without effect if the program handles or ignores
  // SIGTERM itself. Not for two runtimes in one process.
  bool end_at_sigterm = true;

  // The same as SIGTERM.
  std::stop_token stop = {};

  // How often a request for an event, or a response, is sent while the connection fails: 1 to 100.
  unsigned attempts = 5;
  Millis pause{20};  // Between the first two attempts; then it doubles. 0 to 10 s.

  // Called from the threads that call the handler, by several at once. Must not throw. Empty: not called.
  std::function<void(const RuntimeProblem&)> on_problem = log_problem;
};

// From AWS_LAMBDA_RUNTIME_API, AWS_LAMBDA_MAX_CONCURRENCY (default 1), and AWS_LAMBDA_INITIALIZATION_TYPE: snap_start
// if that is "snap-start". Throws Exception(misuse) if the first is not set, or the second is not a number from 1 to
// 1600.
RuntimeOptions runtime_options_from_environment();

// Serves until the platform ends it. Returns 0 after SIGTERM or `stop`, 1 after a reported problem: then the process
// should end, and the platform restarts it. It never throws a handler's exception: that becomes an error answer
//
//   {"errorMessage": what(), "errorType": FunctionError::type() or the name of the C++ type, "stackTrace": []}
//
// with U+FFFD for invalid UTF-8, and at most 32 KiB of the message. For a type that is not a std::exception, only its
// name is reported.
//
// A response is sent unchanged, without a check for JSON or UTF-8. Event and response are held in memory and never
// logged. The same event may come twice (the platform's rule for asynchronous invocations, and after a lost
// connection): see once/frontends/lambda/idempotent.hpp.
//
// Call it once, from main().
int run(Function function);  // With runtime_options_from_environment(), whose exception is an init error.
// The same with options of your own. Invalid ones are an init error.
int run(Function function, const RuntimeOptions& options);

}  // namespace once::lambda
