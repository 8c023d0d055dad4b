// Header lines: the characters they are made of, and lists in their values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>

namespace once::http {

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

bool names_contain(std::span<const std::string> names, std::string_view name) noexcept;

// The lines that a stored answer has, and what it leaves out: see once/frontends/http/stored_answer.hpp.
struct Storable {
  std::vector<HeaderView> headers;  // Of those that were given.
  std::string not_stored;
};
Storable storable(const Headers& headers, std::span<const std::string> never);

// Adds Idempotent-Replayed: true to an answer that has none, as none is stored; readable for scripts of other origins
// if the answer is (Access-Control-Expose-Headers, Fetch Standard, "CORS protocol").
void mark_replayed(Headers& headers);

}  // namespace once::http
