// When an invocation begins and ends in this process, for those who write once per invocation.
#pragma once

#include <once/engine/within_invocation.hpp>
#include <once/frontends/lambda/invocation.hpp>

namespace once::lambda {

// Lives as long as a handler runs. Engines called meanwhile know the invocation's deadline and tenant. Spans on one
// thread may be nested: the runtime's around a handler's. When the outermost one ends, all AtInvocationEnd of the
// process are told, on that thread.
class InvocationSpan {
 public:
  explicit InvocationSpan(const Invocation& invocation);
  InvocationSpan(const InvocationSpan&) = delete;
  InvocationSpan& operator=(const InvocationSpan&) = delete;
  ~InvocationSpan();

  static bool any_runs() noexcept;  // On any thread.

 private:
  const WithinInvocation within_;
};

// Is told from when it is entered until it is removed.
class AtInvocationEnd {
 public:
  AtInvocationEnd() = default;
  AtInvocationEnd(const AtInvocationEnd&) = delete;
  AtInvocationEnd& operator=(const AtInvocationEnd&) = delete;
  virtual ~AtInvocationEnd() = default;

  void enter();
  void remove() noexcept;  // Afterwards it is not told any more, not even by a call that is under way.

 private:
  friend InvocationSpan;
  virtual void invocation_ended() noexcept = 0;
};

}  // namespace once::lambda
