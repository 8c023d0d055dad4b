// The exact text that a dialect hashes for a value.
#pragma once

#include <once/keys/key_deriver.hpp>
#include <string>

#include "text/json.hpp"

namespace once::keys {

namespace json = text::json;

// Always valid UTF-8, except that under native rules what came in comes out.
std::string hashed_text(const json::Value& value, Dialect dialect);

// The same as JSON in every case: what hashed_text() gives for a member of an array. Used for to_string() of JMESPath.
// In Python it is the compact form that to_string() has there.
std::string json_text(const json::Value& value, Dialect dialect);

}  // namespace once::keys
