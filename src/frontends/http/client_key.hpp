// The idempotency key as a client sends it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace once::http {

struct ClientKey {
  enum class Kind : std::uint8_t {
    found,    // `key`: 1 to 255 characters of printable ASCII.
    missing,  // No key.
    invalid,  // `why`: what is wrong, for the client; one sentence of plain ASCII.
    differ,   // Two different keys.
  };
  Kind kind = Kind::missing;
  std::string key;
  std::string_view why;

  friend bool operator==(const ClientKey&, const ClientKey&) = default;
};

// A key that is one text, without quotes. Refused is also what a client's bug sends instead of a key, as "undefined".
ClientKey key_from_text(std::string text);

// From the values of one name, of which all must be the same.
ClientKey key_from_values(std::vector<std::string> values);

// From the lines of the header. Each is a list, because an intermediary may have joined lines (RFC 9110, section 5.3).
// Its elements are Strings (RFC 9651, section 3.3.3), whose parameters are ignored, or bare keys up to the next comma
// or the end, without quotes. The same key twice is one key.
ClientKey key_from_lines(std::span<const std::string_view> lines);

// From the selection of a JMESPath expression, in canonical JSON (KeyDeriver's key_text): a string or a number.
ClientKey key_from_json(std::string_view json);

}  // namespace once::http
