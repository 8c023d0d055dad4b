// What a platform says of an invocation, for the calls of engines that are made during it.
//
//   const once::WithinInvocation within({.deadline = invocation.deadline, .tenant = invocation.tenant_id});
//   charge(order);  // An operation of once::idempotent(): its lease and its wait end with the invocation
//
// once::lambda does this for its handlers. Use it under another runtime.
#pragma once

#include <cstdint>
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
  Time deadline = never;    // never: not bounded.
  std::string tenant = {};  // Empty: the platform names none.

  friend bool operator==(const InvocationFacts&, const InvocationFacts&) = default;
};

// A local variable. Holds for the calls of its thread while it lives; of nested ones the innermost counts. For a thread
// without one, all invocations of the process that run now count: the tenant that they share, and the latest of their
// deadlines.
//
// Several may live on one thread, and end in any order, on any thread. What holds for coroutines:
// - Stackful ones (Boost.Context, boost::asio::spawn()) may be suspended while they have one, and go on in another
//   thread. For a call on their stack, the innermost one on that stack counts.
// - Stackless ones (co_await) should make one around each call, and not be suspended while they have one. It is not on
// a
//   stack, so it holds for all calls of the thread that made it, and for none after another thread has resumed them.
// - For a call of a thread whose invocations differ, with none of them on the call's stack, those of the process count,
//   as for a thread without one. So a call never gets one of two tenants by chance.
//
// In the child of a fork only those of the thread that forked still hold.
class WithinInvocation {
 public:
  // From now on, and for this thread, until its destructor.
  explicit WithinInvocation(InvocationFacts facts);
  WithinInvocation(const WithinInvocation&) = delete;
  WithinInvocation& operator=(const WithinInvocation&) = delete;
  ~WithinInvocation();

  // What counts for a call on this thread. Throws Exception(misuse) if invocations of different tenants run, and none
  // of them is this call's: its keys cannot be told apart.
  static InvocationFacts current();

 private:
  friend class RunningInvocations;

  const InvocationFacts facts_;
  const std::uint64_t thread_;    // No other thread of this process ever has this number.
  const Waiting* const waiting_;  // A thread that waits runs completions of others in between.
};

}  // namespace once
