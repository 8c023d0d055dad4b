#include "text/number.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>

#include <once/rounding.hpp>

namespace once::text {

namespace {

// digits * 10^(point - number of digits): 0.DIGITS shifted by point places. No leading or trailing zeros; no digits
// at all for zero.
struct Decimal {
  bool negative = false;
  std::string digits;
  long point = 0;

  friend bool operator==(const Decimal&, const Decimal&) = default;
};

Decimal decimal_of(std::string_view text) {
  Decimal d;
  if (!text.empty() && text.front() == '-') {
    d.negative = true;
    text.remove_prefix(1);
  }
  long exponent = 0;
  if (const auto e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view part = text.substr(e + 1);
    const bool minus = part.front() == '-';
    if (minus || part.front() == '+') part.remove_prefix(1);
    constexpr long far = 1'000'000'000'000;  // Beyond any double; sums of it still fit.
    if (std::from_chars(part.data(), part.data() + part.size(), exponent).ec != std::errc() || exponent > far) {
      exponent = far;
    }
    if (minus) exponent = -exponent;
    text = text.substr(0, e);
  }
  const auto dot = text.find('.');
  d.digits = text.substr(0, dot);
  d.point = static_cast<long>(d.digits.size()) + exponent;
  if (dot != std::string_view::npos) d.digits += text.substr(dot + 1);
  const auto first = d.digits.find_first_not_of('0');
  if (first == std::string::npos) return {d.negative, {}, 0};
  d.digits.erase(0, first);
  d.point -= static_cast<long>(first);
  d.digits.erase(d.digits.find_last_not_of('0') + 1);
  return d;
}

// The shortest decimal that reads back.
struct Digits {
  std::array<char, 40> buffer{};
  std::size_t count = 1;
  int exponent = 0;  // Of the first digit.

  [[nodiscard]] std::string_view digits() const { return {buffer.data(), count}; }  // Without the point.

  explicit Digits(double magnitude) {
    char* const begin = buffer.data();
    const auto result = std::to_chars(begin, begin + buffer.size(), magnitude, std::chars_format::scientific);
    std::string_view text(begin, static_cast<std::size_t>(result.ptr - begin));
    const auto e = text.find('e');
    const char* number = begin + e + 1;
    if (*number == '+') ++number;
    std::from_chars(number, result.ptr, exponent);
    for (std::size_t i = 2; i < e; ++i) buffer[count++] = text[i];  // Skips the point.
    while (count > 1 && buffer[count - 1] == '0') --count;
  }
};

// The digits with the point by the exponent; a fraction only if there are digits for it.
void append_plain(const Digits& d, std::string& out) {
  const auto count = static_cast<int>(d.digits().size());
  if (d.exponent < 0) {
    out += "0.";
    out.append(static_cast<std::size_t>(-d.exponent - 1), '0');
    out += d.digits();
  } else if (d.exponent + 1 >= count) {
    out += d.digits();
    out.append(static_cast<std::size_t>(d.exponent + 1 - count), '0');
  } else {
    const auto whole = static_cast<std::size_t>(d.exponent) + 1;
    out += d.digits().substr(0, whole);
    out += '.';
    out += d.digits().substr(whole);
  }
}

// 1.25e+21; the exponent has at least `least` digits.
void append_scientific(const Digits& d, std::string& out, std::size_t least_digits = 1) {
  out += d.digits().front();
  if (d.digits().size() > 1) {
    out += '.';
    out += d.digits().substr(1);
  }
  const std::string exponent = std::to_string(std::abs(d.exponent));
  out += d.exponent < 0 ? "e-" : "e+";
  if (exponent.size() < least_digits) out += '0';
  out += exponent;
}

}  // namespace

double to_double(std::string_view text) {
  double value = 0;
  const detail::RoundToNearest rounding;
  // Reads Infinity and NaN too.
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    const Decimal d = decimal_of(text);
    value = d.point > 0 ? std::numeric_limits<double>::infinity() : 0.0;
    if (d.negative) value = -value;
  }
  return value;
}

bool is_integer_text(std::string_view text) noexcept {
  return text.find_first_not_of("-0123456789") == std::string_view::npos;
}

std::string inexact(std::string_view text) {
  constexpr double last_safe = 9007199254740991;
  const double value = to_double(text);
  if (std::isinf(value)) return "the number is outside the range of a double; send it as a string";
  if (value == 0) {
    if (decimal_of(text).digits.empty()) return {};
    return "the number is outside the range of a double (nothing but 0 is left of it); send it as a string";
  }
  if (std::fabs(value) <= last_safe) return {};
  std::string shortest;
  append_ecmascript(value, shortest);
  if (decimal_of(text) == decimal_of(shortest)) return {};
  return "a double cannot hold the number, it would become " + shortest +
         " like its neighbours; send integers over 9007199254740991 as strings";
}

std::optional<std::uint32_t> array_index(std::string_view name) noexcept {
  if (name.empty() || name.size() > 10 || (name.front() == '0' && name.size() > 1)) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : name) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (value > 4294967294U) return std::nullopt;
  return static_cast<std::uint32_t>(value);
}

void append_ecmascript(double value, std::string& out) {
  if (value == 0) {
    out += '0';  // -0 too.
    return;
  }
  if (value < 0) out += '-';
  const Digits d(std::fabs(value));
  if (d.exponent >= -6 && d.exponent < 21) {
    append_plain(d, out);
    return;
  }
  append_scientific(d, out);
}

void append_python(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::signbit(value)) out += '-';
  if (std::isinf(value)) {
    out += "Infinity";
    return;
  }
  const Digits d(std::fabs(value));
  if (d.exponent >= -4 && d.exponent < 16) {
    append_plain(d, out);
    if (d.exponent + 1 >= static_cast<int>(d.digits().size())) out += ".0";
    return;
  }
  append_scientific(d, out, 2);
}

}  // namespace once::text
