// Keys for tests.
#pragma once

#include <cstdint>
#include <string>

#include <once/seal.hpp>

namespace once::testing {

inline SealKey seal_key(std::string id, std::uint8_t byte) {
  SealKey key{.id = std::move(id), .bytes = {}};
  key.bytes.fill(byte);
  return key;
}

}  // namespace once::testing
