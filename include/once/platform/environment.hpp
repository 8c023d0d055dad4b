// Settings out of the environment, for programs that ask for them. Nothing in the library reads them by itself.
#pragma once

#include <functional>
#include <string_view>

#include <once/policy.hpp>

namespace once {

// What these variables say, as a policy that says nothing else:
//
//   ONCE_LEASE=5m        Policy::lease
//   ONCE_RETENTION=72h   Policy::retention
//   ONCE_WAIT=5s         Policy::wait with OnConflict::wait; 0s: OnConflict::fail
//
// Each is a whole number and ms, s, m, h or d. A variable that is not set, or empty, says nothing. Throws
// Exception(misuse) that names the variable, if it is no such time or out of the member's range.
//
// `tell` is called once, if any is set, with "ONCE_LEASE=5m, ONCE_WAIT=5s", for the log of a start: what the
// environment changes is to be seen. Not while another thread sets variables (getenv(3)).
Policy policy_from_environment(const std::function<void(std::string_view)>& tell);

}  // namespace once
