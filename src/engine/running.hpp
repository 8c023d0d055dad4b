// The keys whose work this process is running.
//
// Work that calls its own key would wait for its own claim. That is detected only for the same engine, on the thread
// and the stack that the work began on.
//
// Stackful coroutines end in any order, on any thread:
// 1. The coroutine A begins its work on thread 1, and is suspended in it. 2. B begins its work on thread 1, above A's.
// 3. A is resumed on thread 2, and ends. 4. Thread 1 ends. 5. B ends on thread 2.
// So these are entries of a table, found by their address, and not a stack of each thread.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include <once/error.hpp>

#include "engine/this_stack.hpp"
#include "platform/hashed_key.hpp"
#include "platform/wait.hpp"
#include "platform/word_lock.hpp"

namespace once {

class EngineCore;

class Running;

struct RunningShard {
  WordLock lock;
  std::atomic<Running*> first{nullptr};  // Written with the lock.
};

class Running {
 public:
  // `key` must live as long as this. To be made in the frame that calls the work.
  Running(const EngineCore& engine, const std::string& key) noexcept
      : engine_(engine), key_(key), shard_(shard_of(key)) {
    const std::lock_guard lock(shard_.lock);
    next_ = shard_.first.load(std::memory_order_relaxed);
    if (next_ != nullptr) next_->before_ = this;
    shard_.first.store(this, std::memory_order_relaxed);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    const std::lock_guard lock(shard_.lock);
    if (next_ != nullptr) next_->before_ = before_;
    if (before_ != nullptr) {
      before_->next_ = next_;
    } else {
      shard_.first.store(next_, std::memory_order_relaxed);
    }
  }

  // Both throw Exception(misuse) if the work of `key` is calling. This one is for calls that block: the outer work on
  // this thread could not continue. True: nor could another stackful coroutine of this thread, which is in the work of
  // `key`, so the call must not wait for that.
  [[nodiscard]] static bool refuse_anywhere(const EngineCore& engine, const std::string& key) {
    return refuse(engine, key, [](const Running&) { return true; });
  }
  // For calls that do not block: a thread that waits inside work runs completions of others, which may call its key.
  static void refuse_here(const EngineCore& engine, const std::string& key) {
    refuse(engine, key, [](const Running& running) { return running.waiting_ == Waiting::innermost(); });
  }

  // In the child of a fork only the thread that forked goes on, and the stacks of others are used anew. So the child
  // forgets their entries, and no lock is taken at that moment.
  static void forget_other_threads_after_forks() noexcept {
    static const int registered = pthread_atfork(
        [] {
          for (RunningShard& shard : shards_) shard.lock.lock();
        },
        [] {
          for (RunningShard& shard : shards_) shard.lock.unlock();
        },
        [] {
          for (RunningShard& shard : shards_) {
            keep_own(shard);
            shard.lock.unlock();
          }
        });
    static_cast<void>(registered);
  }

 private:
  static void keep_own(RunningShard& shard) noexcept {
    Running* last = nullptr;
    Running* next = nullptr;
    Running* first = nullptr;
    for (Running* at = shard.first.load(std::memory_order_relaxed); at != nullptr; at = next) {
      next = at->next_;
      if (pthread_equal(at->thread_, pthread_self()) == 0) continue;
      at->before_ = last;
      at->next_ = nullptr;
      (last == nullptr ? first : last->next_) = at;
      last = at;
    }
    shard.first.store(first, std::memory_order_relaxed);
  }

  // Needs no constructor and no destructor to run: work may begin before main() and end after it.
  static inline constinit std::array<RunningShard, 256> shards_;
  static RunningShard& shard_of(const std::string& key) noexcept {
    return shards_[HashedKey(key).shard(shards_.size())];
  }

  template <class Counts>
  static bool refuse(const EngineCore& engine, const std::string& key, const Counts& counts) {
    RunningShard& shard = shard_of(key);
    // What this thread has entered, it also sees without the lock.
    if (shard.first.load(std::memory_order_relaxed) == nullptr) return false;
    bool is_here = false;
    bool is_own = false;
    {
      const std::lock_guard lock(shard.lock);
      for (const Running* at = shard.first.load(std::memory_order_relaxed); at != nullptr; at = at->next_) {
        if (&at->engine_ != &engine || pthread_equal(at->thread_, pthread_self()) == 0) continue;
        if (at->key_ != key || !counts(*at)) continue;
        is_here = true;
        is_own = is_own || ThisStack().has(at->frame_);
      }
    }
    if (!is_own) return is_here;
    throw Exception(ErrorKind::misuse, "the work of '" + key +
                                           "' calls its own key, and would wait for itself. Nothing was run for that "
                                           "call. Give the inner operation a name or a key of its own");
  }

  const EngineCore& engine_;
  const std::string& key_;
  RunningShard& shard_;
  const pthread_t thread_ = pthread_self();
  // Not the address of this object, which the address sanitizer may put elsewhere.
  const std::uintptr_t frame_ = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  const Waiting* const waiting_ = Waiting::innermost();
  Running* before_ = nullptr;  // These two with the lock.
  Running* next_ = nullptr;
};

}  // namespace once
