#include "frontends/lambda/runtime/worker.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

#include "frontends/lambda/metrics/invocation_span.hpp"
#include "frontends/lambda/runtime/trace_variable.hpp"
#include "text/ascii.hpp"
#include "text/number.hpp"

namespace once::lambda::runtime {

using ProblemKind = RuntimeProblem::Kind;

namespace {

constexpr std::string_view base_path = "/2018-06-01/runtime/";
constexpr std::string_view invocation_id_header = "Lambda-Runtime-Invocation-Id";
constexpr std::string_view too_large_type = "Function.ResponseSizeTooLarge";  // The platform's name for it.

bool fit_for_path(std::string_view id) {
  return !id.empty() && id.size() <= 256 && std::all_of(id.begin(), id.end(), [](char c) {
    return text::is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
  });
}

std::string header_of(const ApiAnswer& answer, std::string_view name) {
  const auto found = answer.find(boost::beast::string_view(name.data(), name.size()));
  return found == answer.end() ? std::string() : std::string(found->value());
}

Invocation invocation_of(const ApiAnswer& answer) {
  Invocation invocation;
  invocation.request_id = header_of(answer, "Lambda-Runtime-Aws-Request-Id");
  invocation.function_arn = header_of(answer, "Lambda-Runtime-Invoked-Function-Arn");
  invocation.trace_id = header_of(answer, "Lambda-Runtime-Trace-Id");
  invocation.client_context = header_of(answer, "Lambda-Runtime-Client-Context");
  invocation.cognito_identity = header_of(answer, "Lambda-Runtime-Cognito-Identity");
  invocation.tenant_id = header_of(answer, "Lambda-Runtime-Aws-Tenant-Id");
  invocation.invocation_id = header_of(answer, invocation_id_header);
  const auto deadline_ms = text::parse_whole<std::int64_t>(header_of(answer, "Lambda-Runtime-Deadline-Ms"));
  if (deadline_ms.value_or(0) > 0) invocation.deadline = Time(Millis{*deadline_ms});
  return invocation;
}

std::string failure_headers(const ErrorAnswer& failure) {
  return "Content-Type: application/vnd.aws.lambda.error+json\r\n" + std::string(error_type_header) + ": " +
         failure.header() + "\r\n";
}

}  // namespace

// The platform's error type: {"errorMessage":"...","errorType":"InvalidStateTransition"}. Nothing else of the body is
// reported, because it may contain anything.
std::string said(const ApiAnswer& answer) {
  std::string out = "status " + std::to_string(answer.result_int());
  const std::string_view body = answer.body();
  constexpr std::string_view name = "\"errorType\"";
  auto at = body.find(name);
  if (at == std::string_view::npos) return out;
  at = body.find_first_not_of(" :", at + name.size());
  if (at == std::string_view::npos || body[at] != '"') return out;
  const std::string_view type = body.substr(at + 1, 64);
  const auto end = type.find('"');
  const auto plain = [](char c) { return text::is_letter_or_digit(c) || c == '.'; };
  if (end == std::string_view::npos || end == 0 || !std::all_of(type.begin(), type.begin() + end, plain)) return out;
  return out + " " + std::string(type.substr(0, end));
}

void Shared::report(ProblemKind kind, std::string request_id, const std::string& message) const {
  if (!options.on_problem) return;
  options.on_problem({.kind = kind, .request_id = std::move(request_id), .message = printable(message, 1000)});
}

void Shared::fail(const std::string& request_id, const std::string& message) {
  failed = true;
  stop.set();
  report(ProblemKind::fatal, request_id, message);
}

void Worker::serve(const AnyHandler& handler) {
  while (!shared_.stop.is_set()) {
    std::optional<NextEvent> event = ask();
    if (!event) return;
    if (traces()) TraceVariable::value(event->invocation.trace_id);
    if (const auto* const whole = std::get_if<Handler>(&handler)) {
      handle(*whole, *event);
    } else {
      handle(std::get<StreamingHandler>(handler), *event);
    }
    if (traces()) TraceVariable::value({});
  }
}

// --- asking ---

std::string Worker::get_request(std::string_view path) const {
  std::string request = "GET ";
  request.append(base_path).append(path).append(" HTTP/1.1\r\nHost: ").append(shared_.address.text());
  return request.append("\r\nUser-Agent: once\r\n\r\n");
}

// The platform takes the snapshot while the request waits for its response, 200, which each restored copy gets (AWS's
// emulator, handler/restorenext.go; AWS, "Implementing SnapStart hooks for container images").
bool Worker::wait_for_restore() {
  const std::string request = get_request("restore/next");
  for (unsigned attempt = 1;; ++attempt) {
    ApiAnswer answer;
    Trouble trouble = Trouble::lost;
    if (connection_.connect_if_needed()) {
      connection_.send_all(std::array{std::string_view(request)});
      trouble = connection_.read_answer(answer, max_answer_bytes, &shared_.stop);
    }
    if (trouble == Trouble::stopped) return false;
    if (trouble == Trouble::none && answer.result_int() == 200) {
      connection_.disconnect();  // It may be from before the snapshot.
      return true;
    }
    if (trouble != Trouble::lost) {
      shared_.fail("", "the Runtime API answered with " + said(answer) +
                           " when asked for the restore from a snapshot; the runtime ends");
      return false;
    }
    if (attempt >= shared_.options.attempts) {
      shared_.fail("", "the Runtime API did not answer when asked for the restore from a snapshot, " +
                           std::to_string(attempt) + " times in a row: " + connection_.problem() +
                           "; the runtime ends");
      return false;
    }
    shared_.report(
        ProblemKind::connection_lost, "",
        "asking the Runtime API for the restore from a snapshot failed: " + connection_.problem() + "; asking again");
    if (shared_.stop.wait(pause_after(attempt))) return false;
  }
}

std::optional<Worker::NextEvent> Worker::ask() {
  const std::string request = get_request("invocation/next");
  for (unsigned attempt = 1;; ++attempt) {
    ApiAnswer answer;
    Trouble trouble = Trouble::lost;
    if (connection_.connect_if_needed()) {
      connection_.send_all(std::array{std::string_view(request)});
      trouble = connection_.read_answer(answer, shared_.options.max_event_bytes, &shared_.stop);
    }
    if (trouble == Trouble::stopped) return std::nullopt;
    std::string problem = connection_.problem();
    if (trouble != Trouble::lost) {
      const unsigned status = answer.result_int();
      NextEvent event{.invocation = invocation_of(answer), .body = {}};
      const std::string& id = event.invocation.request_id;
      const std::string& invocation_id = event.invocation.invocation_id;
      invocation_header_.clear();
      if (!invocation_id.empty()) {
        invocation_header_.append(invocation_id_header).append(": ").append(invocation_id).append("\r\n");
      }
      if (status >= 500) {
        shared_.fail("",
                     "the Runtime API answered with " + said(answer) + " when asked for an event; the runtime ends");
        return std::nullopt;
      }
      if (status == 200 && fit_for_path(id)) {
        if (trouble == Trouble::none) {
          event.body = std::move(answer.body());
          return event;
        }
        refuse_event(id);
        if (shared_.stop.is_set()) return std::nullopt;
        attempt = 0;
        continue;
      }
      problem = status == 200 ? "its event has no request id" : "it answered with " + said(answer);
      connection_.disconnect();
    }
    if (attempt >= shared_.options.attempts) {
      shared_.fail("", "the Runtime API gave no event, " + std::to_string(attempt) + " times in a row: " + problem +
                           "; the runtime ends");
      return std::nullopt;
    }
    shared_.report(ProblemKind::connection_lost, "",
                   "asking the Runtime API for an event failed: " + problem + "; asking again");
    if (shared_.stop.wait(pause_after(attempt))) return std::nullopt;
  }
}

void Worker::refuse_event(const std::string& id) {
  const std::string limit = std::to_string(shared_.options.max_event_bytes);
  shared_.report(ProblemKind::event_refused, id,
                 "the event is larger than " + limit + " bytes; it gets an error answer");
  post_failure(id, {"Runtime.EventTooLarge", "the event is larger than " + limit + " bytes"});
}

// --- the handler ---

void Worker::handle(const Handler& handler, const NextEvent& event) {
  const std::string& id = event.invocation.request_id;
  std::string response;
  try {
    const InvocationSpan span(event.invocation);
    response = handler(event.body, event.invocation);
  } catch (const abi::__forced_unwind&) {
    throw;  // The thread is being cancelled, which must not be prevented.
  } catch (...) {
    // Any exception of a handler becomes an answer to its caller, and the process continues.
    return answer_failure(id, describe_exception());
  }
  const std::size_t limit = shared_.options.max_response_bytes;
  if (response.size() > limit) return answer_too_large(id, response.size());
  post_response(id, response);
}

void Worker::answer_failure(const std::string& id, const ErrorAnswer& failure) {
  shared_.report(ProblemKind::handler_failed, id,
                 "the handler threw " + failure.header() + "; its caller gets an error answer");
  post_failure(id, failure);
}

void Worker::answer_too_large(const std::string& id, std::size_t size) {
  const std::string limit = std::to_string(shared_.options.max_response_bytes);
  const std::string sizes = "the response has " + std::to_string(size) + " bytes, more than the " + limit + " allowed";
  shared_.report(ProblemKind::response_refused, id, sizes + "; its caller gets an error answer");
  post_failure(id, {std::string(too_large_type), sizes});
}

void Worker::answer_unsent(const std::string& id) {
  shared_.report(
      ProblemKind::response_refused, id,
      "a streamed response could not be started: " + connection_.problem() + "; its caller gets an error answer");
  post_failure(id, {"Runtime.ResponseNotSent", "no connection could be made for the response"});
}

// --- posting ---

void Worker::post_response(const std::string& id, std::string_view response) {
  ApiAnswer answer;
  if (!post("invocation/" + id + "/response", "Content-Type: application/json\r\n", response, id, answer)) return;
  judge_response(id, answer, response.size());
}

void Worker::post_error(const std::string& path, const std::string& id, const ErrorAnswer& failure) {
  ApiAnswer answer;
  if (!post(path, failure_headers(failure), failure.body(), id, answer)) return;
  if (answer.result_int() / 100 != 2) {
    shared_.report(ProblemKind::response_refused, id, "the platform did not take the error answer: " + said(answer));
  }
}

void Worker::judge_response(const std::string& id, const ApiAnswer& answer, std::size_t size) {
  if (answer.result_int() / 100 == 2) return;
  const std::string what =
      "the platform did not take the response of " + std::to_string(size) + " bytes: " + said(answer);
  if (answer.result_int() != 413)
    return shared_.report(ProblemKind::response_refused, id, what + "; its caller sees a failure");
  shared_.report(ProblemKind::response_refused, id, what + ", it is too large; its caller gets an error answer");
  // AWS has reported this to the caller itself, and refuses the post; other platforms may not.
  const ErrorAnswer failure{std::string(too_large_type),
                            "the response of " + std::to_string(size) + " bytes is too large"};
  ApiAnswer ignored;
  post("invocation/" + id + "/error", failure_headers(failure), failure.body(), id, ignored);
}

// The caller has a part of it already, so only the operator gets a report.
void Worker::judge_stream(const std::string& id, const ApiAnswer& answer, std::size_t size) {
  if (answer.result_int() / 100 == 2) return;
  shared_.report(ProblemKind::response_refused, id,
                 "the platform did not take a streamed response, of which " + std::to_string(size) +
                     " bytes were sent: " + said(answer));
}

bool Worker::post(const std::string& path, const std::string& headers, std::string_view body, const std::string& id,
                  ApiAnswer& answer) {
  const std::string head = post_head(path, headers) + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  bool may_have_arrived = false;
  for (unsigned attempt = 1;; ++attempt) {
    answer = {};
    if (connection_.connect_if_needed()) {
      connection_.send_all(std::array{std::string_view(head), body});
      if (connection_.read_answer(answer, max_answer_bytes, nullptr) == Trouble::none) {
        if (answer.result_int() >= 500) {
          shared_.fail(id, "the Runtime API answered with " + said(answer) + " to " + path + "; the runtime ends");
          return false;
        }
        if (!may_have_arrived || answer.result_int() / 100 == 2) return true;
        shared_.report(ProblemKind::response_in_doubt, id,
                       "the connection was lost while an answer was posted, and the platform refuses it now with " +
                           said(answer) + ", as it does if it already has one");
        return false;
      }
      may_have_arrived = true;
    }
    if (attempt >= shared_.options.attempts) {
      shared_.report(may_have_arrived ? ProblemKind::response_in_doubt : ProblemKind::response_refused, id,
                     "posting " + path + " failed " + std::to_string(attempt) + " times: " + connection_.problem() +
                         (may_have_arrived ? "; it is not known whether it arrived" : "; it did not arrive"));
      return false;
    }
    std::this_thread::sleep_for(pause_after(attempt));  // Also after a stop, because the answer is there.
  }
}

std::string Worker::post_head(std::string_view path, std::string_view headers) const {
  std::string head = "POST ";
  head.append(base_path).append(path).append(" HTTP/1.1\r\nHost: ").append(shared_.address.text());
  return head.append("\r\nUser-Agent: once\r\n").append(invocation_header_).append(headers);
}

Millis Worker::pause_after(unsigned attempt) const {
  return shared_.options.pause * (std::int64_t{1} << std::min(attempt - 1, 10U));
}

}  // namespace once::lambda::runtime
