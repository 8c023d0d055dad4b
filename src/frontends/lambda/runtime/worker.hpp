// A thread of the runtime: asks for an event, calls the handler, posts the response, and repeats.
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

// Shared by the threads.
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

  void serve(const AnyHandler& handler);  // Until it is stopped, or the runtime ends.
  // For SnapStart: lets the platform take the snapshot, and returns in each copy. False: it is stopped, or the runtime
  // ends.
  bool wait_for_restore();
  void post_init_error(const ErrorAnswer& failure) { post_error("init/error", "", failure); }
  void post_restore_error(const ErrorAnswer& failure) { post_error("restore/error", "", failure); }

 private:
  struct NextEvent {
    Invocation invocation;
    std::string body;
  };
  class Stream;

  // Empty: it is stopped, or asking has failed for good.
  std::optional<NextEvent> ask();
  void refuse_event(const std::string& id);

  void handle(const Handler& handler, const NextEvent& event);
  void handle(const StreamingHandler& handler, const NextEvent& event);  // In stream.cpp.

  // Both report to the operator and the caller.
  void answer_failure(const std::string& id, const ErrorAnswer& failure);
  void answer_too_large(const std::string& id, std::size_t size);
  void answer_unsent(const std::string& id);

  void post_response(const std::string& id, std::string_view response);
  void post_failure(const std::string& id, const ErrorAnswer& failure) {
    post_error("invocation/" + id + "/error", id, failure);
  }
  void post_error(const std::string& path, const std::string& id, const ErrorAnswer& failure);

  // Retries a post: its path names the invocation, for which the platform accepts only one answer. False: no answer
  // came, which was reported.
  bool post(const std::string& path, const std::string& headers, std::string_view body, const std::string& id,
            ApiAnswer& answer);
  [[nodiscard]] std::string get_request(std::string_view path) const;
  [[nodiscard]] std::string post_head(std::string_view path, std::string_view headers) const;

  // The platform answered, and not with 5xx.
  void judge_response(const std::string& id, const ApiAnswer& answer, std::size_t size);
  void judge_stream(const std::string& id, const ApiAnswer& answer, std::size_t size);

  [[nodiscard]] bool traces() const { return shared_.options.trace_in_environment && shared_.options.concurrency == 1; }
  [[nodiscard]] Millis pause_after(unsigned attempt) const;

  Shared& shared_;
  ApiConnection connection_;
  // Of the current invocation, for its posts. The platform refuses a post whose request id has a new attempt since.
  std::string invocation_header_;
};

inline constexpr std::size_t max_answer_bytes = 65'536;  // Of the answer to a post, which is a sentence.
inline constexpr std::string_view error_type_header = "Lambda-Runtime-Function-Error-Type";

// The platform's status and error type, for the operator.
std::string said(const ApiAnswer& answer);

}  // namespace once::lambda::runtime
