// All that servers may take a path for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace once::http {

// Whether every server takes it for what it is.
bool has_one_reading(std::string_view path) noexcept;

// Every path that comes of `path` by what servers and proxies do to one, in any order and as often as they like:
// decoding (once, twice, all or some of it), backslashes made slashes, slashes joined, dot segments resolved,
// parameters cut off, dots and blanks at a segment's end, an extension, what follows a decoded '?' or '#'. `path`
// itself is the first. Nothing: there is no telling, as with control characters, broken percent signs, characters that
// are made slashes and dots when Unicode is normalised, or more readings than anyone needs.
std::optional<std::vector<std::string>> readings_of(std::string_view path);

}  // namespace once::http
