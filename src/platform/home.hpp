// Where a thread with an event loop takes completions: what was begun there comes back there, a group of it in one
// piece.
#pragma once

#include <memory>

#include <once/callback.hpp>

namespace once {

// The way to one such thread, from all others. Shared, as it outlives the thread.
class Home {
 public:
  Home() = default;
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;
  virtual ~Home() = default;

  // Runs `work` on the thread, soon and in the order of these calls, or on another one when the thread has ended: never
  // not at all, and never before this returns. False: the thread has ended, and `work` is as it was. Thread-safe.
  virtual bool bring(Callback<void()>& work) = 0;
};

// Of this thread; null: it has none. A store's own thread that completes operations may hand over those that were begun
// on a thread with a home: then one wake serves all of a group, what follows a completion holds up no other one's, and
// memory is freed where it was allocated. Such a completion may come when the store is no more. A thread with a home
// must not sleep until an operation is over that was begun on it; wait_for() begins its own as on a thread without.
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
