#include "text/percent.hpp"

namespace once::text {

bool has_broken_percent(std::string_view text) noexcept {
  for (std::size_t at = text.find('%'); at != std::string_view::npos; at = text.find('%', at + 1)) {
    if (percent_byte_at(text, at) < 0) return true;
  }
  return false;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  if (has_broken_percent(text)) return std::nullopt;
  return percent_decoded(text, [](char) { return true; });
}

}  // namespace once::text
