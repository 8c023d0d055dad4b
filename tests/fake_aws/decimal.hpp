// DynamoDB's numbers: decimal, exact, at most 38 significant digits.
// Source: "Supported data types and naming rules in Amazon DynamoDB", section Number.
#pragma once

#include <compare>
#include <string>
#include <string_view>

namespace once::testing::fake {

inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// 0.d1d2d3… x 10^exponent. Zero has no digits.
class Decimal {
 public:
  // Throws Refusal (ValidationException) for text that is not a number, or is too long, too large or too small.
  static Decimal parse(std::string_view text);

  // As the service writes it: plain digits, never an exponent.
  [[nodiscard]] std::string to_string() const;
  // Bytes that compare as the numbers do, for keys.
  [[nodiscard]] std::string sortable() const;
  // What it takes of an item's 400 KB: about half a byte for each digit and one more.
  [[nodiscard]] std::size_t size_bytes() const noexcept;

  [[nodiscard]] Decimal negated() const;
  // Exact; throws Refusal if the sum does not fit.
  friend Decimal operator+(const Decimal& left, const Decimal& right);
  friend bool operator==(const Decimal&, const Decimal&) = default;
  friend std::strong_ordering operator<=>(const Decimal& left, const Decimal& right);

 private:
  Decimal checked() const;

  bool negative_ = false;
  int exponent_ = 0;
  std::string digits_;  // Neither the first nor the last is '0'.
};

}  // namespace once::testing::fake
