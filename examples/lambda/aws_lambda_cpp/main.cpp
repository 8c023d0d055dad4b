// A template for functions on AWS's own runtime for C++ (aws-lambda-cpp): once::lambda::idempotent() takes and returns
// plain strings, so any runtime can call it. Works with its releases and with the copy inside AWS's other runtimes.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <aws/lambda-runtime/runtime.h>
#include <once/engine/engine.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/stores/open.hpp>

using namespace aws::lambda_runtime;

// The function's work. The event is JSON, and so is the response.
static std::string handle(std::string_view event, once::Context& context) {
  std::fprintf(stderr, "handled %zu bytes, attempt %u\n", event.size(), context.attempt());
  return R"({"status":"done"})";
}

// [aws-lambda-cpp]
template <class Response = invocation_response>
Response failure(const std::string& message, const std::string& type) {
  if constexpr (requires { Response::failure(message, type); }) {
    return Response::failure(message, type);
  } else {
    return Response::failure(message, type, "");  // The copies also take a text for X-Ray.
  }
}

int main() {
  const char* const store = std::getenv("ONCE_STORE");
  once::Engine engine({.store = once::open_store(store == nullptr ? "memory:" : store)});
  const auto handler = once::lambda::idempotent(engine, {.key = "order_id"}, handle);

  run_handler([&](const invocation_request& request) {
    const once::lambda::Invocation invocation{
        .request_id = request.request_id,
        .function_arn = request.function_arn,
        .trace_id = request.xray_trace_id,
        .deadline = std::chrono::floor<once::Millis>(request.deadline)};  // The lease lasts until then.
    // aws-lambda-cpp does not survive an exception.
    try {
      return invocation_response::success(handler(request.payload, invocation), "application/json");
    } catch (const once::lambda::FunctionError& error) {
      return failure(error.what(), error.type());
    } catch (const std::exception& error) {
      return failure(error.what(), "Error");
    }
  });
}
// [/aws-lambda-cpp]
