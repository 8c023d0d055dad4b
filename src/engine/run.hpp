// What a run of work does at its two ends, blocking (engine.cpp) or by completion (async_run.cpp).
#pragma once

#include <exception>

#include <once/engine/engine.hpp>

namespace once {

constexpr unsigned max_claims = 3;  // Of one run, if their leases are over before its work begins.

// Whether `error` is a ClaimLost.
bool is_claim_lost(const std::exception_ptr& error);

// What becomes of the claim of work that threw the exception that is being handled.
void finish_thrown(Claim& claim, const EffectivePolicy& policy, const ThrowRule& rule, FinishDone done);

// The outcome of what was begun, but for its claim. False: there is one.
bool is_over(Begin& begun, Outcome& outcome);

// No store answered, and policy says to run without a claim. With a record at hand the store did answer, and running
// would be a second run.
bool runs_unprotected(const Outcome& outcome, const EffectivePolicy& policy) noexcept;

// The lease was over `max_claims` times.
Error no_time_to_begin(const EffectivePolicy& policy);

// The outcome of a claim that was lost to another attempt.
void settle_lost(Finish&& finish, Outcome& outcome);

// The outcome of work that returned, whose result is in it already. Throws what the caller gets in place of it:
// Unrecorded, and Declined, after which the claim is still to be finished. `companion`: it had writes of its own.
void settle(Finish&& finish, bool companion, const EffectivePolicy& policy, Outcome& outcome);

}  // namespace once
