// Shared by the handlers of this component: the function's name, the switch, and typed errors.
#pragma once

#include <string>
#include <string_view>

#include <once/frontends/lambda/idempotent.hpp>

namespace once::lambda {

// The given environment, or the process's.
Environment environment_or_process(const std::optional<Environment>& given);

// ONCE_DISABLED. Throws Exception(misuse) for a word that is neither.
bool is_disabled(const Environment& environment);

// Joins the parts that are not empty with '/'.
std::string join_scope(std::string_view engine, std::string_view function, std::string_view name);

// The scope of a handler's keys: the engine's, the function and the handler. Empty ones are taken from the environment.
// `options`: the options' name in errors. Throws Exception(misuse) if a part is missing, and for a name with '/'.
std::string handler_scope(std::string_view engine, const std::string& function, const std::string& name,
                          const Environment& environment, const std::string& options);

// A handler's policy, complete except for the skew. This frontend's defaults: a duplicate fails at once, because the
// caller retries and waiting costs money. An event without a key is refused, except in the Powertools dialects.
Policy handler_policy(const Engine& engine, const std::optional<Policy>& own,
                      keys::Dialect dialect = keys::Dialect::native);

[[noreturn]] void refuse_event(const std::string& why);  // FunctionError(invalid_event)

}  // namespace once::lambda
