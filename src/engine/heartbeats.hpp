// When to renew which claim. Claims are listed in the shards of their flights, under mutexes that are locked there
// anyway. One timer serves all claims of an engine.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include <once/time.hpp>

namespace once {

class ClaimState;
class EngineCore;

// The live claims of one shard. Not thread-safe: the shard's mutex guards it.
class LiveClaims {
 public:
  // An intrusive list: adding and removing cost no allocation and no search.
  struct Link {
    ClaimState* previous = nullptr;
    ClaimState* next = nullptr;
    std::atomic<bool> linked{false};  // Changed with the mutex held.
    Uptime due{};
  };

  void add(ClaimState& claim, Uptime due) noexcept;
  void remove(ClaimState& claim) noexcept;  // No effect if it is not in the list.

  // Adds the claims whose heartbeat is due to `due`. Returns when the next one is due; Uptime::max(): none.
  [[nodiscard]] Uptime collect(Uptime now, std::vector<std::shared_ptr<ClaimState>>& due);

 private:
  ClaimState* first_ = nullptr;
};

class Heartbeats {
 public:
  explicit Heartbeats(EngineCore& core) noexcept : core_(core) {}

  // Makes a timer fire at `due` or earlier. Call it after the claim was listed, without a shard's mutex.
  void schedule(Uptime due);

 private:
  void tick();

  EngineCore& core_;
  std::mutex mutex_;                              // Locked to set a timer.
  std::atomic<Uptime> scheduled_{Uptime::max()};  // When the next timer fires.
};

}  // namespace once
