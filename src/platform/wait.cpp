#include "platform/wait.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "platform/forks.hpp"
#include "platform/shared_loop.hpp"

namespace once {

// The threads of the parent do not exist in the child, and their loops may be in any state.
void WakesAfter::wake() noexcept {
  Waiting* waiting = std::exchange(first_, nullptr);
  end_ = &first_;
  if (forks() != forks_) return;
  while (waiting != nullptr) {
    Waiting* const next = waiting->next_to_wake_;
    waiting->end_now();
    waiting = next;
  }
}

// A plain futex: with a mutex and a condition variable, waker and sleeper would also meet at the mutex (futex(2)). The
// sleeper may have gone already. Then another object at this address gets a spurious wake, which futexes allow.
void Waiting::wake_at(const void* address) noexcept {
  if (address != nullptr) syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

Waiting::~Waiting() {
  if (has_turn_) loop_->leave(*this);
  innermost_ = outer_;
  if (loop_ != nullptr) pthread_setcancelstate(cancel_state_, nullptr);
}

void Waiting::set_loop(std::shared_ptr<SharedLoop> loop) noexcept {
  loop_ = std::move(loop);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_);
}

void Waiting::wait() noexcept {
  beginning_ = false;
  if (over()) return;
  // A completion that blocks must not keep others waiting.
  for (WakesAfter* at = WakesAfter::innermost_; at != nullptr; at = at->outer_) at->wake();
  if (Waiting* const running = with_turn(outer_)) {
    // A completion that blocks: only this thread can run that loop until it returns.
    set_loop(running->loop_);
    loop_->run(*this);
  } else if (loop_ != nullptr) {
    loop_->help(*this);
  }
  while (!over()) sleep();
}

void Waiting::end() noexcept {
  if (pthread_equal(thread_, pthread_self()) != 0) {
    // No other thread writes it while this one is awake.
    state_.store(state_.load(std::memory_order_relaxed) | over_bit, std::memory_order_relaxed);
    over_at_once_ = beginning_;
    return;
  }
  WakesAfter* const later = WakesAfter::innermost_;
  if (later == nullptr) return end_now();
  if (later->first_ == nullptr) later->forks_ = forks();
  *later->end_ = this;
  later->end_ = &next_to_wake_;
}

void Waiting::end_now() noexcept {
  const void* const address = &state_;
  std::uint32_t seen = state_.load(std::memory_order_acquire);
  while (true) {
    // Until it is over, the thread and its loop stay alive.
    const std::shared_ptr<SharedLoop> loop = (seen & running_bit) != 0 ? loop_ : nullptr;
    if (!state_.compare_exchange_weak(seen, seen | over_bit, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    if (loop != nullptr) return loop->nudge();
    if ((seen & asleep_bit) != 0) wake_at(address);
    return;
  }
}

void Waiting::sleep() noexcept {
  constexpr std::uint32_t awake = over_bit | turn_bit;
  std::uint32_t seen = state_.fetch_or(asleep_bit, std::memory_order_acq_rel) | asleep_bit;
  while ((seen & awake) == 0) {
    syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    seen = state_.load(std::memory_order_acquire);
  }
  state_.fetch_and(~(asleep_bit | turn_bit), std::memory_order_acq_rel);
}

const void* Waiting::call() noexcept {
  has_turn_ = true;
  return (state_.fetch_or(turn_bit, std::memory_order_acq_rel) & asleep_bit) != 0 ? &state_ : nullptr;
}

bool Waiting::start_running() noexcept {
  return (state_.fetch_or(running_bit, std::memory_order_acq_rel) & over_bit) == 0;
}

}  // namespace once
