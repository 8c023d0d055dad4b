// Base64 and gzip as powertools_base64 and powertools_base64_gzip read them. Functions that decode throw
// Exception(misuse).
#pragma once

#include <once/keys/key_deriver.hpp>
#include <string>
#include <string_view>

namespace once::keys {

// native: as text::decode_base64(). Python: skips other characters, requires padding. TypeScript: no other characters,
// length a multiple of 4. Java: no other characters, optional padding. .NET: skips white space, requires padding.
std::string decode_base64(std::string_view text, Dialect dialect);

// One or more gzip members (RFC 1952), decompressed to at most max_event_bytes. Bytes after the last member are
// refused, except where the library allows them: zeros in Python, anything in TypeScript, Java and .NET.
std::string gunzip(std::string_view bytes, Dialect dialect);

// The text of powertools_base64_gzip in Java: decompressed, without line ends; or the bytes themselves if they cannot
// be decompressed.
std::string java_gunzip_text(std::string_view bytes);

}  // namespace once::keys
