// How a holder measures its lease.
#pragma once

#include <once/policy.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

namespace once {

// The store's time, as known at a moment of this host's uptime. `told` is false while it is only this host's own time.
struct Moment {
  Uptime uptime{};
  Time now{};
  Millis error{0};
  bool told = false;
  // For decisions: the earliest possible time, so that with an uncertain clock claims are live rather than lapsed.
  [[nodiscard]] Time earliest() const noexcept { return now - error; }
};

// Until when a holder may trust a lease whose request was sent at `sent`, computed from a time with this `error`. No
// other claim can be made before: others also wait for the skew, so a part of a short lease is enough margin on this
// side.
[[nodiscard]] Uptime trusted_until(const EffectivePolicy& policy, Uptime sent, Millis error) noexcept;
// How wrong the store's time may be before a lease must be checked or computed again.
[[nodiscard]] Millis tolerance_of(const EffectivePolicy& policy) noexcept;
// How much later a lease computed at `counted_at` would end by the time known at `moment`. Negative: earlier.
[[nodiscard]] Millis short_by(const EffectivePolicy& policy, const Record& written, Uptime counted_at,
                              const Moment& moment) noexcept;

}  // namespace once
