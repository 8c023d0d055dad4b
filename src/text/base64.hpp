// Base64 (RFC 4648, section 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace once::text {

bool is_base64_character(char c) noexcept;  // Of the alphabet, which has no '='.

// With padding.
void append_base64(std::string& out, std::string_view bytes);
std::string encode_base64(std::string_view bytes);

// By default what encode_base64() gives and nothing else.
struct Base64Rules {
  bool padding = true;    // It has to be there; otherwise it may be, as a whole.
  bool zero_rest = true;  // The last character's bits that belong to no byte have to be zero.
};

// Empty if it is no Base64; `problem` then says why.
std::optional<std::string> decode_base64(std::string_view text, Base64Rules rules = {}, std::string* problem = nullptr);

}  // namespace once::text
