#include "keys/dialects/java_number.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace once::keys {

namespace {

// The operations of a big integer that printing needs.
class Natural {
 public:
  explicit Natural(std::uint64_t value)
      : words_{static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32U)} {
    trim();
  }

  void multiply(std::uint32_t factor) {
    std::uint64_t carry = 0;
    for (std::uint32_t& word : words_) {
      carry += std::uint64_t{word} * factor;
      word = static_cast<std::uint32_t>(carry);
      carry >>= 32U;
    }
    if (carry != 0) words_.push_back(static_cast<std::uint32_t>(carry));
  }
  void multiply_power_of_5(int exponent) {
    for (; exponent >= 13; exponent -= 13) multiply(1220703125);  // 5^13
    for (; exponent > 0; --exponent) multiply(5);
  }
  void shift_left(int bits) {
    words_.insert(words_.begin(), static_cast<std::size_t>(bits / 32), 0U);
    multiply(1U << static_cast<unsigned>(bits % 32));
  }

  // Divides; the quotient must be a digit and is returned, the remainder stays.
  int divide_by(const Natural& divisor) {
    int quotient = 0;
    for (; compare(*this, divisor) >= 0; ++quotient) subtract(divisor);
    return quotient;
  }

  static Natural sum(const Natural& a, const Natural& b) {
    Natural out = a;
    out.words_.resize(std::max(a.words_.size(), b.words_.size()) + 1);
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < out.words_.size(); ++i) {
      carry += std::uint64_t{out.words_[i]} + (i < b.words_.size() ? b.words_[i] : 0U);
      out.words_[i] = static_cast<std::uint32_t>(carry);
      carry >>= 32U;
    }
    out.trim();
    return out;
  }

  [[nodiscard]] int bits() const {
    return words_.empty() ? 0 : static_cast<int>(words_.size()) * 32 - std::countl_zero(words_.back());
  }

  // -1, 0, 1.
  static int compare(const Natural& a, const Natural& b) {
    if (a.words_.size() != b.words_.size()) return a.words_.size() < b.words_.size() ? -1 : 1;
    for (std::size_t i = a.words_.size(); i-- > 0;) {
      if (a.words_[i] != b.words_[i]) return a.words_[i] < b.words_[i] ? -1 : 1;
    }
    return 0;
  }

 private:
  void subtract(const Natural& other) {
    std::uint64_t borrow = 0;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::uint64_t take = (i < other.words_.size() ? other.words_[i] : 0U) + borrow;
      borrow = words_[i] < take ? 1 : 0;
      words_[i] = static_cast<std::uint32_t>(words_[i] - take);
    }
    trim();
  }
  void trim() {
    while (!words_.empty() && words_.back() == 0) words_.pop_back();
  }

  std::vector<std::uint32_t> words_;  // Least first, no zero at the end.
};

struct JavaDigits {
  std::string digits;
  int exponent = 0;  // Of the first digit.
};

void round_up(JavaDigits& d) {
  std::size_t i = d.digits.size();
  while (i > 0 && d.digits[i - 1] == '9') d.digits[--i] = '0';
  if (i > 0) {
    ++d.digits[i - 1];
  } else {
    d.digits.front() = '1';
    ++d.exponent;
  }
}

// The digits that Java printed before JDK 19, by its rules. Integers below 2^63 are printed completely, except digits
// below half the distance to the next double. All others are printed digit by digit until the rest is below that half
// distance (a quarter of it for powers of two). A result with an exponent has at least two digits.
JavaDigits java_digits(double value) {
  constexpr int precision = 53;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);                         // [0.5, 1)
  auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, precision));  // 53 bits
  const int binary_exponent = exponent - 1;                                     // Of its first bit.
  const int significant = binary_exponent < -1022 ? precision - (-1022 - binary_exponent) : precision;

  if (binary_exponent >= 0 && binary_exponent <= 62 && value == std::floor(value)) {
    const int beyond = binary_exponent - precision - 1;
    const int dropped = beyond > 1 ? static_cast<int>(beyond * 0.30102999566398) : 0;
    auto whole = static_cast<std::uint64_t>(value);
    std::uint64_t unit = 1;
    for (int i = 0; i < dropped; ++i) unit *= 10;
    whole = whole / unit + (whole % unit >= unit / 2 && unit > 1 ? 1 : 0);
    JavaDigits d;
    d.digits = std::to_string(whole);
    d.exponent = static_cast<int>(d.digits.size()) - 1 + dropped;
    d.digits.erase(d.digits.find_last_not_of('0') + 1);
    return d;
  }

  // The first digit's exponent, or one more: a linear estimate of the logarithm. The exact constants matter: if the
  // estimate is one too high, the first digit is 0 and affects the second.
  const double estimate = (fraction * 2 - 1.5) * 0.289529654 + 0.176091259 + binary_exponent * 0.301029995663981;
  JavaDigits d;
  d.exponent = static_cast<int>(std::floor(estimate));

  // value = rest / scale * 10^exponent, half the distance = half / scale * 10^exponent.
  const int zeros = std::countr_zero(mantissa);
  mantissa >>= static_cast<unsigned>(zeros);
  const bool power_of_two = mantissa == 1;
  int rest_twos = binary_exponent - (precision - 1) + zeros - d.exponent;
  int scale_twos = 0;
  int half_twos = binary_exponent - significant - (power_of_two ? 1 : 0) - d.exponent;
  const int least = std::min({rest_twos, scale_twos, half_twos});
  rest_twos -= least;
  scale_twos -= least;
  half_twos -= least;
  Natural rest(mantissa);
  Natural scale(1);
  Natural half(1);
  if (d.exponent >= 0) {
    scale.multiply_power_of_5(d.exponent);
  } else {
    rest.multiply_power_of_5(-d.exponent);
    half.multiply_power_of_5(-d.exponent);
  }
  rest.shift_left(rest_twos);
  scale.shift_left(scale_twos);
  half.shift_left(half_twos);
  Natural ten_scales = scale;
  ten_scales.multiply(10);

  // Java computed small cases in int or long, where the sum below may overflow to a negative number.
  const int bits = std::max(rest.bits(), ten_scales.bits());
  const int word = bits < 32 ? 31 : bits < 64 ? 63 : std::numeric_limits<int>::max();

  bool low = false;   // The rest may be dropped,
  bool high = false;  // or the last digit rounded up.
  const auto next = [&] {
    const int digit = rest.divide_by(scale);
    rest.multiply(10);
    half.multiply(10);
    const Natural sum = Natural::sum(rest, half);
    low = Natural::compare(rest, half) < 0;
    high = Natural::compare(sum, ten_scales) > 0 && (sum.bits() <= word || half.bits() > word);
    return digit;
  };
  const int first = next();
  if (first == 0 && !high) {
    --d.exponent;
  } else {
    d.digits += static_cast<char>('0' + first);
  }
  if (d.exponent < -3 || d.exponent >= 8) low = high = false;
  while (!low && !high) d.digits += static_cast<char>('0' + next());
  rest.multiply(2);
  const int against_half = Natural::compare(rest, ten_scales);
  const bool odd = !d.digits.empty() && (d.digits.back() - '0') % 2 != 0;
  if (high && (!low || against_half > 0 || (against_half == 0 && odd))) round_up(d);
  return d;
}

}  // namespace

void append_java(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::signbit(value)) out += '-';
  value = std::fabs(value);
  if (std::isinf(value)) {
    out += "Infinity";
    return;
  }
  if (value == 0) {
    out += "0.0";
    return;
  }
  const JavaDigits d = java_digits(value);
  const auto count = static_cast<int>(d.digits.size());
  if (d.exponent >= 0 && d.exponent < 7) {
    const auto whole = static_cast<std::size_t>(d.exponent) + 1;
    out += d.digits.substr(0, whole);
    if (d.exponent + 1 > count) out.append(static_cast<std::size_t>(d.exponent + 1 - count), '0');
    out += '.';
    out += d.exponent + 1 < count ? d.digits.substr(whole) : "0";
  } else if (d.exponent < 0 && d.exponent >= -3) {
    out += "0.";
    out.append(static_cast<std::size_t>(-d.exponent - 1), '0');
    out += d.digits;
  } else {
    out += d.digits.front();
    out += '.';
    out += count > 1 ? d.digits.substr(1) : "0";
    out += 'E';
    out += std::to_string(d.exponent);
  }
}

}  // namespace once::keys
