#include <algorithm>
#include <cstdint>

#include <once/clock.hpp>

namespace once {

namespace {

std::int64_t drift_ns(Uptime from, Uptime to) noexcept {
  constexpr std::int64_t million = 1'000'000;
  const std::int64_t span = to >= from ? (to - from).count() : (from - to).count();
  return span / million * StoreClock::drift_ppm + (span % million * StoreClock::drift_ppm + million - 1) / million;
}

// A store may report any number: limits it, with room for the arithmetic. 8e12 ms are the year 2223.
std::int64_t ns(Millis span, std::int64_t most_ms) noexcept {
  return std::chrono::nanoseconds(Millis{std::clamp<std::int64_t>(span.count(), 0, most_ms)}).count();
}

// Time is truncated to milliseconds: a reported time may be this much before the store's clock.
constexpr std::int64_t cut_off_ns = 999'999;

}  // namespace

bool StoreClock::Bounds::narrow(const Bounds& other) noexcept {
  const std::int64_t drift = drift_ns(learnt_at, other.learnt_at);
  const std::int64_t low = std::max(other.low_ns, low_ns - drift);
  const std::int64_t high = std::min(other.high_ns, high_ns + drift);
  if (low > high) return false;
  *this = {low, high, other.learnt_at};
  return true;
}

void StoreClock::learn(StoreTime told, Uptime sent, Uptime received) noexcept {
  // The answer was made at some moment between sent and received.
  const std::int64_t told_ns = ns(told.now.time_since_epoch(), 8'000'000'000'000);
  const std::int64_t error_ns = ns(told.error, 100'000'000'000);
  // If it was made at `sent`, the clocks have drifted apart since.
  const Bounds bounds{.low_ns = told_ns - error_ns - received.count(),
                      .high_ns = told_ns + cut_off_ns + error_ns - sent.count() + drift_ns(sent, received),
                      .learnt_at = received};
  if (!known_ || bounds_.narrow(bounds)) {
    if (!known_) bounds_ = bounds;
    known_ = true;
    contradictions_ = 0;
  } else if (contradictions_ == 0 || !contradicting_.narrow(bounds)) {
    contradicting_ = bounds;
    contradictions_ = 1;
  } else if (++contradictions_ == outweighing) {
    bounds_ = contradicting_;
    contradictions_ = 0;
  }
}

std::optional<StoreTime> StoreClock::at(Uptime uptime) const noexcept {
  if (!known_) return std::nullopt;
  const std::int64_t half = (bounds_.high_ns - bounds_.low_ns) / 2;
  const std::int64_t now_ns = uptime.count() + bounds_.low_ns + half;
  std::int64_t error_ns = half + drift_ns(bounds_.learnt_at, uptime);
  if (contradictions_ > 0) {
    const std::int64_t drift = drift_ns(contradicting_.learnt_at, uptime);
    const std::int64_t middle_ns = bounds_.low_ns + half;
    error_ns =
        std::max({error_ns, middle_ns - contradicting_.low_ns + drift, contradicting_.high_ns - middle_ns + drift});
  }
  return StoreTime{Time(std::chrono::floor<Millis>(std::chrono::nanoseconds(now_ns))),
                   std::chrono::ceil<Millis>(std::chrono::nanoseconds(error_ns))};
}

}  // namespace once
