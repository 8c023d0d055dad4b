// One event loop, and the threads that take turns at running it.
//
// A loop that only its own thread runs costs a blocking call four meetings of threads: the caller wakes the loop,
// sleeps, and is woken. So a thread that has nothing better to do than to wait for an answer of the loop runs the loop
// itself. Who has the turn:
//
// - A blocking call (wait_for) that finds the turn free takes it, as soon as it gives the loop something to do. It runs
//   the loop until its own answer is there.
// - Others that wait meanwhile sleep. What they and asynchronous callers want is done by whoever has the turn.
// - When the one with the turn has its answer and something is still under way, it calls one of those who wait, or else
//   the loop's own thread. If nothing is, nobody is called: the next caller finds the turn free.
// - The loop's own thread takes the turn if somebody wants something and nobody waits, and gives it back when nothing
//   is under way any more. Now and then it looks after what is idle, see due().
//
// So completions run on the loop's own thread or on one that waits for an answer, one at a time. Such a thread can have
// the turn of one loop only. A completion that blocks all the same, in wait_for, goes on running the loop from within.
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

  // Starts the loop's own thread, which shares in the ownership until close(). Once, before all else. Throws
  // std::system_error if there is no thread to be had.
  void start();

  // There is something new to do, which whoever takes the turn will find: from any thread, after it was put where
  // arrive() looks. True: somebody has the turn already, and has to be nudged.
  [[nodiscard]] bool want() noexcept;

  // Whether this thread has the turn, or has promised to take it: then it may touch what belongs to the loop.
  [[nodiscard]] bool has_turn() const noexcept;

  // How many threads sleep until they are called, or have their answer. For tests: it is old when it is known.
  [[nodiscard]] std::size_t sleepers();

  // Ends the loop, by shut(), and its thread. Waits for that, unless this thread has the turn: from a completion, say.
  // Then the thread goes when the turn was given back. Once.
  void close() noexcept;

  // Makes run_one() return soon, and arrive() be called. From any thread; also if nobody has the turn.
  virtual void nudge() noexcept = 0;

 protected:
  // What follows is called by the thread that has the turn. Nothing of it throws; completions must not either.

  // Takes in what want() has told of. Called at the beginning of a turn.
  virtual void arrive() noexcept = 0;
  // Waits until there is something to do, and does one thing. False: nothing will come any more, after shut().
  virtual bool run_one() noexcept = 0;
  // Does what there is to do at once.
  virtual void run_ready() noexcept = 0;
  // Ends all that is under way: their completions come from within. May be called more than once.
  virtual void shut() noexcept = 0;

  // Called with the turn, or while it is free, and with the loop's mutex held.

  // Is anything under way, or waiting to be taken in, so that somebody must run the loop?
  [[nodiscard]] virtual bool busy() noexcept = 0;
  // When there will be something to do although nobody is waiting for it, such as closing what is idle. Empty: never.
  [[nodiscard]] virtual std::optional<Steady::time_point> due() noexcept = 0;

 private:
  friend class Waiting;

  void help(Waiting& waiting) noexcept;   // Until it is over. By a thread without a turn at any loop.
  void run(Waiting& waiting) noexcept;    // Until it is over, or closed and nothing is left. With the turn.
  void leave(Waiting& waiting) noexcept;  // Gives the turn on.
  void work() noexcept;                   // The loop's own thread.
  const void* call_one() noexcept;        // Of those asleep, who are some: he has the turn. As Waiting::call().
  void forget(Waiting& waiting) noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;           // The loop's own thread.
  bool taken_ = false;                     // Somebody has the turn, or has promised to take it.
  bool wanted_ = false;                    // The loop's own thread is to take a turn.
  bool resting_ = false;                   // It sleeps without an end.
  std::optional<Steady::time_point> due_;  // When it wakes, at the latest when it sleeps next.
  Waiting* asleep_ = nullptr;              // Those who wait for an answer of this loop and can be called: a list.
  std::atomic<bool> closed_{false};
  std::thread thread_;
};

}  // namespace once
