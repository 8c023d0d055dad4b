// Lambda's Runtime API on a loopback port: runs a function on a laptop, and drives tests of functions and runtimes.
//
//   once::lambda::LocalApi api;
//   std::thread function([&] { once::lambda::run(handler, {.api = api.address(), .stop = stop.get_token()}); });
//   once::lambda::InvocationOutcome outcome = api.submit(R"({"order": 17})").get();
//
// Version 2018-06-01 of the API, with response streaming. `once lambda invoke` is this with a process for the function.
// What it does not have: extensions, telemetry, the freeze between invocations and the end of the process at a timeout;
// these are the affair of whoever owns the function's process.
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
  enum class Kind : std::uint8_t {
    response,   // `body` is the function's response.
    error,      // It answered with an error, also at its init; or with what the API refuses.
    timed_out,  // No answer within SubmitOptions::timeout. One that comes later is refused.
    died,       // function_died() was called first.
    dropped,    // The LocalApi was destroyed first.
  };
  Kind kind = Kind::dropped;
  std::string request_id;
  std::string body;          // response, and what was streamed before an error: the bytes, chunks joined.
  std::string content_type;  // As the function sent it, with the response.
  bool streamed = false;     // In chunks, with Lambda-Runtime-Function-Response-Mode: streaming.
  bool given = false;        // The function had got the event.
  std::string error_type;    // error: from the header, or the body.
  std::string
      error_message;  // error: errorMessage of the body, if that is such JSON. died: what function_died() was told.
  std::string error_body;            // error: the body as it was posted (JSON, mostly), or of the trailer.
  std::chrono::nanoseconds took{0};  // From when the event was given to the end; 0: it never was.
};
std::string_view to_string(InvocationOutcome::Kind kind) noexcept;  // "response", "timed_out" and so on.

// A UUID (RFC 9562, version 4), as Lambda's own request ids are.
std::string make_request_id(Random& random);

struct SubmitOptions {
  std::string request_id;  // Up to 256 letters, digits and -_.; empty: made up, a UUID.
  std::string function_arn = "arn:aws:lambda:eu-central-1:000000000000:function:function";
  std::string trace_id;          // This and the next two: empty: not sent. No control characters.
  std::string client_context;    //
  std::string cognito_identity;  //
  Millis timeout{3'000};         // From when the function gets the event. 1 ms to 24 h.
};

// The calls of a Runtime API.
enum class ApiCall : std::uint8_t { next, response, error, init_error };

// What goes wrong in one call. "Carried out": as without the fault, but for the answer.
struct ApiFault {
  enum class Kind : std::uint8_t {
    reset_before,  // The connection is reset when the request was read; nothing is carried out.
    reset_after,   // Carried out, then reset in place of an answer. next: the event counts as given.
    close_before,  // As reset_before, with an orderly end.
    close_after,   // As reset_after, with an orderly end.
    half_answer,   // Carried out; half of the answer's bytes, then an orderly end.
    status,        // Answered with `status`; nothing is carried out.
    refuse_early,  // Posts: answered with `status` and closed when the head was read, before the body.
    held,          // Carried out and answered when release() is called.
  };
  ApiCall call = ApiCall::next;
  Kind kind = Kind::status;
  unsigned status = 500;
};

struct LocalApiOptions {
  std::string host = "127.0.0.1";  // An IP address. Whoever reaches it can see events and give answers.
  std::uint16_t port = 0;          // 0: one that is free.

  std::size_t max_response_bytes =
      std::size_t{6} * 1024 * 1024 + 100;                         // More is 413 (as in AWS's emulator, 6 MiB + 100).
  std::size_t max_stream_bytes = std::size_t{200} * 1024 * 1024;  // Of a streamed response: 200 MB on Lambda.
  std::size_t max_connections = 2'048;                            // More are closed at once.

  // At which points the function is seen. Called on the API's thread, must not block, throw or destroy the LocalApi.
  enum class Point : std::uint8_t {
    waiting,    // It asks for an event and there is none.
    given,      // It has been sent an event.
    answering,  // Its response or error was read whole and is about to be taken.
    answered,   // The outcome is known, and the function was told so.
  };
  // False, at `answering` only: the answer is not taken and the call stays unanswered, until the function dies or the
  // invocation times out. Empty: nobody looks.
  std::function<bool(Point point, const std::string& request_id)> on_point;

  std::shared_ptr<Clock> clock;    // For Lambda-Runtime-Deadline-Ms. Empty: system_clock().
  std::shared_ptr<Random> random;  // For request ids. Empty: system_random().
};

// One thread. Methods may be called from any thread but that one, where not said otherwise. Events are given in the
// order in which they were submitted, one to each GET .../next.
class LocalApi {
 public:
  // Throws Exception: misuse for an address that is none, unavailable if it cannot listen.
  explicit LocalApi(LocalApiOptions options = {});
  LocalApi(const LocalApi&) = delete;
  LocalApi& operator=(const LocalApi&) = delete;
  ~LocalApi();  // Closes all connections; open invocations become `dropped`.

  [[nodiscard]] std::string address() const;  // "127.0.0.1:43127", for AWS_LAMBDA_RUNTIME_API.
  [[nodiscard]] std::uint16_t port() const noexcept;

  // Any number may be open at a time; how many run is up to how often the function asks. `done` is called once, on the
  // API's thread; it may submit, and must not block or throw. Throws Exception(misuse) for options that cannot be.
  // These and the following may be called on the API's thread.
  void submit(std::string event, SubmitOptions options, Callback<void(InvocationOutcome)> done);
  std::future<InvocationOutcome> submit(std::string event, SubmitOptions options = {});

  // The function's process has ended: the invocations that it was given end as `died`, and its connections are closed.
  // `done` is called when that has happened, as that of submit().
  enum class Waiting : std::uint8_t {
    stay,             // Events that it was not given wait for the next process …
    end,              // … or end so as well …
    end_if_untouched  // … or that, if it was given none at all since the last call: the next one would do no better.
  };
  void function_died(const std::string& how, Waiting waiting = Waiting::stay, Callback<void()> done = nullptr);

  // Faults of a call happen in the order in which they were planned, one at each call.
  void plan(ApiFault fault);
  void release();  // Lets go on all that is held now.

  struct Counts {
    std::uint64_t connections = 0;  // Accepted so far.
    std::uint64_t open = 0;         // Now.
    std::uint64_t next = 0;         // Requests of each call so far, read whole.
    std::uint64_t responses = 0;
    std::uint64_t errors = 0;
    std::uint64_t init_errors = 0;
    std::uint64_t refused = 0;  // Answered with 4xx, faults aside.
    std::uint64_t waiting = 0;  // Requests for an event that wait for one, now.
    std::uint64_t queued = 0;   // Events that wait for a request, now.
    std::uint64_t running = 0;  // Given and not ended, now.
    std::uint64_t held = 0;     // Calls held by faults, or by on_point, now.
  };
  [[nodiscard]] Counts counts() const;
  // Waits until `condition` holds; false if it did not within `limit`. Not on the API's thread.
  bool wait_until(const std::function<bool(const Counts&)>& condition, Millis limit = Millis{20'000}) const;

  // What the function reported with its last init error, as an InvocationOutcome of Kind::error; `kind` is `dropped` if
  // it has not.
  [[nodiscard]] InvocationOutcome init_error() const;

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace once::lambda
