// Results as the four Powertools libraries keep them in an item's data attribute, and back.
//
//                  written                                   read
//   Python         S: json.dumps(sort_keys=True); values     S: JSON as it is (NaN and Infinity too, which JSON lacks);
//                  false in Python (0, "", [], {}) are null  missing or empty: null
//   TypeScript     the value itself: M, L, S, N, BOOL, NULL  the same; B as base64, sets as arrays; missing: null
//   Java           S: JSON; a string as it is, unquoted      S: JSON, other text as a string; missing: null
//   .NET           S: JSON                                   S: JSON; missing: null
//
// These results are refused: numbers that a double cannot represent; for TypeScript numbers over 2^53-1 and the name
// __proto__; for DynamoDB numbers under 1e-130 and more than 32 levels.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <once/keys/key_deriver.hpp>

#include "stores/dynamodb/item.hpp"

namespace once::stores::dynamodb {

struct PowertoolsData {
  AttributeValue value;
  bool exact = true;  // False: read_powertools_data() returns something else than was written.
};

// Throws Exception(misuse), with the reason, for a result that is not JSON or cannot be represented. Not for native.
PowertoolsData write_powertools_data(keys::Dialect dialect, std::string_view json);

// Returns JSON. `data` null: no such attribute. Throws Exception(corrupt), with the reason.
std::string read_powertools_data(keys::Dialect dialect, const AttributeValue* data);

// For a result that is not in the record: a value that makes the library's replay fail.
AttributeValue unreadable_powertools_data(keys::Dialect dialect);

}  // namespace once::stores::dynamodb
