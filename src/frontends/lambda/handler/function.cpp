#include "frontends/lambda/handler/function.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <once/error.hpp>
#include <once/platform/environment.hpp>

#include "text/ascii.hpp"

namespace once::lambda {

namespace {

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

Environment Environment::of_process() {
  return {.function_name = environment_variable("AWS_LAMBDA_FUNCTION_NAME"),
          .handler = environment_variable("_HANDLER"),
          .disabled = environment_variable("ONCE_DISABLED")};
}

Environment environment_or_process(const std::optional<Environment>& given) {
  return given ? *given : Environment::of_process();
}

bool is_disabled(const Environment& environment) { return once::is_disabled(environment.disabled); }

std::string join_scope(std::string_view engine, std::string_view function, std::string_view name) {
  std::string scope(engine);
  for (const std::string_view part : {function, name}) {
    if (part.empty()) continue;
    if (!scope.empty()) scope += '/';
    scope += part;
  }
  return scope;
}

std::string handler_scope(std::string_view engine, const std::string& function, const std::string& name,
                          const Environment& environment, const std::string& options) {
  const std::string& of_function = function.empty() ? environment.function_name : function;
  const std::string& of_handler = name.empty() ? environment.handler : name;
  if (of_function.empty() && of_handler.empty()) {
    throw Exception(ErrorKind::misuse, options +
                                           "::name is empty, and neither AWS_LAMBDA_FUNCTION_NAME nor _HANDLER is set: "
                                           "name the handler, so that its keys are kept apart from others'");
  }
  if (of_handler.find('/') != std::string::npos) {
    throw Exception(ErrorKind::misuse,
                    options + "::name (or _HANDLER) is '" + of_handler +
                        "': '/' separates the parts of a scope, so set a name without it, or the whole scope");
  }
  return join_scope(engine, of_function, of_handler);
}

Policy handler_policy(const Engine& engine, const std::optional<Policy>& own, keys::Dialect dialect) {
  const bool native = dialect == keys::Dialect::native;
  return fill_in(fill_in(own.value_or(Policy{}), engine.options().policy),
                 {.on_conflict = OnConflict::fail,
                  .on_missing_key = native ? OnMissingKey::refuse : OnMissingKey::run_unprotected});
}

void refuse_event(const std::string& why) { throw FunctionError(std::string(errors::invalid_event), why); }

bool retry_helps(std::string_view error_type) noexcept {
  constexpr std::array<std::string_view, 6> passing{errors::conflict,     errors::claim_lost,
                                                    errors::not_recorded, errors::store_unavailable,
                                                    errors::no_time_left, errors::records_failed};
  return std::ranges::find(passing, error_type) != passing.end();
}

Policy within_deadline(const Engine& engine, Policy policy, const Invocation& invocation) {
  constexpr Millis least{10};  // The shortest lease.
  if (invocation.deadline == never) return policy;
  const Time now = engine.options().clock->now();
  const Millis left = invocation.deadline > now ? invocation.deadline - now : Millis{0};
  if (left < least) {
    throw FunctionError(std::string(errors::no_time_left),
                        "the invocation's deadline leaves no time for the work, so it was not begun: retry, or give "
                        "the function a longer timeout");
  }
  EffectivePolicy whole = effective(fill_in(policy, engine.options().policy));
  whole.heartbeat = true;  // The lease is the time that is left, also if it would be shorter.
  whole.fixed_lease = false;
  const EffectivePolicy bounded = ending_within(whole, left);
  if (!bounded.fixed_lease) return policy;
  policy.lease = bounded.lease;
  policy.heartbeat = bounded.heartbeat;
  policy.fixed_lease = bounded.fixed_lease;
  policy.wait = bounded.wait;
  return policy;
}

}  // namespace once::lambda
