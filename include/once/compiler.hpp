// What once requires of the compiler. Every public header includes this one, so that a wrong flag gives one clear
// error: of the compiler, or of the linker for a flag that the library must share.
#pragma once

#if !defined(__cpp_exceptions)
#error "once reports wrong calls and outcomes without a result by exceptions: compile this file without -fno-exceptions"
#endif
#if __cplusplus < 202002L
#error "once needs C++20: compile this file with -std=c++20 or later"
#endif

namespace once::detail {
// With _GLIBCXX_DEBUG, the containers of libstdc++ have another layout. The library defines one of these names, so a
// program with the other choice does not link: "undefined reference to once::detail::library_built_with_GLIBCXX_DEBUG".
#if defined(_GLIBCXX_DEBUG)
extern const char library_built_with_GLIBCXX_DEBUG;
[[gnu::used]] inline const char* const needs_library_with_debug = &library_built_with_GLIBCXX_DEBUG;
#else
extern const char library_built_without_GLIBCXX_DEBUG;
[[gnu::used]] inline const char* const needs_library_without_debug = &library_built_without_GLIBCXX_DEBUG;
#endif
}  // namespace once::detail
