// For those who must be done with something when an invocation ends, because the platform then freezes the process:
// metrics that are written, spans that are sent.
#pragma once

#include <once/time.hpp>

namespace once {

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
  friend void tell_invocation_end(Time deadline) noexcept;
  // Before the invocation's answer is given, which waits for it. `deadline`: the invocation's, or never.
  virtual void invocation_ended(Time deadline) noexcept = 0;
};

// Tells all of them, on this thread. For frontends, when the outermost handler of an invocation has returned.
void tell_invocation_end(Time deadline) noexcept;

}  // namespace once
