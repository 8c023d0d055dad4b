// For code that catches any exception of a user's work, as adapters of servers do.
#pragma once

#include <once/compiler.hpp>

namespace once {

// In a handler `catch (...)`: whether the exception only ends the stack that it passes. It must be rethrown, and
// nothing is known of the work: let its claim lapse. glibc ends a thread so (pthread_cancel(), pthread_exit()), and
// Boost.Context and Boost.Coroutine a suspended stackful coroutine that is destroyed.
bool is_unwinding() noexcept;

}  // namespace once
