#include "engine/handing.hpp"

#include <utility>

#include <once/engine/claim.hpp>
#include <once/engine/engine.hpp>
#include <once/error.hpp>

#include "engine/claim_state.hpp"
#include "platform/wait.hpp"

namespace once {

void Handing::ask(ClaimMachine::Outcome outcome, FinishDone done) {
  std::unique_lock lock(mutex_);
  if (known_) {
    Finish finish = *known_;
    lock.unlock();
    return done(std::move(finish));
  }
  if (asks_) {
    throw Exception(ErrorKind::misuse, "the outcome of a transaction was told twice at the same time");
  }
  asks_ = std::move(done);
  lock.unlock();
  state_->handed_back(outcome, answer());
}

FinishDone Handing::answer() {
  return [self = shared_from_this()](Finish finish) { self->deliver(std::move(finish)); };
}

void Handing::deliver(Finish finish) {
  std::unique_lock lock(mutex_);
  if (finish.kind != Finish::Kind::unrecorded) known_ = finish;
  FinishDone done = std::exchange(asks_, nullptr);
  lock.unlock();
  if (done) done(std::move(finish));
}

stores::SqlStatement Handing::statement() const {
  return result_ ? state_->finish_statement(*result_) : stores::SqlStatement();
}

bool Handing::is_over_without() const {
  const std::lock_guard lock(mutex_);
  return known_ && known_->kind == Finish::Kind::declined;
}

void Handing::forget() {
  {
    const std::lock_guard lock(mutex_);
    if (known_) return;
  }
  state_->forget_handed_out();
}

std::optional<Finish> Handing::take_back() {
  {
    const std::lock_guard lock(mutex_);
    if (known_) return known_;
  }
  state_->take_back();
  const std::lock_guard lock(mutex_);
  return known_;
}

// ---- the handle

HandedOut::HandedOut(std::shared_ptr<Handing> handing) noexcept : handing_(std::move(handing)) {}
HandedOut::HandedOut(HandedOut&&) noexcept = default;

HandedOut& HandedOut::operator=(HandedOut&& other) noexcept {
  if (this != &other) {
    if (handing_ != nullptr) handing_->forget();
    handing_ = std::move(other.handing_);
  }
  return *this;
}

HandedOut::~HandedOut() {
  if (handing_ != nullptr) handing_->forget();
}

stores::SqlStatement HandedOut::finish_statement() const { return handing_->statement(); }

void HandedOut::committed(FinishDone done) { handing_->ask(ClaimMachine::Outcome::committed, std::move(done)); }
void HandedOut::rolled_back(FinishDone done) { handing_->ask(ClaimMachine::Outcome::rolled_back, std::move(done)); }
void HandedOut::unknown(FinishDone done) { handing_->ask(ClaimMachine::Outcome::in_doubt, std::move(done)); }

Finish HandedOut::committed() {
  return wait_for<Finish>([&](FinishDone done) { committed(std::move(done)); });
}
Finish HandedOut::rolled_back() {
  return wait_for<Finish>([&](FinishDone done) { rolled_back(std::move(done)); });
}
Finish HandedOut::unknown() {
  return wait_for<Finish>([&](FinishDone done) { unknown(std::move(done)); });
}

std::optional<Finish> HandedOut::take_back() {
  std::optional<Finish> known = handing_->take_back();
  handing_.reset();
  return known;
}

namespace detail {

void OwnWrites::commit_with(const Claim* claim, std::shared_ptr<const Companion> writes) {
  if (writes == nullptr) throw Exception(ErrorKind::misuse, "commit_with() was given no writes");
  if (claim == nullptr) {
    throw Exception(
        ErrorKind::misuse,
        "the work runs unprotected, so there is no record for its writes to commit with. Refuse calls without a "
        "key or a store by policy, or write directly if is_protected() is false");
  }
  const std::lock_guard lock(mutex_);
  if (companion_ != nullptr) {
    throw Exception(ErrorKind::misuse, "commit_with() was called twice: put all writes into one companion");
  }
  if (handing_ != nullptr) {
    throw Exception(ErrorKind::misuse, "commit_with() comes after hand_out(): the result is in that transaction");
  }
  companion_ = std::move(writes);
}

HandedOut OwnWrites::hand_out(Claim* claim, Result result) {
  if (claim == nullptr) {
    throw Exception(ErrorKind::misuse,
                    "the work runs unprotected, so there is no record that its transaction could finish. Refuse calls "
                    "without a key or a store by policy, or write directly if is_protected() is false");
  }
  const std::lock_guard lock(mutex_);
  if (companion_ != nullptr) {
    throw Exception(ErrorKind::misuse, "hand_out() comes after commit_with(): put those writes into your transaction");
  }
  HandedOut handed = claim->hand_out(std::move(result));
  handing_ = handed.handing_;
  return handed;
}

std::shared_ptr<const Companion> OwnWrites::take_companion() {
  const std::lock_guard lock(mutex_);
  return std::exchange(companion_, nullptr);
}

bool OwnWrites::was_handed_out() const {
  const std::lock_guard lock(mutex_);
  return handing_ != nullptr;
}

bool OwnWrites::may_be_committed() const {
  const std::lock_guard lock(mutex_);
  return handing_ != nullptr && !handing_->is_over_without();
}

void OwnWrites::read_outcome(FinishDone done) const {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Handing> handing = handing_;
  lock.unlock();  // The completion may come at once.
  handing->ask(ClaimMachine::Outcome::in_doubt, std::move(done));
}

}  // namespace detail

}  // namespace once
