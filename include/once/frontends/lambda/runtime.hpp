// A custom runtime for AWS Lambda: main() of a function in C++.
//
//   int main() {
//     return once::lambda::run([](std::string_view event, const once::lambda::Invocation& invocation) {
//       return charge(event, invocation.request_id);
//     });
//   }
//
// Asks the Runtime API (AWS, "Using the Lambda runtime API for custom runtimes", version 2018-06-01) for the next
// event, calls the handler, posts its response, and so on. The same program runs on provided.al2023, in a container
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
// mode RESPONSE_STREAM, and InvokeWithResponseStream; 200 MB there). Other callers get it whole.
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;

  // Before the first write. Default: "application/octet-stream". Control characters in it are replaced.
  virtual void content_type(std::string_view type) = 0;

  // Before the first write, instead of content_type(): the status line and headers of an answer by a function URL, a
  // JSON object: {"statusCode": 200, "headers": {"Content-Type": "text/html"}, "cookies": ["a=b"]}.
  virtual void http_head(std::string_view json) = 0;

  // Sends these bytes as one chunk; nothing for none. Blocks while the platform takes no more. Throws
  // Exception(unavailable) when it will never take more: let it pass through the handler, which can do nothing about
  // it; it is reported to the operator.
  virtual void write(std::string_view bytes) = 0;
};

// Writes the response to the stream. An exception before the first write becomes an error answer like that of a
// Handler; a later one ends the stream, and its type and message follow it in trailers.
using StreamingHandler =
    std::function<void(std::string_view event, const Invocation& invocation, ResponseStream& response)>;

// A function: a handler, or a factory that makes one. The factory is called once, before the first event is asked for.
// Its exception is reported as an init error, which the platform shows to callers.
using Function = std::variant<Handler, StreamingHandler, std::function<Handler()>, std::function<StreamingHandler()>>;

// What went wrong. It never contains an event, a response, or the message of a handler's exception.
struct RuntimeProblem {
  enum class Kind : std::uint8_t {
    handler_failed,     // The handler threw; its caller got an error answer, and here is its type.
    response_refused,   // The platform did not take a response or error answer; the invocation failed for its caller.
    response_in_doubt,  // The connection was lost while one was posted, and the platform has not confirmed it since.
    event_refused,      // An event could not be read: over RuntimeOptions::max_event_bytes. It got an error answer.
    connection_lost,    // While an event was asked for. It is asked for again.
    init_failed,  // The handler could not be created (with its message), or the options are invalid. run() returns 1.
    fatal,        // The platform answers no more, or with 500. run() returns 1.
  };
  Kind kind = Kind::fatal;
  std::string request_id;  // Empty: none is concerned.
  std::string message;     // A sentence for the operator: what happened and what follows. Printable ASCII.
};
std::string_view to_string(RuntimeProblem::Kind kind) noexcept;  // "response_refused" and so on.

// Writes "once: <kind>: <message> (request <id>)" and a newline to file descriptor 2, in one write(2): on Lambda that
// is the function's log. The default of RuntimeOptions::on_problem.
void log_problem(const RuntimeProblem& problem);

struct RuntimeOptions {
  // HOST:PORT of the Runtime API, IPv6 in brackets.
  std::string api;

  // Invocations at a time, each by a thread of its own that asks for events itself (the first is the one that calls
  // run()). 1 to 1600, which is the platform's own limit. More than 1 only where the platform offers it (Lambda Managed
  // Instances: AWS's API reference, PerExecutionEnvironmentMaxConcurrency).
  unsigned concurrency = 1;

  // A larger event gets an error answer of type Runtime.EventTooLarge, and the handler is not called.
  std::size_t max_event_bytes = 2 * lambda::max_event_bytes;

  // A larger response of a Handler is not sent; it becomes an error answer of type Function.ResponseSizeTooLarge, as
  // the platform would make of it.
  std::size_t max_response_bytes = lambda::max_event_bytes;

  // With concurrency 1: sets the environment variable _X_AMZN_TRACE_ID to each invocation's trace id, for X-Ray's SDKs.
  // Not for two runtimes in one process at once.
  bool trace_in_environment = true;

  // SIGTERM, unless the program handles or ignores it itself: running invocations finish, then run() returns 0. Not for
  // two runtimes in one process at once.
  bool end_at_sigterm = true;

  // The same as SIGTERM.
  std::stop_token stop;

  // How often in a row an event is asked for that does not come because the connection fails, and a response is posted;
  // 1 to 100. Between the attempts a pause, doubled each time.
  unsigned attempts = 5;
  Millis pause{20};

  // Called from the threads that call the handler, several at a time; must not throw. Empty: not called.
  std::function<void(const RuntimeProblem&)> on_problem = log_problem;
};

// From AWS_LAMBDA_RUNTIME_API and AWS_LAMBDA_MAX_CONCURRENCY (unset: 1). Throws Exception(misuse) if the first is not
// set, or the second is no number from 1 to 1600.
RuntimeOptions runtime_options_from_environment();

// Serves until the platform ends it. 0: by SIGTERM or `stop`. 1: by a problem that was reported; the process should
// end, and the platform starts it again. Never throws what a handler threw: that becomes an error answer
//
//   {"errorMessage": what(), "errorType": FunctionError::type() or the name of the C++ type, "stackTrace": []}
//
// with U+FFFD for what is no UTF-8 and at most 32 KiB of the message. A type that is no std::exception is reported by
// its name alone.
//
// A response is passed on as it is: nobody checks that it is JSON or UTF-8. Event and response are held in memory and
// are in no log. The same event may come twice (the platform's rule for asynchronous invocations, and here after a lost
// connection): see once/frontends/lambda/idempotent.hpp.
//
// Call it once, from main().
int run(Function function);  // With runtime_options_from_environment(); a fault in there is an init error.
int run(Function function, const RuntimeOptions& options);

}  // namespace once::lambda
