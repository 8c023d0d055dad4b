// The word that somebody who mistyped may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace once::cli {

// What is the likeliest to have been meant by `word`; empty if nothing is near.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace once::cli
