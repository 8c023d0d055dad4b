// Base64 and gzip as powertools_base64 and powertools_base64_gzip read them. What reads throws Exception(misuse).
#pragma once

#include <once/keys/key_deriver.hpp>
#include <string>
#include <string_view>

namespace once::keys {

// native: as text::decode_base64() has it. Python: what is outside the alphabet is skipped, padding is required.
// TypeScript: no other characters, length a multiple of 4. Java: no other characters, padding may be left out. .NET:
// white space is skipped, padding is required.
std::string decode_base64(std::string_view text, Dialect dialect);

// One or more gzip members (RFC 1952), inflated to at most max_event_bytes. What follows the last member is refused,
// except as the libraries let it pass: zeros in Python, anything in TypeScript, Java and .NET.
std::string gunzip(std::string_view bytes, Dialect dialect);

// The text that powertools_base64_gzip gives in Java: inflated, without its line ends; and where it cannot be inflated,
// the bytes themselves.
std::string java_gunzip_text(std::string_view bytes);

}  // namespace once::keys
