// Lambda's Runtime API on a local port: to run a function on a laptop, and to test functions and runtimes.
//
//   once::lambda::LocalApi api;
//   std::thread function([&] { once::lambda::run(handler, {.api = api.address(), .stop = stop.get_token()}); });
//   once::lambda::InvocationOutcome outcome = api.submit(R"({"order": 17})").get();
//
// Version 2018-06-01 of the API, with response streaming. `once lambda invoke` uses it to run a function's process. Not
// included: extensions and telemetry. Freezing the process between invocations, and ending it at a timeout, are up to
// the owner of the function's process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>

#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/time.hpp>

namespace once::lambda {

// How an invocation ended.
struct InvocationOutcome {
  // Who or what ended it.
  enum class Kind : std::uint8_t {
    response,   // `body` is the function's response.
    error,      // It answered with an error, also at its init, or with an answer that the API refuses.
    timed_out,  // No answer within SubmitOptions::timeout. A later answer is refused.
    died,       // function_died() was called first.
    dropped,    // The LocalApi was destroyed first.
  };
  Kind kind = Kind::dropped;      // Says which of the other members are set.
  std::string request_id = {};    // As SubmitOptions::request_id, or the new one.
  std::string body = {};          // The bytes of a response, or those streamed before an error; chunks joined.
  std::string content_type = {};  // As the function sent it, with the response.
  bool streamed = false;          // In chunks, with Lambda-Runtime-Function-Response-Mode: streaming.
  bool given = false;             // The function got the event.
  std::string error_type = {};    // error: from the header, or the body.
  // error: errorMessage of the body, if there is one. died: the argument of function_died().
  std::string error_message = {};
  std::string error_body = {};       // error: the body as posted (usually JSON), or of the trailer.
  std::chrono::nanoseconds took{0};  // From giving the event to the end. 0: never given.
};
std::string_view to_string(InvocationOutcome::Kind kind) noexcept;  // "response", "timed_out" and so on.

// A UUID (RFC 9562, version 4), like Lambda's own request ids.
std::string make_request_id(Random& random);

// What the function gets with an event. Texts have at most 8192 bytes and no control characters.
struct SubmitOptions {
  std::string request_id = {};  // Up to 256 letters, digits and -_. Empty: a new UUID.
  std::string function_arn = "arn:aws:lambda:eu-central-1:000000000000:function:function";  // Always sent.
  std::string trace_id = {};          // AWS X-Ray's header. Empty: not sent.
  std::string client_context = {};    // JSON, as of the mobile SDKs. Empty: not sent.
  std::string cognito_identity = {};  // JSON, as of the mobile SDKs. Empty: not sent.
  std::string tenant_id = {};         // Of a function with tenant isolation. Empty: not sent.
  Millis timeout{3'000};              // Starts when the function gets the event. 1 ms to 24 h.
};

// The calls of a Runtime API.
enum class ApiCall : std::uint8_t { next, response, error, init_error, restore_next, restore_error };

// A fault of one call. "Carried out": as without the fault, except for the answer.
struct ApiFault {
  // What goes wrong, and whether the call is carried out.
  enum class Kind : std::uint8_t {
    reset_before,  // The connection is reset after the request was read. Not carried out.
    reset_after,   // Carried out, then reset without an answer. next: the event counts as given.
    close_before,  // As reset_before, with an orderly close.
    close_after,   // As reset_after, with an orderly close.
    half_answer,   // Carried out; sends half of the answer's bytes, then closes.
    status,        // Answered with `status`. Not carried out.
    refuse_early,  // Posts: answered with `status` and closed after the head, before the body is read.
    paused,        // Carried out and answered after continue_paused().
  };
  ApiCall call = ApiCall::next;  // Which call it is for.
  Kind kind = Kind::status;      // Says whether `status` is used.
  unsigned status = 500;         // status, refuse_early: the status of the answer.
};

// Where the API listens, and what it allows.
struct LocalApiOptions {
  std::string host = "127.0.0.1";  // An IP address. Any client that reaches it can read events and give answers.
  std::uint16_t port = 0;          // 0: any free port.

  std::size_t max_response_bytes =
      std::size_t{6} * 1024 * 1024 + 100;  // Larger ones get 413 (as in AWS's emulator: 6 MiB + 100).
  std::size_t max_stream_bytes = std::size_t{200} * 1024 * 1024;  // Of a streamed response: 200 MB on Lambda.
  std::size_t max_connections = 2'048;                            // Further ones are closed at once.

  // Whether there are restore/next and restore/error, for functions with SnapStart. The function needs
  // AWS_LAMBDA_INITIALIZATION_TYPE=snap-start. Each restore/next is answered after restore().
  bool snap_start = false;

  // Points in an invocation at which on_point is called: on the API's thread. It must not block, throw or destroy the
  // LocalApi.
  enum class Point : std::uint8_t {
    waiting,    // The function asks for an event, and there is none.
    given,      // The function was sent an event.
    answering,  // Its response or error was read, and will be accepted next.
    answered,   // The outcome is known, and confirmed to the function.
  };
  // Returns false, only at `answering`, to ignore the answer: the call stays unanswered until the function dies or the
  // invocation times out. May be empty.
  std::function<bool(Point point, const std::string& request_id)> on_point = {};

  std::shared_ptr<Clock> clock = {};    // For Lambda-Runtime-Deadline-Ms. Empty: system_clock().
  std::shared_ptr<Random> random = {};  // For request ids. Empty: system_random().
};

// Has one thread. Methods may be called from any other thread, unless stated otherwise. Events are given in the order
// of submit(), one to each GET .../next.
class LocalApi {
 public:
  // Throws Exception: misuse for an invalid address, unavailable if it cannot listen.
  explicit LocalApi(LocalApiOptions options = {});
  LocalApi(const LocalApi&) = delete;
  LocalApi& operator=(const LocalApi&) = delete;
  ~LocalApi();  // Closes all connections; open invocations become `dropped`.

  [[nodiscard]] std::string address() const;          // "127.0.0.1:43127", for AWS_LAMBDA_RUNTIME_API.
  [[nodiscard]] std::uint16_t port() const noexcept;  // As chosen, if LocalApiOptions::port is 0.

  // Any number of invocations may be open; each runs when the function asks for it. `done` is called once, on the API's
  // thread. It may submit, and must not block or throw. Throws Exception(misuse) for invalid options. These and the
  // following may be called on the API's thread.
  void submit(std::string event, SubmitOptions options, Callback<void(InvocationOutcome)> done);
  // The same with a future. Do not wait for it on the API's thread.
  std::future<InvocationOutcome> submit(std::string event, SubmitOptions options = {});

  // What becomes of events that were not given to a function that died.
  enum class Waiting : std::uint8_t {
    stay,             // They wait for the next process.
    end,              // They end as `died` too.
    end_if_untouched  // They end, if it was given none since the last call: the next process would fail too.
  };
  // The function's process has ended: its invocations end as `died`, with `how` as their message, and its connections
  // are closed. `done` is called after that, on the API's thread.
  void function_died(const std::string& how, Waiting waiting = Waiting::stay, Callback<void()> done = nullptr);

  // The snapshot was restored: answers restore/next, to those who wait for it and to later ones.
  void restore();

  // Faults of a call happen in the planned order, one per call.
  void plan(ApiFault fault);
  void continue_paused();  // Continues all paused calls.

  // What the API has served, and what is open.
  struct Counts {
    std::uint64_t connections = 0;  // Accepted so far.
    std::uint64_t open = 0;         // Now.

    // Each of these counts the requests of one call so far, read whole.
    std::uint64_t next = 0;
    std::uint64_t responses = 0;
    std::uint64_t errors = 0;
    std::uint64_t init_errors = 0;
    std::uint64_t restores = 0;        // restore/next.
    std::uint64_t restore_errors = 0;  // restore/error.

    std::uint64_t restoring = 0;  // Requests for the restore that wait for it, now.
    std::uint64_t refused = 0;    // Answered with 4xx, faults aside.
    std::uint64_t waiting = 0;    // Requests for an event that wait for one, now.
    std::uint64_t queued = 0;     // Events that wait for a request, now.
    std::uint64_t running = 0;    // Given and not ended, now.
    std::uint64_t paused = 0;     // Calls paused by faults, or by on_point, now.
  };
  [[nodiscard]] Counts counts() const;  // All of one moment.
  // Waits until `condition` holds. False if it does not within `limit`. Not on the API's thread.
  bool wait_until(const std::function<bool(const Counts&)>& condition, Millis limit = Millis{20'000}) const;

  // The function's last init or restore error, as an InvocationOutcome of Kind::error. `kind` is `dropped` if there was
  // none.
  [[nodiscard]] InvocationOutcome init_error() const;

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace once::lambda
