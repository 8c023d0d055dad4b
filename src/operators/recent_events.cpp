#include "operators/recent_events.hpp"

#include <algorithm>
#include <utility>

namespace once::operators {

RecentEvents::RecentEvents(std::shared_ptr<Clock> clock) : clock_(std::move(clock)), began_(clock_->uptime()) {}

std::int64_t RecentEvents::minute() const noexcept {
  return std::chrono::floor<std::chrono::minutes>(clock_->uptime()).count();
}

RecentEvents::Minute& RecentEvents::slot_of(std::int64_t number) noexcept {
  Minute& slot = slots_[static_cast<std::size_t>(number) % slots];
  if (slot.number.load(std::memory_order_acquire) >= number) return slot;
  const std::lock_guard lock(turning_);
  if (slot.number.load(std::memory_order_relaxed) < number) {
    for (auto& count : slot.counts) count.store(0, std::memory_order_relaxed);
    slot.number.store(number, std::memory_order_release);
  }
  return slot;
}

void RecentEvents::count(const Event& event) noexcept {
  Kind kind = kinds;
  switch (event.kind) {
    case EventKind::completed:
    case EventKind::failed:
    case EventKind::held:
    case EventKind::released:
    case EventKind::abandoned:
    case EventKind::finish_refused:
      kind = ran;
      break;
    case EventKind::replayed:
      kind = replayed;
      break;
    case EventKind::unprotected:
      kind = unprotected;
      break;
    case EventKind::unrecorded:
      kind = unrecorded;
      break;
    default:
      return;
  }
  slot_of(minute()).counts[kind].fetch_add(1, std::memory_order_relaxed);
}

RecentEvents::Counts RecentEvents::counts() const {
  const Uptime now = clock_->uptime();
  const std::int64_t newest = std::chrono::floor<std::chrono::minutes>(now).count();
  const std::int64_t oldest = newest - minutes_told + 1;
  Counts sum;
  for (const Minute& slot : slots_) {
    const std::int64_t number = slot.number.load(std::memory_order_acquire);
    if (number < oldest || number > newest) continue;
    const auto of = [&](Kind kind) { return slot.counts[kind].load(std::memory_order_relaxed); };
    sum.ran += of(ran);
    sum.replayed += of(replayed);
    sum.unprotected += of(unprotected);
    sum.unrecorded += of(unrecorded);
  }
  const Uptime since = std::max(began_, Uptime(std::chrono::minutes(oldest)));
  sum.span = std::chrono::floor<std::chrono::seconds>(now - since);
  return sum;
}

}  // namespace once::operators
