// Waits for a completion. Every blocking call of the library uses this.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <once/callback.hpp>

#include "platform/completion_loop.hpp"

namespace once {

class SharedLoop;
class Waiting;

// While the newest one of a thread exists, the thread's calls of Waiting::end() for other threads are kept back. Put it
// around completions: who waits for one returns once all that the completions held is gone. Otherwise a caller that
// then destroys its engine would leave the last reference to the thread that has woken it, and the store would end some
// time later: after the caller has copied its file, or unloaded this code. It also lets a group finish before the woken
// threads compete with it for the processor.
class WakesAfter {
 public:
  WakesAfter() noexcept : outer_(std::exchange(innermost_, this)) {}
  WakesAfter(const WakesAfter&) = delete;
  WakesAfter& operator=(const WakesAfter&) = delete;
  ~WakesAfter() {
    if (first_ != nullptr) wake();
    innermost_ = outer_;
  }

 private:
  friend class Waiting;

  void wake() noexcept;  // All so far, unless a completion has forked and this is the child.

  static inline constinit thread_local WakesAfter* innermost_ = nullptr;

  WakesAfter* const outer_;
  Waiting* first_ = nullptr;
  Waiting** end_ = &first_;
  unsigned forks_ = 0;  // When the first one was kept back.
};

// One thread and the completion that it waits for. It sleeps until another thread calls end(), or runs the loop that
// brings the answer (platform/shared_loop.hpp) until then. Made, used and destroyed by that thread. They nest if a
// completion blocks.
class Waiting {
 public:
  Waiting() noexcept : outer_(innermost_) { innermost_ = this; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting();

  void wait() noexcept;  // Returns after end(). Call it once.

  // Called once, from any thread. Afterwards the waiting thread may return and destroy this object at any time: as soon
  // as the calling thread's WakesAfter ends, if it has one.
  void end() noexcept;

  // This thread's newest one that still exists, or null.
  [[nodiscard]] static const Waiting* innermost() noexcept { return innermost_; }

  // end() was called before wait(), by this thread.
  [[nodiscard]] bool over_at_once() const noexcept { return over_at_once_; }
  [[nodiscard]] bool over() const noexcept { return (state_.load(std::memory_order_acquire) & over_bit) != 0; }

 private:
  friend class SharedLoop;
  friend class WakesAfter;

  void end_now() noexcept;

  // Why a sleeping thread is woken: its answer is there, or it has the turn to run the loop.
  static constexpr std::uint32_t over_bit = 1;
  static constexpr std::uint32_t turn_bit = 2;
  // How it waits. Neither: it does not wait yet.
  static constexpr std::uint32_t asleep_bit = 4;
  static constexpr std::uint32_t running_bit = 8;

  // The call that this thread has begun but does not wait for yet, or null.
  [[nodiscard]] static Waiting* beginning() noexcept {
    return innermost_ != nullptr && innermost_->beginning_ ? innermost_ : nullptr;
  }
  // The one with the turn of a loop, from `at` outwards, or null. A thread has at most one turn.
  [[nodiscard]] static Waiting* with_turn(Waiting* at) noexcept {
    while (at != nullptr && !at->has_turn_) at = at->outer_;
    return at;
  }

  // From now on pthread_cancel() does not end the thread: a loop has cancellation points (epoll_wait, write), and must
  // not be unwound. The first one after this object's end ends it.
  void set_loop(std::shared_ptr<SharedLoop> loop) noexcept;
  void sleep() noexcept;  // Until it is over, or gets the turn.
  // Gives it the turn. Returns the argument for wake_at(), to be called without a lock; null if it is not asleep.
  [[nodiscard]] const void* call() noexcept;
  static void wake_at(const void* address) noexcept;
  bool start_running() noexcept;  // False: it is over. From now on end() in other threads nudges loop_.
  void stop_running() noexcept { state_.fetch_and(~running_bit, std::memory_order_acq_rel); }

  static inline constinit thread_local Waiting* innermost_ = nullptr;

  std::atomic<std::uint32_t> state_{0};
  const pthread_t thread_ = pthread_self();
  Waiting* const outer_;
  bool beginning_ = true;
  bool over_at_once_ = false;
  // The first loop that got the operation. Written by the waiting thread, but not while it runs.
  std::shared_ptr<SharedLoop> loop_;
  int cancel_state_ = PTHREAD_CANCEL_ENABLE;  // The thread's, before set_loop().
  // The next two are written by the waiting thread, or under the loop's mutex while it sleeps.
  bool has_turn_ = false;            // At loop_.
  Waiting* next_ = nullptr;          // Of those asleep.
  Waiting* next_to_wake_ = nullptr;  // Of a WakesAfter.
};

// start(done) begins an asynchronous operation that calls done(T) exactly once, from any thread, or before it returns.
// `at_once`, if not null, is set: this thread called done, and has not waited.
template <class T, class Start>
T wait_for(Start&& start, bool* at_once = nullptr) {
  T value;                                     // Returned without a move.
  std::optional<CompletionLoopScope> nowhere;  // A waiting thread cannot take completions on its loop.
  if (completion_loop() != nullptr) nowhere.emplace(nullptr);
  Waiting waiting;
  start([&](T&& given) {
    value = std::move(given);
    waiting.end();
  });
  waiting.wait();
  if (at_once != nullptr) *at_once = waiting.over_at_once();
  return value;
}

}  // namespace once
