// Which claims to renew when: one list and one timer for all claims of an engine.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include <once/time.hpp>

namespace once {

class ClaimState;
class EngineCore;

class Heartbeats {
 public:
  explicit Heartbeats(EngineCore& core) noexcept : core_(core) {}

  // Claims are linked into the list itself, so that adding and removing cost no allocation and no search.
  struct Link {
    ClaimState* previous = nullptr;
    ClaimState* next = nullptr;
    std::atomic<bool> linked{false};  // Changed with the mutex held.
    Uptime due{};
  };

  void add(ClaimState& claim, Uptime due);
  void move(ClaimState& claim, Uptime due);  // Nothing if it is not in the list.
  void remove(ClaimState& claim) noexcept;   // Nothing if it is not in the list.

 private:
  void tick();
  void schedule(Uptime due);  // With the mutex held.

  EngineCore& core_;
  std::mutex mutex_;
  ClaimState* first_ = nullptr;
  std::optional<Uptime> scheduled_;
};

}  // namespace once
