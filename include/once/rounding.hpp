// Numbers are read to the nearest double, whatever the caller's rounding mode is. Otherwise one amount would have two
// keys: std::from_chars() of libstdc++ 12 and strtod() follow fesetround().
#pragma once

#include <cfenv>

#include <once/compiler.hpp>

namespace once::detail {

// While it lives, this thread rounds to nearest.
class RoundToNearest {
 public:
  RoundToNearest() noexcept {
    if (before_ != FE_TONEAREST) std::fesetround(FE_TONEAREST);
  }
  RoundToNearest(const RoundToNearest&) = delete;
  RoundToNearest& operator=(const RoundToNearest&) = delete;
  ~RoundToNearest() {
    if (before_ != FE_TONEAREST) std::fesetround(before_);
  }

 private:
  const int before_ = std::fegetround();
};

}  // namespace once::detail
