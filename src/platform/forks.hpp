// Detects a fork: the child has none of the parent's threads, and must not use its locks and connections.
#pragma once

namespace once {

// How many forks led to this process since the first call. An object that keeps the number can tell whether it is in
// another process now.
unsigned forks() noexcept;

}  // namespace once
