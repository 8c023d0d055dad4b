// X-Ray's variable.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace once::lambda::runtime {

// _X_AMZN_TRACE_ID, in memory of our own that is entered into the environment once. setenv() would move the table of
// the environment at each invocation, under the eyes of any other thread's getenv().
class TraceVariable {
 public:
  static void enter() {
    value(std::string_view());
    putenv(buffer_.data());
  }
  static void value(std::string_view trace_id) {
    if (name.size() + trace_id.size() >= buffer_.size()) trace_id = {};
    std::copy(name.begin(), name.end(), buffer_.begin());
    const auto end = std::copy(trace_id.begin(), trace_id.end(), buffer_.begin() + name.size());
    *end = '\0';
  }

 private:
  static constexpr std::string_view name = "_X_AMZN_TRACE_ID=";
  static inline std::array<char, 1024> buffer_{};
};

}  // namespace once::lambda::runtime
