// Whether new rules change existing keys. Then a retry of a request from before would run again.
#pragma once

#include <string>
#include <vector>

#include <once/frontends/http/router.hpp>

namespace once::cli {

struct KeyChange {
  std::vector<std::string> lines;  // One for each route and part that differs. Empty: keys do not change.
  std::string word;                // A word for exactly these lines, with which an operator accepts this change.
};

// Compares, for all paths and the methods that were protected: scope, operation, principal, where the key is, and
// whether there is protection. Unprotected requests have no keys to lose.
KeyChange key_change(const http::Routes& before, const http::Routes& after);

}  // namespace once::cli
