#include "text/netstring.hpp"

namespace once::text {

void append_netstring(std::string& out, std::string_view bytes) {
  out += std::to_string(bytes.size());
  out += ':';
  out += bytes;
  out += ',';
}

std::optional<std::string_view> take_netstring(std::string_view& text) {
  std::size_t size = 0;
  std::size_t digits = 0;
  while (digits < text.size() && digits < 10 && text[digits] >= '0' && text[digits] <= '9') {
    size = size * 10 + static_cast<std::size_t>(text[digits] - '0');
    ++digits;
  }
  if (digits == 0 || digits + 1 + size + 1 > text.size() || text[digits] != ':' || text[digits + 1 + size] != ',') {
    return std::nullopt;
  }
  const std::string_view found = text.substr(digits + 1, size);
  text.remove_prefix(digits + 1 + size + 1);
  return found;
}

}  // namespace once::text
