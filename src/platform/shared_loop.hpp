// One event loop, and the threads that take turns at running it.
//
// If only the loop's own thread ran it, a blocking call would switch threads four times: the caller wakes the loop and
// sleeps, the loop wakes the caller and sleeps. So a thread that waits for an answer of the loop runs the loop itself.
//
// 1. A calls. The turn is free, so A takes it and runs the loop.
// 2. B calls. A has the turn, so B nudges A and sleeps. A sends B's request too.
// 3. A's answer comes. B's request is still running, so A wakes B and gives it the turn.
// 4. B's answer comes. Nothing is running, so B wakes no thread.
// 5. The next caller finds the turn free.
// (SharedLoopTest.TheTurnGoesToAnotherWhoWaits)
//
// The rules:
//
// - A blocking call (wait_for) takes a free turn as soon as it gives the loop work. It runs the loop until its own
//   answer is there.
// - Other waiting threads sleep. The thread with the turn does their work, and that of asynchronous callers.
// - A thread that has its answer gives the turn up. If work is still running, it wakes one waiting thread, or otherwise
//   the loop's own thread. If not, it wakes none.
// - The loop's own thread takes the turn if there is work and no thread waits, and gives it up when no work is running.
//   At due() it also does idle work, such as closing old connections.
//
// So completions run one at a time, on the loop's own thread or on one that waits for an answer. A thread can have the
// turn of only one loop. If a completion blocks in wait_for, which it should not, it continues to run the loop from
// inside.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "platform/wait.hpp"

namespace once {

class SharedLoop : public std::enable_shared_from_this<SharedLoop> {
 public:
  using Steady = std::chrono::steady_clock;

  SharedLoop() = default;
  SharedLoop(const SharedLoop&) = delete;
  SharedLoop& operator=(const SharedLoop&) = delete;
  virtual ~SharedLoop() = default;

  // Starts the loop's own thread, which shares ownership until close(). Call it once, before anything else. Throws
  // Exception(unavailable) if no thread can be started.
  void start();

  // Announces new work. Call it from any thread, after the work was put where arrive() finds it. True: another thread
  // has the turn, so call nudge().
  [[nodiscard]] bool want() noexcept;

  // Whether this thread has the turn, or will take it: then it may use the loop's data.
  [[nodiscard]] bool has_turn() const noexcept;

  // How many threads sleep until they are woken for the turn or their answer. For tests: it may have changed since.
  [[nodiscard]] std::size_t sleepers();

  // Ends the loop, by shut(), and its thread. Waits for that, unless this thread has the turn (for example in a
  // completion): then the loop's thread ends after this one gives the turn up. Call it once.
  void close() noexcept;

  // Makes run_one() return soon, and arrive() be called. From any thread, also if no thread has the turn.
  virtual void nudge() noexcept = 0;

 protected:
  // The thread with the turn calls the following. None of them throws, and completions must not.

  // Takes the work that want() announced. Called at the beginning of a turn.
  virtual void arrive() noexcept = 0;
  // Waits for work, and does one piece of it. False, after shut(): no more will come.
  virtual bool run_one() noexcept = 0;
  // Does the work that needs no waiting.
  virtual void run_ready() noexcept = 0;
  // Ends all running work, and calls its completions. May be called more than once.
  virtual void shut() noexcept = 0;

  // Called with the turn, or while it is free, and with the loop's mutex held.

  // Whether work is running or announced, so that some thread must run the loop.
  [[nodiscard]] virtual bool busy() noexcept = 0;
  // When idle work will be due, such as closing old connections. Empty: never.
  [[nodiscard]] virtual std::optional<Steady::time_point> due() noexcept = 0;

 private:
  friend class Waiting;

  void help(Waiting& waiting) noexcept;  // Until `waiting` is over. Called by a thread that has no turn.
  void run(Waiting& waiting) noexcept;  // Until `waiting` is over, or the loop is closed and has no more work. With the
                                        // turn.
  void leave(Waiting& waiting) noexcept;  // Gives the turn up.
  void work() noexcept;                   // The loop's own thread.
  void take_work() noexcept;              // arrive().
  bool run_next() noexcept;               // run_one().
  const void* call_one() noexcept;        // Gives one sleeper the turn. Returns what Waiting::call() does.
  void forget(Waiting& waiting) noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;           // The loop's own thread.
  bool taken_ = false;                     // A thread has the turn, or will take it.
  bool wanted_ = false;                    // The loop's own thread must take the turn.
  bool resting_ = false;                   // It sleeps without a time limit.
  std::optional<Steady::time_point> due_;  // When it wakes up, valid from its next sleep.
  Waiting* asleep_ = nullptr;              // List of the sleeping threads that wait for an answer of this loop.
  std::atomic<bool> closed_{false};
  std::thread thread_;
};

}  // namespace once
