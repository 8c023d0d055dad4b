// The beginning and the end of a run, blocking (engine.cpp) or asynchronous (async_run.cpp).
#pragma once

#include <exception>
#include <string_view>

#include <once/engine/engine.hpp>

namespace once {

constexpr unsigned max_claims = 3;  // For one run, if each lease ends before its work begins.

// Whether `error` is a ClaimLost.
bool is_claim_lost(const std::exception_ptr& error);

// Finishes the claim of work that threw the current exception.
void finish_thrown(Claim& claim, const EffectivePolicy& policy, const ThrowRule& rule, FinishDone done);

// Sets the outcome of a begin without a claim. False: there is a claim.
bool is_over(Begin& begun, Outcome& outcome);

// No store answered, and the policy says to run without a claim. With a record, the store had answered, and the work
// would run again.
bool runs_unprotected(const Outcome& outcome, const EffectivePolicy& policy) noexcept;

// Left of '#' in a stored key.
std::string_view scope_of(std::string_view stored) noexcept;

// The lease ended `max_claims` times before the work began.
Error no_time_to_begin(const EffectivePolicy& policy);

// The outcome of a claim that was lost to another attempt.
void settle_lost(Finish&& finish, Outcome& outcome);

// Sets the outcome of work that returned; its result is there already. Throws Unrecorded, or Declined, after which the
// claim must still be finished. `companion`: the work had its own writes.
void settle(Finish&& finish, bool companion, const EffectivePolicy& policy, Outcome& outcome);

}  // namespace once
