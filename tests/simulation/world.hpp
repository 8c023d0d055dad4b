// Virtual time: a queue of events, each of which may belong to a process that can be stopped, continued or killed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <unordered_map>
#include <utility>
#include <vector>

#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/testing/manual_time.hpp>

namespace once::simulation {

// True time, from 0; the store's clock shows start + this.
using Instant = std::chrono::nanoseconds;

class Host;

class World {
 public:
  explicit World(std::uint64_t seed) : random(seed) {}

  [[nodiscard]] Instant now() const noexcept { return now_; }
  [[nodiscard]] Time utc() const noexcept { return testing::manual_start + std::chrono::floor<Millis>(now_); }

  // `host` null: an event of the world itself.
  std::uint64_t at(Instant when, Host* host, Callback<void()> what);
  bool cancel(std::uint64_t id) noexcept;
  // Lets the next event happen. False if there is none.
  bool step();

  // For two worlds with one time: when the next event is due; and this one goes on to the other's time.
  [[nodiscard]] Instant next() const noexcept { return queue_.empty() ? Instant::max() : queue_.begin()->first.first; }
  void advance(Instant to) noexcept { now_ = std::max(now_, to); }
  void keep_only(const Host& host);  // All other events are gone.

  std::uint64_t below(std::uint64_t bound) { return random.below(bound); }
  bool chance(std::uint32_t in_a_thousand) { return random.chance(in_a_thousand); }
  // 1 to `mean` * 4, small values more often than large ones.
  Instant span(Instant mean) {
    const auto a = static_cast<double>(1 + below(1'000'000)) / 1e6;
    return Instant{1 + static_cast<std::int64_t>(static_cast<double>(mean.count()) * 4 * a * a * a)};
  }

  testing::SeededRandom random;
  std::uint64_t events = 0;

 private:
  friend class Host;
  struct Event {
    Host* host = nullptr;
    std::uint64_t life = 0;
    Callback<void()> what;
  };
  std::pmr::unsynchronized_pool_resource pool_;
  std::pmr::map<std::pair<Instant, std::uint64_t>, Event> queue_{&pool_};
  std::pmr::unordered_map<std::uint64_t, Instant> when_{&pool_};
  std::uint64_t last_id_ = 0;
  Instant now_{0};
};

// Where a process lives: its clock, its timers, and whether it runs. Outlives the process; after a crash another begins
// on it, in another life.
class Host {
 public:
  Host(World& world, std::int64_t drift_ppm, Millis utc_offset);

  // Freezes everything that is meant for the process, and lets it happen in any order when it is continued.
  void stop() {
    stopped_ = true;
    stopped_at_ = world_.now_;
  }
  void resume();
  void kill();  // Whatever was meant for the process is gone.
  void jump(Millis by) noexcept { offset_ += by; }
  void set_sleeps(bool sleeps) noexcept { sleeps_ = sleeps; }  // Its uptime stands still while it is stopped.

  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  [[nodiscard]] std::uint64_t life() const noexcept { return life_; }
  [[nodiscard]] Millis offset() const noexcept { return offset_; }

  [[nodiscard]] std::shared_ptr<Clock> clock();
  // Timers of the process's present life: after a kill they do nothing.
  [[nodiscard]] std::shared_ptr<Timers> timers();

 private:
  friend class World;
  class HostClock;
  class HostTimers;
  [[nodiscard]] Uptime uptime() const noexcept;
  [[nodiscard]] Instant instant_of(Uptime uptime) const noexcept;

  World& world_;
  const std::int64_t drift_ppm_;
  Millis offset_;
  bool stopped_ = false;
  bool sleeps_ = false;
  Instant stopped_at_{0};
  Instant slept_{0};
  std::uint64_t life_ = 1;
  std::vector<World::Event> inbox_;
};

}  // namespace once::simulation
