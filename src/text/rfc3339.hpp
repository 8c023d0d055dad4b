// Times as texts (RFC 3339).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include <once/time.hpp>

namespace once::text {

// "2026-05-17T09:30:00.250Z". RFC 3339 has the years 0 to 9999; others give the nearest time.
std::string rfc3339(Time time);
// The same where nothing can be allocated.
using Rfc3339 = std::array<char, 24>;
Rfc3339 rfc3339_chars(Time time) noexcept;

// "2026-01-01T00:00:00Z", optionally with an offset, and with a fraction of a second, which is dropped. Empty if it is
// not such a time.
std::optional<Time> from_rfc3339(std::string_view text);

}  // namespace once::text
