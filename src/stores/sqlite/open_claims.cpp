#include "stores/sqlite/open_claims.hpp"

#include <algorithm>

namespace once::stores::sqlite {

namespace {

// A row that has become longer may need a page of its own, and the one that a claim's finish writes has a small result
// too.
constexpr std::uint64_t small_result = 512;
constexpr Millis forget_lapsed_every{10'000};

std::uint64_t with_outcome(const Record& record) noexcept { return record_bytes(record) + small_result; }

}  // namespace

bool is_claim(const Operation& operation) noexcept {
  return operation.kind == Operation::Kind::insert ||
         (operation.kind == Operation::Kind::replace && operation.record->owner != operation.seen.owner);
}

bool is_finish(const Operation& operation) noexcept {
  return operation.kind == Operation::Kind::replace && operation.record->state != State::in_progress;
}

// A finish with nothing but its outcome was counted by its claim. What is sealed has no separate result, so the whole
// record is compared.
std::uint64_t OpenClaims::growth_of(const Operation& operation) const {
  if (is_claim(operation)) return with_outcome(*operation.record);
  if (!is_finish(operation)) return 0;
  if (const auto found = claims_.find(operation.record->owner); found != claims_.end()) {
    const std::uint64_t bytes = record_bytes(*operation.record);
    return bytes - std::min(bytes, found->second.growth);
  }
  const std::uint64_t result = operation.record->result.bytes.size();
  return result > small_result ? result : 0;
}

void OpenClaims::written(const Operation& operation) {
  if (operation.kind == Operation::Kind::remove) return forget(operation.seen.owner);
  if (operation.kind == Operation::Kind::replace) forget(operation.seen.owner);
  if (operation.record->state == State::in_progress && !is_released(*operation.record)) keep(*operation.record);
}

void OpenClaims::forget_lapsed(Time now) {
  if (claims_.empty() || now < look_at_) return;
  look_at_ = now + forget_lapsed_every;
  std::erase_if(claims_, [&](const auto& one) {
    const bool lapsed = one.second.until <= now;
    if (lapsed) growth_ -= one.second.growth;
    return lapsed;
  });
}

void OpenClaims::keep(const Record& record) {
  const Claim claim{.growth = with_outcome(record), .until = record.lease_until};
  forget(record.owner);
  claims_.emplace(record.owner, claim);
  growth_ += claim.growth;
}

void OpenClaims::forget(const Owner& owner) {
  const auto found = claims_.find(owner);
  if (found == claims_.end()) return;
  growth_ -= found->second.growth;
  claims_.erase(found);
}

}  // namespace once::stores::sqlite
