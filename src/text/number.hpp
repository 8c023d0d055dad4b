// Decimal texts and doubles, as languages print them.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace once::text {

// A whole number: only digits, and a '-' before them for a signed type. Empty if it does not fit.
template <std::integral Number>
std::optional<Number> parse_whole(std::string_view text, int base = 10) noexcept {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// The nearest double; infinity above the range, 0 below it. Takes JSON numbers, NaN, Infinity and -Infinity.
double to_double(std::string_view text);

// No point and no exponent; not NaN or Infinity.
bool is_integer_text(std::string_view text) noexcept;

// The array index of a property name in ECMAScript: canonical decimal, 0 to 2^32-2.
std::optional<std::uint32_t> array_index(std::string_view name) noexcept;

// Why a double cannot represent the number, or "" if it can. It cannot if the number is outside double range (1e400, or
// so small that it becomes 0). It also cannot if the number is over 2^53-1 and differs from the shortest decimal of its
// nearest double: 9007199254740993 and 18446744073709551616 are refused, 9007199254740992 and 1e30 are not. So every
// accepted number over 2^53-1 keeps its value in the canonical text, and no two become equal. Smaller fractions are
// rounded to the nearest double, as RFC 8785 says.
std::string inexact(std::string_view text);

// ECMAScript Number::toString, which RFC 8785 prescribes; not for NaN and infinities.
void append_ecmascript(double value, std::string& out);

// Python's float.__repr__: 1.0, 1e-05, 1e+16, inf is Infinity and nan is NaN as json.dumps has them.
void append_python(double value, std::string& out);

}  // namespace once::text
