#include "platform/shared_loop.hpp"

#include <utility>

#include "platform/thread.hpp"

namespace once {

namespace {

constexpr std::chrono::milliseconds slack{1};         // After due(), so that it is not checked a moment too early.
constexpr std::chrono::milliseconds look_again{100};  // If another thread had the turn at due().

}  // namespace

void SharedLoop::start() {
  thread_ = start_thread_of("connections", [self = shared_from_this()] { self->work(); });
}

bool SharedLoop::want() noexcept {
  Waiting* const beginning = Waiting::beginning();
  const Waiting* const with_turn = Waiting::with_turn(beginning);
  if (with_turn != nullptr && with_turn == beginning && beginning->loop_.get() == this) return false;
  if (beginning != nullptr && beginning->loop_ == nullptr) beginning->set_loop(shared_from_this());
  const bool may_take = beginning != nullptr && with_turn == nullptr && beginning->loop_.get() == this;

  const void* sleeper = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (taken_) return true;
    if (closed_) return false;
    if (may_take) {
      taken_ = true;
      wanted_ = false;
      beginning->has_turn_ = true;
      return false;
    }
    if (asleep_ != nullptr) {
      sleeper = call_one();
    } else {
      if (wanted_) return false;
      wanted_ = true;
    }
  }
  if (sleeper != nullptr) {
    Waiting::wake_at(sleeper);
  } else {
    wake_.notify_one();
  }
  return false;
}

bool SharedLoop::has_turn() const noexcept {
  const Waiting* const with_turn = Waiting::with_turn(Waiting::innermost_);
  return with_turn != nullptr && with_turn->loop_.get() == this;
}

std::size_t SharedLoop::sleepers() {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const Waiting* at = asleep_; at != nullptr; at = at->next_) ++count;
  return count;
}

void SharedLoop::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  if (has_turn()) {
    shut();
    thread_.detach();
    return;
  }
  nudge();
  wake_.notify_one();
  thread_.join();
}

void SharedLoop::help(Waiting& waiting) noexcept {
  while (!waiting.over()) {
    if (!waiting.has_turn_) {
      std::unique_lock lock(mutex_);
      if (taken_ || closed_) {
        waiting.next_ = std::exchange(asleep_, &waiting);
        lock.unlock();
        waiting.sleep();
        lock.lock();
        forget(waiting);
        continue;
      }
      taken_ = true;
      wanted_ = false;
      waiting.has_turn_ = true;
    }
    run(waiting);
    if (!waiting.over()) leave(waiting);  // The loop was closed. The answer comes from elsewhere.
  }
}

void SharedLoop::run(Waiting& waiting) noexcept {
  take_work();
  if (waiting.start_running()) {
    while (!waiting.over()) {
      const WakesAfter completions;
      if (closed_) shut();
      if (waiting.over() || !run_one()) break;
    }
  }
  waiting.stop_running();
}

void SharedLoop::take_work() noexcept {
  const WakesAfter completions;
  arrive();
}

bool SharedLoop::run_next() noexcept {
  const WakesAfter completions;
  return run_one();
}

void SharedLoop::leave(Waiting& waiting) noexcept {
  const void* sleeper = nullptr;
  {
    const std::lock_guard lock(mutex_);
    waiting.has_turn_ = false;
    taken_ = false;
    const bool goes_on = !closed_ && busy();
    if (goes_on && asleep_ != nullptr) {
      sleeper = call_one();
      if (sleeper == nullptr) return;
    } else if (goes_on || closed_) {
      wanted_ = true;
    } else {
      due_ = due();
      if (!due_ || !resting_) return;
    }
  }
  if (sleeper != nullptr) {
    Waiting::wake_at(sleeper);
  } else {
    wake_.notify_one();
  }
}

const void* SharedLoop::call_one() noexcept {
  Waiting* const next = asleep_;
  asleep_ = next->next_;
  taken_ = true;
  wanted_ = false;
  return next->call();
}

void SharedLoop::forget(Waiting& waiting) noexcept {
  Waiting** at = &asleep_;
  while (*at != nullptr && *at != &waiting) at = &(*at)->next_;
  if (*at != nullptr) *at = waiting.next_;
}

void SharedLoop::work() noexcept {
  Waiting own;  // Never over: it only marks that this thread has the turn.
  own.beginning_ = false;
  own.set_loop(shared_from_this());
  std::unique_lock lock(mutex_);
  while (true) {
    if (taken_ || (!wanted_ && !closed_)) {
      if (!due_) {
        resting_ = true;
        wake_.wait(lock);
        resting_ = false;
      } else if (wake_.wait_until(lock, *due_ + slack) == std::cv_status::timeout) {
        if (taken_) {
          due_ = Steady::now() + look_again;
        } else {
          wanted_ = true;
        }
      }
      continue;
    }
    taken_ = true;
    wanted_ = false;
    own.has_turn_ = true;
    const bool closing = closed_;
    lock.unlock();
    take_work();
    if (closing) {
      shut();
      while (run_next()) {
      }
    } else {
      const WakesAfter completions;
      run_ready();
    }
    lock.lock();
    while (!closing && !closed_ && busy()) {
      lock.unlock();
      run_next();
      lock.lock();
    }
    own.has_turn_ = false;
    taken_ = false;
    if (closing) return;
    due_ = due();
  }
}

}  // namespace once
