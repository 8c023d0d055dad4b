// Netstrings (D. J. Bernstein, 1997: "5:hello,"), and a record's history written with them: how stores keep lists in
// one text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <once/record.hpp>

namespace once {

void append_netstring(std::string& out, std::string_view bytes);

// Takes one off the front; empty if there is none.
std::optional<std::string_view> take_netstring(std::string_view& text);

// Empty for an empty history. Otherwise the number of entries that fell out, then for each entry: what, who, why,
// attempt, began_at and at in milliseconds.
std::string history_text(const History& history);
std::optional<History> history_from_text(std::string_view text);  // Empty if it is malformed.

}  // namespace once
