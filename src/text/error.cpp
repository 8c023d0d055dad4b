#include <once/error.hpp>

namespace once {

// Each file of the library was compiled with the same flags.
namespace detail {
#if defined(_GLIBCXX_DEBUG)
extern const char library_built_with_GLIBCXX_DEBUG = 0;
#else
extern const char library_built_without_GLIBCXX_DEBUG = 0;
#endif
}  // namespace detail

std::string_view to_string(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::unavailable:
      return "unavailable";
    case ErrorKind::in_doubt:
      return "in_doubt";
    case ErrorKind::corrupt:
      return "corrupt";
    case ErrorKind::misuse:
      return "misuse";
  }
  return "?";
}

}  // namespace once
