#include "text/ascii.hpp"

#include "text/hex.hpp"

namespace once::text {

std::string quoted(std::string_view text) {
  constexpr std::size_t most = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, most)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c >= 0x20 && c < 0x7F) {
      out += c;
    } else {
      out += "\\x";
      append_hex(out, c);
    }
  }
  out += text.size() > most ? "...\"" : "\"";
  return out;
}

std::string printable(std::string_view text) {
  constexpr std::size_t most = 200;
  std::string out;
  for (const char c : text.substr(0, most)) {
    if (c >= 0x20 && c < 0x7F && c != '\\') {
      out += c;
    } else {
      out += "\\x";
      append_hex(out, c);
    }
  }
  return text.size() > most ? out + "..." : out;
}

}  // namespace once::text
