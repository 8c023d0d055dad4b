// A lease as its holder measures it.
#pragma once

#include <once/policy.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

namespace once {

// The store's time as well as it is known at a moment of this host's uptime. `told` is false while it is only this
// host's belief.
struct Moment {
  Uptime uptime{};
  Time now{};
  Millis error{0};
  bool told = false;
  // For decisions: the earliest it can be, so that an uncertain clock finds claims alive rather than lapsed.
  [[nodiscard]] Time earliest() const noexcept { return now - error; }
};

// Until when a holder may trust a lease, if the request that wrote it was sent at `sent` and counted on a clock that
// was known up to `error`. Before that no other claim can have been made, whoever makes it: they wait for the skew
// too, so that a part of a short lease is margin enough on this side.
[[nodiscard]] Uptime trusted_until(const EffectivePolicy& policy, Uptime sent, Millis error) noexcept;
// How far off the store's time may be before a lease has to be looked at again, or counted anew.
[[nodiscard]] Millis tolerance_of(const EffectivePolicy& policy) noexcept;
// How much later the end of a lease that was counted at `counted_at` would lie by what is known at `moment`. Less than
// 0: earlier.
[[nodiscard]] Millis short_by(const EffectivePolicy& policy, const Record& written, Uptime counted_at,
                              const Moment& moment) noexcept;

}  // namespace once
