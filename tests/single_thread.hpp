// How much is played of what one thread does alone.
#pragma once

#include <algorithm>

namespace once::testing {

// `usual`; a sixth of it under the thread sanitizer, which finds nothing more in the rest, and slows it most.
constexpr int of_one_thread(int usual) {
#if defined(__SANITIZE_THREAD__)
  return std::max(1, usual / 6);
#else
  return usual;
#endif
}

}  // namespace once::testing
