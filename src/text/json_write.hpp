// A tree as a text of JSON.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "text/hex.hpp"
#include "text/json.hpp"

namespace once::text::json {

// As RFC 8785 has it (JSON Canonicalization Scheme), with null for a number that is none or infinite.
void append_number(std::string_view text, std::string& out);
// By name, in the order of UTF-16.
std::span<const Member*> sort_members(std::span<const Member*> members);

// What others write otherwise. The default is RFC 8785.
struct Style {
  std::string_view digits = lower_digits;  // Of \uXXXX.
  std::string_view also;                   // ASCII characters that are written as \uXXXX.
  bool ascii = false;                      // Everything else outside 0x20 to 0x7E too.
  bool short_quote = true;                 // \" rather than \u0022.
  std::string_view surrogate;              // What a lone surrogate becomes; empty: its escape.
  bool spaced = false;                     // A blank behind each ',' and ':'.
  void (*number)(std::string_view text, std::string& out) = append_number;
  // Sorts an object's members and gives those that are written. Null: all, as they come.
  std::span<const Member*> (*order)(std::span<const Member*> members) = sort_members;

  // Eight bytes are looked at together: only quotes, backslashes, control characters and surrogates are special.
  bool by_eight = !ascii && also.empty();
  // The bytes that are copied without a look at their neighbours.
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
