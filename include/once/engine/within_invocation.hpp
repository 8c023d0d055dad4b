// What a platform says of an invocation, for the calls of engines that are made during it.
//
//   const once::WithinInvocation within({.deadline = invocation.deadline, .tenant = invocation.tenant_id});
//   charge(order);  // An operation of once::idempotent(): its lease and its wait end with the invocation
//
// once::lambda does this for its handlers. Use it under another runtime.
#pragma once

#include <list>
#include <string>

#include <once/compiler.hpp>
#include <once/time.hpp>

namespace once {

class Waiting;  // src/platform/wait.hpp.

// The deadline bounds each operation that begins during the invocation. The lease lasts until then, plus skew and clock
// drift, and nothing renews it, because the platform ends or freezes the process. A shorter lease that nothing renews
// stays. Policy::wait is at most half of the time that is left. With less than 10 ms left, NoTimeLeft is thrown and
// nothing runs.
//
// The tenant becomes a part of each key, as the last part of its scope: "payments/charge/@tenant=blue#order-17". Bytes
// other than letters, digits and "-._~" are percent-encoded; a text that is then longer than 128 bytes is replaced by
// '*' and the hexadecimal SHA-256 of the tenant. A key that has this tenant already stays. Exception(misuse) if it has
// another one, and for a scope with "/@tenant=" outside such an invocation.
struct InvocationFacts {
  Time deadline = never;  // never: not bounded.
  std::string tenant;     // Empty: the platform names none.
};

// Holds for the calls of its thread while it lives; of nested ones the innermost counts. For a thread without one, all
// invocations of the process that run now count: the tenant that they share, and the latest of their deadlines.
class WithinInvocation {
 public:
  // From now on, and for this thread, until its destructor.
  explicit WithinInvocation(InvocationFacts facts);
  WithinInvocation(const WithinInvocation&) = delete;
  WithinInvocation& operator=(const WithinInvocation&) = delete;
  ~WithinInvocation();  // On the thread that made it.

  // What counts for a call on this thread. Throws Exception(misuse) on a thread without an invocation while invocations
  // of different tenants run: its keys cannot be told apart.
  static InvocationFacts current();

 private:
  const InvocationFacts facts_;
  const WithinInvocation* const outer_;
  const Waiting* const waiting_;  // A thread that waits runs completions of others in between.
  std::list<const WithinInvocation*>::iterator place_;
};

}  // namespace once
