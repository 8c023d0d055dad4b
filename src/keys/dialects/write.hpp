// The exact text that a dialect hashes for a value.
#pragma once

#include <once/keys/key_deriver.hpp>
#include <string>

#include "text/json.hpp"

namespace once::keys {

namespace json = text::json;

// Always valid UTF-8, except that native strings are unchanged.
std::string hashed_text(const json::Value& value, Dialect dialect);

// The same, but always JSON, as hashed_text() writes an array's element. Used for to_string() of JMESPath. In Python it
// is the compact form of to_string().
std::string json_text(const json::Value& value, Dialect dialect);

}  // namespace once::keys
