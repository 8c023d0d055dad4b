// Writes the stored form, without the rules about its contents.
#pragma once

#include <string>

#include <once/frontends/http/stored_answer.hpp>

namespace once::http {

// The reverse of decode_answer(): returns exactly the bytes that it was given.
std::string to_bytes(const StoredAnswer& stored);

}  // namespace once::http
