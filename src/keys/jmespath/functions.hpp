// The functions of JMESPath by name, the implementation of powertools_*, and the dialects' rules for JSON.
#pragma once

#include <once/keys/key_deriver.hpp>
#include <string_view>

#include "text/json.hpp"

namespace once::keys {

namespace json = text::json;

json::Rules rules_of(Dialect dialect) noexcept;

enum class Function : std::uint8_t {
  abs,
  avg,
  ceil,
  contains,
  ends_with,
  floor,
  join,
  keys,
  length,
  map,
  max,
  max_by,
  merge,
  min,
  min_by,
  not_null,
  powertools_base64,
  powertools_base64_gzip,
  powertools_json,
  reverse,
  sort,
  sort_by,
  starts_with,
  sum,
  to_array,
  to_number,
  to_string,
  type,
  values,
};

struct Signature {
  static constexpr std::size_t none = 99;
  static constexpr std::size_t any_number = 1000;
  std::string_view name;
  Function function;
  std::size_t least = 1;  // Arguments.
  std::size_t most = 1;
  std::size_t reference = none;  // Which argument is an expression after '&'.
};

const Signature* signature_of(std::string_view name) noexcept;  // Null: no such function.
std::string_view name_of(Function function) noexcept;
bool is_powertools(Function function) noexcept;

// Calls one of powertools_*. Throws Exception(misuse) for an invalid argument. The result may point into the argument.
json::Value call_powertools(Function function, const json::Value& argument, Dialect dialect, json::Arena& arena);

// "a string", "null (is the field missing?)" ... for messages.
std::string_view kind_name(json::Kind kind) noexcept;

// .NET's value of a member that is read by name: if it is a string that contains JSON, that JSON.
json::Value dotnet_member(const json::Value& member, json::Arena& arena);

}  // namespace once::keys
