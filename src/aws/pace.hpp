// How fast a client may go after it was throttled. Pure arithmetic; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include <once/time.hpp>

namespace once::aws {

// No limit until the service throttles. Then 0.7 of the present rate, growing by 0.05 of it each second, and no limit
// again after 20 seconds without throttling.
class Pace {
 public:
  // When the next request may be sent, at the earliest `now`. Empty if that would be after `latest`.
  std::optional<Uptime> reserve(Uptime now, Uptime latest) noexcept;

  void throttled(Uptime now) noexcept;

 private:
  [[nodiscard]] double limit(Uptime now) const noexcept;  // Requests a second. Limited only.

  // Requests of the window that began then, and the rate of the one before.
  Uptime window_{};
  std::uint32_t in_window_ = 0;
  double last_rate_ = 0;

  std::optional<Uptime> cut_at_;  // Empty: no limit.
  double cut_rate_ = 0;           // The rate at which it throttled.
  Uptime slot_{};                 // The next request may not be sent before.
};

}  // namespace once::aws
