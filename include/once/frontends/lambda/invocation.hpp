// The input and output of a Lambda function as plain values, so that a test, once::lambda::run() or any other runtime
// can call handlers.
#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <once/engine/exceptions.hpp>
#include <once/time.hpp>

namespace once::lambda {

// One invocation (AWS, "Using the Lambda runtime API": headers of the next invocation). Texts are unchanged, and empty
// if the platform did not send them.
struct Invocation {
  std::string request_id = {};        // The same for all attempts at an asynchronous event.
  std::string function_arn = {};      // As invoked, with the version or alias if there was one.
  std::string trace_id = {};          // AWS X-Ray's header.
  std::string client_context = {};    // JSON, from the mobile SDKs.
  std::string cognito_identity = {};  // JSON, from the mobile SDKs.
  // The tenant of a function with tenant isolation: 1 to 256 bytes. The keys of this component have it, and those of
  // other engines' calls during the invocation: see once/engine/within_invocation.hpp.
  std::string tenant_id = {};
  // Differs for each attempt, also if the request id is repeated. The runtime sends it back with the response, so that
  // the platform can refuse one that is late.
  std::string invocation_id = {};
  Time deadline = never;  // When the platform ends the invocation. never: no limit.
};

// Called with the event's bytes (JSON as the service sends it, at most max_event_bytes); returns the response (JSON).
// Any exception becomes an error answer. Called by several threads at once if the runtime does so.
using Handler = std::function<std::string(std::string_view event, const Invocation& invocation)>;

// Of a synchronous event or response: 6 MB (AWS, "Lambda quotas").
inline constexpr std::size_t max_event_bytes = std::size_t{6} * 1024 * 1024;

// An error with its own errorType. For other exceptions that is the name of their C++ type. A stored failure keeps the
// type.
class FunctionError : public std::runtime_error, public FailureCode {
 public:
  // `type`: the errorType that callers see, and the code of a stored failure.
  FunctionError(std::string type, const std::string& message) : std::runtime_error(message), type_(std::move(type)) {}
  [[nodiscard]] const std::string& type() const noexcept { return type_; }  // As given.
  [[nodiscard]] const std::string& failure_code() const noexcept override { return type_; }

 private:
  std::string type_;
};

}  // namespace once::lambda
