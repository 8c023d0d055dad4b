// The two notions of time: UTC, which records carry and machines may disagree on, and uptime, which measures spans.
#pragma once

#include <chrono>
#include <cstdint>

#include <once/compiler.hpp>

namespace once {

using Millis = std::chrono::milliseconds;

// UTC, milliseconds since 1970-01-01T00:00:00Z, without leap seconds.
using Time = std::chrono::sys_time<Millis>;

// Nanoseconds since an arbitrary moment on this host, never set back, running on during suspend
// (CLOCK_BOOTTIME on Linux). Only differences within one host mean anything.
using Uptime = std::chrono::nanoseconds;

// How a time is written where it is a number.
inline constexpr std::int64_t unix_ms(Time time) noexcept { return time.time_since_epoch().count(); }

// An expiry that never comes.
inline constexpr Time never = Time::max();

// Whether a record with this expiry has expired. `never` has not, whatever `now` is.
inline constexpr bool is_expired(Time expires_at, Time now) noexcept {
  return expires_at <= now && expires_at != never;
}

}  // namespace once
