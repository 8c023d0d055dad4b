#include "stores/sqlite/fork_guard.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace once::stores::sqlite {

namespace {

std::atomic<unsigned> open_stores{0};
std::atomic<bool> inherited{false};  // The parent process had a store open.

// Never destroyed, because a store may be a static object.
std::vector<OwnDescriptor*>& own_descriptors() {
  static auto& all = *new std::vector<OwnDescriptor*>;
  return all;
}

}  // namespace

ForkGuard::ForkGuard(const std::string& path) : forks_(forks()) {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    if (open_stores.load() != 0) inherited.store(true);
  });
  if (registered != 0) throw Exception(ErrorKind::unavailable, "sqlite store " + path + ": out of memory");
  if (inherited.load()) throw Exception(error(path));
  ++open_stores;
}

ForkGuard::~ForkGuard() { --open_stores; }

Error ForkGuard::error(const std::string& path) {
  return {
      ErrorKind::misuse,
      "sqlite store " + path +
          ": nothing was done: this process was forked from one that had the store open, and that one owns SQLite's "
          "locks. Open stores after fork(), as a daemon does in its last process, or let the child exec()"};
}

OwnDescriptor::OwnDescriptor() {
  static const int registered = pthread_atfork([] { mutex().lock(); }, [] { mutex().unlock(); }, [] { close_all(); });
  if (registered != 0) throw Exception(ErrorKind::unavailable, "sqlite store: out of memory");
  const std::lock_guard lock(mutex());
  own_descriptors().push_back(this);
}

OwnDescriptor::~OwnDescriptor() {
  close();
  const std::lock_guard lock(mutex());
  std::erase(own_descriptors(), this);
}

void OwnDescriptor::close() noexcept {
  const std::lock_guard lock(mutex());
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

std::mutex& OwnDescriptor::mutex() noexcept {
  static std::mutex it;  // Its destructor does nothing, so it may be used until the end.
  return it;
}

void OwnDescriptor::close_all() noexcept {
  for (OwnDescriptor* const own : own_descriptors()) {
    if (own->descriptor_ >= 0) ::close(std::exchange(own->descriptor_, -1));
  }
  mutex().unlock();
}

}  // namespace once::stores::sqlite
