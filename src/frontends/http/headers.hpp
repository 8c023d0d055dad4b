// Which header lines of an answer are stored.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>

namespace once::http {

// Headers about a claim, which only the proxy sends to the service, and only the service to the proxy.
inline constexpr std::string_view claim_prefix = "Once-";
bool is_about_claim(std::string_view name) noexcept;

bool names_contain(std::span<const std::string> names, std::string_view name) noexcept;

// The stored and the omitted lines of an answer: see frontends/http/stored_answer.hpp.
struct Storable {
  std::vector<HeaderView> headers;  // Views into the given headers.
  std::string not_stored;
};
Storable storable(const Headers& headers, std::span<const std::string> never);

// Adds Idempotent-Replayed: true to a stored answer, which never has it. If scripts of other origins may read the
// answer, they may read this header too (Access-Control-Expose-Headers, Fetch Standard, "CORS protocol").
void mark_replayed(Headers& headers);

}  // namespace once::http
