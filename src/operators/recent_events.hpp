// What the operations of this process did in the last hour: the rates of the operators' API.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include <once/clock.hpp>
#include <once/engine/event.hpp>
#include <once/platform/system.hpp>

namespace once::operators {

// Thread-safe.
class RecentEvents {
 public:
  struct Counts {
    std::chrono::seconds span{0};   // How long it was counted: up to an hour.
    std::uint64_t ran = 0;          // Calls whose work ran under a claim, however it ended.
    std::uint64_t replayed = 0;     // Calls that got a stored result or failure.
    std::uint64_t unprotected = 0;  // Work that ran without a claim.
    std::uint64_t unrecorded = 0;   // Finishes that could not be written at first.
  };

  explicit RecentEvents(std::shared_ptr<Clock> clock = system_clock());

  void count(const Event& event) noexcept;  // For an observer: no lock, but once a minute.
  [[nodiscard]] Counts counts() const;

 private:
  enum Kind : std::uint8_t { ran, replayed, unprotected, unrecorded, kinds };
  // Of one minute of the clock's uptime.
  struct Minute {
    std::atomic<std::int64_t> number{-1};
    std::array<std::atomic<std::uint64_t>, kinds> counts{};
  };
  static constexpr std::int64_t minutes_told = 60;  // The one that runs, and 59 before it.
  static constexpr std::size_t slots = 64;

  [[nodiscard]] std::int64_t minute() const noexcept;
  Minute& slot_of(std::int64_t number) noexcept;

  const std::shared_ptr<Clock> clock_;
  const Uptime began_;
  std::mutex turning_;  // Guards that a slot is emptied once, for its next minute.
  std::array<Minute, slots> slots_;
};

}  // namespace once::operators
