// Records that are written together with a companion: each in a transaction of its own, on a thread and a connection of
// its own, as a user's function blocks and the loop must not.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <once/store.hpp>
#include <once/stores/postgresql.hpp>

#include "stores/postgresql/loop.hpp"

namespace once::stores::postgresql {

// Why this companion can never be written here; empty: it may be tried.
std::optional<Error> unfit(const Companion& companion);

class Companions {
 public:
  Companions(const PostgresqlOptions& options, const Target& target);
  Companions(const Companions&) = delete;
  Companions& operator=(const Companions&) = delete;
  ~Companions();

  // Fails what is queued, and waits for what runs if `wait`. In a completion it must not. Call it once.
  void close(bool wait) noexcept;

  // The request is a write, with a companion that is not unfit(). Its completion is called on a thread of this.
  void add(RequestPtr request);
  // Whether this is a thread of this, which a completion has.
  [[nodiscard]] bool is_here() const noexcept;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // Shared with the threads.
  std::vector<std::thread> threads_;    // As many as were needed at one time. Under the state's mutex.
};

}  // namespace once::stores::postgresql
