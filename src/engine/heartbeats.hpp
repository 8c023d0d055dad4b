// Which claims to renew when: they are listed where their flights are, under the mutexes that are taken there anyway,
// and one timer serves all claims of an engine.
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
  // Claims are linked into the list itself, so that adding and removing cost no allocation and no search.
  struct Link {
    ClaimState* previous = nullptr;
    ClaimState* next = nullptr;
    std::atomic<bool> linked{false};  // Changed with the mutex held.
    Uptime due{};
  };

  void add(ClaimState& claim, Uptime due) noexcept;
  void remove(ClaimState& claim) noexcept;  // Nothing if it is not in the list.

  // Adds those whose heartbeat is due to `due`, and gives the moment of the next one: Uptime::max() for none.
  [[nodiscard]] Uptime collect(Uptime now, std::vector<std::shared_ptr<ClaimState>>& due);

 private:
  ClaimState* first_ = nullptr;
};

class Heartbeats {
 public:
  explicit Heartbeats(EngineCore& core) noexcept : core_(core) {}

  // Sees to it that a timer fires at `due` or earlier. After the claim was listed, with no mutex of a shard held.
  void schedule(Uptime due);

 private:
  void tick();

  EngineCore& core_;
  std::mutex mutex_;                              // Taken to set a timer.
  std::atomic<Uptime> scheduled_{Uptime::max()};  // When the next timer fires.
};

}  // namespace once
