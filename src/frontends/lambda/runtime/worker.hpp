// A thread of the runtime: it asks for an event, calls the handler, posts what that gave, and so on.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <once/frontends/lambda/invocation.hpp>
#include <once/frontends/lambda/runtime.hpp>

#include "frontends/lambda/runtime/api_connection.hpp"
#include "frontends/lambda/runtime/error_answer.hpp"
#include "frontends/lambda/runtime/stopping.hpp"

namespace once::lambda::runtime {

using AnyHandler = std::variant<Handler, StreamingHandler>;

// What the threads share.
struct Shared {
  Shared(const RuntimeOptions& the_options, ApiAddress the_address)
      : options(the_options), address(std::move(the_address)) {}

  const RuntimeOptions& options;
  const ApiAddress address;
  StopFlag stop;
  std::atomic<bool> failed{false};

  void report(RuntimeProblem::Kind kind, std::string request_id, const std::string& message) const;
  void fail(const std::string& request_id, const std::string& message);  // Ends the runtime.
};

class Worker {
 public:
  explicit Worker(Shared& shared) : shared_(shared), connection_(shared.address) {}

  void serve(const AnyHandler& handler);  // Until it is told to stop, or the runtime ends.
  void post_init_error(const ErrorAnswer& failure) { post_failure("", failure); }

 private:
  struct NextEvent {
    Invocation invocation;
    std::string body;
  };
  class Stream;

  // Nothing: it is told to stop, or there is no asking any more.
  std::optional<NextEvent> ask();
  void refuse_event(const std::string& id);

  void handle(const Handler& handler, const NextEvent& event);
  void handle(const StreamingHandler& handler, const NextEvent& event);  // In stream.cpp.

  // Each tells the operator and the caller.
  void answer_failure(const std::string& id, const ErrorAnswer& failure);
  void answer_too_large(const std::string& id, std::size_t size);
  void answer_unsent(const std::string& id);

  void post_response(const std::string& id, std::string_view response);
  void post_failure(const std::string& id, const ErrorAnswer& failure);  // `id` empty: at init.

  // A post may be sent again: its path names the invocation, of which the platform takes one answer and refuses any
  // other. False: there is no answer to judge, and whoever has to know was told.
  bool post(const std::string& path, const std::string& headers, std::string_view body, const std::string& id,
            ApiAnswer& answer);
  [[nodiscard]] std::string post_head(std::string_view path, std::string_view headers) const;

  // The platform answered, and not with 5xx.
  void judge_response(const std::string& id, const ApiAnswer& answer, std::size_t size);
  void judge_stream(const std::string& id, const ApiAnswer& answer, std::size_t size);

  [[nodiscard]] bool traces() const { return shared_.options.trace_in_environment && shared_.options.concurrency == 1; }
  [[nodiscard]] Millis pause_after(unsigned attempt) const;

  Shared& shared_;
  ApiConnection connection_;
};

inline constexpr std::size_t max_answer_bytes = 65'536;  // Of a post; what it says is a sentence.
inline constexpr std::string_view error_type_header = "Lambda-Runtime-Function-Error-Type";

// What the platform says in it, for the operator: its status, and the type of an error.
std::string said(const ApiAnswer& answer);

}  // namespace once::lambda::runtime
