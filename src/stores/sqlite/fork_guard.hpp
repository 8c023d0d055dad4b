// What fork() makes of a process that has a store open. The child inherits SQLite's state, which says of each open file
// that it is locked, while the locks are the parent's; and SQLite's mutexes, as threads held them that are not there.
// So nothing may be opened in the child, not even another file: of 300 children of a busy process 21 hung there.
#pragma once

#include <mutex>
#include <string>
#include <utility>

#include <once/error.hpp>

#include "platform/forks.hpp"

namespace once::stores::sqlite {

// Held by a store for longer than anything of SQLite's.
class ForkGuard {
 public:
  // Throws Exception(misuse) in the child, or grandchild, of a process that had a store open.
  explicit ForkGuard(const std::string& path);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // Whether this process is another one than that which opened the store. No system call.
  [[nodiscard]] bool is_forked() const noexcept { return forks() != forks_; }

  // What every use of the store is told then.
  [[nodiscard]] static Error error(const std::string& path);

 private:
  const unsigned forks_;
};

// A file's descriptor that the child of a fork closes at once: a flock() is held for as long as any process has the
// descriptor that it was taken on.
class OwnDescriptor {
 public:
  OwnDescriptor();
  ~OwnDescriptor();
  OwnDescriptor(const OwnDescriptor&) = delete;
  OwnDescriptor& operator=(const OwnDescriptor&) = delete;

  [[nodiscard]] int get() const noexcept { return descriptor_; }  // -1: there is none.
  // Takes the descriptor that `make` returns, if there is none. No fork happens meanwhile.
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
