// Text of protocols and configuration files, where only ASCII matters.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace once::text {

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
constexpr bool is_letter_or_digit(char c) noexcept {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

constexpr char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
constexpr char upper(char c) noexcept { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

inline std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return lower(c); });
  return out;
}

// Equal but for upper and lower case.
inline bool same_letters(std::string_view a, std::string_view b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return x == y || lower(x) == lower(y); });
}

// Whether `whole` has `part` somewhere, but for upper and lower case.
inline bool contains_letters(std::string_view whole, std::string_view part) noexcept {
  return part.empty() || std::search(whole.begin(), whole.end(), part.begin(), part.end(),
                                     [](char x, char y) { return x == y || lower(x) == lower(y); }) != whole.end();
}

// Without these characters at either end.
inline std::string_view trim(std::string_view text, std::string_view blanks = " \t") noexcept {
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// For messages: in quotes, shortened, printable ASCII only.
std::string quoted(std::string_view text);
// For messages: without quotes, at most 200 bytes; everything except printable ASCII, and '\', as \xNN.
std::string printable(std::string_view text);

// Tests eight bytes of a text at once, because most have nothing special.
class EightBytes {
 public:
  static constexpr std::size_t size = sizeof(std::uint64_t);

  explicit EightBytes(const char* bytes) noexcept { std::memcpy(&word_, bytes, size); }

  [[nodiscard]] bool any_below_blank() const noexcept { return ((word_ - ones * 0x20U) & ~word_ & high) != 0; }
  [[nodiscard]] bool any(char c) const noexcept {
    const std::uint64_t zero = word_ ^ (ones * static_cast<unsigned char>(c));
    return ((zero - ones) & ~zero & high) != 0;
  }

 private:
  static constexpr std::uint64_t ones = 0x0101010101010101U;
  static constexpr std::uint64_t high = 0x8080808080808080U;
  std::uint64_t word_ = 0;
};

}  // namespace once::text
