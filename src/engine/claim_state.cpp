#include "engine/claim_state.hpp"

#include <algorithm>
#include <utility>

#include <once/decide.hpp>

#include "engine/core.hpp"

namespace once {

namespace {

constexpr unsigned foreground_tries = 4;  // Then the caller is told `unrecorded`, and the engine goes on alone.
constexpr Millis first_backoff{10};
constexpr Millis most_backoff{1'000};

bool passing(ErrorKind kind) noexcept { return kind == ErrorKind::unavailable || kind == ErrorKind::in_doubt; }

// Is what stands in the store the very write whose answer we missed? Owner and revision alone do not tell: an operator
// who prolongs a claim keeps its owner.
bool same_write(const Record& stored, const Record& meant) noexcept {
  if (!(stored.owner == meant.owner) || stored.revision != meant.revision || stored.state != meant.state) return false;
  return stored.state != State::in_progress ||
         (stored.lease_until == meant.lease_until && stored.steps.size() == meant.steps.size());
}

// Leaves what a replay needs to say what is missing; gives the bytes back.
std::string drop_bytes(Result& result) {
  std::string bytes = std::exchange(result.bytes, {});
  result.size = bytes.size();
  result.digest = sha256(bytes);
  result.placement = Placement::dropped;
  return bytes;
}

std::shared_ptr<const Record> shared(std::optional<Record> record) {
  return record ? std::make_shared<const Record>(std::move(*record)) : nullptr;
}

Finish loss(std::shared_ptr<const Record> record) {
  const bool has_result = record != nullptr && record->state == State::completed;
  return {.kind = has_result ? Finish::Kind::superseded : Finish::Kind::lost, .record = std::move(record), .error = {}};
}

EventKind event_of(ClaimState::Op op) noexcept {
  switch (op) {
    case ClaimState::Op::renew:
      return EventKind::renewed;
    case ClaimState::Op::step:
      return EventKind::step_recorded;
    case ClaimState::Op::complete:
      return EventKind::completed;
    case ClaimState::Op::fail:
      return EventKind::failed;
    case ClaimState::Op::hold:
      return EventKind::held;
    case ClaimState::Op::release:
      return EventKind::released;
  }
  return EventKind::renewed;
}

}  // namespace

ClaimState::ClaimState(std::shared_ptr<EngineCore> core, std::shared_ptr<const Attempt> claim_attempt,
                       std::shared_ptr<const Record> record, std::uint64_t place, const Policy& claim_policy,
                       Uptime leased_at)
    : attempt(std::move(claim_attempt)),
      token(record->token),
      number(record->attempt),
      policy(claim_policy),
      core_(std::move(core)),
      claimed_at_(core_->uptime()),
      record_(std::move(record)),
      place_(place),
      leased_at_(leased_at) {}

ClaimState::~ClaimState() { core_->heartbeats.remove(*this); }

void ClaimState::start_heartbeat() {
  if (policy.heartbeat) core_->heartbeats.add(*this, leased_at_ + renew_interval());
}

std::shared_ptr<const Record> ClaimState::record() const {
  const std::lock_guard lock(mutex_);
  return record_;
}

std::stop_token ClaimState::stop_token() {
  const std::lock_guard lock(mutex_);
  if (!stop_) {
    stop_.emplace();
    if (lost_ || overdue_) stop_->request_stop();
  }
  return stop_->get_token();
}

Uptime ClaimState::deadline() const {
  const std::lock_guard lock(mutex_);
  return leased_at_ + policy.lease - policy.skew.value_or(Millis{0});
}

bool ClaimState::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

std::optional<std::string> ClaimState::step(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  for (const auto* steps : {&record_->steps, &unwritten_}) {
    for (const Step& step : *steps) {
      if (step.name == name) return step.result;
    }
  }
  return std::nullopt;
}

void ClaimState::renew() {
  std::unique_lock lock(mutex_);
  if (ended_ || lost_ || finishing_ || current_) return;
  queue_.emplace_back();
  pump(std::move(lock));
}

void ClaimState::note(std::string_view text) {
  std::unique_lock lock(mutex_);
  if (ended_ || lost_ || finishing_) return;
  if (!text.empty()) unwritten_note_ = clean_text(text);
  if (queue_.empty()) queue_.emplace_back();
  pump(std::move(lock));
}

void ClaimState::add_step(Step step, FinishDone done) {
  std::unique_lock lock(mutex_);
  const auto named = [&](const Step& other) { return other.name == step.name; };
  if (step.name.empty() || step.name.size() > Step::max_name_bytes) {
    throw Exception(ErrorKind::misuse, "a step's name has 1 to 255 bytes, not " + std::to_string(step.name.size()));
  }
  if (std::any_of(record_->steps.begin(), record_->steps.end(), named) ||
      std::any_of(unwritten_.begin(), unwritten_.end(), named)) {
    throw Exception(ErrorKind::misuse, "step '" + step.name + "' is finished already; a step's name is used once");
  }
  if (finishing_ || ended_) throw Exception(ErrorKind::misuse, "step '" + step.name + "' comes after the finish");
  if (lost_) {
    lock.unlock();
    return look_up_loss(std::move(done));
  }
  Write write;
  write.op = Op::step;
  write.step = step.name;
  write.done = std::move(done);
  unwritten_.push_back(std::move(step));
  queue_.push_back(std::move(write));
  pump(std::move(lock));
}

void ClaimState::finish(Write&& write) {
  {
    const std::lock_guard lock(mutex_);
    if (finishing_) throw Exception(ErrorKind::misuse, "the claim was finished already");
    finishing_ = true;
  }
  write.failure.code = clean_text(write.failure.code, Failure::max_code_bytes);
  write.failure.message = clean_text(write.failure.message, Failure::max_message_bytes);
  if (write.result.placement == Placement::inlined && write.result.bytes.size() > policy.max_inline_bytes) {
    return offload(std::move(write));
  }
  enqueue(std::move(write));
}

// The heartbeat goes on meanwhile.
void ClaimState::offload(Write&& write) {
  std::string bytes = drop_bytes(write.result);
  if (!core_->options.offload) return enqueue(std::move(write));
  auto shared_write = std::make_shared<Write>(std::move(write));
  core_->options.offload->put(key(), std::move(bytes), [self = shared_from_this(), shared_write](OffloadAnswer answer) {
    if (answer.error) {
      self->tell(EventKind::store_error, nullptr, &*answer.error, self->core_->uptime());
    } else {
      shared_write->result.placement = Placement::offloaded;
      shared_write->result.location = std::move(answer.text);
    }
    self->enqueue(std::move(*shared_write));
  });
}

void ClaimState::enqueue(Write&& write) {
  std::unique_lock lock(mutex_);
  if (lost_) {
    ended_ = true;
    lock.unlock();
    core_->heartbeats.remove(*this);
    tell(EventKind::finish_refused, nullptr, nullptr, claimed_at_);
    return look_up_loss(std::move(write.done));
  }
  if (!current_ && queue_.empty()) {
    current_ = std::move(write);
    return send(std::move(lock));
  }
  queue_.push_back(std::move(write));
  pump(std::move(lock));
}

void ClaimState::abandon() {
  {
    const std::lock_guard lock(mutex_);
    if (finishing_) return;
    finishing_ = true;
    if (!current_) ended_ = true;  // Otherwise the write under way (a step) is let end.
  }
  core_->heartbeats.remove(*this);
  tell(EventKind::abandoned, nullptr, nullptr, claimed_at_);
  core_->flights.ended(*this, nullptr, false);
}

void ClaimState::look_up_loss(FinishDone done) {
  auto keep = std::make_shared<FinishDone>(std::move(done));
  core_->options.store->get(key(), [self = shared_from_this(), keep](Answer&& answer) {
    if (answer.status == Answer::Status::failed) {
      self->tell(EventKind::store_error, nullptr, &answer.error, self->core_->uptime());
      return (*keep)({.kind = Finish::Kind::lost, .record = nullptr, .error = std::move(answer.error)});
    }
    (*keep)(loss(shared(std::move(answer.record))));
  });
}

void ClaimState::pump(std::unique_lock<std::mutex> lock) {
  if (current_) {
    // A write that waits to be tried again makes way for one that the caller asked for; a doubtful renewal
    // shows itself by the refusal of the next write.
    const bool waiting = retry_timer_ != 0;
    if (!waiting || current_->op != Op::renew || queue_.empty() || !core_->options.timers->cancel(retry_timer_)) return;
    retry_timer_ = 0;
    current_.reset();
  }
  if (queue_.empty() || ended_) return;
  current_ = std::move(queue_.front());
  queue_.erase(queue_.begin());
  send(std::move(lock));
}

Record ClaimState::build(const Write& write, Time now) const {
  Record base = *record_;
  base.steps.insert(base.steps.end(), unwritten_.begin(), unwritten_.end());
  if (!unwritten_note_.empty()) base.note = unwritten_note_;
  switch (write.op) {
    case Op::renew:
    case Op::step:
      break;  // The step is among the unwritten ones.
    case Op::complete:
      return fit(completed(std::move(base), write.result, policy, now));
    case Op::fail:
      return fit(failed(std::move(base), write.failure, write.result, policy, now));
    case Op::hold:
      return fit(marked_unknown(std::move(base), write.text, now));
    case Op::release:
      return released(std::move(base), write.text, policy, now);
  }
  return renewed(std::move(base), policy, now);
}

// A finish must not fail for its size, or the work would run again: steps, and then the result, give way.
Record ClaimState::fit(Record next) const {
  const std::size_t limit = core_->capabilities.max_record_bytes;
  if (record_bytes(next) <= limit) return next;
  next.steps.clear();
  if (record_bytes(next) <= limit || next.result.placement != Placement::inlined) return next;
  drop_bytes(next.result);
  return next;
}

void ClaimState::send(std::unique_lock<std::mutex> lock) {
  const EngineCore::Moment moment = core_->moment();
  const Seen seen{.owner = record_->owner, .revision = record_->revision, .place = place_};
  const Uptime sent = core_->uptime();
  auto next = std::make_shared<const Record>(build(*current_, moment.now));
  const bool removes = current_->op == Op::release && next->steps.empty();
  lock.unlock();
  auto done = [self = shared_from_this(), next, sent](Answer&& answer) mutable {
    self->on_answer(std::move(answer), std::move(next), sent);
  };
  if (removes) {
    core_->options.store->remove(key(), seen, std::move(done));
  } else {
    core_->options.store->replace(*next, seen, std::move(done));
  }
}

void ClaimState::on_answer(Answer&& answer, std::shared_ptr<const Record> next, Uptime sent) {
  core_->learn(answer, sent);
  std::unique_lock lock(mutex_);
  switch (answer.status) {
    case Answer::Status::done:
      return on_written(std::move(lock), std::move(next), answer.place, sent);
    case Answer::Status::refused:
      return on_refused(std::move(lock), shared(std::move(answer.record)), answer.place, next, sent);
    case Answer::Status::failed:
      return on_failed(std::move(lock), std::move(answer.error));
  }
}

void ClaimState::on_written(std::unique_lock<std::mutex> lock, std::shared_ptr<const Record> next, std::uint64_t place,
                            Uptime sent) {
  const Op op = current_->op;
  const bool removed = op == Op::release && next->steps.empty();
  forget_written(*next);
  if (place != 0) place_ = place;
  record_ = std::move(next);
  if (!is_finish(op)) {
    leased_at_ = sent;
    overdue_ = false;
    lock.unlock();
    core_->heartbeats.move(*this, sent + renew_interval());
    tell(event_of(op), nullptr, nullptr, sent);
    lock.lock();
    return end_write(std::move(lock), {});
  }
  ended_ = true;
  auto record = removed ? nullptr : record_;
  lock.unlock();
  core_->heartbeats.remove(*this);
  tell(event_of(op), record.get(), nullptr, claimed_at_);
  if (op == Op::complete) core_->cache.put(record);
  core_->flights.ended(*this, record, removed);
  lock.lock();
  end_write(std::move(lock), {.kind = Finish::Kind::recorded, .record = std::move(record), .error = {}});
}

// Steps and notes that came while the write was under way are still to be written.
void ClaimState::forget_written(const Record& stored) {
  const std::size_t before = record_->steps.size();
  const std::size_t more = stored.steps.size() > before ? stored.steps.size() - before : 0;
  unwritten_.erase(unwritten_.begin(),
                   unwritten_.begin() + static_cast<std::ptrdiff_t>(std::min(more, unwritten_.size())));
  if (stored.note == unwritten_note_) unwritten_note_.clear();
}

void ClaimState::on_refused(std::unique_lock<std::mutex> lock, std::shared_ptr<const Record> seen, std::uint64_t place,
                            const std::shared_ptr<const Record>& next, Uptime sent) {
  const bool removes = current_->op == Op::release && next->steps.empty();
  if (seen == nullptr && removes) return on_written(std::move(lock), next, place, sent);  // It is gone, as was meant.
  if (seen != nullptr && same_write(*seen, *next)) return on_written(std::move(lock), std::move(seen), place, sent);
  if (seen != nullptr && seen->owner == attempt->owner && seen->state == State::in_progress && !is_released(*seen)) {
    // Still ours under another revision: a renewal of ours whose answer was lost, or an operator prolonged it. Adopt it
    // and try again.
    forget_written(*seen);
    record_ = std::move(seen);
    if (place != 0) place_ = place;
    return send(std::move(lock));
  }
  // Somebody else has it, or it is gone.
  const Op op = current_->op;
  lose(lock);
  if (is_finish(op)) ended_ = true;
  lock.unlock();
  core_->heartbeats.remove(*this);
  tell(is_finish(op) ? EventKind::finish_refused : EventKind::renewal_lost, seen.get(), nullptr, sent);
  core_->flights.ended(*this, nullptr, false);
  lock.lock();
  end_write(std::move(lock), loss(std::move(seen)));
}

void ClaimState::on_failed(std::unique_lock<std::mutex> lock, Error error) {
  Write& write = *current_;
  const Uptime now = core_->uptime();
  const Uptime deadline = leased_at_ + policy.lease - policy.skew.value_or(Millis{0});
  const bool finish = is_finish(write.op);
  if (write.op == Op::step && error.kind == ErrorKind::misuse) {
    // Too large: it must not take later writes down with it.
    std::erase_if(unwritten_, [&](const Step& step) { return step.name == write.step; });
  }
  if (finish && error.kind == ErrorKind::misuse && write.result.placement == Placement::inlined &&
      !write.result.bytes.empty()) {
    // The store cannot keep this result. What must never happen is that the work runs again for it.
    drop_bytes(write.result);
    lock.unlock();
    tell(EventKind::store_error, nullptr, &error, now);
    lock.lock();
    return send(std::move(lock));
  }
  ++write.tries;
  const bool again =
      passing(error.kind) && now < deadline && (write.op != Op::step || write.tries < foreground_tries) && !lost_;
  FinishDone told;
  if (again && finish && write.tries == foreground_tries) told = std::exchange(write.done, nullptr);
  if (again) {
    const Uptime at = std::min<Uptime>(now + core_->backoff(write.tries, first_backoff, most_backoff), deadline);
    retry_timer_ = core_->options.timers->at(at, [self = shared_from_this()] {
      std::unique_lock relock(self->mutex_);
      if (self->retry_timer_ == 0 || !self->current_) return;
      self->retry_timer_ = 0;
      self->send(std::move(relock));
    });
    // A caller may have asked for more while this write was under way.
    const bool make_way = write.op == Op::renew && !queue_.empty();
    lock.unlock();
    tell(EventKind::store_error, nullptr, &error, now);
    if (told) {
      tell(EventKind::unrecorded, nullptr, &error, claimed_at_);
      told({.kind = Finish::Kind::unrecorded, .record = nullptr, .error = error});
    }
    if (make_way) {
      lock.lock();
      pump(std::move(lock));
    }
    return;
  }
  const bool was_told = finish && !write.done;
  if (write.op == Op::renew && now >= deadline) {
    overdue_ = true;
    if (stop_) {
      const std::stop_source stop = *stop_;
      lock.unlock();
      stop.request_stop();
      lock.lock();
    }
  }
  if (finish) ended_ = true;
  lock.unlock();
  tell(EventKind::store_error, nullptr, &error, now);
  if (write.op == Op::renew && now >= deadline) tell(EventKind::renewal_lost, nullptr, &error, now);
  if (write.op == Op::step || (finish && !was_told)) tell(EventKind::unrecorded, nullptr, &error, claimed_at_);
  if (finish) {
    core_->heartbeats.remove(*this);
    core_->flights.ended(*this, nullptr, false);
  }
  lock.lock();
  end_write(std::move(lock), {.kind = Finish::Kind::unrecorded, .record = nullptr, .error = std::move(error)});
}

void ClaimState::lose(std::unique_lock<std::mutex>& lock) {
  lost_ = true;
  if (!stop_) return;
  const std::stop_source stop = *stop_;
  lock.unlock();  // Stop callbacks are the caller's code.
  stop.request_stop();
  lock.lock();
}

void ClaimState::end_write(std::unique_lock<std::mutex> lock, Finish finish) {
  FinishDone done = std::move(current_->done);
  current_.reset();
  if (lost_ && !ended_) {
    // What is still queued meets the loss as well, one by one.
    std::vector<Write> rest = std::exchange(queue_, {});
    for (const Write& write : rest) ended_ = ended_ || is_finish(write.op);
    lock.unlock();
    if (done) done(std::move(finish));
    for (Write& write : rest) {
      if (is_finish(write.op)) tell(EventKind::finish_refused, nullptr, nullptr, claimed_at_);
      if (write.done) look_up_loss(std::move(write.done));
    }
    return;
  }
  if (!done) return pump(std::move(lock));
  lock.unlock();
  done(std::move(finish));
  lock.lock();
  pump(std::move(lock));
}

void ClaimState::tell(EventKind kind, const Record* record, const Error* error, Uptime since) const {
  if (!core_->options.observer) return;
  core_->tell({.kind = kind, .key = key(), .record = record, .error = error, .took = core_->uptime() - since});
}

}  // namespace once
