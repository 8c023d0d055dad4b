// A tree as a text of JSON.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "text/hex.hpp"
#include "text/json.hpp"

namespace once::text::json {

// As in RFC 8785 (JSON Canonicalization Scheme), with null for NaN and infinities.
void append_number(std::string_view text, std::string& out);
// By name, in the order of UTF-16.
std::span<const Member*> sort_members(std::span<const Member*> members);

// Differences of other formats. The default is RFC 8785.
struct Style {
  std::string_view digits = lower_digits;  // Of \uXXXX.
  std::string_view also = {};              // ASCII characters that are written as \uXXXX.
  bool ascii = false;                      // Everything else outside 0x20 to 0x7E too.
  bool short_quote = true;                 // \" rather than \u0022.
  std::string_view surrogate = {};         // Replaces a lone surrogate; empty: its escape.
  bool spaced = false;                     // A blank after each ',' and ':'.
  void (*number)(std::string_view text, std::string& out) = append_number;
  // Sorts an object's members, and returns those to write. Null: all, unsorted.
  std::span<const Member*> (*order)(std::span<const Member*> members) = sort_members;

  // Tests eight bytes at once: only quotes, backslashes, control characters and surrogates are special.
  bool by_eight = !ascii && also.empty();
  // The bytes that are copied unchanged.
  std::array<bool, 256> plain = plain_bytes(also, ascii);

  static constexpr std::array<bool, 256> plain_bytes(std::string_view also, bool ascii) {
    constexpr std::size_t surrogates_begin = 0xED;
    std::array<bool, 256> plain{};
    for (std::size_t byte = 0x20; byte < plain.size(); ++byte) plain[byte] = byte < 0x7F || !ascii;
    plain[surrogates_begin] = false;
    for (const char c : {'"', '\\'}) plain[static_cast<unsigned char>(c)] = false;
    for (const char c : also) plain[static_cast<unsigned char>(c)] = false;
    return plain;
  }
};
inline constexpr Style canonical_style{};

std::string written(const Value& value, const Style& style = canonical_style);

// A string in its quotes.
void append_quoted(std::string& out, std::string_view text);
std::string quoted(std::string_view text);

}  // namespace once::text::json
