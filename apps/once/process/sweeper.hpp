// Removes expired records now and then, as long as a service runs: else they fill the disk.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include <once/clock.hpp>
#include <once/offload.hpp>
#include <once/platform/system.hpp>
#include <once/store.hpp>
#include <once/time.hpp>

namespace once::cli {

struct SweeperOptions {
  std::shared_ptr<Store> store;
  std::shared_ptr<Offload> offload;  // Where their offloaded results are. Empty: nowhere.
  Millis interval{60'000};           // From the end of a sweep to the next one.
  std::shared_ptr<Clock> clock = system_clock();
};

// Sweeps on a thread of its own, in slices with pauses between them, so that at most a fifth of the time is spent on
// it. Does nothing for a store that removes its expired records itself.
//
// A clock that jumps forward makes every record look expired, and what was removed does not come back when the clock
// does. So a sweep needs a store's time that went on as this host's uptime did since the last look, an interval ago.
// After a jump no sweep begins for ten minutes.
class Sweeper {
 public:
  explicit Sweeper(SweeperOptions options);
  Sweeper(const Sweeper&) = delete;
  Sweeper& operator=(const Sweeper&) = delete;
  ~Sweeper();  // Waits for a running slice.

  // Prometheus' text format; empty if the store removes them itself. Never asks the store. From any thread.
  [[nodiscard]] std::string text() const;

 private:
  struct Shared;
  const std::unique_ptr<Shared> shared_;
  std::jthread worker_;
};

}  // namespace once::cli
