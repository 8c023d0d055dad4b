// X-Ray's variable.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace once::lambda::runtime {

// _X_AMZN_TRACE_ID, in our own memory, which is entered into the environment once. setenv() might move the
// environment's table at each invocation, while another thread calls getenv().
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
