#include "engine/invocation_end.hpp"

#include <atomic>
#include <mutex>
#include <vector>

namespace once {

namespace {

struct InvocationEnds {
  std::mutex mutex;
  std::vector<AtInvocationEnd*> all;  // Under that mutex.
  std::atomic<bool> any{false};       // Spares a function without metrics and spans the mutex.
};

InvocationEnds& invocation_ends() {
  static InvocationEnds instance;
  return instance;
}

}  // namespace

void AtInvocationEnd::enter() {
  InvocationEnds& list = invocation_ends();
  const std::lock_guard lock(list.mutex);
  list.all.push_back(this);
  list.any = true;
}

void AtInvocationEnd::remove() noexcept {
  InvocationEnds& list = invocation_ends();
  const std::lock_guard lock(list.mutex);
  std::erase(list.all, this);
  list.any = !list.all.empty();
}

void tell_invocation_end(Time deadline) noexcept {
  InvocationEnds& list = invocation_ends();
  if (!list.any) return;
  const std::lock_guard lock(list.mutex);
  for (AtInvocationEnd* const one : list.all) one->invocation_ended(deadline);
}

}  // namespace once
