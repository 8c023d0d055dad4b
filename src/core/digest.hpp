// Digests of several parts.
#pragma once

#include <initializer_list>
#include <string_view>

#include <once/fingerprint.hpp>

namespace once {

// SHA-256 of the concatenated parts. Otherwise as sha256().
Sha256 sha256_joined(std::initializer_list<std::string_view> parts);

}  // namespace once
