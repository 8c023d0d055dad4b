// Time and randomness under a test's control: time moves only when the test moves it, and a seed repeats everything.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/time.hpp>

namespace once::testing {

// 2026-01-01T00:00:00Z.
inline constexpr Time manual_start = Time(Millis{1'767'225'600'000});

// Moves only by advance() and jump(). Thread-safe.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(Time now = manual_start, Uptime uptime = std::chrono::hours(1));  // Stands still there.

  [[nodiscard]] Time now() const noexcept override;
  [[nodiscard]] Uptime uptime() const noexcept override;

  // Advances UTC and uptime. A negative value counts as 0. Fires no timer: see ManualTimers.
  void advance(std::chrono::nanoseconds by) noexcept;
  // Moves only UTC, forward or back, as an operator or NTP does.
  void jump(Millis by) noexcept;

 private:
  mutable std::mutex mutex_ = {};
  std::chrono::nanoseconds utc_;  // Since 1970, so that many short steps add up.
  Uptime uptime_;
};

// The clock of a host with a drifting quartz and a wrong UTC, derived from another clock. Thread-safe.
class DriftingClock final : public Clock {
 public:
  // Runs (1 + drift_ppm / 10^6) times as fast as `base`; drift_ppm: -100 000 to 100 000. Starts at the uptime of
  // `base`, and at its UTC plus `utc_offset`.
  DriftingClock(std::shared_ptr<const Clock> base, std::int64_t drift_ppm, Millis utc_offset = Millis{0});

  [[nodiscard]] Time now() const noexcept override;
  [[nodiscard]] Uptime uptime() const noexcept override;
  void jump(Millis by) noexcept;  // Moves only UTC. `base` does not notice.

  // The earliest uptime of `base` at which this clock shows `uptime` or more.
  [[nodiscard]] Uptime base_uptime(Uptime uptime) const noexcept;

 private:
  [[nodiscard]] Uptime elapsed() const noexcept;

  const std::shared_ptr<const Clock> base_;
  const std::int64_t drift_ppm_;
  const Uptime base_start_;
  mutable std::mutex mutex_ = {};
  std::chrono::nanoseconds utc_start_;
};

// Timers of a ManualClock. They fire only inside advance(), run_due() and run_next(), on the calling thread, ordered by
// time and then by when they were set. A timer may set and cancel others. Thread-safe, but only one thread should
// advance the clock.
class ManualTimers final : public Timers {
 public:
  explicit ManualTimers(std::shared_ptr<ManualClock> clock) : clock_(std::move(clock)) {}  // Not null.
  ~ManualTimers() override;

  Id at(Uptime at, Callback<void()> fire) override;
  bool cancel(Id id) noexcept override;

  // Advances the clock, and fires each due timer with the clock at its moment, also timers that others set on the way.
  void advance(std::chrono::nanoseconds by);
  // Fires the timers that are due now. Returns how many.
  std::size_t run_due();
  // Advances the clock to the next timer, and fires it. False if there is none.
  bool run_next();

  [[nodiscard]] std::optional<Uptime> next() const;  // When the next one is due.
  [[nodiscard]] std::size_t pending() const;         // How many are set and have not fired.

 private:
  bool fire_first(Uptime until);

  const std::shared_ptr<ManualClock> clock_;
  mutable std::mutex mutex_ = {};
  std::map<std::pair<Uptime, Id>, Callback<void()>> queue_ = {};
  std::map<Id, Uptime> when_ = {};
  Id last_id_ = 0;
};

// Timers of a DriftingClock, on the timers of its base. Thread-safe. The destructor cancels nothing.
class DriftingTimers final : public Timers {
 public:
  // `base`: timers of the clock that `clock` is derived from.
  DriftingTimers(std::shared_ptr<const DriftingClock> clock, std::shared_ptr<Timers> base)
      : clock_(std::move(clock)), base_(std::move(base)) {}

  Id at(Uptime at, Callback<void()> fire) override { return base_->at(clock_->base_uptime(at), std::move(fire)); }
  bool cancel(Id id) noexcept override { return base_->cancel(id); }

 private:
  const std::shared_ptr<const DriftingClock> clock_;
  const std::shared_ptr<Timers> base_;
};

// The same bytes for the same seed on every machine (SplitMix64). Not for secrets. Thread-safe.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed) noexcept : state_(seed) {}  // Any seed, also 0.

  void fill(std::span<std::uint8_t> out) noexcept override;

  std::uint64_t next() noexcept;                      // Any 64 bits.
  std::uint64_t below(std::uint64_t bound) noexcept;  // 0 to bound - 1, and 0 for a bound of 0.
  bool chance(std::uint32_t in_a_thousand) noexcept;  // True with this probability.
  // An element, all equally likely. `from` is indexed and not empty.
  template <class Container>
  const auto& pick(const Container& from) noexcept {
    return from[static_cast<std::size_t>(below(std::size(from)))];
  }

 private:
  std::atomic<std::uint64_t> state_;
};

}  // namespace once::testing
