// once::lambda::idempotent(): a Lambda handler whose work runs once for all events that mean the same.
//
//   once::Engine engine({.store = once::open_store("dynamodb://payments")});
//   auto handler = once::lambda::idempotent(
//       engine, {.key = "order_id", .fingerprint = "cents"},
//       [](std::string_view event, once::Context& context) {
//         return context.step("charge", [&] { return charge_card(context.derived_key("card"), event); });
//       });
//   once::lambda::run(handler);
//
// The work is callable as work(event), work(event, invocation), work(event, context) or work(event, invocation,
// context), with a std::string_view or a std::string for the event, a const Invocation& and a once::Context& (steps,
// derived keys, the attempt, the stop token). It returns a string: the response, JSON as a rule. An event that comes
// again, from a retry, a second delivery or an impatient client, gets that response and runs nothing.
//
// It is a plain function of strings, so that any runtime can call it. Under aws-lambda-cpp:
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

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <once/engine/engine.hpp>
#include <once/frontends/lambda/invocation.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/policy.hpp>
#include <once/record.hpp>

namespace once::lambda {

// The types of errors where there is no response to give. Lambda retries an asynchronous invocation after whatever
// error, and so do SQS and streams: there the type is for the log, the destination of failures and alarms. A state
// machine retries by type; once::lambda::retry_helps() says for which that makes sense.
namespace errors {
inline constexpr std::string_view conflict = "Once.Conflict";  // Another invocation is at it. Not run. Retry.
inline constexpr std::string_view mismatch = "Once.Mismatch";  // The key came with another payload. Not run.
inline constexpr std::string_view outcome_unknown =
    "Once.OutcomeUnknown";  // Started earlier, nobody knows how it ended: `once resolve`. Not run.
inline constexpr std::string_view claim_lost =
    "Once.ClaimLost";  // Ran for longer than its lease, and nobody has a result yet. Retry, for the one that counts.
inline constexpr std::string_view result_dropped =
    "Once.ResultDropped";  // Done earlier, but its response was too large to keep. Not run.
inline constexpr std::string_view store_unavailable = "Once.StoreUnavailable";  // Not run. Retry.
inline constexpr std::string_view store_failed =
    "Once.StoreFailed";  // The store refuses (a permission, a table's name) or holds what cannot be read. Not run.
inline constexpr std::string_view not_recorded =
    "Once.NotRecorded";  // Ran, and could not be recorded: OnUnrecorded::raise. Retry, for the result.
inline constexpr std::string_view declined = "Once.Declined";  // Context::commit_with() was refused: nothing written.
inline constexpr std::string_view no_key = "Once.NoKey";       // No key, or nothing to compare. Not run.
inline constexpr std::string_view invalid_event =
    "Once.InvalidEvent";  // No JSON, or the expressions fail on it, so that no key can be had. Not run.
inline constexpr std::string_view no_time_left =
    "Once.NoTimeLeft";  // The invocation's deadline is past, or all but. Not run. Retry.
}  // namespace errors

// Whether the same event may fare better later, without anybody doing anything.
bool retry_helps(std::string_view error_type) noexcept;

// What the platform and the operator say about the function, as environment variables.
struct Environment {
  std::string function_name;  // AWS_LAMBDA_FUNCTION_NAME
  std::string handler;        // _HANDLER
  std::string disabled;       // ONCE_DISABLED: 1, true, yes or on: see IdempotentOptions::environment.

  static Environment of_process();
};

// What a replay becomes, given the stored response and its record: for a header in an API Gateway response, say, that
// tells it is one. Not called for a response that was just made. What it throws becomes the invocation's error.
using ReplayHook = std::function<std::string(std::string response, const Record& record)>;

struct IdempotentOptions {
  // JMESPath over the event that selects the key: once/keys/key_deriver.hpp. Empty: the whole event is the key. Ready
  // for the services that send events: once/frontends/lambda/recipes.hpp.
  std::string key;

  // JMESPath that selects what repeated events must have in common with the first one; others get errors::mismatch.
  // Empty: nothing is compared.
  std::string fingerprint;

  // Keeps the keys of a function's handlers apart, nested ones too (a call with the key that its caller runs under is
  // refused): without '/'. Empty: _HANDLER. The keys live in the
  // scope EngineOptions::scope/FUNCTION/NAME, of which what is empty is left out. It is part of every stored key: do
  // not rename it while records live. In a dialect it is what the library has for it: the function ("app.handler" in
  // Python, the method in Java and .NET); nothing in TypeScript.
  std::string name;

  std::string function;  // Empty: AWS_LAMBDA_FUNCTION_NAME.
  std::string scope;     // The whole scope, in place of all that.

  // Whose ids and rules, so that a function can move here from Powertools and keep its table (the store's URL names the
  // dialect too): docs/moving-from-powertools.md.
  keys::Dialect dialect = keys::Dialect::native;
  std::string hash;        // keys::Recipe::hash.
  std::string key_prefix;  // The library's setting; dialects only.

  // What it leaves open is the engine's. The lease is what is left until the invocation's deadline, see
  // within_deadline(); Policy::lease is for invocations without one. OnLapse::hold is for work that must never run
  // again after a timeout: it becomes unknown, and a person decides. What neither policy says: OnConflict::fail, so
  // errors::conflict at once; OnMissingKey::refuse, so errors::no_key, also where `fingerprint` finds nothing to
  // compare; in the dialects of Powertools run_unprotected.
  std::optional<Policy> policy;

  ReplayHook on_replay;

  // Empty: the process's, read once when the handler is made. With ONCE_DISABLED every event runs unprotected, and the
  // observer is told EventKind::unprotected each time; unset, "", 0, false, no and off leave it on.
  std::optional<Environment> environment;
};

// `policy` as one invocation needs it. The lease lasts until the deadline, and longer by the skew and the drift of
// clocks, so that the holder trusts it up to its deadline; there is no heartbeat, because the platform freezes
// processes; and OnConflict::wait waits for half of the time that is left at most. Without a deadline, or with one
// that no lease reaches (24 h), the policy stays as it is, heartbeat included. Throws FunctionError(no_time_left) if
// less than 10 ms are left.
Policy within_deadline(const Engine& engine, Policy policy, const Invocation& invocation);

namespace detail {

using Work = std::function<std::string(std::string_view, const Invocation&, Context&)>;

Handler make_idempotent(Engine& engine, IdempotentOptions options, Work work);

// Calls `work` with those of the arguments that it takes.
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

// Throws Exception(misuse) for options that cannot be: an expression that does not compile, a scope that nothing names,
// a policy out of range, ONCE_DISABLED with another word.
//
// The handler throws what the work throws, after the policy for exceptions was carried out, and FunctionError of the
// types above where there is no response. A stored failure (OnThrow::store) is thrown again as a FunctionError with the
// type and message that it had. A response that came too late, because the lease was lost meanwhile, is not given:
// either another one is stored by then, which is what the caller gets (and Outcome calls superseded), or claim_lost.
//
// To be called by any number of threads at a time, if the work is. The engine must outlive it; copies share the work.
// Give the engine EngineOptions::cache_records to have replays within a warm environment cost no round trip.
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
    // A copy of its own, to take apart as it likes.
    return detail::make_idempotent(
        engine, std::move(options),
        [work = std::forward<Function>(work)](std::string_view event, const Invocation& invocation,
                                              Context& context) mutable -> std::string {
          return detail::call_with<std::string>(work, std::string(event), invocation, context);
        });
  }
}

}  // namespace once::lambda
