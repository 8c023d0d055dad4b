// Digests of what does not lie in one piece.
#pragma once

#include <initializer_list>
#include <string_view>

#include <once/fingerprint.hpp>

namespace once {

// SHA-256 of the parts one after the other. As sha256() otherwise.
Sha256 sha256_joined(std::initializer_list<std::string_view> parts);

}  // namespace once
