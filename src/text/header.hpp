// Header lines of HTTP: allowed characters, and lists in values.
#pragma once

#include <string_view>
#include <vector>

namespace once::text {

bool is_token(std::string_view text) noexcept;       // RFC 9110, section 5.6.2.
bool is_field_text(std::string_view text) noexcept;  // No CR, LF, NUL or other control character except the tab.

// The members of a list of tokens: "a, b" (RFC 9110, section 5.6.1). Views into `value`, without empty ones.
std::vector<std::string_view> list_members(std::string_view value);

// A set of names with logarithmic look-up, because a message may list many. Has views, which must outlive it.
class NameSet {
 public:
  NameSet() = default;
  explicit NameSet(std::vector<std::string_view> names);
  [[nodiscard]] bool contains(std::string_view name) const noexcept;  // Case-insensitive.

 private:
  std::vector<std::string_view> names_;  // Sorted.
};

}  // namespace once::text
