// Whether new rules make another key of one that there is: then a retry of what ran under the old rules would run
// again.
#pragma once

#include <string>
#include <vector>

#include <once/frontends/http/router.hpp>

namespace once::cli {

struct KeyChange {
  std::vector<std::string> lines;  // One for each route and part that differs. Empty: keys stay what they are.
  std::string word;                // For these lines and no others: who writes it accepts just this change.
};

// Compares, for all paths and for the methods that were protected, what names an operation: scope, operation,
// principal, where the key is, and whether there is protection at all. What was not protected has no keys to lose.
KeyChange key_change(const http::Routes& before, const http::Routes& after);

}  // namespace once::cli
