// once::lambda::idempotent(): a Lambda handler whose work runs once for all deliveries of an event.
//
//   once::Engine engine({.store = once::open_store("dynamodb://payments")});
//   auto handler = once::lambda::idempotent(
//       engine, {.key = "order_id", .fingerprint = "cents"},
//       [](std::string_view event, once::Context& context) {
//         return context.step("charge", [&] { return charge_card(context.derived_key("card"), event); });
//       });
//   once::lambda::run(handler);
//
// The work is called as work(event), work(event, invocation), work(event, context) or work(event, invocation, context).
// The event is a std::string_view or a std::string, the others are a const Invocation& and a once::Context& (steps,
// derived keys, the attempt, the stop token). It returns the response as a string, usually JSON. When the event comes
// again (a retry, a second delivery, an impatient client), the caller gets that response and nothing runs.
//
// The handler is a plain function of strings, so any runtime can call it. Under aws-lambda-cpp:
//
//   aws::lambda_runtime::run_handler([&](const aws::lambda_runtime::invocation_request& request) {
//     const once::lambda::Invocation invocation{
//         .request_id = request.request_id,
//         .function_arn = request.function_arn,
//         .trace_id = request.xray_trace_id,
//         .deadline = std::chrono::floor<once::Millis>(request.deadline)};
//     try {
//       return aws::lambda_runtime::invocation_response::success(handler(request.payload, invocation),
//                                                                "application/json");
//     } catch (const once::lambda::FunctionError& error) {
//       return aws::lambda_runtime::invocation_response::failure(error.what(), error.type());
//     } catch (const std::exception& error) {
//       return aws::lambda_runtime::invocation_response::failure(error.what(), "Error");
//     }
//   });
//
// docs/lambda.md says what happens at a timeout, a freeze and a failing store, and which error type means what.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/frontends/lambda/invocation.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/policy.hpp>
#include <once/record.hpp>

namespace once::lambda {

// The error types of invocations without a response. Lambda retries asynchronous invocations, SQS and streams after
// every error. There the type is for the log, the failure destination and alarms. A state machine retries by type;
// once::lambda::retry_helps() says for which a retry makes sense.
namespace errors {
inline constexpr std::string_view conflict = "Once.Conflict";  // Another invocation runs it. Not run. Retry.
inline constexpr std::string_view mismatch = "Once.Mismatch";  // The key was used with another payload. Not run.
inline constexpr std::string_view outcome_unknown =
    "Once.OutcomeUnknown";  // Begun earlier, outcome not known: use `once resolve`. Not run.
inline constexpr std::string_view claim_lost =
    "Once.ClaimLost";  // Ran longer than its lease, and no result is stored. Retry to get the result that counts.
inline constexpr std::string_view result_dropped =
    "Once.ResultDropped";  // Done earlier, but its response was too large to keep. Not run.
inline constexpr std::string_view store_unavailable = "Once.StoreUnavailable";  // Not run. Retry.
inline constexpr std::string_view store_failed =
    "Once.StoreFailed";  // The store refuses (a permission, a table's name), or its record cannot be read. Not run.
inline constexpr std::string_view not_recorded =
    "Once.NotRecorded";  // Ran, but could not be recorded (OnUnrecorded::fail). Retry to get the result.
inline constexpr std::string_view declined = "Once.Declined";  // Context::commit_with() was refused: nothing written.
inline constexpr std::string_view no_key = "Once.NoKey";       // No key, or the fingerprint selects nothing. Not run.
inline constexpr std::string_view invalid_event =
    "Once.InvalidEvent";  // Not JSON, or an expression fails on it, so there is no key. Not run.
inline constexpr std::string_view tenant_not_in_key =
    "Once.TenantNotInKey";  // A dialect's ids have no tenant: see IdempotentOptions::tenant_in_dialect. Not run.
inline constexpr std::string_view records_failed =
    "Once.RecordsFailed";  // A record of a batch is to come again, and only all of it can. Retry: what is done is kept.
inline constexpr std::string_view no_time_left =
    "Once.NoTimeLeft";  // The invocation's deadline has passed, or nearly. Not run. Retry.
}  // namespace errors

// Whether a retry of the same event may succeed without any repair.
bool retry_helps(std::string_view error_type) noexcept;

// Environment variables of the platform and the operator.
struct Environment {
  std::string function_name = {};  // AWS_LAMBDA_FUNCTION_NAME
  std::string handler = {};        // _HANDLER
  std::string disabled = {};       // ONCE_DISABLED: 1, true, yes or on: see IdempotentOptions::environment.

  static Environment of_process();  // A copy of the variables as they are now.
};

// Changes a replayed response, given the record: for example to add a header that marks it. Not called for a new
// response. Its exception becomes the invocation's error.
using ReplayHook = std::function<std::string(std::string response, const Record& record)>;

// What the key of an event is, and how its invocation is run.
struct IdempotentOptions {
  // JMESPath over the event that selects the key: once/keys/key_deriver.hpp. once/frontends/lambda/recipes.hpp has
  // expressions for AWS services. Empty: the whole event is the key.
  std::string key = {};

  // JMESPath that selects what a repeated event must have in common with the first one. Otherwise it gets
  // errors::mismatch. Empty: nothing is compared.
  std::string fingerprint = {};

  // Accept a null or empty part of what `key` puts together, "[user.uid, id]", and a null one of `fingerprint`: see
  // keys::Recipe. Dialects accept what their libraries do.
  bool allow_null_parts = false;

  // Fields that are left out of the record's input, as "card.number": see once/keys/input_filter.hpp. With
  // Policy::keep_input the input is the event. A path does not enter JSON that is a string, as `body` of an HTTP event:
  // leave all of it out, or use once::lambda::http().
  std::vector<std::string> input_without = {};

  // Keeps the keys of a function's handlers apart. Nested handlers need different names, because a call with its
  // caller's key is refused. It must not contain '/'. Empty: _HANDLER. The scope of the keys is
  // EngineOptions::scope/FUNCTION/NAME, without empty parts. It is part of every stored key: do not rename it while
  // records exist. In a dialect it is the library's function name ("app.handler" in Python, the method in Java and
  // .NET); unused in TypeScript.
  std::string name = {};

  std::string function = {};  // Empty: AWS_LAMBDA_FUNCTION_NAME.
  std::string scope = {};     // The whole scope, instead of those parts.

  // Whose ids and rules to use, so that a function can move from Powertools and keep its table. The store's URL must
  // name the same dialect. See docs/moving-from-powertools.md.
  keys::Dialect dialect = keys::Dialect::native;
  std::string hash = {};        // keys::Recipe::hash.
  std::string key_prefix = {};  // The library's setting; dialects only.

  // Dialects only. The libraries' ids have no tenant, so two tenants of a function with tenant isolation would get each
  // other's results. Such invocations end as errors::tenant_not_in_key. true: their ids have the tenant, and differ
  // from the library's, so records that the library wrote are not found.
  bool tenant_in_dialect = false;

  // Empty members: the engine's. The lease is the time until the invocation's deadline, see within_deadline();
  // Policy::lease is for invocations without a deadline. OnLapse::hold is for work that must never run again after a
  // timeout: it becomes unknown, and an operator decides. Default of on_conflict: fail, so errors::conflict at once.
  // Default of on_missing_key: refuse, so errors::no_key, also if `fingerprint` selects nothing or a part is missing;
  // in Powertools dialects run_unprotected.
  std::optional<Policy> policy = {};

  ReplayHook on_replay = {};  // Empty: replays are unchanged. Not for idempotent_stream().

  // idempotent_stream() only: how much of a response is kept in memory and stored. A longer one is sent whole and
  // leaves a tombstone: a retry gets errors::result_dropped, and nothing runs. A store with a lower limit keeps less:
  // see Policy::max_inline_bytes and EngineOptions::offload.
  std::size_t max_stream_bytes = max_event_bytes;

  // Empty: the process's, read once when the handler is made. With ONCE_DISABLED every event runs unprotected, and
  // EventKind::unprotected reports it each time. Unset, "", 0, false, no and off leave the protection on.
  std::optional<Environment> environment = {};
};

// `policy`, adapted to one invocation. The lease lasts until the deadline, plus skew and clock drift, so that the
// holder may trust it until then. There is no heartbeat, because the platform freezes processes. OnConflict::wait waits
// at most half of the remaining time. Without a deadline, or with one beyond the longest lease (24 h), the policy is
// unchanged. Throws FunctionError(no_time_left) if less than 10 ms are left.
Policy within_deadline(const Engine& engine, Policy policy, const Invocation& invocation);

namespace detail {

using Work = std::function<std::string(std::string_view, const Invocation&, Context&)>;

Handler make_idempotent(Engine& engine, IdempotentOptions options, Work work);

// Calls `work` with the arguments that it takes.
template <class Event, class Function>
constexpr bool takes_event =
    std::is_invocable_v<Function&, Event, const Invocation&, Context&> ||
    std::is_invocable_v<Function&, Event, Context&> || std::is_invocable_v<Function&, Event, const Invocation&> ||
    std::is_invocable_v<Function&, Event>;

template <class Event, class Function>
std::string call_with(Function& work, Event event, const Invocation& invocation, Context& context) {
  if constexpr (std::is_invocable_v<Function&, Event, const Invocation&, Context&>) {
    return work(std::move(event), invocation, context);
  } else if constexpr (std::is_invocable_v<Function&, Event, Context&>) {
    return work(std::move(event), context);
  } else if constexpr (std::is_invocable_v<Function&, Event, const Invocation&>) {
    return work(std::move(event), invocation);
  } else {
    return work(std::move(event));
  }
}

}  // namespace detail

// Throws Exception(misuse) for invalid options: an expression that does not compile, no scope, a policy out of range,
// an unknown word in ONCE_DISABLED.
//
// The handler rethrows the work's exceptions, after it has applied the policy for exceptions. It throws FunctionError
// of the types above if there is no response. A stored failure (OnThrow::store) is thrown as a FunctionError with its
// type and message. If the lease was lost during the work, its response is not used: the caller gets the response
// stored by another attempt (Outcome::Kind::superseded), or claim_lost.
//
// The handler may be called by several threads at once if the work may. The engine must outlive it; copies share the
// work. With EngineOptions::cache_records, replays in a warm environment cost no round trip.
template <class Function>
Handler idempotent(Engine& engine, IdempotentOptions options, Function&& work) {
  using Plain = std::decay_t<Function>;
  static_assert(detail::takes_event<std::string_view, Plain> || detail::takes_event<std::string, Plain>,
                "once: the work must be callable as work(event), work(event, invocation), work(event, context) or "
                "work(event, invocation, context), with a std::string_view or std::string, a const "
                "once::lambda::Invocation& and a once::Context&, and return a string");
  if constexpr (detail::takes_event<std::string_view, Plain>) {
    return detail::make_idempotent(
        engine, std::move(options),
        [work = std::forward<Function>(work)](std::string_view event, const Invocation& invocation,
                                              Context& context) mutable -> std::string {
          return detail::call_with<std::string_view>(work, event, invocation, context);
        });
  } else if constexpr (detail::takes_event<std::string, Plain>) {
    // A copy that the work may modify.
    return detail::make_idempotent(
        engine, std::move(options),
        [work = std::forward<Function>(work)](std::string_view event, const Invocation& invocation,
                                              Context& context) mutable -> std::string {
          return detail::call_with<std::string>(work, std::string(event), invocation, context);
        });
  }
}

}  // namespace once::lambda
