// Time, timers and randomness, the three things the engine takes from outside, so that a test can be the outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <once/callback.hpp>
#include <once/time.hpp>

namespace once {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual Time now() const noexcept = 0;       // UTC as this host believes it; may jump.
  [[nodiscard]] virtual Uptime uptime() const noexcept = 0;  // Never jumps back, runs during suspend.
};

// Thread-safe.
class Random {
 public:
  virtual ~Random() = default;
  virtual void fill(std::span<std::uint8_t> out) noexcept = 0;
};

// Calls back at a moment of Clock::uptime(). Thread-safe.
class Timers {
 public:
  using Id = std::uint64_t;
  virtual ~Timers() = default;
  // `fire` is called once, on a thread of the timers, at `at` or soon after; never from inside this call.
  virtual Id at(Uptime at, Callback<void()> fire) = 0;
  // True if the timer will not fire any more; false if it has fired, is firing or was unknown. Does not wait.
  virtual bool cancel(Id id) noexcept = 0;
};

// What a store told about its time: between now - error and now + error when the answer was made, cut off to whole
// milliseconds.
struct StoreTime {
  Time now{};
  Millis error{0};

  friend bool operator==(const StoreTime&, const StoreTime&) = default;
};

// The store's time through what is learnt from its answers: pure arithmetic on intervals. Not thread-safe.
// Each answer bounds (store time - uptime) by the moments its request left and its answer came; bounds are
// intersected, and widened with age for clocks that drift apart. An answer that contradicts what is known may be false,
// or the store's clock was set: it counts when two more in a row agree with it. Until that is known, at() admits both.
class StoreClock {
 public:
  // A poor quartz on either side, 100 ppm each: one against the other that is (1 + 10^-4) / (1 - 10^-4), 200.02 ppm.
  static constexpr std::int64_t drift_ppm = 201;
  // So many answers in a row, which agree with each other, outweigh all that came before.
  static constexpr int outweighing = 3;

  void learn(StoreTime told, Uptime sent, Uptime received) noexcept;

  // Empty until something was learnt. `now - error` to `now + error` covers all that is possible. An answer that
  // contradicts the others moves only the error.
  [[nodiscard]] std::optional<StoreTime> at(Uptime uptime) const noexcept;

 private:
  struct Bounds {
    std::int64_t low_ns = 0;   // Store time minus uptime is at least this …
    std::int64_t high_ns = 0;  // … and at most this, as of learnt_at.
    Uptime learnt_at{};

    // Takes over what `other`, which is newer, says more exactly; false, and nothing, if they contradict each other.
    bool narrow(const Bounds& other) noexcept;
  };
  bool known_ = false;
  Bounds bounds_;
  int contradictions_ = 0;  // In a row, and what they say.
  Bounds contradicting_;
};

}  // namespace once
