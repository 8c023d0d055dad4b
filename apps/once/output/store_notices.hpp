// Reports why the store fails, to people. Clients only see that it fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include <once/clock.hpp>
#include <once/engine/event.hpp>

namespace once::cli {

// Reports the first error of a store at once, then at most one every half minute, with the number of those in between:
// a failing store fails with every request. Thread-safe.
class StoreNotices {
 public:
  using Say = std::function<void(std::string_view)>;  // Called from any thread, one call at a time.
  StoreNotices(std::shared_ptr<const Clock> clock, Say say);

  void tell(const Event& event);  // Of any kind.

 private:
  const std::shared_ptr<const Clock> clock_;
  const Say say_;
  std::mutex mutex_;
  std::optional<Uptime> said_at_;
  std::uint64_t left_out_ = 0;
};

}  // namespace once::cli
