#include "core/lease.hpp"

#include <algorithm>

#include <once/clock.hpp>

namespace once {

Uptime trusted_until(const EffectivePolicy& policy, Uptime sent, Millis error) noexcept {
  const Millis margin = std::min(policy.skew, policy.lease / 4) + std::max(error - policy.skew, Millis{0});
  const std::chrono::nanoseconds drift = std::chrono::nanoseconds(policy.lease) / 1'000'000 * StoreClock::drift_ppm;
  constexpr Millis cut_off{1};  // The lease starts at a whole millisecond: up to one before this moment.
  return sent + policy.lease - cut_off - margin - drift;
}

Millis tolerance_of(const EffectivePolicy& policy) noexcept { return std::max(policy.skew / 2, policy.lease / 8); }

Millis short_by(const EffectivePolicy& policy, const Record& written, Uptime counted_at,
                const Moment& moment) noexcept {
  const Time meant = moment.now + policy.lease - std::chrono::floor<Millis>(moment.uptime - counted_at);
  return meant - written.lease_until;
}

}  // namespace once
