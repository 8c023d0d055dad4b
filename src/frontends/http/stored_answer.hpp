// The writing half of the stored form, without the rules of what goes into it.
#pragma once

#include <string>

#include <once/frontends/http/stored_answer.hpp>

namespace once::http {

// What decode_answer() reads; gives back the very bytes that it was given.
std::string to_bytes(const StoredAnswer& stored);

}  // namespace once::http
