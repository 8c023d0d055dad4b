// Percent-encoding (RFC 3986, section 2.1).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/ascii.hpp"
#include "text/hex.hpp"

namespace once::text {

// Letters, digits and "-._~" (RFC 3986, section 2.3).
constexpr bool is_unreserved(char c) noexcept {
  return is_letter_or_digit(c) || c == '-' || c == '.' || c == '_' || c == '~';
}

// Every character except plain(c) becomes %XX, in upper case.
template <class Plain>
void append_percent_encoded(std::string& out, std::string_view text, Plain plain) {
  for (const char c : text) {
    if (plain(c)) {
      out += c;
    } else {
      out += '%';
      append_hex(out, c, upper_digits);
    }
  }
}

template <class Plain>
std::string percent_encoded(std::string_view text, Plain plain) {
  std::string out;
  append_percent_encoded(out, text, plain);
  return out;
}

// The byte of the escape at `at`, a '%' and two digits; -1: no escape.
constexpr int percent_byte_at(std::string_view text, std::size_t at) noexcept {
  return text[at] == '%' ? hex_byte_at(text, at + 1) : -1;
}

// Decodes the escapes of bytes that are wanted(c). Everything else stays.
template <class Wanted>
std::string percent_decoded(std::string_view text, Wanted wanted) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int byte = percent_byte_at(text, i);
    if (byte >= 0 && wanted(static_cast<char>(byte))) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Whether it has a '%' without two digits.
bool has_broken_percent(std::string_view text) noexcept;

// Decodes all escapes; empty if it has a '%' without two digits.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace once::text
