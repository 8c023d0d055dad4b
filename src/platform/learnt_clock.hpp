// A store's time, learnt from its answers. Any number of threads may use it at once.
#pragma once

#include <mutex>
#include <optional>
#include <utility>

#include <once/clock.hpp>

#include "platform/snapshots.hpp"

namespace once {

class LearntClock {
 public:
  void learn(StoreTime told, Uptime sent, Uptime received) noexcept {
    const std::lock_guard lock(mutex_);
    current().learn(told, sent, received);
  }
  // Empty: no answer has told it since the process began or was restored.
  [[nodiscard]] std::optional<StoreTime> at(Uptime uptime) const noexcept {
    const std::lock_guard lock(mutex_);
    return current().at(uptime);
  }

 private:
  // What was learnt before a snapshot is forgotten: the uptime may have stood still while the snapshot lay on a disk.
  StoreClock& current() const noexcept {
    const unsigned now = snapshots();
    if (std::exchange(learnt_at_, now) != now) clock_ = {};
    return clock_;
  }

  mutable std::mutex mutex_;  // Guards the others.
  mutable StoreClock clock_;
  mutable unsigned learnt_at_ = snapshots();
};

}  // namespace once
