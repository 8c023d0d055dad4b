// What a program with a bug sends in place of a text that it does not have.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "text/ascii.hpp"

namespace once::text {

// In any case of letters. As a key, it would be one for all operations of that program.
inline bool is_missing_value(std::string_view text) {
  static constexpr std::array<std::string_view, 9> all{"undefined",
                                                       "null",
                                                       "nil",
                                                       "none",
                                                       "nan",
                                                       "true",
                                                       "false",
                                                       "[object object]",
                                                       "00000000-0000-0000-0000-000000000000"};
  return std::ranges::find(all, lower(text)) != all.end();
}

}  // namespace once::text
