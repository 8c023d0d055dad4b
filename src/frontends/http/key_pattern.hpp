// A pattern of keys: a regular expression, matched in time proportional to pattern times key, whatever a client sends.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace once::http {

inline constexpr std::size_t max_key_pattern_bytes = 255;

// Characters, `.`, `[a-z]`, `[^a-z]`, `\d`, `\w`, a backslash before any other punctuation, `( )`, `(?: )`, `|`, `*`,
// `+`, `?`, `{3}`, `{3,}`, `{3,5}`. The whole key must match; `^` at the start and `$` at the end may be written.
class KeyPattern {
 public:
  // Throws Exception(misuse) with the place.
  explicit KeyPattern(std::string_view pattern);

  [[nodiscard]] bool matches(std::string_view key) const;

  using Set = std::bitset<128>;
  struct Step {
    enum class Kind : std::uint8_t { character, fork, jump, end };
    Kind kind = Kind::end;
    std::size_t set = 0;    // character: of sets.
    std::size_t next = 0;   // fork, jump.
    std::size_t other = 0;  // fork.
  };

 private:
  std::vector<Set> sets_;
  std::vector<Step> steps_;
};

}  // namespace once::http
