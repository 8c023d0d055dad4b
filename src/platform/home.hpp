// The home of a thread with an event loop: operations begun on the thread complete there, a group of them at once.
#pragma once

#include <memory>

#include <once/callback.hpp>

namespace once {

// Brings work to one such thread. Shared, because it outlives the thread.
class Home {
 public:
  Home() = default;
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;
  virtual ~Home() = default;

  // Runs `work` exactly once, on the thread, in the order of these calls, and never before this returns; on another
  // thread if this one ends before. False: the thread has ended, and `work` is unchanged. Thread-safe.
  virtual bool bring(Callback<void()>& work) = 0;
};

// This thread's home, or null. A store's thread may complete operations of a thread with a home there: one wake serves
// a group, work after a completion delays no other thread, and memory is freed where it was allocated. Such a
// completion may come after the store was destroyed. A thread with a home must not sleep until an operation begun on it
// ends; wait_for() hides the home from its own operation.
const std::shared_ptr<Home>& home() noexcept;

// Makes it the home of this thread for as long as this object lives, on this thread.
class AtHome {
 public:
  explicit AtHome(std::shared_ptr<Home> home) noexcept;
  ~AtHome();
  AtHome(const AtHome&) = delete;
  AtHome& operator=(const AtHome&) = delete;

 private:
  std::shared_ptr<Home> before_;
};

}  // namespace once
