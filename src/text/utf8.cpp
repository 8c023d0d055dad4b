#include "text/utf8.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace once::text {

namespace {

constexpr bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

// UTF-16 order, from where both texts begin a sequence.
bool utf16_less_from(const char* a, const char* a_end, const char* b, const char* b_end) {
  std::uint32_t a_low = 0;  // The second unit of a pair, still to be compared; 0: none.
  std::uint32_t b_low = 0;
  const auto unit = [](const char*& p, std::uint32_t& low) -> std::uint32_t {
    if (low != 0) return std::exchange(low, 0U);
    const char32_t c = next_code_point(p);
    if (c < 0x10000) return c;
    low = 0xDC00 + ((c - 0x10000) & 0x3FFU);
    return 0xD800 + ((c - 0x10000) >> 10U);
  };
  for (;;) {
    const bool a_done = a == a_end && a_low == 0;
    const bool b_done = b == b_end && b_low == 0;
    if (a_done || b_done) return a_done && !b_done;
    const std::uint32_t a_unit = unit(a, a_low);
    const std::uint32_t b_unit = unit(b, b_low);
    if (a_unit != b_unit) return a_unit < b_unit;
  }
}

template <class Which>
std::string escape_if(std::string_view text, Which&& which) {
  std::string out;
  out.reserve(text.size());
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* const begin = p;
    const char32_t c = next_code_point(p);
    if (which(c)) {
      append_json_escape(c, out);
    } else {
      out.append(begin, p);
    }
  }
  return out;
}

}  // namespace

std::size_t utf8_sequence(const char* p, const char* end) noexcept {
  const auto at = [&](std::size_t i) -> unsigned { return static_cast<unsigned char>(p[i]); };
  const auto room = static_cast<std::size_t>(end - p);
  if (room == 0) return 0;
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead < 0xE0) return room >= 2 && continues(p[1]) ? 2 : 0;
  if (lead < 0xF0) {
    if (room < 3 || !continues(p[1]) || !continues(p[2])) return 0;
    if (lead == 0xE0 && at(1) < 0xA0) return 0;   // Overlong.
    if (lead == 0xED && at(1) >= 0xA0) return 0;  // A surrogate.
    return 3;
  }
  if (room < 4 || !continues(p[1]) || !continues(p[2]) || !continues(p[3])) return 0;
  if (lead == 0xF0 && at(1) < 0x90) return 0;   // Overlong.
  if (lead == 0xF4 && at(1) >= 0x90) return 0;  // Over U+10FFFF.
  return 4;
}

char32_t next_code_point(const char*& p) noexcept {
  const auto byte = [&] { return static_cast<std::uint32_t>(static_cast<unsigned char>(*p++)); };
  const std::uint32_t lead = byte();
  if (lead < 0x80) return lead;
  std::uint32_t c = lead < 0xE0 ? lead & 0x1FU : lead < 0xF0 ? lead & 0x0FU : lead & 0x07U;
  for (int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3; more > 0; --more) c = (c << 6U) | (byte() & 0x3FU);
  return c;
}

char* put_utf8(std::uint32_t c, char* out) noexcept {
  const auto put = [&](std::uint32_t byte) { *out++ = static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0U | (c >> 6U));
    put(0x80U | (c & 0x3FU));
  } else if (c < 0x10000) {
    put(0xE0U | (c >> 12U));
    put(0x80U | ((c >> 6U) & 0x3FU));
    put(0x80U | (c & 0x3FU));
  } else {
    put(0xF0U | (c >> 18U));
    put(0x80U | ((c >> 12U) & 0x3FU));
    put(0x80U | ((c >> 6U) & 0x3FU));
    put(0x80U | (c & 0x3FU));
  }
  return out;
}

void append_utf8(std::uint32_t code_point, std::string& out) {
  char buffer[4];
  out.append(buffer, put_utf8(code_point, buffer));
}

bool valid_utf8(std::string_view text) noexcept {
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    // Most text is ASCII.
    for (std::uint64_t step = 0; end - p >= 8; p += 8) {
      std::memcpy(&step, p, sizeof(step));
      if ((step & 0x8080808080808080U) != 0) break;
    }
    if (p == end) return true;
    const std::size_t length = utf8_sequence(p, end);
    if (length == 0) return false;
    p += length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  const char* p = bytes.data();
  const char* const end = p + bytes.size();
  while (p != end) {
    std::size_t length = utf8_sequence(p, end);
    if (length != 0) {
      out.append(p, length);
      p += length;
      continue;
    }
    append_utf8(0xFFFD, out);
    // The maximal part: as many bytes as could have begun a sequence.
    const auto lead = static_cast<unsigned char>(*p);
    const std::size_t wanted = lead >= 0xF0 && lead <= 0xF4 ? 4 : lead >= 0xE0 && lead < 0xF0 ? 3 : 1;
    length = 1;
    while (length < wanted && p + length != end && continues(p[length])) {
      if (length == 1) {
        const auto second = static_cast<unsigned char>(p[1]);
        if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second >= 0xA0) || (lead == 0xF0 && second < 0x90) ||
            (lead == 0xF4 && second >= 0x90)) {
          break;
        }
      }
      ++length;
    }
    p += length;
  }
  return out;
}

bool utf16_less(std::string_view a, std::string_view b) noexcept {
  const std::size_t shorter = std::min(a.size(), b.size());
  std::size_t i = static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(shorter), b.begin()).first - a.begin());
  if (i == shorter) return a.size() < b.size();
  const auto x = static_cast<unsigned char>(a[i]);
  const auto y = static_cast<unsigned char>(b[i]);
  if (x < 0x80 && y < 0x80) return x < y;
  while (i > 0 && continues(a[i])) --i;
  while (i > 0 && continues(b[i])) --i;
  return utf16_less_from(a.data() + i, a.data() + a.size(), b.data() + i, b.data() + b.size());
}

bool is_invisible(char32_t c) noexcept {
  struct Range {
    char32_t first;
    char32_t last;
  };
  // Of Unicode 15 the general categories Cc, Zl and Zp, the property Default_Ignorable_Code_Point (which has the signs
  // for directions, the variation selectors and the fillers of Hangul), and the marks of annotations.
  static constexpr std::array<Range, 19> ranges{{{0, 0x1F},
                                                 {0x7F, 0x9F},
                                                 {0xAD, 0xAD},
                                                 {0x34F, 0x34F},
                                                 {0x61C, 0x61C},
                                                 {0x115F, 0x1160},
                                                 {0x17B4, 0x17B5},
                                                 {0x180B, 0x180F},
                                                 {0x200B, 0x200F},
                                                 {0x2028, 0x202E},
                                                 {0x2060, 0x206F},
                                                 {0x3164, 0x3164},
                                                 {0xFE00, 0xFE0F},
                                                 {0xFEFF, 0xFEFF},
                                                 {0xFFA0, 0xFFA0},
                                                 {0xFFF0, 0xFFFB},
                                                 {0x1BCA0, 0x1BCA3},
                                                 {0x1D173, 0x1D17A},
                                                 {0xE0000, 0xE0FFF}}};
  return std::ranges::any_of(ranges, [&](const Range& range) { return c >= range.first && c <= range.last; });
}

void append_json_escape(char32_t c, std::string& out) {
  const auto add = [&](char32_t unit) {
    constexpr std::string_view digits = "0123456789abcdef";
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += digits[unit >> static_cast<unsigned>(shift) & 0xFU];
  };
  if (c < 0x10000) return add(c);
  add(0xD800 + ((c - 0x10000) >> 10U));
  add(0xDC00 + ((c - 0x10000) & 0x3FFU));
}

std::string show_invisible(std::string_view json) {
  return escape_if(json, [](char32_t c) { return c >= 0x80 && is_invisible(c); });
}

std::string escape_invisible(std::string_view text) { return escape_if(text, is_invisible); }

std::size_t code_point_length(std::string_view text) noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return !continues(c); }));
}

std::size_t utf16_length(std::string_view text) noexcept {
  const auto astral = std::ranges::count_if(text, [](char c) { return static_cast<unsigned char>(c) >= 0xF0; });
  return code_point_length(text) + static_cast<std::size_t>(astral);
}

}  // namespace once::text
