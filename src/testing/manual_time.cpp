#include <once/testing/manual_time.hpp>

#include <algorithm>

namespace once::testing {

namespace {

constexpr std::int64_t million = 1'000'000;

// span * ppm / 10^6, rounded down, without overflow for spans of centuries.
std::int64_t scaled(std::int64_t span, std::int64_t ppm) noexcept {
  const std::int64_t whole = span / million;
  const std::int64_t rest = span % million * ppm;
  return whole * ppm + rest / million - (rest % million < 0 ? 1 : 0);
}

}  // namespace

ManualClock::ManualClock(Time now, Uptime uptime) : utc_(now.time_since_epoch()), uptime_(uptime) {}

Time ManualClock::now() const noexcept {
  const std::lock_guard lock(mutex_);
  return Time(std::chrono::floor<Millis>(utc_));
}

Uptime ManualClock::uptime() const noexcept {
  const std::lock_guard lock(mutex_);
  return uptime_;
}

void ManualClock::advance(std::chrono::nanoseconds by) noexcept {
  const std::lock_guard lock(mutex_);
  by = std::max(by, std::chrono::nanoseconds{0});
  utc_ += by;
  uptime_ += by;
}

void ManualClock::jump(Millis by) noexcept {
  const std::lock_guard lock(mutex_);
  utc_ += by;
}

DriftingClock::DriftingClock(std::shared_ptr<const Clock> base, std::int64_t drift_ppm, Millis utc_offset)
    : base_(std::move(base)),
      drift_ppm_(std::clamp<std::int64_t>(drift_ppm, -100'000, 100'000)),
      base_start_(base_->uptime()),
      utc_start_(base_->now().time_since_epoch() + utc_offset) {}

Uptime DriftingClock::elapsed() const noexcept {
  const std::int64_t span = (base_->uptime() - base_start_).count();
  return Uptime{span + scaled(span, drift_ppm_)};
}

Time DriftingClock::now() const noexcept {
  const Uptime span = elapsed();
  const std::lock_guard lock(mutex_);
  return Time(std::chrono::floor<Millis>(utc_start_ + span));
}

Uptime DriftingClock::uptime() const noexcept { return base_start_ + elapsed(); }

void DriftingClock::jump(Millis by) noexcept {
  const std::lock_guard lock(mutex_);
  utc_start_ += by;
}

Uptime DriftingClock::base_uptime(Uptime uptime) const noexcept {
  const std::int64_t wanted = (uptime - base_start_).count();
  const auto shown = [&](std::int64_t base) { return base + scaled(base, drift_ppm_); };
  // A first guess by division, then the few nanoseconds that rounding left.
  const std::int64_t whole = wanted / (million + drift_ppm_);
  std::int64_t base = whole * million + wanted % (million + drift_ppm_) * million / (million + drift_ppm_);
  while (shown(base) < wanted) ++base;
  while (shown(base - 1) >= wanted) --base;
  return base_start_ + Uptime{base};
}

ManualTimers::~ManualTimers() = default;

Timers::Id ManualTimers::at(Uptime at, Callback<void()> fire) {
  const std::lock_guard lock(mutex_);
  const Id id = ++last_id_;
  queue_.emplace(std::pair(at, id), std::move(fire));
  when_.emplace(id, at);
  return id;
}

bool ManualTimers::cancel(Id id) noexcept {
  Callback<void()> dropped;  // Destroyed outside the lock: its destructor may call this object.
  const std::lock_guard lock(mutex_);
  const auto found = when_.find(id);
  if (found == when_.end()) return false;
  dropped = std::move(queue_.extract(std::pair(found->second, id)).mapped());
  when_.erase(found);
  return true;
}

bool ManualTimers::fire_first(Uptime until) {
  Callback<void()> fire;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty() || queue_.begin()->first.first > until) return false;
    auto node = queue_.extract(queue_.begin());
    when_.erase(node.key().second);
    clock_->advance(node.key().first - clock_->uptime());
    fire = std::move(node.mapped());
  }
  fire();
  return true;
}

void ManualTimers::advance(std::chrono::nanoseconds by) {
  const Uptime until = clock_->uptime() + by;
  while (fire_first(until)) {
  }
  clock_->advance(until - clock_->uptime());
}

std::size_t ManualTimers::run_due() {
  std::size_t fired = 0;
  while (fire_first(clock_->uptime())) ++fired;
  return fired;
}

bool ManualTimers::run_next() { return fire_first(Uptime::max()); }

std::optional<Uptime> ManualTimers::next() const {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return std::nullopt;
  return queue_.begin()->first.first;
}

std::size_t ManualTimers::pending() const {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

std::uint64_t SeededRandom::next() noexcept {
  // SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
  constexpr std::uint64_t increment = 0x9E3779B97F4A7C15U;
  std::uint64_t z = state_.fetch_add(increment, std::memory_order_relaxed) + increment;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

std::uint64_t SeededRandom::below(std::uint64_t bound) noexcept {
  // The remainder prefers small values by less than bound / 2^64, which no test notices.
  return bound == 0 ? 0 : next() % bound;
}

bool SeededRandom::chance(std::uint32_t in_a_thousand) noexcept { return below(1000) < in_a_thousand; }

void SeededRandom::fill(std::span<std::uint8_t> out) noexcept {
  while (!out.empty()) {
    std::uint64_t word = next();
    const std::size_t count = std::min<std::size_t>(out.size(), 8);
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = static_cast<std::uint8_t>(word & 0xFFU);
      word >>= 8U;
    }
    out = out.subspan(count);
  }
}

}  // namespace once::testing
