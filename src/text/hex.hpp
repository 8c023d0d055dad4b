// Hexadecimal digits.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace once::text {

inline constexpr std::string_view lower_digits = "0123456789abcdef";
inline constexpr std::string_view upper_digits = "0123456789ABCDEF";

// The value of a digit of either case; -1: not a digit.
constexpr int digit_value(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte of the two digits at `at`; -1: no two digits.
constexpr int hex_byte_at(std::string_view text, std::size_t at) noexcept {
  if (at + 1 >= text.size()) return -1;
  const int high = digit_value(text[at]);
  const int low = digit_value(text[at + 1]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// Two digits a byte.
inline void append_hex(std::string& out, char c, std::string_view digits = lower_digits) {
  out += digits[static_cast<unsigned char>(c) >> 4U];
  out += digits[static_cast<unsigned char>(c) & 15U];
}
// The same for all bytes, in lower case; returns the place after them.
char* put_hex(std::string_view bytes, char* out) noexcept;

// Empty unless it is pairs of digits.
std::optional<std::string> from_hex(std::string_view text);

}  // namespace once::text
