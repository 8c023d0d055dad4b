// What the thread sanitizer changes in tests.
#pragma once

#include <algorithm>

namespace once::testing {

#if defined(__has_feature)  // clang has it.
inline constexpr bool under_thread_sanitizer = __has_feature(thread_sanitizer);
#elif defined(__SANITIZE_THREAD__)
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif

// `usual`; a sixth of it under the thread sanitizer, which finds nothing more in the rest, and slows it most.
constexpr int of_one_thread(int usual) { return under_thread_sanitizer ? std::max(1, usual / 6) : usual; }

}  // namespace once::testing
