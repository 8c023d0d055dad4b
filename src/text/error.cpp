#include <once/error.hpp>

namespace once {

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
