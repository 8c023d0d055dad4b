// A thread with an event loop: the operations that it begins complete on it, a group of them at once.
#pragma once

#include <memory>

#include <once/callback.hpp>

namespace once {

// Takes work to one such thread. Shared, because it outlives the thread.
class CompletionLoop {
 public:
  CompletionLoop() = default;
  CompletionLoop(const CompletionLoop&) = delete;
  CompletionLoop& operator=(const CompletionLoop&) = delete;
  virtual ~CompletionLoop() = default;

  // Runs `work` exactly once, on the thread, in the order of these calls, and never before this returns; on another
  // thread if this one ends before. False: the thread has ended, and `work` is unchanged. Thread-safe.
  virtual bool try_post(Callback<void()>& work) = 0;
};

// This thread's loop, or null. A store completes the operations that a thread with a loop began on that loop: one wake
// serves a group, work after a completion delays no other thread, and memory is freed where it was allocated. Such a
// completion may come after the store was destroyed. A thread with a loop must not sleep until an operation that it
// began ends; wait_for() hides the loop from its own operation.
const std::shared_ptr<CompletionLoop>& completion_loop() noexcept;

// Sets this thread's loop while this object lives.
class CompletionLoopScope {
 public:
  explicit CompletionLoopScope(std::shared_ptr<CompletionLoop> loop) noexcept;
  ~CompletionLoopScope();
  CompletionLoopScope(const CompletionLoopScope&) = delete;
  CompletionLoopScope& operator=(const CompletionLoopScope&) = delete;

 private:
  std::shared_ptr<CompletionLoop> before_;
};

}  // namespace once
