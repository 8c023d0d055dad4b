#include "text/hex.hpp"

#include <array>
#include <cstring>

namespace once::text {

char* put_hex(std::string_view bytes, char* out) noexcept {
  static constexpr auto pairs = [] {
    std::array<std::array<char, 2>, 256> table{};
    for (std::size_t byte = 0; byte < table.size(); ++byte) {
      table[byte] = {lower_digits[byte / 16], lower_digits[byte % 16]};
    }
    return table;
  }();
  for (const char c : bytes) {
    std::memcpy(out, pairs[static_cast<unsigned char>(c)].data(), 2);
    out += 2;
  }
  return out;
}

std::optional<std::string> from_hex(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int byte = hex_byte_at(text, i);
    if (byte < 0) return std::nullopt;
    out += static_cast<char>(byte);
  }
  return out;
}

}  // namespace once::text
