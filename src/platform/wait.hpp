// Waiting for a completion, written once: every blocking call of the library goes through here.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <once/callback.hpp>

#include "platform/home.hpp"

namespace once {

class SharedLoop;

// One thread, and the completion that it waits for. It sleeps until another thread says that it is over, or runs the
// loop that will bring the answer (platform/shared_loop.hpp) until it has said so itself. Made, used and destroyed by
// that thread; they nest, where a completion blocks.
class Waiting {
 public:
  Waiting() noexcept : outer_(innermost_) { innermost_ = this; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting();

  void wait() noexcept;  // Until end() was called. Once.

  // Called once, from any thread. The waiting thread may go, and take this object with it, as soon as it is over.
  void end() noexcept;

  // The one that this thread made last and has not destroyed yet, or null.
  [[nodiscard]] static const Waiting* innermost() noexcept { return innermost_; }

  // end() was called before wait(), by this thread.
  [[nodiscard]] bool over_at_once() const noexcept { return over_at_once_; }
  [[nodiscard]] bool over() const noexcept { return (state_.load(std::memory_order_acquire) & over_bit) != 0; }

 private:
  friend class SharedLoop;

  // What a thread that is asleep is woken for: its answer is there, or it is its turn to run the loop.
  static constexpr std::uint32_t over_bit = 1;
  static constexpr std::uint32_t turn_bit = 2;
  // How it waits. Neither: it does not yet.
  static constexpr std::uint32_t asleep_bit = 4;
  static constexpr std::uint32_t running_bit = 8;

  // The call that this thread is beginning and has not come to wait for yet, or null.
  [[nodiscard]] static Waiting* beginning() noexcept {
    return innermost_ != nullptr && innermost_->beginning_ ? innermost_ : nullptr;
  }
  // The one whose turn at a loop this thread has, from `at` outwards, or null. A thread has one turn at the most.
  [[nodiscard]] static Waiting* with_turn(Waiting* at) noexcept {
    while (at != nullptr && !at->has_turn_) at = at->outer_;
    return at;
  }

  void sleep() noexcept;  // Until it is over or called.
  // It has the turn. Gives what to call wake_at() with, when no lock is held any more: null if it is not asleep.
  [[nodiscard]] const void* call() noexcept;
  static void wake_at(const void* address) noexcept;
  bool start_running() noexcept;  // False: it is over. From now on end() of other threads nudges loop_.
  void stop_running() noexcept { state_.fetch_and(~running_bit, std::memory_order_acq_rel); }

  static inline constinit thread_local Waiting* innermost_ = nullptr;

  std::atomic<std::uint32_t> state_{0};
  const pthread_t thread_ = pthread_self();
  Waiting* const outer_;
  bool beginning_ = true;
  bool over_at_once_ = false;
  // The loop that the operation was given to, first of all. Written by the waiting thread, and not while it runs.
  std::shared_ptr<SharedLoop> loop_;
  // These two are written by the waiting thread, or under the loop's mutex while that is asleep.
  bool has_turn_ = false;    // At loop_.
  Waiting* next_ = nullptr;  // Of those asleep.
};

// start(done) begins an asynchronous operation that calls done(T) exactly once, from any thread, or before it returns.
// `at_once`, if not null, is set: this thread called done, and has not waited.
template <class T, class Start>
T wait_for(Start&& start, bool* at_once = nullptr) {
  std::optional<T> value;
  const AtHome nowhere(nullptr);  // A thread that waits can take no completions at its home.
  Waiting waiting;
  start(Callback<void(T)>([&](T&& given) {
    value.emplace(std::move(given));
    waiting.end();
  }));
  waiting.wait();
  if (at_once != nullptr) *at_once = waiting.over_at_once();
  return std::move(*value);
}

}  // namespace once
