#include <cstddef>
#include <string>
#include <string_view>

#include <once/decide.hpp>

#include "text/utf8.hpp"

namespace once {

std::string clean_text(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view replacement = "\xEF\xBF\xBD";
  std::string out;
  while (!text.empty()) {
    const std::size_t length = text::utf8_sequence(text.data(), text.data() + text.size());
    const std::string_view next = length == 0 ? replacement : text.substr(0, length);
    if (out.size() + next.size() > max_bytes) break;
    out += next;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace once
