// How everything here says that a key cannot be had.
#pragma once

#include <string>

#include <once/error.hpp>

namespace once::keys {

[[noreturn]] inline void refuse(const std::string& message) { throw Exception(ErrorKind::misuse, message); }

}  // namespace once::keys
