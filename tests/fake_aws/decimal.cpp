#include "fake_aws/decimal.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "fake_aws/refusal.hpp"

namespace once::testing::fake {
namespace {

constexpr std::size_t most_digits = 38;
// Magnitudes go from 1E-130 to 9.99…E+125, which is 0.1 x 10^-129 to 0.99… x 10^126.
constexpr int least_exponent = -129;
constexpr int greatest_exponent = 126;

[[noreturn]] void not_a_number(std::string_view text) {
  invalid("The parameter cannot be converted to a numeric value: " + std::string(text));
}

// Removes zeros on both ends of "0.digits x 10^exponent".
void strip(std::string& digits, int& exponent) {
  const auto first = digits.find_first_not_of('0');
  if (first == std::string::npos) {
    digits.clear();
    exponent = 0;
    return;
  }
  digits.erase(0, first);
  exponent -= static_cast<int>(first);
  digits.erase(digits.find_last_not_of('0') + 1);
}

}  // namespace

Decimal Decimal::parse(std::string_view text) {
  Decimal number;
  std::size_t i = 0;
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) number.negative_ = text[i++] == '-';
  std::size_t whole = 0;
  std::size_t digits = 0;
  bool point = false;
  for (; i < text.size() && (is_digit(text[i]) || (text[i] == '.' && !point)); ++i) {
    if (text[i] == '.') {
      point = true;
      continue;
    }
    number.digits_ += text[i];
    ++digits;
    if (!point) ++whole;
  }
  if (digits == 0 || digits > 10'000) not_a_number(text);
  int exponent = 0;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    bool negative = false;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) negative = text[i++] == '-';
    const auto first = i;
    for (; i < text.size() && is_digit(text[i]); ++i) exponent = std::min(exponent * 10 + (text[i] - '0'), 100'000);
    if (i == first) not_a_number(text);
    if (negative) exponent = -exponent;
  }
  if (i != text.size()) not_a_number(text);
  number.exponent_ = static_cast<int>(whole) + exponent;
  strip(number.digits_, number.exponent_);
  return number.checked();
}

Decimal Decimal::checked() const {
  if (digits_.empty()) return {};
  if (exponent_ > greatest_exponent) {
    invalid("Number overflow. Attempting to store a number with magnitude larger than supported range");
  }
  if (exponent_ < least_exponent) {
    invalid("Number underflow. Attempting to store a number with magnitude smaller than supported range");
  }
  if (digits_.size() > most_digits) invalid("Attempting to store more than 38 significant digits in a Number");
  return *this;
}

std::string Decimal::to_string() const {
  if (digits_.empty()) return "0";
  std::string out = negative_ ? "-" : "";
  const auto size = static_cast<int>(digits_.size());
  if (exponent_ <= 0) {
    out += "0.";
    out.append(static_cast<std::size_t>(-exponent_), '0').append(digits_);
  } else if (exponent_ >= size) {
    out += digits_;
    out.append(static_cast<std::size_t>(exponent_ - size), '0');
  } else {
    out.append(digits_, 0, static_cast<std::size_t>(exponent_)).append(1, '.');
    out.append(digits_, static_cast<std::size_t>(exponent_));
  }
  return out;
}

std::string Decimal::sortable() const {
  if (digits_.empty()) return "1";
  // Larger exponent first, then digits; all of it turned round for negative numbers, which end above every digit.
  std::string out = negative_ ? "0" : "2";
  out += static_cast<char>(exponent_ - least_exponent);  // 0 to 255.
  out += digits_;
  if (negative_) {
    for (std::size_t i = 1; i < out.size(); ++i) out[i] = static_cast<char>(~static_cast<unsigned char>(out[i]));
    out += '\xff';
  }
  return out;
}

std::size_t Decimal::size_bytes() const noexcept { return (digits_.size() + 1) / 2 + 1 + (negative_ ? 1 : 0); }

Decimal Decimal::negated() const {
  Decimal other = *this;
  if (!other.digits_.empty()) other.negative_ = !negative_;
  return other;
}

std::strong_ordering operator<=>(const Decimal& left, const Decimal& right) {
  const auto sign = [](const Decimal& d) { return d.digits_.empty() ? 0 : d.negative_ ? -1 : 1; };
  if (sign(left) != sign(right)) return sign(left) <=> sign(right);
  auto magnitude = left.exponent_ <=> right.exponent_;
  if (std::is_eq(magnitude)) magnitude = left.digits_ <=> right.digits_;
  return !left.negative_         ? magnitude
         : std::is_lt(magnitude) ? std::strong_ordering::greater
         : std::is_gt(magnitude) ? std::strong_ordering::less
                                 : magnitude;
}

Decimal operator+(const Decimal& left, const Decimal& right) {
  if (left.digits_.empty()) return right;
  if (right.digits_.empty()) return left;
  // Both as whole numbers of the same unit and the same width.
  const int top = std::max(left.exponent_, right.exponent_);
  const auto widened = [top](const Decimal& d) {
    return std::string(static_cast<std::size_t>(top - d.exponent_), '0') + d.digits_;
  };
  std::string a = widened(left);
  std::string b = widened(right);
  const auto width = std::max(a.size(), b.size());
  a.resize(width, '0');
  b.resize(width, '0');

  Decimal sum;
  sum.exponent_ = top + 1;
  sum.digits_.assign(width + 1, '0');
  const bool subtract = left.negative_ != right.negative_;
  sum.negative_ = left.negative_;
  if (subtract && a < b) {
    std::swap(a, b);
    sum.negative_ = right.negative_;
  }
  int carry = 0;
  for (std::size_t i = width; i-- > 0;) {
    int digit = (a[i] - '0') + carry + (subtract ? -(b[i] - '0') : b[i] - '0');
    carry = digit < 0 ? -1 : digit > 9 ? 1 : 0;
    digit -= 10 * carry;
    sum.digits_[i + 1] = static_cast<char>('0' + digit);
  }
  if (carry > 0) sum.digits_[0] = '1';
  strip(sum.digits_, sum.exponent_);
  if (sum.digits_.empty()) return {};
  return sum.checked();
}

}  // namespace once::testing::fake
