// The three powertools_* functions of JMESPath, and what a dialect accepts as JSON.
#pragma once

#include <once/keys/key_deriver.hpp>
#include <optional>
#include <string_view>

#include "keys/json.hpp"

namespace once::keys {

json::Rules rules_of(Dialect dialect) noexcept;

enum class Powertools : std::uint8_t { json, base64, base64_gzip };

std::optional<Powertools> powertools_function(std::string_view name) noexcept;  // "powertools_json" ...

// Throws Exception(misuse) if the argument is not what the function reads. The answer may point into the argument.
json::Value call(Powertools function, const json::Value& argument, Dialect dialect, json::Arena& arena);

// What .NET makes of a member that is read by its name: if it is a string with JSON in it, that JSON.
json::Value dotnet_member(const json::Value& member, json::Arena& arena);

}  // namespace once::keys
