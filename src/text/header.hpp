// Header lines of HTTP: the characters they are made of, and lists in their values.
#pragma once

#include <string_view>
#include <vector>

namespace once::text {

bool is_token(std::string_view text) noexcept;        // RFC 9110, section 5.6.2.
bool is_field_text(std::string_view text) noexcept;   // No CR, LF, NUL or other control character but the tab.
std::string_view trimmed(std::string_view) noexcept;  // Without spaces and tabs at either end.

// The members of a list of tokens: "a, b" (RFC 9110, section 5.6.1). Views into `value`; empty ones are left out.
std::vector<std::string_view> list_members(std::string_view value);

// Names to ask for, however many a message lists: asking takes the logarithm of that. Views, which must outlive it.
class NameSet {
 public:
  NameSet() = default;
  explicit NameSet(std::vector<std::string_view> names);
  [[nodiscard]] bool contains(std::string_view name) const noexcept;  // Upper or lower case.

 private:
  std::vector<std::string_view> names_;  // Sorted.
};

}  // namespace once::text
