// Suggests the word that a user may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace once::cli {

// The most likely correction of `word`, or empty.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace once::cli
