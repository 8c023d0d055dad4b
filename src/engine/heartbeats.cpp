#include "engine/heartbeats.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/claim_state.hpp"
#include "engine/core.hpp"

namespace once {

void Heartbeats::add(ClaimState& claim, Uptime due) {
  const std::lock_guard lock(mutex_);
  Link& link = claim.heartbeat_link;
  link.previous = nullptr;
  link.next = first_;
  link.due = due;
  link.linked = true;
  if (first_ != nullptr) first_->heartbeat_link.previous = &claim;
  first_ = &claim;
  schedule(due);
}

void Heartbeats::move(ClaimState& claim, Uptime due) {
  const std::lock_guard lock(mutex_);
  if (!claim.heartbeat_link.linked) return;
  claim.heartbeat_link.due = due;
  schedule(due);
}

void Heartbeats::remove(ClaimState& claim) noexcept {
  Link& link = claim.heartbeat_link;
  if (!link.linked) return;  // Most claims have left before they die.
  const std::lock_guard lock(mutex_);
  if (!link.linked) return;
  if (link.previous != nullptr) link.previous->heartbeat_link.next = link.next;
  if (link.next != nullptr) link.next->heartbeat_link.previous = link.previous;
  if (first_ == &claim) first_ = link.next;
  link.linked = false;
}

void Heartbeats::schedule(Uptime due) {
  // A timer that fires too early only looks and sleeps again: earlier ones are left alone.
  if (scheduled_ && *scheduled_ <= due) return;
  scheduled_ = due;
  core_.options.timers->at(due, [core = core_.weak_from_this()] {
    if (const auto alive = core.lock()) alive->heartbeats.tick();
  });
}

void Heartbeats::tick() {
  std::vector<std::shared_ptr<ClaimState>> due;
  {
    const std::lock_guard lock(mutex_);
    const Uptime now = core_.uptime();
    scheduled_.reset();
    std::optional<Uptime> next;
    for (ClaimState* claim = first_; claim != nullptr; claim = claim->heartbeat_link.next) {
      Link& link = claim->heartbeat_link;
      if (link.due <= now) {
        // Its own answer moves it; until then it is looked at again after a third of its lease.
        if (auto alive = claim->weak_from_this().lock()) due.push_back(std::move(alive));
        link.due = now + claim->renew_interval();
      }
      if (!next || link.due < *next) next = link.due;
    }
    if (next) schedule(*next);
  }
  for (const auto& claim : due) claim->beat();
}

}  // namespace once
