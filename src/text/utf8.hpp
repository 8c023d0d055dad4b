// Characters: UTF-8, and the order of UTF-16.
//
// "UTF-8" in here may have lone surrogates in the form that UTF-8 would give them (three bytes, ED A0 80 to ED BF BF).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace once::text {

// The length of the valid UTF-8 sequence (RFC 3629, so no surrogates) that begins at p; 0 if there is none.
std::size_t utf8_sequence(const char* p, const char* end) noexcept;

// Reads one code point, also a surrogate, from well-formed text; moves p after it.
char32_t next_code_point(const char*& p) noexcept;

// Writes 1 to 4 bytes, and returns the place after them.
char* put_utf8(std::uint32_t code_point, char* out) noexcept;
void append_utf8(std::uint32_t code_point, std::string& out);

bool valid_utf8(std::string_view text) noexcept;

// Replaces invalid UTF-8 by U+FFFD, one for each maximal part of a sequence (WHATWG Encoding, "UTF-8 decoder";
// String.toWellFormed does the same to lone surrogates).
std::string replace_invalid_utf8(std::string_view bytes);

// Whether a comes before b by UTF-16 code units. Differs from byte order for characters outside the basic plane.
bool utf16_less(std::string_view a, std::string_view b) noexcept;

// Whether a character controls a terminal or a reader's eyes instead of showing something: controls (C0, DEL, C1), line
// and paragraph separators, what changes the direction of text, and what takes no room (U+200B, U+FEFF, tags, variation
// selectors: a text with one looks like the same text without it).
bool is_invisible(char32_t c) noexcept;

// As it stands in a JSON string: \u202e, or two of them for one outside the basic plane.
void append_json_escape(char32_t c, std::string& out);
// A JSON text, or a string of one, in which is_invisible() characters outside ASCII are escaped. It means the same.
std::string show_invisible(std::string_view json);
// Any well-formed text, in which all of them are, also those of ASCII.
std::string escape_invisible(std::string_view text);

std::size_t utf16_length(std::string_view text) noexcept;
std::size_t code_point_length(std::string_view text) noexcept;

}  // namespace once::text
