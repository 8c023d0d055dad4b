#include <once/engine/claim.hpp>

#include <utility>

#include <once/decide.hpp>

#include "engine/claim_state.hpp"
#include "engine/handing.hpp"
#include "platform/wait.hpp"

namespace once {

namespace {

using Write = ClaimState::Write;
using Op = ClaimState::Op;

Write with_reason(Op op, std::string_view reason, FinishDone&& done) {
  Write write(op, std::move(done));
  write.text = std::make_unique<Failure>(Failure{.code = {}, .message = std::string(reason)});
  return write;
}

}  // namespace

Claim::Claim(std::shared_ptr<ClaimState> state) noexcept : state_(std::move(state)) {}

Claim& Claim::operator=(Claim&& other) noexcept {
  if (this != &other) {
    if (state_ != nullptr) state_->abandon();
    state_ = std::move(other.state_);
  }
  return *this;
}

Claim::~Claim() {
  if (state_ != nullptr) state_->abandon();
}

const std::string& Claim::key() const noexcept { return state_->key(); }
std::uint32_t Claim::attempt() const noexcept { return state_->number; }
std::uint64_t Claim::token() const noexcept { return state_->token; }
Owner Claim::owner() const noexcept { return state_->attempt->owner; }
// Of the stored key, to which a server may have added the tenant.
std::string Claim::derived_key(std::string_view name) const { return once::derived_key(state_->record()->key, name); }
TraceContext Claim::trace() const {
  const CallTrace* const trace = state_->attempt->trace.get();
  return trace == nullptr ? TraceContext() : TraceContext{trace->work, trace->state};
}
std::stop_token Claim::stop_token() const { return state_->stop_token(); }
std::stop_token Claim::loss_token() const { return state_->loss_token(); }
Uptime Claim::deadline() const noexcept { return state_->deadline(); }
bool Claim::is_ours() const noexcept { return state_->is_ours(); }
Record Claim::record() const { return *state_->record(); }
std::optional<std::string> Claim::step(std::string_view name) const { return state_->step(name); }
void Claim::heartbeat(std::string_view note) { state_->note(note); }

void Claim::add_step(std::string name, std::string result, FinishDone done) {
  state_->add_step({std::move(name), std::move(result)}, std::move(done));
}

void Claim::complete(Result result, FinishDone done) {
  state_->finish(Write(Op::complete, std::move(done)), std::move(result));
}

void Claim::complete(Result result, std::shared_ptr<const Companion> with, FinishDone done) {
  Write write(Op::complete, std::move(done));
  if (with != nullptr) {
    write.together = std::make_unique<ClaimState::Together>();
    write.together->companion = std::move(with);
  }
  state_->finish(std::move(write), std::move(result));
}

void Claim::complete_as_failure(Result result, FinishDone done) {
  Write write(Op::complete, std::move(done));
  write.is_failure = true;
  state_->finish(std::move(write), std::move(result));
}

void Claim::fail(Failure failure, Result result, FinishDone done) {
  Write write(Op::fail, std::move(done));
  write.text = std::make_unique<Failure>(std::move(failure));
  state_->finish(std::move(write), std::move(result));
}

void Claim::release(std::string_view reason, FinishDone done) {
  state_->finish(with_reason(Op::release, reason, std::move(done)));
}

void Claim::hold(std::string_view reason, FinishDone done) {
  state_->finish(with_reason(Op::hold, reason, std::move(done)));
}

HandedOut Claim::hand_out(Result result) { return HandedOut(state_->hand_out(std::move(result))); }
HandedOut Claim::hand_out() { return HandedOut(state_->hand_out(std::nullopt)); }

void Claim::give_up(FinishDone done) { state_->give_up(std::move(done)); }

Finish Claim::add_step(std::string name, std::string result) {
  return wait_for<Finish>([&](FinishDone done) { add_step(std::move(name), std::move(result), std::move(done)); });
}

Finish Claim::complete(Result result) {
  return wait_for<Finish>([&](FinishDone done) { complete(std::move(result), std::move(done)); });
}

Finish Claim::complete(Result result, std::shared_ptr<const Companion> with) {
  return wait_for<Finish>([&](FinishDone done) { complete(std::move(result), std::move(with), std::move(done)); });
}

Finish Claim::fail(Failure failure, Result result) {
  return wait_for<Finish>([&](FinishDone done) { fail(std::move(failure), std::move(result), std::move(done)); });
}

Finish Claim::release(std::string_view reason) {
  return wait_for<Finish>([&](FinishDone done) { release(reason, std::move(done)); });
}

Finish Claim::hold(std::string_view reason) {
  return wait_for<Finish>([&](FinishDone done) { hold(reason, std::move(done)); });
}

}  // namespace once
