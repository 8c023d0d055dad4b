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

// A store may tell anything: no more than fits, with room for the arithmetic. 8e12 ms are the year 2223.
std::int64_t ns(Millis span, std::int64_t most_ms) noexcept {
  return std::chrono::nanoseconds(Millis{std::clamp<std::int64_t>(span.count(), 0, most_ms)}).count();
}

// Time is in whole milliseconds: what a store tells lies up to this much behind what its clock shows.
constexpr std::int64_t cut_off_ns = 999'999;

}  // namespace

void StoreClock::learn(StoreTime told, Uptime sent, Uptime received) noexcept {
  // The answer was made at some moment between sent and received.
  const std::int64_t told_ns = ns(told.now.time_since_epoch(), 8'000'000'000'000);
  const std::int64_t error_ns = ns(told.error, 100'000'000'000);
  const std::int64_t low = told_ns - error_ns - received.count();
  // If it was made at once, the clocks have drifted apart since.
  const std::int64_t high = told_ns + cut_off_ns + error_ns - sent.count() + drift_ns(sent, received);
  const std::int64_t drift = drift_ns(learnt_at_, received);
  const std::int64_t both_low = std::max(low, low_ns_ - drift);
  const std::int64_t both_high = std::min(high, high_ns_ + drift);
  const bool agrees = known_ && both_low <= both_high;  // Otherwise the store's clock was set: begin anew.
  low_ns_ = agrees ? both_low : low;
  high_ns_ = agrees ? both_high : high;
  learnt_at_ = received;
  known_ = true;
}

std::optional<StoreTime> StoreClock::at(Uptime uptime) const noexcept {
  if (!known_) return std::nullopt;
  const std::int64_t half = (high_ns_ - low_ns_) / 2;
  const std::int64_t now_ns = uptime.count() + low_ns_ + half;
  const std::int64_t error_ns = half + drift_ns(learnt_at_, uptime);
  return StoreTime{Time(std::chrono::floor<Millis>(std::chrono::nanoseconds(now_ns))),
                   std::chrono::ceil<Millis>(std::chrono::nanoseconds(error_ns))};
}

}  // namespace once
