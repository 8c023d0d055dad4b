// Two kinds of time: UTC, which records contain and machines may disagree on, and uptime, which measures durations.
#pragma once

#include <chrono>
#include <cstdint>

#include <once/compiler.hpp>

namespace once {

using Millis = std::chrono::milliseconds;  // A span of time. Signed.

// UTC, milliseconds since 1970-01-01T00:00:00Z, without leap seconds.
using Time = std::chrono::sys_time<Millis>;

// Nanoseconds since some moment on this host. Never set back; runs during suspend (CLOCK_BOOTTIME on Linux). Only
// differences on one host are meaningful.
using Uptime = std::chrono::nanoseconds;

// A time as a number.
inline constexpr std::int64_t unix_ms(Time time) noexcept { return time.time_since_epoch().count(); }

// For a record that does not expire.
inline constexpr Time never = Time::max();

// For Policy::retention and Policy::failure_retention: what is kept does not expire. Not named `forever`, which is a
// macro of Qt's headers.
inline constexpr Millis keep_forever = Millis::max();

// Whether a record with this expiry has expired. `never` does not expire.
inline constexpr bool is_expired(Time expires_at, Time now) noexcept {
  return expires_at <= now && expires_at != never;
}

}  // namespace once
