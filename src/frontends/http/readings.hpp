// All ways in which servers may read a path.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace once::http {

// Whether every server reads the path in the same way.
bool has_one_reading(std::string_view path) noexcept;

// Every path that servers and proxies may make of `path`, which is the first. They decode it (once, twice, all or a
// part), turn backslashes into slashes, join slashes and resolve dot segments. They cut off parameters, dots and blanks
// at a segment's end, an extension, and everything after a decoded '?' or '#'. Any order and repetition is covered.
// Empty: not certain, because of control characters, broken percent signs, characters that Unicode normalisation turns
// into slashes and dots, or too many readings.
std::optional<std::vector<std::string>> readings_of(std::string_view path);

// Whether a server may leave a folder that is put before the path: "/../admin" behind "/shop". Also if that is not
// certain.
bool may_leave_folder(std::string_view path);

}  // namespace once::http
