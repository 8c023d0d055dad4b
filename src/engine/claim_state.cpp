#include "engine/claim_state.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <once/decide.hpp>
#include <once/engine/compression.hpp>

#include "engine/core.hpp"

namespace once {

namespace {

constexpr unsigned foreground_tries = 4;  // Then the caller is told `unrecorded`, and the engine goes on alone.
// Renewals in a row that ask for the store's time: the first that differs, those that outweigh all before, and the one
// that is counted on what they say.
constexpr unsigned most_unsettled = StoreClock::outweighing + 1;
constexpr Millis first_backoff{10};
constexpr Millis most_backoff{1'000};
constexpr Millis most_patience{2'000};  // Of a caller under a fixed lease.

bool passing(ErrorKind kind) noexcept { return kind == ErrorKind::unavailable || kind == ErrorKind::in_doubt; }

// Is what stands in the store what we meant to write, so that only the answer was lost? Owner and revision alone do not
// tell: an operator who prolongs a claim keeps its owner.
bool same_write(const Record& stored, const Record& meant) noexcept {
  if (!(stored.owner == meant.owner) || stored.state != meant.state) return false;
  if (stored.state != State::in_progress) return stored.result == meant.result && stored.failure == meant.failure;
  return stored.revision == meant.revision && stored.lease_until == meant.lease_until &&
         stored.steps.size() == meant.steps.size();
}

// In the record, where they take room.
bool has_bytes(const Result& result) noexcept {
  return !result.bytes.empty() && (result.placement == Placement::inlined || result.placement == Placement::compressed);
}

// Leaves what a replay needs to say what is missing; gives the bytes back.
std::string drop_bytes(Result& result) {
  std::string bytes = std::exchange(result.bytes, {});
  if (result.placement == Placement::inlined) {
    result.size = bytes.size();
    result.digest = sha256(bytes);
  }
  result.placement = Placement::dropped;
  return bytes;
}

// A release leaves nothing behind, unless there is something to keep: finished steps, or that nobody may take it over.
bool is_removal(ClaimState::Op op, const Record& next) noexcept {
  return op == ClaimState::Op::release && next.steps.empty() && next.on_lapse == OnLapse::takeover;
}

EventKind event_of(ClaimState::Op op) noexcept {
  switch (op) {
    case ClaimState::Op::renew:
    case ClaimState::Op::fence:
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
                       std::shared_ptr<const Record> record, std::uint64_t place, const EffectivePolicy& claim_policy,
                       Uptime leased_at, Uptime claimed_at, Uptime trusted_until)
    : attempt(std::move(claim_attempt)),
      token(record->token),
      number(record->attempt),
      policy(claim_policy),
      core_(std::move(core)),
      claimed_at_(claimed_at),
      leased_at_(leased_at),
      record_(std::move(record)),
      place_(place),
      trusted_until_(trusted_until) {}

ClaimState::~ClaimState() { core_->flights.forget(*this); }

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
  return trusted_until_;
}

bool ClaimState::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

bool ClaimState::finishing() const {
  const std::lock_guard lock(mutex_);
  return finish_queued_;
}

bool ClaimState::is_ours() const {
  const Uptime now = core_->uptime();
  const std::lock_guard lock(mutex_);
  return !lost_ && now < trusted_until_;
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

void ClaimState::beat() {
  std::unique_lock lock(mutex_);
  if (ended_ || lost_ || finish_queued_) return;
  const Uptime now = core_->uptime();
  if (now >= trusted_until_ && !overdue_) {
    // Whether the renewal failed, hangs, or was not to be made: somebody else may have the claim from now on.
    overdue_ = true;
    stop_work(lock);
    lock.unlock();
    tell(EventKind::renewal_lost, nullptr, nullptr, leased_at_);
    lock.lock();
  }
  if (!heartbeats()) return;
  const Uptime next = now + renew_interval();
  const Uptime due = now < trusted_until_ ? std::min(next, trusted_until_) : next;
  const bool free = !ended_ && !lost_ && !finish_queued_ && !current_;
  if (free) queue_.emplace_back();
  lock.unlock();
  core_->flights.beat_at(*this, due);
  if (!free) return;
  lock.lock();
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
  if (!has_room_for(step)) {
    lock.unlock();
    Error error{ErrorKind::misuse, "step '" + step.name + "' of " + std::to_string(step.result.size()) +
                                       " bytes was not kept: it leaves the record too little room to be ended, in a "
                                       "store for records of " +
                                       std::to_string(core_->capabilities.max_record_bytes) + " bytes"};
    tell(EventKind::unrecorded, nullptr, &error, claimed_at_);
    return done({.kind = Finish::Kind::unrecorded, .record = nullptr, .error = std::move(error)});
  }
  Write write;
  write.op = Op::step;
  write.text = std::make_unique<Failure>(Failure{.code = step.name, .message = {}});
  write.done = std::move(done);
  unwritten_.push_back(std::move(step));
  queue_.push_back(std::move(write));
  pump(std::move(lock));
}

bool ClaimState::has_room_for(const Step& step) const noexcept {
  std::size_t sum = record_bytes(*record_) + room_to_end(*record_) + step.name.size() + step.result.size();
  for (const Step& other : unwritten_) sum += other.name.size() + other.result.size();
  return sum <= core_->capabilities.max_record_bytes;
}

void ClaimState::finish(Write&& write) {
  check(write.result);
  if (write.op == Op::fail) {
    write.text->code = clean_text(write.text->code, Failure::max_code_bytes);
    write.text->message = clean_text(write.text->message, Failure::max_message_bytes);
  }
  std::unique_lock lock(mutex_);
  if (finishing_) throw Exception(ErrorKind::misuse, "the claim was finished already");
  finishing_ = true;
  const std::size_t limit = inline_limit();
  const auto longer_than = [&](std::size_t most) {
    return write.result.placement == Placement::inlined && write.result.bytes.size() > most;
  };
  if (longer_than(std::min(limit, compress_over()))) {
    lock.unlock();
    if (longer_than(compress_over())) {
      if (auto smaller = compressed(write.result, limit)) write.result = std::move(*smaller);
    }
    if (longer_than(limit)) return offload(std::move(write));
    lock.lock();
  }
  enqueue(std::move(lock), std::move(write));
}

// What there is room for beside everything but the input and the steps, which give way to a result.
std::size_t ClaimState::inline_limit() const {
  const std::size_t most = core_->capabilities.max_record_bytes;
  const std::size_t history = record_->history.entries.size() * (64 + 3 * HistoryEntry::max_text_bytes);
  const std::size_t rest = 256 + record_->key.size() + record_->holder.size() + record_->label.size() + history +
                           Record::max_text_bytes + Result::max_content_type_bytes + Failure::max_code_bytes +
                           Failure::max_message_bytes;
  return std::min(policy.max_inline_bytes, most > rest ? most - rest : 0);
}

std::size_t ClaimState::compress_over() const noexcept {
  constexpr std::size_t unreachable = std::numeric_limits<std::size_t>::max();
  constexpr std::size_t worth_it = 1024;
  const Capabilities& store = core_->capabilities;
  if (!store.keeps_compressed) return unreachable;
  return policy.compress_over_bytes.value_or(store.durable ? worth_it : unreachable);
}

// The heartbeat goes on meanwhile.
void ClaimState::offload(Write&& write) {
  std::string bytes = drop_bytes(write.result);
  if (!core_->options.offload) return enqueue(std::unique_lock(mutex_), std::move(write));
  auto shared_write = std::make_shared<Write>(std::move(write));
  core_->options.offload->put(key(), std::move(bytes), [self = shared_from_this(), shared_write](OffloadAnswer answer) {
    if (answer.error) {
      self->tell(EventKind::store_error, nullptr, &*answer.error, self->core_->uptime());
    } else {
      shared_write->result.placement = Placement::offloaded;
      shared_write->result.location = std::move(answer.text);
      shared_write->offloaded = true;
    }
    self->enqueue(std::unique_lock(self->mutex_), std::move(*shared_write));
  });
}

// Another attempt's result may be what is stored; where ours lies nobody will ever look.
void ClaimState::discard(const Write& write, const Record* stored) {
  if (!write.offloaded || (stored != nullptr && stored->result.location == write.result.location)) return;
  core_->options.offload->remove(write.result.location, [self = shared_from_this()](OffloadAnswer answer) {
    if (answer.error) self->tell(EventKind::store_error, nullptr, &*answer.error, self->core_->uptime());
  });
}

void ClaimState::enqueue(std::unique_lock<std::mutex> lock, Write&& write) {
  finish_queued_ = true;
  if (lost_) {
    end();
    lock.unlock();
    tell(EventKind::finish_refused, nullptr, nullptr, claimed_at_);
    discard(write, nullptr);
    return look_up_loss(std::move(write.done));
  }
  if (!current_ && queue_.empty()) {
    current_.emplace(std::move(write));
    doubtful_ = {};
    return send(std::move(lock));
  }
  queue_.push_back(std::move(write));
  pump(std::move(lock));
}

void ClaimState::abandon() {
  if (ended_.load(std::memory_order_acquire)) return;  // As most claims have when their handle is dropped.
  {
    const std::lock_guard lock(mutex_);
    dropped_ = true;
    if (finishing_) return;
    finishing_ = true;
    finish_queued_ = true;
    // A renewal that waits to be tried again is not wanted any more; a write under way (a step) is let end.
    if (current_ && current_->op == Op::renew && retry_timer_ != 0 && core_->options.timers->cancel(retry_timer_)) {
      retry_timer_ = 0;
      current_.reset();
    }
    if (!current_) end();
  }
  tell(EventKind::abandoned, nullptr, nullptr, claimed_at_);
  core_->flights.ended(*this, nullptr, false);
}

void ClaimState::give_up(FinishDone done) {
  abandon();
  look_up_loss(std::move(done));
}

void ClaimState::look_up_loss(FinishDone done, std::string missed) {
  struct Look {
    FinishDone done;
    std::string missed;
  };
  auto look = std::make_shared<Look>(Look{std::move(done), std::move(missed)});
  core_->options.store->get(key(), [self = shared_from_this(), look](Answer&& answer) {
    if (answer.status == Answer::Status::failed) {
      self->tell(EventKind::store_error, nullptr, &answer.error, self->core_->uptime());
      return look->done({.kind = Finish::Kind::lost, .record = nullptr, .error = std::move(answer.error)});
    }
    self->tell_loss(std::move(look->done), std::move(answer.record), std::move(look->missed));
  });
}

// What counts now is what a new call would be given: no expired result, and none of another payload.
void ClaimState::tell_loss(FinishDone done, std::shared_ptr<const Record> record, std::string missed) {
  if (decide(record.get(), *attempt, policy, core_->moment().earliest()).verdict != Verdict::replay) {
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
                 // As for any caller: the record may have changed meanwhile, and the result gone with it.
                 if (error->kind != ErrorKind::unavailable && look->missed != whole->result.location) {
                   return self->look_up_loss(std::move(look->done), whole->result.location);
                 }
                 self->tell(EventKind::store_error, whole.get(), &*error, self->core_->uptime());
                 look->done({.kind = Finish::Kind::lost, .record = std::move(whole), .error = std::move(*error)});
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
  doubtful_ = {};
  queue_.erase(queue_.begin());
  send(std::move(lock));
}

RecordPtr ClaimState::build(Write& write, Time now) const {
  const Stamp stamp = core_->stamp(now);
  auto built = std::make_shared<Record>(*record_);
  Record& next = *built;
  // Steps still in the queue have writes of their own: one that is too large must not take others down with it.
  const auto queued = std::count_if(queue_.begin(), queue_.end(), [](const Write& w) { return w.op == Op::step; });
  next.steps.insert(next.steps.end(), unwritten_.begin(), unwritten_.end() - queued);
  if (!unwritten_note_.empty()) next.note = unwritten_note_;
  switch (write.op) {
    case Op::renew:
    case Op::fence:
    case Op::step:
      renew(next, policy, stamp);  // The step is among the unwritten ones.
      return built;
    case Op::complete:
      complete(next, std::move(write.result), policy, stamp);
      break;
    case Op::fail:
      fail(next, *write.text, std::move(write.result), policy, stamp);
      break;
    case Op::hold:
      mark_unknown(next, write.text->message, stamp);
      break;
    case Op::release:
      release(next, write.text->message, policy, stamp);
      return built;
  }
  fit(next);
  return built;
}

// A finish must not fail for its size, or the work would run again: the input, steps, and then the result, give way.
void ClaimState::fit(Record& next) const {
  const std::size_t limit = core_->capabilities.max_record_bytes;
  if (record_bytes(next) <= limit) return;
  next.input.clear();
  if (record_bytes(next) > limit) next.steps.clear();
  if (record_bytes(next) > limit && has_bytes(next.result)) drop_bytes(next.result);
}

void ClaimState::send(std::unique_lock<std::mutex> lock) {
  const EngineCore::Moment moment = core_->moment();
  const Seen seen{.owner = record_->owner, .revision = record_->revision, .place = place_};
  std::shared_ptr<const Companion> companion;
  if (current_->op == Op::complete && current_->together) companion = current_->together->companion;
  Sent sent = doubtful_;
  sent.at = moment.uptime;
  if (!sent.next) {
    sent.next = build(*current_, moment.now);
    sent.counted_at = moment.uptime;
    sent.error = moment.error;
  }
  RecordPtr next = sent.next;
  const bool removes = is_removal(current_->op, *next);
  lock.unlock();
  Done done = [self = shared_from_this(), sent = std::move(sent)](Answer&& answer) mutable {
    self->on_answer(std::move(answer), std::move(sent));
  };
  if (removes) {
    core_->options.store->remove(key(), seen, std::move(done));
  } else if (companion != nullptr) {
    core_->options.store->replace_with(std::move(next), seen, std::move(companion), std::move(done));
  } else {
    core_->options.store->replace(std::move(next), seen, std::move(done));
  }
}

void ClaimState::on_answer(Answer&& answer, Sent&& sent) {
  core_->learn(answer, sent.at);
  std::unique_lock lock(mutex_);
  // A try that came to nothing gives back what it took.
  const bool took_result = current_->op == Op::complete || current_->op == Op::fail;
  if (took_result && answer.status != Answer::Status::done) current_->result = sent.next->result;
  switch (answer.status) {
    case Answer::Status::done:
      return on_written(std::move(lock), std::move(sent), answer.place);
    case Answer::Status::refused:
      return on_refused(std::move(lock), std::move(answer.record), answer.place, std::move(sent));
    case Answer::Status::failed:
      return on_failed(std::move(lock), std::move(answer), std::move(sent));
  }
}

void ClaimState::on_written(std::unique_lock<std::mutex> lock, Sent&& sent, std::uint64_t place) {
  const Op op = current_->op;
  const bool removed = is_removal(op, *sent.next);
  forget_written(*sent.next);
  if (place != 0) place_ = place;
  record_ = std::move(sent.next);
  if (!is_finish(op) || op == Op::fence) {
    if (!policy.fixed_lease) trust(sent);
    overdue_ = overdue_ && core_->uptime() >= trusted_until_;
    if (op == Op::fence) {
      Error error = std::move(current_->together->declined);
      return tell_declined(std::move(lock), std::move(error));
    }
    const Uptime due = heartbeats() ? sent.counted_at + renew_interval() : trusted_until_;
    lock.unlock();
    core_->flights.beat_at(*this, due);
    tell(event_of(op), nullptr, nullptr, sent.at);
    lock.lock();
    return end_write(std::move(lock), {});
  }
  end();
  auto record = removed ? nullptr : record_;
  FinishDone done = std::move(current_->done);
  current_.reset();
  lock.unlock();
  tell(event_of(op), record.get(), nullptr, claimed_at_);
  if (op == Op::complete) core_->cache.put(record);
  core_->flights.ended(*this, record, removed);
  if (done) done({.kind = Finish::Kind::recorded, .record = std::move(record), .error = {}});
}

// A lease was written, and the answer may have shown that what was known of the store's time is doubtful, or wrong. The
// next answers settle that: they are asked for at once, if no heartbeat would come in time.
void ClaimState::trust(const Sent& sent) {
  const EngineCore::Moment moment = core_->moment();
  Millis error = std::max(sent.error, moment.error);
  if (moment.told) {
    const Millis late = std::max(EngineCore::short_by(policy, *record_, sent.counted_at, moment), Millis{0});
    if (std::max(error, late) > EngineCore::tolerance(policy)) error = late + moment.error;
  }
  trusted_until_ = EngineCore::trusted_until(policy, sent.counted_at, error);
  const bool settled = !heartbeats() || trusted_until_ >= sent.counted_at + renew_interval();
  unsettled_ = settled ? 0 : unsettled_ + 1;
  if (!settled && unsettled_ <= most_unsettled && queue_.empty()) queue_.emplace_back();
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
                            Sent&& sent) {
  const bool removes = is_removal(current_->op, *sent.next);
  if (seen == nullptr && removes) return on_written(std::move(lock), std::move(sent), place);  // Gone, as was meant.
  if (seen != nullptr && same_write(*seen, *sent.next)) {
    sent.next = std::move(seen);
    return on_written(std::move(lock), std::move(sent), place);
  }
  if (seen != nullptr && seen->owner == attempt->owner && seen->state == State::in_progress && !is_released(*seen) &&
      revision_count(seen->revision) > revision_count(record_->revision)) {
    // Still ours under a later revision: a renewal of ours whose answer was lost, or an operator prolonged it. Adopt it
    // and try again. An earlier revision is our first write, sent twice by the network and landed again after the
    // record was removed: what we have written since is gone.
    if (current_->op == Op::release && record_->on_lapse == OnLapse::takeover && seen->on_lapse == OnLapse::hold) {
      // Whoever chose to release did not know yet that an operator asks for hold. The stricter wins.
      current_->op = Op::hold;
      current_->text->message.insert(0,
                                     "given up by its holder, who did not know yet that an operator asked for hold: ");
    }
    forget_written(*seen);
    doubtful_ = {};
    record_ = std::move(seen);
    if (place != 0) place_ = place;
    return send(std::move(lock));
  }
  // Somebody else has it, or it is gone.
  const Op op = current_->op;
  FinishDone done = std::move(current_->done);
  const bool told = overdue_ && !is_finish(op);  // The work was told to stop already.
  lost_ = true;
  if (is_finish(op)) end();
  stop_work(lock);
  lock.unlock();
  if (!told) tell(is_finish(op) ? EventKind::finish_refused : EventKind::renewal_lost, seen.get(), nullptr, sent.at);
  discard(*current_, seen.get());
  core_->flights.ended(*this, nullptr, false);
  if (done) tell_loss(std::move(done), std::move(seen));
  lock.lock();
  end_write(std::move(lock), {});
}

void ClaimState::on_failed(std::unique_lock<std::mutex> lock, Answer&& answer, Sent&& sent) {
  Write& write = *current_;
  Error& error = answer.error;
  const Uptime now = core_->uptime();
  const Uptime deadline = trusted_until_;
  const bool finish = is_finish(write.op);
  if (write.op == Op::step && answer.unfit) {
    // It must not take later writes down with it.
    std::erase_if(unwritten_, [&](const Step& step) { return step.name == write.text->code; });
  }
  if (finish && write.op != Op::fence && answer.unfit && has_bytes(write.result)) {
    // What must never happen is that the work runs again for a result that cannot be kept.
    drop_bytes(write.result);
    doubtful_ = {};
    lock.unlock();
    tell(EventKind::store_error, nullptr, &error, now);
    lock.lock();
    return send(std::move(lock));
  }
  if (write.together && write.op == Op::complete && (answer.declined || answer.unfit)) {
    return on_declined(std::move(lock), std::move(error));
  }
  const Uptime sent_at = sent.at;
  if (error.kind == ErrorKind::in_doubt) doubtful_ = std::move(sent);
  ++write.tries;
  // A finish is worth waiting for whoever puts right what is wrong with the store.
  const bool may_pass = passing(error.kind) || (finish && error.kind == ErrorKind::misuse && !answer.unfit);
  const bool again = may_pass && now < deadline && (write.op != Op::step || write.tries < foreground_tries) && !lost_;
  if (write.tries == 1 && policy.fixed_lease && now < deadline) {
    write.patient_until = sent_at + std::min<Uptime>(most_patience, (deadline - sent_at) / 4);
  }
  FinishDone told;
  if (again && finish && (write.tries >= foreground_tries || policy.fixed_lease) && now >= write.patient_until) {
    told = std::exchange(write.done, nullptr);
  }
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
  if (finish) end();
  lock.unlock();
  tell(EventKind::store_error, nullptr, &error, now);
  if (write.op == Op::step || (finish && !was_told)) tell(EventKind::unrecorded, nullptr, &error, claimed_at_);
  if (finish) core_->flights.ended(*this, nullptr, false);
  lock.lock();
  end_write(std::move(lock), {.kind = Finish::Kind::unrecorded, .record = nullptr, .error = std::move(error)});
}

void ClaimState::on_declined(std::unique_lock<std::mutex> lock, Error error) {
  Write& write = *current_;
  if (!doubtful_.next) return tell_declined(std::move(lock), std::move(error));
  // A try before this one may still be on its way to the store, and find its conditions true by then. Under another
  // revision it never will: only then is it certain that nothing was written.
  doubtful_ = {};
  write.op = Op::fence;
  write.tries = 0;
  write.together->declined = std::move(error);
  send(std::move(lock));
}

// Nothing was written: the claim goes on as before, if there is anybody to finish it.
void ClaimState::tell_declined(std::unique_lock<std::mutex> lock, Error error) {
  const bool forgotten = dropped_ || !current_->done;
  if (forgotten) {
    end();
  } else {
    finishing_ = false;
    finish_queued_ = false;
  }
  // No renewals were made while the finish was under way.
  const Uptime due = heartbeats() ? std::max(core_->uptime(), trusted_until_ - 2 * renew_interval()) : trusted_until_;
  lock.unlock();
  discard(*current_, nullptr);
  tell(EventKind::declined, nullptr, &error, claimed_at_);
  if (forgotten) {
    tell(EventKind::abandoned, nullptr, nullptr, claimed_at_);
    core_->flights.ended(*this, nullptr, false);
  } else {
    core_->flights.beat_at(*this, due);
  }
  lock.lock();
  end_write(std::move(lock), {.kind = Finish::Kind::declined, .record = nullptr, .error = std::move(error)});
}

void ClaimState::stop_work(std::unique_lock<std::mutex>& lock) {
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
    for (const Write& write : rest) {
      if (is_finish(write.op)) end();
    }
    lock.unlock();
    if (done) done(std::move(finish));
    for (Write& write : rest) {
      if (is_finish(write.op)) {
        tell(EventKind::finish_refused, nullptr, nullptr, claimed_at_);
        discard(write, nullptr);
      }
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
