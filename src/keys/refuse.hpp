// The error of everything here: no key can be derived.
#pragma once

#include <string>

#include <once/error.hpp>

namespace once::keys {

[[noreturn]] inline void refuse(const std::string& message) { throw Exception(ErrorKind::misuse, message); }

}  // namespace once::keys
