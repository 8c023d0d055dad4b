// Records as JSON, and their keys in messages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include <once/key.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

namespace once::operators {

// "'order-17'" or "'order-17' in scope 'payments'", for messages.
std::string quoted(const Key& key);
std::string quoted_stored(std::string_view stored);

// The scope and name of a stored key. Another program's key without '#' is only a name.
struct KeyParts {
  std::string scope;
  std::string name;
};
KeyParts key_parts(std::string_view stored);

// Whether it ended with a result or a failure.
bool has_result(const Record& record);

// Whose bytes are shown too.
struct Payloads {
  bool result = false;
  bool steps = false;
  bool input = false;
};
// Every field of a record; docs/commands.md has the names.
nlohmann::ordered_json record_json(const Record& record, Time now, const Payloads& payloads);
nlohmann::ordered_json record_json(const Record& record, Time now, bool payloads);  // All or none.

// Pretty-printed, with a newline at its end. In both, characters that show nothing or turn text around are escaped, and
// what is not UTF-8 is replaced, because other programs' records must not prevent showing the rest.
std::string json_text(const nlohmann::ordered_json& json);
// In one line, without its end.
std::string json_line(const nlohmann::ordered_json& json);

}  // namespace once::operators
