// The parts of a request target.
#pragma once

#include <string_view>

namespace once::http {

// "/charges" of "/charges?a=b" and of "http://host/charges?a=b".
std::string_view path_of(std::string_view target) noexcept;

// "?a=b", or nothing.
std::string_view query_of(std::string_view target) noexcept;

// "host:80" of "http://host:80/charges", or nothing.
std::string_view authority_of(std::string_view target) noexcept;

}  // namespace once::http
