// Detects fork() in a process with an open store. The child inherits SQLite's state, which says that each open file is
// locked, although the locks are the parent's. It also inherits SQLite's mutexes, locked by threads that do not exist.
// So the child must open nothing, not even another file: of 300 children of a busy process 21 hung.
#pragma once

#include <mutex>
#include <string>
#include <utility>

#include <once/error.hpp>

#include "platform/forks.hpp"

namespace once::stores::sqlite {

// A store owns it longer than all objects of SQLite.
class ForkGuard {
 public:
  // Throws Exception(misuse) in the child, or grandchild, of a process that had a store open.
  explicit ForkGuard(const std::string& path);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // Whether this process is a child of the one that opened the store. No system call.
  [[nodiscard]] bool is_forked() const noexcept { return forks() != forks_; }

  // The error of every use of the store then.
  [[nodiscard]] static Error error(const std::string& path);

 private:
  const unsigned forks_;
};

// A file descriptor that the child of a fork closes at once, because a flock() lasts as long as any process has its
// descriptor.
class OwnDescriptor {
 public:
  OwnDescriptor();
  ~OwnDescriptor();
  OwnDescriptor(const OwnDescriptor&) = delete;
  OwnDescriptor& operator=(const OwnDescriptor&) = delete;

  [[nodiscard]] int get() const noexcept { return descriptor_; }  // -1: none.
  // Takes the descriptor that `make` returns, if it has none. Prevents a fork meanwhile.
  template <class Make>
  void open(Make&& make) {
    const std::lock_guard lock(mutex());
    descriptor_ = std::forward<Make>(make)();
  }
  void close() noexcept;

 private:
  static std::mutex& mutex() noexcept;  // Held across each fork.
  static void close_all() noexcept;     // In the child.

  int descriptor_ = -1;
};

}  // namespace once::stores::sqlite
