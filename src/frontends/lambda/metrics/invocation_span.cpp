#include "frontends/lambda/metrics/invocation_span.hpp"

#include <atomic>
#include <mutex>
#include <vector>

namespace once::lambda {

namespace {

thread_local int open_spans = 0;  // Of this thread.

struct Told {
  std::mutex mutex;
  std::vector<AtInvocationEnd*> all;  // Under that mutex.
  std::atomic<bool> any{false};       // Spares a function without metrics the mutex.
  std::atomic<int> running{0};        // Threads with an open span.
};

Told& told() {
  static Told instance;
  return instance;
}

}  // namespace

InvocationSpan::InvocationSpan(const Invocation& invocation)
    : within_({.deadline = invocation.deadline, .tenant = invocation.tenant_id}) {
  if (open_spans++ == 0) ++told().running;
}

InvocationSpan::~InvocationSpan() {
  if (--open_spans != 0) return;
  Told& list = told();
  --list.running;
  if (!list.any) return;
  const std::lock_guard lock(list.mutex);
  for (AtInvocationEnd* const one : list.all) one->invocation_ended();
}

bool InvocationSpan::any_runs() noexcept { return told().running != 0; }

void AtInvocationEnd::enter() {
  Told& list = told();
  const std::lock_guard lock(list.mutex);
  list.all.push_back(this);
  list.any = true;
}

void AtInvocationEnd::remove() noexcept {
  Told& list = told();
  const std::lock_guard lock(list.mutex);
  std::erase(list.all, this);
  list.any = !list.all.empty();
}

}  // namespace once::lambda
