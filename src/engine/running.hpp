// The keys whose work this thread is running.
//
// Work that calls its own key would wait for its own claim. That is detected only for the same engine on the same
// thread.
#pragma once

#include <string>

#include <once/error.hpp>

#include "platform/wait.hpp"

namespace once {

class EngineCore;

class Running {
 public:
  // `key` must live as long as this.
  Running(const EngineCore& engine, const std::string& key) noexcept : engine_(engine), key_(key), outer_(innermost_) {
    innermost_ = this;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { innermost_ = outer_; }

  // Both throw Exception(misuse) if this thread runs the work of `key`. This one is for calls that block: the outer
  // work on this thread could not continue.
  static void refuse_anywhere(const EngineCore& engine, const std::string& key) {
    for (const Running* running = innermost_; running != nullptr; running = running->outer_)
      running->refuse(engine, key);
  }
  // For calls that do not block: a thread that waits inside work runs completions of others, which may call its key.
  static void refuse_here(const EngineCore& engine, const std::string& key) {
    for (const Running* running = innermost_; running != nullptr; running = running->outer_) {
      if (running->waiting_ != Waiting::innermost()) return;
      running->refuse(engine, key);
    }
  }

 private:
  void refuse(const EngineCore& engine, const std::string& key) const {
    if (&engine_ != &engine || key_ != key) return;
    throw Exception(ErrorKind::misuse, "the work of '" + key +
                                           "' calls its own key, and would wait for itself. Nothing was run for that "
                                           "call. Give the inner operation a name or a key of its own");
  }

  static inline constinit thread_local const Running* innermost_ = nullptr;

  const EngineCore& engine_;
  const std::string& key_;
  const Running* const outer_;
  const Waiting* const waiting_ = Waiting::innermost();
};

}  // namespace once
