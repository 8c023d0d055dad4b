// What belongs to the parent of a fork: threads are not there in the child, and locks and connections are not its own.
#pragma once

namespace once {

// How many forks this process has come out of since the first call. Who keeps the number from when he was made knows
// whether he is in another process now.
unsigned forks() noexcept;

}  // namespace once
