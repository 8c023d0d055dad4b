// Header lines of messages: which of an answer are stored.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>

namespace once::http {

bool names_contain(std::span<const std::string> names, std::string_view name) noexcept;

// The lines that a stored answer has, and what it leaves out: see once/frontends/http/stored_answer.hpp.
struct Storable {
  std::vector<HeaderView> headers;  // Of those that were given.
  std::string not_stored;
};
Storable storable(const Headers& headers, std::span<const std::string> never);

// Adds Idempotent-Replayed: true to an answer that has none, as none is stored; readable for scripts of other origins
// if the answer is (Access-Control-Expose-Headers, Fetch Standard, "CORS protocol").
void mark_replayed(Headers& headers);

}  // namespace once::http
