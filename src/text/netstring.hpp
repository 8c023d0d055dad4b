// Netstrings (D. J. Bernstein, 1997: "5:hello,"): how stores keep lists in one text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace once::text {

void append_netstring(std::string& out, std::string_view bytes);

// Takes one off the front; empty if there is none.
std::optional<std::string_view> take_netstring(std::string_view& text);

}  // namespace once::text
