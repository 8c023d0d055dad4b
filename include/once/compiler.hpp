// What once requires of the compiler. Every public header includes this one, so that a wrong flag gives one clear
// error.
#pragma once

#if !defined(__cpp_exceptions)
#error "once reports wrong calls and outcomes without a result by exceptions: compile this file without -fno-exceptions"
#endif
#if __cplusplus < 202002L
#error "once needs C++20: compile this file with -std=c++20 or later"
#endif
