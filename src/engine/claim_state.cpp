#include "engine/claim_state.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <once/decide.hpp>
#include <once/engine/compression.hpp>

#include "engine/core.hpp"
#include "engine/handing.hpp"

namespace once {

namespace {

constexpr Millis first_backoff{10};
constexpr Millis most_backoff{1'000};

EventKind event_of(ClaimMachine::Notice notice) noexcept {
  using Notice = ClaimMachine::Notice;
  switch (notice) {
    case Notice::renewed:
      return EventKind::renewed;
    case Notice::step_recorded:
      return EventKind::step_recorded;
    case Notice::completed:
      return EventKind::completed;
    case Notice::failed:
      return EventKind::failed;
    case Notice::held:
      return EventKind::held;
    case Notice::released:
      return EventKind::released;
    case Notice::renewal_lost:
      return EventKind::renewal_lost;
    case Notice::finish_refused:
      return EventKind::finish_refused;
    case Notice::abandoned:
      return EventKind::abandoned;
    case Notice::declined:
      return EventKind::declined;
    case Notice::unrecorded:
      return EventKind::unrecorded;
    case Notice::store_error:
      return EventKind::store_error;
  }
  return EventKind::store_error;
}

}  // namespace

ClaimState::ClaimState(std::shared_ptr<EngineCore>&& core, std::shared_ptr<const EngineAttempt>&& its_attempt,
                       RecordPtr&& record, std::uint64_t place, Uptime leased_at, Uptime claimed_at,
                       Uptime trusted_until, std::shared_ptr<ServerClaim> at_server)
    : attempt(std::move(its_attempt)),
      token(record->token),
      number(record->attempt),
      core_(std::move(core)),
      at_server_(std::move(at_server)),
      machine_(*attempt, attempt->policy,
               {.max_record_bytes = core_->capabilities.max_record_bytes,
                .is_observed = static_cast<bool>(core_->options.observer)},
               std::move(record), place, leased_at, claimed_at, trusted_until) {}

ClaimState::~ClaimState() { core_->flights.forget(*this); }

RecordPtr ClaimState::record() const {
  const std::lock_guard lock(mutex_);
  return machine_.record();
}

std::stop_token ClaimState::stop_token() {
  const std::lock_guard lock(mutex_);
  if (!stop_) {
    stop_.emplace();
    if (machine_.must_stop()) stop_->request_stop();
  }
  return stop_->get_token();
}

std::stop_token ClaimState::loss_token() {
  const std::lock_guard lock(mutex_);
  if (!loss_) {
    loss_.emplace();
    if (machine_.must_stop_for_good()) loss_->request_stop();
  }
  return loss_->get_token();
}

Uptime ClaimState::deadline() const {
  const std::lock_guard lock(mutex_);
  return machine_.deadline();
}

bool ClaimState::finishing() const {
  const std::lock_guard lock(mutex_);
  return machine_.finishing();
}

bool ClaimState::is_ours() const {
  const Uptime now = core_->uptime();
  const std::lock_guard lock(mutex_);
  return machine_.is_ours(now);
}

std::optional<std::string> ClaimState::step(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Step* const step = machine_.find_step(name);
  return step == nullptr ? std::nullopt : std::optional(step->result);
}

// ---- events

template <class Event>
void ClaimState::on(Event&& event) {
  std::unique_lock lock(mutex_);
  Actions out;
  event(out);
  carry_out(std::move(lock), out);
}

void ClaimState::beat() {
  on([&](Actions& out) { machine_.beat(core_->uptime(), out); });
}

void ClaimState::note(std::string_view text) {
  on([&](Actions& out) { machine_.note(text, out); });
}

void ClaimState::add_step(Step step, FinishDone done) {
  on([&](Actions& out) { machine_.step(std::move(step), std::move(done), out); });
}

void ClaimState::abandon() {
  if (ended_.load(std::memory_order_acquire)) return;  // Most claims have ended when their handle is dropped.
  on([&](Actions& out) { machine_.abandon(out); });
}

void ClaimState::give_up(FinishDone done) {
  abandon();
  look_up_loss(std::move(done));
}

void ClaimState::finish(Write&& write, Result&& result) {
  check(result);
  if (write.op == Op::fail) {
    write.text->code = clean_text(write.text->code, Failure::max_code_bytes);
    write.text->message = clean_text(write.text->message, Failure::max_message_bytes);
  }
  std::unique_lock lock(mutex_);
  machine_.ask_finish();
  if (core_->options.observer && write.op != Op::release) {  // Released: nothing was done.
    const RecordPtr record = machine_.record();
    lock.unlock();
    tell(EventKind::work_done, record.get(), nullptr, machine_.claimed_at());
    lock.lock();
  }
  const std::size_t limit = machine_.inline_limit();
  if (is_longer(result, std::min(limit, compress_over()))) {
    lock.unlock();
    compress(result, limit);
    if (is_longer(result, limit)) return offload(std::move(write), std::move(result));
    lock.lock();
  }
  enqueue(std::move(lock), std::move(write), std::move(result));
}

std::size_t compress_over(const EffectivePolicy& policy, const Capabilities& store) noexcept {
  constexpr std::size_t unreachable = std::numeric_limits<std::size_t>::max();
  constexpr std::size_t worth_it = 1024;
  if (!store.keeps_compressed) return unreachable;
  return policy.compress_over_bytes.value_or(store.durable ? worth_it : unreachable);
}

bool is_longer(const Result& result, std::size_t limit) noexcept {
  return result.placement == Placement::inlined && result.bytes.size() > limit;
}

void fit_inline(Result& result, std::size_t limit, std::size_t compress_over, const char* what) {
  check(result);
  if (is_longer(result, compress_over)) {
    if (auto smaller = compressed(result, limit)) result = std::move(*smaller);
  }
  if (!is_longer(result, limit)) return;
  throw Exception(ErrorKind::misuse, "a result of " + std::to_string(result.bytes.size()) +
                                         " bytes is too large to be " + what + ": at most " + std::to_string(limit) +
                                         " fit into the record");
}

void ClaimState::compress(Result& result, std::size_t limit) const {
  if (!is_longer(result, compress_over())) return;
  if (auto smaller = compressed(result, limit)) result = std::move(*smaller);
}

std::shared_ptr<Handing> ClaimState::hand_out(std::optional<Result> result) {
  std::unique_lock lock(mutex_);
  const std::size_t limit = machine_.inline_limit();
  lock.unlock();
  if (result) fit_inline(*result, limit, compress_over(), "handed out");
  auto handing = std::make_shared<Handing>(shared_from_this(), std::move(result));
  const std::optional<Result>& kept = handing->result();
  RecordPtr completion;
  Actions out;
  lock.lock();
  if (kept) completion = machine_.completion(Result(*kept), core_->stamp(core_->moment().now));
  machine_.hand_out(handing->answer(), out);
  const std::uint64_t place = machine_.place();
  carry_out(std::move(lock), out);
  if (completion == nullptr) return handing;
  try {
    static_cast<void>(core_->options.store->finish_statement(*completion, place));  // There can be one.
  } catch (const Exception&) {
    take_back();
    throw;
  }
  if (core_->options.observer) tell(EventKind::work_done, completion.get(), nullptr, machine_.claimed_at());
  return handing;
}

stores::SqlStatement ClaimState::finish_statement(Result result) const {
  std::unique_lock lock(mutex_);
  const RecordPtr completion = machine_.completion(std::move(result), core_->stamp(core_->moment().now));
  const std::uint64_t place = machine_.place();
  lock.unlock();
  return core_->options.store->finish_statement(*completion, place);
}

void ClaimState::handed_back(ClaimMachine::Outcome outcome, FinishDone done) {
  on([&](Actions& out) { machine_.handed_back(outcome, out, std::move(done)); });
}

void ClaimState::forget_handed_out() {
  on([&](Actions& out) { machine_.forget_handed_out(out); });
}

void ClaimState::take_back() {
  on([&](Actions& out) { machine_.take_back(out); });
}

std::size_t ClaimState::compress_over() const noexcept {
  return once::compress_over(attempt->policy, core_->capabilities);
}

// The heartbeat continues meanwhile.
void ClaimState::offload(Write&& write, Result&& result) {
  std::string bytes = drop_bytes(result);
  if (!core_->options.offload) return enqueue(std::unique_lock(mutex_), std::move(write), std::move(result));
  auto kept = std::make_shared<std::pair<Write, Result>>(std::move(write), std::move(result));
  core_->options.offload->put(key(), std::move(bytes), [self = shared_from_this(), kept](OffloadAnswer answer) {
    auto& [finish, shortened] = *kept;
    if (answer.error) {
      self->tell(EventKind::store_error, nullptr, &*answer.error, self->core_->uptime());
    } else {
      shortened.placement = Placement::offloaded;
      shortened.location = std::move(answer.text);
      finish.offloaded = true;
    }
    self->enqueue(std::unique_lock(self->mutex_), std::move(finish), std::move(shortened));
  });
}

void ClaimState::enqueue(std::unique_lock<WordLock> lock, Write&& write, Result&& result) {
  Actions out;
  machine_.finish(std::move(write), std::move(result), out);
  carry_out(std::move(lock), out);
}

void ClaimState::on_answer(Answer&& answer, Uptime sent, std::optional<Uptime> until) {
  core_->learn(answer, sent);
  on([&](Actions& out) {
    const Moment moment = machine_.looks_at_time(answer) ? core_->moment() : Moment();
    machine_.answered(std::move(answer), moment, out, until);
  });
}

// ---- actions

void ClaimState::carry_out(std::unique_lock<WordLock> lock, Actions& actions) {
  if (machine_.ended()) ended_.store(true, std::memory_order_release);
  if (actions.is_send()) return transmit(std::move(lock));
  lock.unlock();
  actions.take([this](auto&& action) { act(std::forward<decltype(action)>(action)); });
}

void ClaimState::transmit(std::unique_lock<WordLock> lock) {
  const Moment moment = core_->moment();
  auto write = machine_.transmit(moment, core_->stamp(moment.now).random);
  lock.unlock();
  if (!write) return;
  if (at_server_) {
    return at_server_->write(std::move(*write),
                             [self = shared_from_this(), sent = moment.uptime](ServerClaim::Written&& written) {
                               self->on_answer(std::move(written.answer), sent, written.until);
                             });
  }
  Done done = [self = shared_from_this(), sent = moment.uptime](Answer&& answer) {
    self->on_answer(std::move(answer), sent);
  };
  Store& store = *core_->options.store;
  if (write->removes) {
    store.remove(key(), write->seen, std::move(done));
  } else if (write->companion != nullptr) {
    store.replace_with(std::move(write->next), write->seen, std::move(write->companion), std::move(done));
  } else {
    store.replace(std::move(write->next), write->seen, std::move(done));
  }
}

void ClaimState::act(ClaimMachine::Send&&) { transmit(std::unique_lock(mutex_)); }

void ClaimState::act(ClaimMachine::RetryAt&& retry) {
  const Uptime at =
      std::min<Uptime>(retry.from + core_->backoff(retry.tries, first_backoff, most_backoff), retry.latest);
  const Timers::Id id = core_->options.timers->at(at, [self = shared_from_this(), turn = retry.turn] {
    self->on([&](Actions& out) { self->machine_.retry(turn, out); });
  });
  const std::lock_guard lock(mutex_);
  if (machine_.waits(retry.turn)) {
    retry_timer_ = id;
    retry_turn_ = retry.turn;
  } else {
    core_->options.timers->cancel(id);
  }
}

// Cancels the timer too, because it keeps the claim and the engine alive until it fires.
void ClaimState::act(ClaimMachine::DropRetry&& drop) {
  const std::lock_guard lock(mutex_);
  if (retry_turn_ == drop.turn) core_->options.timers->cancel(std::exchange(retry_timer_, 0));
}

void ClaimState::act(ClaimMachine::BeatAt&& beat) { core_->flights.beat_at(*this, beat.due); }

void ClaimState::act(ClaimMachine::Tell&& told) const {
  tell(event_of(told.notice), told.record.get(), told.error ? &*told.error : nullptr, told.since);
}

void ClaimState::act(ClaimMachine::StopWork&& work) {
  std::stop_source stop(std::nostopstate);
  std::stop_source loss(std::nostopstate);
  std::unique_lock lock(mutex_);
  if (stop_) stop = *stop_;
  if (loss_ && work.for_good) loss = *loss_;
  lock.unlock();  // Stop callbacks are the caller's code.
  stop.request_stop();
  loss.request_stop();
}

void ClaimState::act(ClaimMachine::Reply&& reply) { reply.done(std::move(reply.finish)); }

void ClaimState::act(ClaimMachine::LookUp&& look) {
  if (look.is_seen) return tell_loss(std::move(look.done), std::move(look.seen));
  look_up_loss(std::move(look.done));
}

void ClaimState::act(ClaimMachine::Read&&) {
  Done done = [self = shared_from_this()](Answer&& answer) {
    self->on([&](Actions& out) { self->machine_.read(std::move(answer), out); });
  };
  if (at_server_) return at_server_->read(std::move(done));
  core_->options.store->get(key(), std::move(done));
}

void ClaimState::act(ClaimMachine::Discard&& discard) {
  core_->options.offload->remove(discard.location, [self = shared_from_this()](OffloadAnswer answer) {
    if (answer.error) self->tell(EventKind::store_error, nullptr, &*answer.error, self->core_->uptime());
  });
}

void ClaimState::act(ClaimMachine::Ended&& ended) {
  if (ended.record != nullptr && ended.record->state == State::completed) core_->cache.put(ended.record);
  core_->flights.ended(*this, ended.record, ended.gone);
  if (ended.done) ended.done({.kind = Finish::Kind::recorded, .record = std::move(ended.record), .error = {}});
}

// ---- the result of a lost claim

void ClaimState::look_up_loss(FinishDone done, std::string missed) {
  struct Look {
    FinishDone done;
    std::string missed;
  };
  auto look = std::make_shared<Look>(Look{std::move(done), std::move(missed)});
  core_->options.store->get(key(), [self = shared_from_this(), look](Answer&& answer) {
    if (answer.status == AnswerStatus::failed) {
      self->tell(EventKind::store_error, nullptr, &answer.error, self->core_->uptime());
      return look->done({.kind = Finish::Kind::lost, .record = nullptr, .error = std::move(answer.error)});
    }
    self->tell_loss(std::move(look->done), std::move(answer.record), std::move(look->missed));
  });
}

// The result that a new call would get: not an expired one, and not one of another payload.
void ClaimState::tell_loss(FinishDone done, RecordPtr record, std::string missed) {
  if (decide(record.get(), *attempt, attempt->policy, core_->moment().earliest()).verdict != Verdict::replay) {
    return done({.kind = Finish::Kind::lost, .record = std::move(record), .error = {}});
  }
  struct Look {
    FinishDone done;
    std::string missed;
  };
  auto look = std::make_shared<Look>(Look{std::move(done), std::move(missed)});
  core_->fetch(std::move(record),
               [self = shared_from_this(), look](std::shared_ptr<const Record> whole, std::optional<Error> error) {
                 if (!error)
                   return look->done({.kind = Finish::Kind::superseded, .record = std::move(whole), .error = {}});
                 // As for any caller: the record may have changed, and its result was removed.
                 if (error->kind != ErrorKind::unavailable && look->missed != whole->result.location) {
                   return self->look_up_loss(std::move(look->done), whole->result.location);
                 }
                 self->tell(EventKind::store_error, whole.get(), &*error, self->core_->uptime());
                 look->done({.kind = Finish::Kind::lost, .record = std::move(whole), .error = std::move(*error)});
               });
}

void ClaimState::tell(EventKind kind, const Record* record, const Error* error, Uptime since) const {
  core_->tell({.kind = kind,
               .key = key(),
               .record = record,
               .trace = attempt->trace.get(),
               .error = error,
               .took = core_->uptime() - since});
}

}  // namespace once
