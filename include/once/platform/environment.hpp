// Settings from environment variables. The library reads them only through these functions.
#pragma once

#include <functional>
#include <string_view>

#include <once/policy.hpp>

namespace once {

// A policy with only the members that these variables set:
//
//   ONCE_LEASE=5m        Policy::lease
//   ONCE_RETENTION=72h   Policy::retention
//   ONCE_FAILURE_RETENTION=1h
//                        Policy::failure_retention
//   ONCE_EXPECT=10m      Policy::expected
//   ONCE_WAIT=5s         Policy::wait with OnConflict::wait; 0s: OnConflict::fail
//
// Each is a whole number and ms, s, m, h or d; a retention may be `never`: what is kept does not expire. Empty is the
// same as not set. Throws Exception(misuse), which names the variable, if it is not a time or out of the member's
// range.
//
// If any is set, calls `tell` once with "ONCE_LEASE=5m, ONCE_WAIT=5s", for the log. Do not call it while another thread
// sets variables (getenv(3)).
Policy policy_from_environment(const std::function<void(std::string_view)>& tell);

// ONCE_DISABLED: whether work runs without protection, for an emergency or a test. 1, true, yes and on mean that it
// does; 0, false, no, off and nothing that it does not, in any case of letters. Throws Exception(misuse) for another
// word.
bool is_disabled(std::string_view word);
// The same for the variable of this process. Do not call it while another thread sets variables.
bool is_disabled_by_environment();

}  // namespace once
