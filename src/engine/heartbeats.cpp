#include "engine/heartbeats.hpp"

#include <algorithm>

#include "engine/claim_state.hpp"
#include "engine/core.hpp"

namespace once {

void LiveClaims::add(ClaimState& claim, Uptime due) noexcept {
  Link& link = claim.live_link;
  link.previous = nullptr;
  link.next = first_;
  link.due = due;
  link.linked.store(true, std::memory_order_release);
  if (first_ != nullptr) first_->live_link.previous = &claim;
  first_ = &claim;
}

void LiveClaims::remove(ClaimState& claim) noexcept {
  Link& link = claim.live_link;
  if (!link.linked.load(std::memory_order_relaxed)) return;
  if (link.previous != nullptr) link.previous->live_link.next = link.next;
  if (link.next != nullptr) link.next->live_link.previous = link.previous;
  if (first_ == &claim) first_ = link.next;
  link.linked.store(false, std::memory_order_release);
}

Uptime LiveClaims::collect(Uptime now, std::vector<std::shared_ptr<ClaimState>>& due) {
  Uptime next = Uptime::max();
  for (ClaimState* claim = first_; claim != nullptr; claim = claim->live_link.next) {
    Link& link = claim->live_link;
    if (link.due <= now) {
      // Its answer sets the next one. Until then it is checked again after a third of its lease.
      if (auto alive = claim->weak_from_this().lock()) due.push_back(std::move(alive));
      link.due = now + claim->renew_interval();
    }
    next = std::min(next, link.due);
  }
  return next;
}

void Heartbeats::schedule(Uptime due) {
  // An earlier timer is kept: if it fires too early, it only checks and sleeps again. A tick first clears scheduled_,
  // then checks the claims. So if it is still set here, that tick will see this claim.
  if (scheduled_.load() <= due) return;
  const std::lock_guard lock(mutex_);
  if (scheduled_.load() <= due) return;
  scheduled_.store(due);
  core_.options.timers->at(due, [core = core_.weak_from_this()] {
    if (const auto alive = core.lock()) alive->heartbeats.tick();
  });
}

void Heartbeats::tick() {
  scheduled_.store(Uptime::max());
  std::vector<std::shared_ptr<ClaimState>> due;
  const Uptime next = core_.flights.collect_due(core_.uptime(), due);
  if (next != Uptime::max()) schedule(next);
  for (const auto& claim : due) claim->beat();
}

}  // namespace once
