// Base64 (RFC 4648, section 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace once::text {

bool is_base64_character(char c) noexcept;  // Whether it is in the alphabet, which has no '='.

// With padding.
void append_base64(std::string& out, std::string_view bytes);
std::string encode_base64(std::string_view bytes);

// Default: only the form of encode_base64().
struct Base64Rules {
  bool padding = true;    // Required; otherwise optional, but complete.
  bool zero_rest = true;  // The unused bits of the last character must be zero.
};

// Empty if it is not Base64; then `problem` says why.
std::optional<std::string> decode_base64(std::string_view text, Base64Rules rules = {}, std::string* problem = nullptr);

}  // namespace once::text
