// Waiting for a completion, written once: every blocking call of the library goes through here.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include <once/callback.hpp>

namespace once {

// start(done) begins an asynchronous operation that calls done(T) exactly once, from any thread, or before it returns.
template <class T, class Start>
T wait_for(Start&& start) {
  struct Slot {
    std::mutex mutex;
    std::condition_variable ready;
    std::optional<T> value;
  } slot;
  start(Callback<void(T)>([&slot](T&& value) {
    // Notified under the lock: the waiter may not leave, and take the slot with it, before this is over.
    const std::lock_guard lock(slot.mutex);
    slot.value.emplace(std::move(value));
    slot.ready.notify_one();
  }));
  std::unique_lock lock(slot.mutex);
  slot.ready.wait(lock, [&slot] { return slot.value.has_value(); });
  return std::move(*slot.value);
}

}  // namespace once
