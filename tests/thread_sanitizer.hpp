// What the thread sanitizer changes in tests.
#pragma once

#include <algorithm>

#if defined(__SANITIZE_THREAD__)  // GCC
#define ONCE_UNDER_THREAD_SANITIZER
#elif defined(__has_feature)  // clang
#if __has_feature(thread_sanitizer)
#define ONCE_UNDER_THREAD_SANITIZER
#endif
#endif

namespace once::testing {

// `usual`; a sixth of it under the thread sanitizer, which finds nothing more in the rest, and slows it most.
constexpr int of_one_thread(int usual) {
#ifdef ONCE_UNDER_THREAD_SANITIZER
  return std::max(1, usual / 6);
#else
  return usual;
#endif
}

}  // namespace once::testing
