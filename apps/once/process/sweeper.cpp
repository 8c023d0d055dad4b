#include "process/sweeper.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include <once/error.hpp>
#include <once/operate.hpp>

#include "text/prometheus.hpp"

namespace once::cli {

namespace {

constexpr int pause_per_slice = 4;
// How far the store's clock may depart from the uptime within an interval, beyond its errors.
constexpr Millis steady_within{5'000};
constexpr Millis pause_after_jump{600'000};
using Steady = std::chrono::steady_clock;

// A store's time, and the uptime when it was learnt.
struct Moment {
  StoreTime time;
  Uptime uptime{};
};

Millis ms(auto duration) { return std::chrono::duration_cast<Millis>(duration); }

bool went_steadily(const Moment& from, const Moment& to) {
  const Millis departed = ms(to.time.now - from.time.now) - ms(to.uptime - from.uptime);
  return std::chrono::abs(departed) <= steady_within + from.time.error + to.time.error;
}

}  // namespace

struct Sweeper::Shared {
  explicit Shared(SweeperOptions the_options) : options(std::move(the_options)) {}

  const SweeperOptions options;
  mutable std::mutex mutex;  // Guards the following members.
  std::condition_variable news;
  bool ending = false;
  std::uint64_t removed = 0;
  std::uint64_t errors = 0;
  std::uint64_t jumps = 0;
  std::optional<Time> swept_at;  // By the store's clock.

  // False: this ends.
  bool rest(Steady::duration pause) {
    std::unique_lock lock(mutex);
    return !news.wait_for(lock, pause, [this] { return ending; });
  }

  [[nodiscard]] Moment learn() const {
    const StoreTime time = operate::learn_now(*options.store, *options.clock);
    return {.time = time, .uptime = options.clock->uptime()};
  }

  void sweep(const StoreTime& time) {
    Steady::time_point began = Steady::now();
    std::size_t counted = 0;
    const operate::Swept swept = operate::sweep(
        *options.store,
        {.expired_before = time.now - time.error, .offload = options.offload, .progress = [&](std::size_t so_far) {
           count(so_far - std::exchange(counted, so_far));
           const bool goes_on = rest((Steady::now() - began) * pause_per_slice);
           began = Steady::now();
           return goes_on;
         }});
    count(swept.removed - counted);
    const std::lock_guard lock(mutex);
    if (swept.error) {
      errors += 1;
    } else if (!ending) {
      swept_at = time.now;
    }
  }

  void count(std::size_t more) {
    const std::lock_guard lock(mutex);
    removed += more;
  }

  void work() {
    bool known = false;  // With an optional<Moment>, g++ 12 warns of what it does not see.
    Moment before;
    Uptime from{};
    do {
      try {
        const Moment now = learn();
        if (now.time.error > steady_within) continue;  // Its answers contradict each other: see StoreClock.
        if (known && !went_steadily(before, now)) {
          from = now.uptime + pause_after_jump;
          const std::lock_guard lock(mutex);
          jumps += 1;
        }
        if (known && now.uptime >= from) sweep(now.time);
        before = now;
        known = true;
      } catch (const Exception&) {  // The store told no time.
        const std::lock_guard lock(mutex);
        errors += 1;
      }
    } while (rest(options.interval));
  }
};

Sweeper::Sweeper(SweeperOptions options) : shared_(std::make_unique<Shared>(std::move(options))) {
  if (!shared_->options.store->capabilities().expires_itself) worker_ = std::jthread([this] { shared_->work(); });
}

Sweeper::~Sweeper() {
  const std::lock_guard lock(shared_->mutex);
  shared_->ending = true;
  shared_->news.notify_all();
}

std::string Sweeper::text() const {
  if (!worker_.joinable()) return {};
  text::Exposition out;
  const std::lock_guard lock(shared_->mutex);
  out.family("once_sweep_removed_total", "counter", "Expired records that this process removed from the store.");
  out.sample({}, shared_->removed);
  out.family("once_sweep_errors_total", "counter", "Sweeps that failed, or met a record that cannot be read.");
  out.sample({}, shared_->errors);
  out.family("once_sweep_clock_jumps_total", "counter",
             "Jumps of the store's clock that were seen; none is swept for ten minutes after one.");
  out.sample({}, shared_->jumps);
  out.family("once_sweep_timestamp_seconds", "gauge", "When a sweep last came to its end, since 1970. 0: never.");
  out.sample({},
             shared_->swept_at ? std::chrono::duration<double>(shared_->swept_at->time_since_epoch()).count() : 0.0);
  return std::move(out).take();
}

}  // namespace once::cli
