#include "engine/handing.hpp"

#include <utility>

#include <once/engine/claim.hpp>
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

}  // namespace once
