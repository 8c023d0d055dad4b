// Times as texts (RFC 3339).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <once/time.hpp>

namespace once::text {

// "2026-05-17T09:30:00.250Z". Years outside 0 to 9999, which RFC 3339 lacks, give the nearest in it.
std::string rfc3339(Time time);

// "2026-01-01T00:00:00Z", with fractions of a second, which are dropped, or an offset if need be. Empty if it is not
// such a time.
std::optional<Time> from_rfc3339(std::string_view text);

}  // namespace once::text
