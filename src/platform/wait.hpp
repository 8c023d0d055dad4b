// Waiting for a completion, written once: every blocking call of the library goes through here.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include <once/callback.hpp>

#include "platform/home.hpp"

namespace once {

// One thread sleeps until another says that it is over. A futex by itself: a mutex and a condition variable cost the
// waker and the sleeper a second meeting, at the mutex (futex(2)).
class Parking {
 public:
  // Called once, by the thread that made it.
  void sleep() noexcept {
    std::uint32_t expected = nothing;
    if (!state_.compare_exchange_strong(expected, asleep, std::memory_order_acquire)) return;
    while (state_.load(std::memory_order_acquire) != over) {
      syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, asleep, nullptr, nullptr, 0);
    }
  }

  // Called once. The sleeper may go, and take this object with it, as soon as the state is `over`: what follows knows
  // the address only. A wake that arrives at what lies there then is one that its owner has to expect (futex(2)).
  void wake() noexcept {
    auto* const address = &state_;
    if (state_.exchange(over, std::memory_order_acq_rel) == asleep) {
      syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
  }

 private:
  enum : std::uint32_t { nothing, asleep, over };
  std::atomic<std::uint32_t> state_{nothing};
};

// start(done) begins an asynchronous operation that calls done(T) exactly once, from any thread, or before it returns.
template <class T, class Start>
T wait_for(Start&& start) {
  struct Slot {
    Parking parking;
    std::optional<T> value;
  } slot;
  {
    const AtHome nowhere(nullptr);  // A thread that sleeps takes no completions.
    start(Callback<void(T)>([&slot](T&& value) {
      slot.value.emplace(std::move(value));
      slot.parking.wake();
    }));
  }
  slot.parking.sleep();
  return std::move(*slot.value);
}

}  // namespace once
