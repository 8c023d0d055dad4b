// Values that cannot identify a client, because its retry has another one.
#pragma once

#include <string_view>

namespace once::http {

// A JWT somewhere in it (RFC 7519), or credentials of a scheme that signs each request or answers a challenge.
bool is_unstable(std::string_view header_value);

// Whether a header is made for such values.
bool is_unstable_name(std::string_view header_name) noexcept;

}  // namespace once::http
