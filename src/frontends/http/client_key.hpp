// The idempotency key as a client sends it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace once::http {

struct ClientKey {
  enum class Kind : std::uint8_t {
    found,    // `key`: 1 to 255 characters of printable ASCII.
    missing,  // There is none.
    invalid,  // `why`: what is wrong, for the client; one sentence of plain ASCII.
    differ,   // There are two.
  };
  Kind kind = Kind::missing;
  std::string key;
  std::string_view why;

  friend bool operator==(const ClientKey&, const ClientKey&) = default;
};

// From the lines of the header. Each is a list, as some intermediary may have joined several lines into one (RFC 9110,
// section 5.3): of Strings (RFC 9651, section 3.3.3), with or without parameters, which say nothing about the key and
// are left out; or of bare keys, which are all up to the next comma or the end. A bare key has no quotes in it. The
// same key twice is one key.
ClientKey key_from_lines(std::span<const std::string_view> lines);

// From what a JMESPath expression has selected, in canonical JSON (KeyDeriver's key_text): a string or a number.
ClientKey key_from_json(std::string_view json);

}  // namespace once::http
