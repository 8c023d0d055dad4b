// Why the store fails, for people: clients are told only that it does.
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

// Says the first error of a store at once, and then one at most in half a minute, with the number of those in between:
// a store that fails does so with every request. For any number of threads.
class StoreNotices {
 public:
  using Say = std::function<void(std::string_view)>;  // Called from all of them, one at a time.
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
