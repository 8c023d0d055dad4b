// When an invocation begins and ends in this process.
#pragma once

#include <once/engine/within_invocation.hpp>
#include <once/frontends/lambda/invocation.hpp>

namespace once::lambda {

// Lives as long as a handler runs. Engines called meanwhile know the invocation's deadline and tenant. Spans on one
// thread may be nested: the runtime's around a handler's. When the outermost one ends, all AtInvocationEnd of the
// process are told, on that thread (engine/invocation_end.hpp).
class InvocationSpan {
 public:
  explicit InvocationSpan(const Invocation& invocation);
  InvocationSpan(const InvocationSpan&) = delete;
  InvocationSpan& operator=(const InvocationSpan&) = delete;
  ~InvocationSpan();

  static bool any_runs() noexcept;  // On any thread.

 private:
  const WithinInvocation within_;
  const Time deadline_;
};

}  // namespace once::lambda
