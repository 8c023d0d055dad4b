// Digests of what does not lie in one piece, and their digits without a string.
#pragma once

#include <initializer_list>
#include <string_view>

#include <once/fingerprint.hpp>

namespace once {

// SHA-256 of the parts one after the other. As sha256() otherwise.
Sha256 sha256_joined(std::initializer_list<std::string_view> parts);

// Writes what to_hex() gives, two digits a byte, and gives the place behind them.
char* put_hex(std::string_view bytes, char* out) noexcept;

}  // namespace once
