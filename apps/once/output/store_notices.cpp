#include "output/store_notices.hpp"

#include <chrono>
#include <string>
#include <utility>

#include <once/error.hpp>

#include "output/text.hpp"

namespace once::cli {

namespace {

constexpr std::chrono::seconds notice_pause{30};

}  // namespace

StoreNotices::StoreNotices(std::shared_ptr<const Clock> clock, Say say)
    : clock_(std::move(clock)), say_(std::move(say)) {}

void StoreNotices::tell(const Event& event) {
  if (event.kind != EventKind::store_error || event.error == nullptr) return;
  const Uptime now = clock_->uptime();
  const std::lock_guard lock(mutex_);
  if (said_at_ && now - *said_at_ < notice_pause) {
    ++left_out_;
    return;
  }
  std::string text = "store: " + escaped(event.error->message);
  if (left_out_ > 0) text += " (and " + std::to_string(left_out_) + " more failures since the last line)";
  said_at_ = now;
  left_out_ = 0;
  say_(text);
}

}  // namespace once::cli
