// Lower case as in TypeScript, for sorting names.
#pragma once

#include <string>
#include <string_view>

namespace once::keys {

// String.prototype.toLowerCase of ECMAScript: full Unicode mapping, U+0130 becomes two, final sigma by its context.
// Takes UTF-8, with lone surrogates as in text/utf8.hpp.
std::string to_lower(std::string_view text);

}  // namespace once::keys
