#include "frontends/lambda/metrics/invocation_span.hpp"

#include <atomic>

#include "engine/invocation_end.hpp"

namespace once::lambda {

namespace {

thread_local int open_spans = 0;               // Of this thread.
std::atomic<int> threads_with_open_spans = 0;  // Of the process.

}  // namespace

InvocationSpan::InvocationSpan(const Invocation& invocation)
    : within_({.deadline = invocation.deadline, .tenant = invocation.tenant_id}), deadline_(invocation.deadline) {
  if (open_spans++ == 0) ++threads_with_open_spans;
}

InvocationSpan::~InvocationSpan() {
  if (--open_spans != 0) return;
  --threads_with_open_spans;
  tell_invocation_end(deadline_);
}

bool InvocationSpan::any_runs() noexcept { return threads_with_open_spans != 0; }

}  // namespace once::lambda
