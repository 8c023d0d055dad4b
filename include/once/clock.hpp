// Time, timers and randomness: the engine takes all three from outside, so that tests can supply them.
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
  [[nodiscard]] virtual Time now() const noexcept = 0;       // UTC as this host knows it; may jump.
  [[nodiscard]] virtual Uptime uptime() const noexcept = 0;  // Never goes back; runs during suspend.
};

// Thread-safe.
class Random {
 public:
  virtual ~Random() = default;
  // Fills all of `out`, and must not fail: the host's ends the program if the kernel gives no random bytes.
  virtual void fill(std::span<std::uint8_t> out) noexcept = 0;
};

// Calls back at a moment of Clock::uptime(). Thread-safe.
class Timers {
 public:
  using Id = std::uint64_t;  // Names a timer. Not used again by the same object.
  virtual ~Timers() = default;
  // Gets what at() needs, such as a thread, so that at() does not fail later. The engine calls it before each claim.
  // Throws Exception(unavailable): then nothing is claimed.
  virtual void make_ready() {}
  // Calls `fire` once, on a thread of the timers, at `at` or soon after, never inside this call.
  virtual Id at(Uptime at, Callback<void()> fire) = 0;
  // True if the timer will not fire; false if it has fired, is firing or is unknown. Does not wait.
  virtual bool cancel(Id id) noexcept = 0;
};

// A store's time: between now - error and now + error when its answer was made. Truncated to whole milliseconds.
struct StoreTime {
  Time now{};       // UTC.
  Millis error{0};  // 0: exact, but for the truncation.

  friend bool operator==(const StoreTime&, const StoreTime&) = default;
};

// Computes the store's time from its answers. Pure arithmetic on intervals. Not thread-safe. Each answer bounds (store
// time - uptime) by the moments at which its request was sent and its answer received. Bounds are intersected, and
// widened with age because clocks drift apart. An answer that contradicts the earlier ones may be wrong, or the store's
// clock was set. It counts once two more in a row agree with it. Until then at() covers both.
class StoreClock {
 public:
  // A poor quartz on both sides, 100 ppm each. Together they drift by (1 + 10^-4) / (1 - 10^-4), which is 200.02 ppm.
  static constexpr std::int64_t drift_ppm = 201;
  // This many answers in a row that agree with each other outweigh all earlier ones.
  static constexpr int outweighing = 3;

  // Takes in the time `told` by an answer. Uptimes of this host: when its request was `sent`, and when it was
  // `received`.
  void learn(StoreTime told, Uptime sent, Uptime received) noexcept;

  // Empty before the first answer. now - error to now + error covers every possible time. An answer that contradicts
  // the others changes only the error.
  [[nodiscard]] std::optional<StoreTime> at(Uptime uptime) const noexcept;

 private:
  struct Bounds {
    std::int64_t low_ns = 0;   // Store time minus uptime is at least this …
    std::int64_t high_ns = 0;  // … and at most this, as of learnt_at.
    Uptime learnt_at{};

    // Narrows these bounds by `other`, which is newer. False if they contradict each other: then nothing changes.
    bool narrow(const Bounds& other) noexcept;
  };
  bool known_ = false;
  Bounds bounds_;
  int contradictions_ = 0;  // In a row; contradicting_ has their bounds.
  Bounds contradicting_;
};

}  // namespace once
