// Words of the API, of flags and of the output: durations, sizes, bytes as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/error.hpp>
#include <once/time.hpp>

namespace once::operators {

// Throws Exception(misuse).
[[noreturn]] inline void misuse(const std::string& text) { throw Exception(ErrorKind::misuse, text); }

// "500ms", "30s", "5m", "24h", "7d": a whole number and its unit, nothing else. Throws Exception(misuse) naming `what`,
// also for numbers over 10 years.
Millis parse_duration(std::string_view text, std::string_view what);
// A retention: a duration, or "never", which is once::keep_forever.
Millis parse_retention(std::string_view text, std::string_view what);

// "65536", "64KiB", "10MB", "1GiB": bytes. Throws Exception(misuse) naming `what`.
std::uint64_t parse_size(std::string_view text, std::string_view what);

// Pairs of hexadecimal digits. Throws Exception(misuse) naming `what`.
std::string parse_hex(std::string_view text, std::string_view what);

// Padded base64 of RFC 4648, section 4, nothing else. Throws Exception(misuse) naming `what`.
std::string parse_base64(std::string_view text, std::string_view what);

std::vector<std::string> split(std::string_view text, char separator);

std::string show_duration(Millis span);      // "4m10s", for people.
std::string show_size(std::uint64_t bytes);  // "1.5 MiB", for people.

// For a terminal: controls and other invisible characters, backslashes and invalid UTF-8 become \n, \t, \\, \xNN.
std::string escaped(std::string_view bytes);

}  // namespace once::operators
