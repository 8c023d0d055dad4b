// What the handlers of this component share: the function's name, the switch, and errors with a type.
#pragma once

#include <string>
#include <string_view>

#include <once/frontends/lambda/idempotent.hpp>

namespace once::lambda {

// The environment that was given, or the process's.
Environment environment_or_process(const std::optional<Environment>& given);

// ONCE_DISABLED. Throws Exception(misuse) for a word that is neither.
bool is_disabled(const Environment& environment);

// Those that are not empty, with '/' between them.
std::string join_scope(std::string_view engine, std::string_view function, std::string_view name);

// The scope of a handler's keys: the engine's, the function and the handler. Empty ones are taken from the environment.
// `options` is what the errors call the options. Throws Exception(misuse) without either, and for a name with '/'.
std::string handler_scope(std::string_view engine, const std::string& function, const std::string& name,
                          const Environment& environment, const std::string& options);

// A handler's policy, with nothing left open but the skew. What neither it nor the engine says is as this frontend has
// it: a duplicate fails at once, since whoever invoked the function asks again, and a waiting one would be paid for; an
// event without a key is refused, but in the dialects of Powertools.
Policy handler_policy(const Engine& engine, const std::optional<Policy>& own,
                      keys::Dialect dialect = keys::Dialect::native);

[[noreturn]] void refuse_event(const std::string& why);  // FunctionError(invalid_event)

}  // namespace once::lambda
