#include <algorithm>
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

std::string_view input_beginning(std::string_view input, std::size_t max_bytes) noexcept {
  if (input.size() <= max_bytes) return input;
  // Back to the first byte of a character, which is at most three bytes away. In other data these bytes do not matter.
  std::size_t end = max_bytes;
  const std::size_t least = max_bytes - std::min<std::size_t>(max_bytes, 3);
  while (end > least && (static_cast<unsigned char>(input[end]) & 0xC0U) == 0x80U) --end;
  return input.substr(0, (static_cast<unsigned char>(input[end]) & 0xC0U) == 0x80U ? max_bytes : end);
}

}  // namespace once
