#include "core/claim_machine.hpp"

#include <algorithm>

#include <once/clock.hpp>
#include <once/error.hpp>

namespace once {

namespace {

using Op = ClaimMachine::Op;
using Notice = ClaimMachine::Notice;

constexpr unsigned foreground_tries = 4;  // Then the caller gets `unrecorded`, and the engine retries without it.
// The most renewals in a row that ask for the store's time: the first that differs, those that outweigh all earlier
// ones, and one whose lease starts at the new time.
constexpr unsigned most_unsettled = StoreClock::outweighing + 1;
constexpr Millis most_patience{2'000};  // For callers under a fixed lease.
const RecordPtr nothing;

bool passing(ErrorKind kind) noexcept { return kind == ErrorKind::unavailable || kind == ErrorKind::in_doubt; }

// Whether its bytes are in the record.
bool has_bytes(const Result& result) noexcept {
  return !result.bytes.empty() && (result.placement == Placement::inlined || result.placement == Placement::compressed);
}

// Without what shorten() can drop.
std::size_t bytes_that_stay(const Record& record) noexcept {
  return record_bytes(record) - record.input.size() - history_bytes(record.history);
}

Notice notice_of(Op op) noexcept {
  switch (op) {
    case Op::renew:
    case Op::fence:
      return Notice::renewed;
    case Op::step:
      return Notice::step_recorded;
    case Op::complete:
      return Notice::completed;
    case Op::fail:
      return Notice::failed;
    case Op::hold:
      return Notice::held;
    case Op::release:
      return Notice::released;
  }
  return Notice::renewed;
}

// A transaction of the user's own writes nothing else. An `unknown` record has its claim's owner too: it lapsed under
// `hold`, and another caller marked it.
bool is_completed_by(const Record& record, const Owner& owner) noexcept {
  return record.state == State::completed && record.owner == owner;
}

}  // namespace

std::string drop_bytes(Result& result) {
  std::string bytes = std::exchange(result.bytes, {});
  if (result.placement == Placement::inlined) {
    result.size = bytes.size();
    result.digest = sha256(bytes);
  }
  result.placement = Placement::dropped;
  return bytes;
}

ClaimMachine::ClaimMachine(const Attempt& attempt, const EffectivePolicy& policy, Setting setting, RecordPtr record,
                           std::uint64_t place, Uptime leased_at, Uptime claimed_at, Uptime until)
    : attempt_(attempt),
      policy_(policy),
      setting_(setting),
      leased_at_(leased_at),
      claimed_at_(claimed_at),
      record_(std::move(record)),
      place_(place),
      trusted_until_(until) {}

// ---- events of the caller

void ClaimMachine::beat(Uptime now, Actions& out) {
  if (ended_ || lost_ || given_up_ || finish_queued_) return;
  if (now >= trusted_until_ && !overdue_) {
    // The renewal failed, hangs, or was not due, or the host slept: from now on another attempt may have the claim.
    overdue_ = true;
    give_up_at_ = now + policy_.lease;
    out.add(StopWork{.for_good = !heartbeats()});
    tell(Notice::renewal_lost, leased_at_, out);
  }
  if (!heartbeats()) return;
  if (overdue_ && now >= give_up_at_ + policy_.lease) give_up_at_ = now + policy_.lease;  // It slept again.
  if (overdue_ && now >= give_up_at_) {
    given_up_ = true;
    std::erase_if(queue_, [](const Write& write) { return write.op == Op::renew; });
    if (current_ && current_->op == Op::renew && phase_ != Phase::sent) drop_current(out);
    return out.add(StopWork{});
  }
  const Uptime next = now + renew_interval();
  out.add(BeatAt{std::min(next, overdue_ ? give_up_at_ : trusted_until_)});
  if (!current_) return start(Write(), out);
  if (phase_ == Phase::ready) out.add(Send{});  // As in pump().
}

void ClaimMachine::note(std::string_view text, Actions& out) {
  if (ended_ || lost_ || given_up_ || finishing_) return;
  if (!text.empty()) unwritten_note_ = clean_text(text);
  if (queue_.empty()) queue_.emplace_back();
  pump(out);
}

void ClaimMachine::step(Step step, FinishDone done, Actions& out) {
  if (step.name.empty() || step.name.size() > Step::max_name_bytes) {
    throw Exception(ErrorKind::misuse,
                    "a step's name must have 1 to 255 bytes, not " + std::to_string(step.name.size()));
  }
  if (find_step(step.name) != nullptr) {
    throw Exception(ErrorKind::misuse, "step '" + step.name + "' is finished already; a step's name is used once");
  }
  if (found_finished()) {
    Write late(Op::step, std::move(done));
    return come_too_late(std::move(late), out);
  }
  if (finishing_ || (ended_ && !lost_)) {
    throw Exception(ErrorKind::misuse, "step '" + step.name + "' comes after the finish");
  }
  if (lost_) return out.add(LookUp{.done = std::move(done), .is_seen = false, .seen = nullptr});
  if (!has_room_for(step)) {
    Error error{ErrorKind::misuse, "step '" + step.name + "' of " + std::to_string(step.result.size()) +
                                       " bytes was not kept: it leaves the record too little room to be ended, in a "
                                       "store for records of " +
                                       std::to_string(setting_.max_record_bytes) + " bytes"};
    tell(Notice::unrecorded, claimed_at_, out, nullptr, error);
    return out.add(
        Reply{std::move(done), {.kind = Finish::Kind::unrecorded, .record = nullptr, .error = std::move(error)}});
  }
  Write write(Op::step, std::move(done));
  write.text = std::make_unique<Failure>(Failure{.code = step.name, .message = {}});
  unwritten_.push_back(std::move(step));
  queue_.push_back(std::move(write));
  pump(out);
}

void ClaimMachine::ask_finish() {
  if (finishing_) throw Exception(ErrorKind::misuse, "the claim was finished already, or is handed out");
  finishing_ = true;
}

void ClaimMachine::finish(Write&& write, Result&& result, Actions& out) {
  const bool late = ended_ && !lost_;  // As found_finished().
  finish_queued_ = true;
  result_.emplace(std::move(result));
  if (late) return come_too_late(std::move(write), out);
  if (lost_) {
    ended_ = true;
    return meet_loss(std::move(write), out);
  }
  if (!current_ && queue_.empty()) return start(std::move(write), out);
  queue_.push_back(std::move(write));
  pump(out);
}

void ClaimMachine::abandon(Actions& out) {
  dropped_ = true;
  if (handed_out_ && forgotten_) return out.add(Read{});
  if (finishing_) return;
  finishing_ = true;
  finish_queued_ = true;
  // A renewal that waits for a retry is no longer needed. A running write (a step) may finish.
  if (current_ && current_->op == Op::renew && phase_ != Phase::sent) drop_current(out);
  if (!current_) ended_ = true;
  tell(Notice::abandoned, claimed_at_, out);
  out.add(Ended{.record = nullptr, .gone = false});
}

void ClaimMachine::hand_out(FinishDone done, Actions& out) {
  const auto is_step = [](const Write& write) { return write.op == Op::step; };
  if ((current_ && is_step(*current_)) || std::any_of(queue_.begin(), queue_.end(), is_step)) {
    throw Exception(ErrorKind::misuse, "a step is still being written: wait for it, then hand the finish out");
  }
  ask_finish();
  if (lost_) {
    finish_queued_ = ended_ = true;
    return meet_loss(Write(Op::complete, std::move(done)), out);
  }
  if (ended_) return come_too_late(Write(Op::complete, std::move(done)), out);  // As found_finished().
  handed_out_ = true;
  forgotten_ = false;
  handed_done_ = std::move(done);
}

RecordPtr ClaimMachine::completion(Result&& result, Stamp stamp) const {
  auto built = std::make_shared<Record>(*record_);
  complete(*built, std::move(result), policy_, stamp);
  if (record_bytes(*built) <= setting_.max_record_bytes) return built;
  // Unlike a finish of our own, it need not be fitted: nothing has been done yet.
  throw Exception(ErrorKind::misuse, "a result of " + std::to_string(built->result.bytes.size()) +
                                         " bytes is too large to be handed out: the record would have " +
                                         std::to_string(record_bytes(*built)) + " bytes, and the store keeps " +
                                         std::to_string(setting_.max_record_bytes));
}

void ClaimMachine::take_back(Actions& out) {
  if (!handed_out_) {
    // It is known how it ended, but its caller was not told: what he asks for next tells him.
    if (lost_ || ended_) finishing_ = false;
    return;
  }
  handed_out_ = finishing_ = false;
  taken_back_ = true;
  handed_done_ = nullptr;
  if (dropped_) abandon(out);
}

void ClaimMachine::forget_handed_out(Actions& out) {
  forgotten_ = true;
  handed_back(Outcome::in_doubt, out);
}

void ClaimMachine::handed_back(Outcome outcome, Actions& out, FinishDone done) {
  if (!handed_out_) {  // A renewal has found it.
    if (done && ended_ && !lost_) {
      RecordPtr found = record_->state == State::in_progress ? nullptr : record_;
      out.add(Reply{std::move(done), {.kind = Finish::Kind::recorded, .record = std::move(found), .error = {}}});
    }
    return;
  }
  if (!handed_done_) handed_done_ = std::move(done);
  outcome_ = outcome;
  if (outcome != Outcome::rolled_back) return out.add(Read{});
  end_handed_out({ErrorKind::unavailable, "the transaction that was to finish the claim was rolled back"}, out);
}

void ClaimMachine::read(Answer&& answer, Actions& out) {
  if (!handed_out_) return;
  if (answer.status == AnswerStatus::failed) {
    tell(Notice::store_error, claimed_at_, out, nullptr, answer.error);
    if (outcome_ == Outcome::committed) return find_handed_out(nullptr, out);
    return leave_handed_out(std::move(answer.error), out);
  }
  RecordPtr seen = std::move(answer.record);
  if (seen != nullptr && is_completed_by(*seen, attempt_.owner)) return find_handed_out(std::move(seen), out);
  const bool ours = seen != nullptr && seen->owner == attempt_.owner && seen->state == State::in_progress;
  if (!ours || is_released(*seen)) return lose_handed_out(std::move(seen), out);
  if (outcome_ == Outcome::committed) {
    return end_handed_out(
        {ErrorKind::misuse,
         "the record is still in progress: the transaction did not finish the claim, or it is prepared "
         "(PREPARE TRANSACTION) and not committed yet"},
        out);
  }
  leave_handed_out({ErrorKind::unavailable, "the transaction that was to finish the claim is not committed yet"}, out);
}

// ---- writes and their answers

void ClaimMachine::retry(std::uint64_t turn, Actions& out) {
  if (!waits(turn)) return;
  phase_ = Phase::ready;
  out.add(Send{});
}

void ClaimMachine::start(Write&& write, Actions& out) {
  current_.emplace(std::move(write));
  phase_ = Phase::ready;
  doubtful_ = {};
  out.add(Send{});
}

void ClaimMachine::pump(Actions& out) {
  if (queue_.empty() || ended_) return;
  if (current_) {
    // Its Send may still wait for a callback to return, in another thread or further up on this one's stack.
    if (phase_ == Phase::ready) return out.add(Send{});
    // A renewal that waits for a retry is replaced by the caller's write. If it was written after all, the next write's
    // refusal shows it.
    if (phase_ != Phase::waits || current_->op != Op::renew) return;
    drop_current(out);
  }
  Write next = std::move(queue_.front());
  queue_.erase(queue_.begin());
  start(std::move(next), out);
}

void ClaimMachine::drop_current(Actions& out) {
  if (phase_ == Phase::waits) out.add(DropRetry{.turn = turn_++});
  current_.reset();
}

std::optional<ClaimMachine::Transmit> ClaimMachine::transmit(const Moment& moment, std::uint32_t random) {
  if (!current_ || phase_ != Phase::ready) return std::nullopt;
  if (current_->op == Op::renew && !queue_.empty()) {  // Another write came since. It also renews.
    current_ = std::move(queue_.front());
    queue_.erase(queue_.begin());
    doubtful_ = {};
  }
  phase_ = Phase::sent;
  sent_ = doubtful_;
  sent_.at = moment.uptime;
  if (!sent_.next) {
    sent_.next = build(*current_, {moment.now, random});
    sent_.counted_at = moment.uptime;
    sent_.error = moment.error;
  }
  std::optional<Transmit> transmitted(std::in_place);
  Transmit& out = *transmitted;
  out.op = current_->op;
  out.is_failure = current_->is_failure;
  out.next = sent_.next;
  out.seen = {.owner = record_->owner, .revision = record_->revision, .place = place_};
  out.removes = is_removal(*out.next);
  if (current_->op == Op::complete && current_->together) out.companion = current_->together->companion;
  return transmitted;
}

// A release removes the record, unless it has finished steps, is under `hold`, or must bar a late finish. For example:
//
// 1. A finish is in doubt, its retry is declined, a fence bars the first try, and the claim is released.
// 2. The network delivers the claim's insert again, and then the first try of the finish. Without a record both fit.
bool ClaimMachine::is_removal(const Record& next) const noexcept {
  return current_->op == Op::release && next.steps.empty() && next.on_lapse == OnLapse::takeover && !late_finish_;
}

RecordPtr ClaimMachine::build(Write& write, Stamp stamp) {
  auto built = std::make_shared<Record>(*record_);
  Record& next = *built;
  // Steps in the queue have their own writes: one that is too large must not make others fail.
  const auto queued = std::count_if(queue_.begin(), queue_.end(), [](const Write& w) { return w.op == Op::step; });
  next.steps.insert(next.steps.end(), unwritten_.begin(), unwritten_.end() - queued);
  if (!unwritten_note_.empty()) next.note = unwritten_note_;
  switch (write.op) {
    case Op::renew:
    case Op::fence:
    case Op::step:
      renew(next, policy_, stamp);  // The step is in unwritten_.
      shorten(next, setting_.max_record_bytes);
      return built;
    case Op::complete:
      complete(next, std::move(*result_), policy_, stamp);
      if (without_extras_) next.steps.clear();
      if (write.is_failure) next.expires_at = failure_expiry(policy_, stamp.now);
      break;
    case Op::fail:
      fail(next, *write.text, std::move(*result_), policy_, stamp);
      break;
    case Op::hold:
      mark_unknown(next, write.text->message, stamp);
      break;
    case Op::release:
      release(next, write.text->message, policy_, stamp);
      shorten(next, setting_.max_record_bytes);
      return built;
  }
  if (without_extras_) shorten(next, 0);
  fit(next);
  return built;
}

// A finish must not fail because of its size, or the work would run again. So the input gives way, then the history,
// then the steps, then the result.
void ClaimMachine::fit(Record& next) const {
  const std::size_t limit = setting_.max_record_bytes;
  if (record_bytes(next) <= limit) return;
  if (bytes_that_stay(next) > limit) next.steps.clear();
  shorten(next, limit);
  if (record_bytes(next) > limit && has_bytes(next.result)) drop_bytes(next.result);
}

// The store has no room for the finish: at its next try it is smaller. First what nobody needs any more is left out,
// then the result. False: nothing is left. The steps of what has not succeeded stay: a later attempt needs them.
bool ClaimMachine::leave_out_more(const Write& write) {
  if (write.op == Op::release || write.op == Op::fence || !is_finish(write.op)) return false;
  const Record& record = *record_;
  const bool extras = !record.input.empty() || !record.history.entries.empty() ||
                      (write.op == Op::complete && !(record.steps.empty() && unwritten_.empty()));
  if (extras && !without_extras_) {
    without_extras_ = true;
  } else if (has_bytes(*result_)) {
    drop_bytes(*result_);
  } else {
    return false;
  }
  // Its earlier tries have other bytes.
  if (doubtful_.next) may_be_stored_.push_back(doubtful_.next->revision);
  doubtful_ = {};
  return true;
}

bool ClaimMachine::looks_at_time(const Answer& answer) const noexcept {
  return answer.status != AnswerStatus::done || !current_ || !is_finish(current_->op) || current_->op == Op::fence;
}

void ClaimMachine::answered(Answer&& answer, const Moment& moment, Actions& out, std::optional<Uptime> until) {
  Sent sent = std::exchange(sent_, {});
  if (ended_ && current_->op == Op::renew) return current_.reset();  // The handed-out finish has ended.
  // After a failed try the write needs its result again.
  const bool took_result = current_->op == Op::complete || current_->op == Op::fail;
  if (took_result && answer.status != AnswerStatus::done) *result_ = sent.next->result;
  // Also after a refusal: the network may have delivered it twice, and this is the answer to the second one.
  if (answer.status != AnswerStatus::done && !doubtful_.next) may_be_stored_.push_back(sent.next->revision);
  switch (answer.status) {
    case AnswerStatus::done:
      if (answer.record != nullptr) sent.next = std::move(answer.record);  // As a server has stored it.
      return on_written(std::move(sent), answer.place, moment, until, out);
    case AnswerStatus::refused:
      return on_refused(std::move(answer.record), answer.place, std::move(sent), moment, out);
    case AnswerStatus::failed:
      return on_failed(std::move(answer), std::move(sent), moment, out);
  }
}

void ClaimMachine::on_written(Sent&& sent, std::uint64_t place, const Moment& moment, std::optional<Uptime> until,
                              Actions& out) {
  const Op op = current_->op;
  const bool removed = is_removal(*sent.next);
  forget_written(*sent.next);
  if (place != 0) place_ = place;
  may_be_stored_.clear();
  record_ = std::move(sent.next);
  if (is_finish(op) && op != Op::fence) {
    ended_ = true;
    const RecordPtr& record = removed ? nothing : record_;
    tell(notice_of(op), claimed_at_, out, record);
    out.add(Ended{.record = record, .gone = removed, .done = std::move(current_->done)});
    return current_.reset();
  }
  if (until) {
    trusted_until_ = *until;
  } else if (!policy_.fixed_lease) {
    trust(sent, moment);
  }
  overdue_ = overdue_ && moment.uptime >= trusted_until_;
  if (op == Op::fence) return tell_declined(std::move(current_->together->declined), moment, out);
  // Its answer may have shown that the lease ends before the next renewal. A server whose own renewals fail says so by
  // a time that becomes shorter: it is asked again while there is some left.
  const Uptime next =
      sent.counted_at + (until ? std::min(renew_interval(), (*until - sent.counted_at) / 2) : renew_interval());
  out.add(BeatAt{!heartbeats() ? trusted_until_ : overdue_ ? next : std::min(next, trusted_until_)});
  tell(notice_of(op), sent.at, out);
  end_write({}, out);
}

// A lease was written, and its answer may contradict the known store time. The next answers settle that. They are
// requested at once if no heartbeat would come in time.
void ClaimMachine::trust(const Sent& sent, const Moment& moment) {
  Millis error = std::max(sent.error, moment.error);
  if (moment.told) {
    const Millis late = std::max(short_by(policy_, *record_, sent.counted_at, moment), Millis{0});
    if (std::max(error, late) > tolerance_of(policy_)) error = late + moment.error;
  }
  trusted_until_ = trusted_until(policy_, sent.counted_at, error);
  const bool settled = !heartbeats() || trusted_until_ >= sent.counted_at + renew_interval();
  unsettled_ = settled ? 0 : unsettled_ + 1;
  if (!settled && !given_up_ && unsettled_ <= most_unsettled && queue_.empty()) queue_.emplace_back();
}

// Steps and notes that came during the write are still to be written.
void ClaimMachine::forget_written(const Record& stored) {
  if (unwritten_.empty() && unwritten_note_.empty()) return;
  const std::size_t before = record_->steps.size();
  const std::size_t more = stored.steps.size() > before ? stored.steps.size() - before : 0;
  unwritten_.erase(unwritten_.begin(),
                   unwritten_.begin() + static_cast<std::ptrdiff_t>(std::min(more, unwritten_.size())));
  if (stored.note == unwritten_note_) unwritten_note_.clear();
}

// Whether the stored record is the one we wanted to write, so that only the answer was lost. An operator may have
// extended the retention of a result since. A copy of this process may have written the same result under another
// revision: that is the copy's.
bool ClaimMachine::is_as_sent(const Record& stored, const Record& meant) const {
  if (!(stored.owner == meant.owner) || stored.state != meant.state) return false;
  if (stored.state == State::in_progress) {
    return stored.revision == meant.revision && stored.lease_until == meant.lease_until &&
           stored.steps.size() == meant.steps.size();
  }
  return leads_back(stored, meant.revision) && stored.result == meant.result && stored.failure == meant.failure;
}

// Whether only we and operators have written since record_. Otherwise a copy of this process has: see leads_back().
bool ClaimMachine::is_explained(const Record& stored) const noexcept {
  return leads_back(stored, record_->revision) ||
         std::any_of(may_be_stored_.begin(), may_be_stored_.end(),
                     [&](std::uint64_t ours) { return leads_back(stored, ours); });
}

// Writes over an earlier record cannot happen any more.
void ClaimMachine::settle_doubts() noexcept {
  doubtful_ = {};
  may_be_stored_.clear();
}

void ClaimMachine::on_refused(RecordPtr seen, std::uint64_t place, Sent&& sent, const Moment& moment, Actions& out) {
  const bool removes = is_removal(*sent.next);
  if (seen == nullptr && removes)
    return on_written(std::move(sent), place, moment, std::nullopt, out);  // Removed, as wanted.
  // Or an earlier try, which had more bytes: see leave_out_more().
  const bool earlier = seen != nullptr && seen->state != State::in_progress && seen->state == sent.next->state &&
                       std::ranges::find(may_be_stored_, seen->revision) != may_be_stored_.end();
  if (seen != nullptr && (earlier || is_as_sent(*seen, *sent.next))) {
    sent.next = std::move(seen);
    return on_written(std::move(sent), place, moment, std::nullopt, out);
  }
  const bool ours = seen != nullptr && seen->owner == attempt_.owner;
  if (ours && seen->state == State::in_progress && !is_released(*seen) && seen->revision != record_->revision &&
      is_explained(*seen)) {
    // Still ours under a later revision: the answer to an earlier write of ours was lost, or an operator extended the
    // claim. Adopt the record and try again. Any other record of our owner is not: a copy of this process wrote it, or
    // the network delivered our first write again after the record was removed (and an operator extended that).
    return adopt(std::move(seen), place, out);
  }
  if ((handed_out_ || taken_back_) && seen != nullptr && is_completed_by(*seen, attempt_.owner)) {
    queue_.insert(queue_.begin(), *std::exchange(current_, std::nullopt));
    return find_handed_out(std::move(seen), out);
  }
  lose(std::move(seen), sent.at, out);
}

void ClaimMachine::adopt(RecordPtr seen, std::uint64_t place, Actions& out) {
  if (current_->op == Op::release && record_->on_lapse == OnLapse::takeover && seen->on_lapse == OnLapse::hold) {
    // The holder released without knowing that an operator had set `hold`. The stricter wins.
    current_->op = Op::hold;
    current_->text->message.insert(0, "released by its holder, who did not know yet that an operator asked for hold: ");
  }
  forget_written(*seen);
  // Its revision bars the try that was in doubt, as long as the record stays: see is_removal().
  if (doubtful_.next && current_->together) late_finish_ = true;
  settle_doubts();
  record_ = std::move(seen);
  if (place != 0) place_ = place;
  phase_ = Phase::ready;
  out.add(Send{});
}

// Another attempt has the claim, or the record was removed. The caller of current_ gets the stored record.
void ClaimMachine::lose(RecordPtr seen, Uptime since, Actions& out) {
  const bool finish = is_finish(current_->op);
  const bool told = overdue_ && !finish;  // The work was stopped already.
  lost_ = true;
  lost_to_copy_ = seen != nullptr && seen->owner == attempt_.owner && seen->state != State::unknown;
  ended_ = ended_ || finish;
  out.add(StopWork{});
  if (!told) tell(finish ? Notice::finish_refused : Notice::renewal_lost, since, out, seen);
  FinishDone done = std::move(current_->done);
  discard(*current_, seen.get(), out);
  out.add(Ended{.record = nullptr, .gone = false});
  if (done) out.add(LookUp{.done = std::move(done), .is_seen = true, .seen = std::move(seen)});
  end_write({}, out);
}

void ClaimMachine::on_failed(Answer&& answer, Sent&& sent, const Moment& moment, Actions& out) {
  Write& write = *current_;
  Error& error = answer.error;
  const Uptime now = moment.uptime;
  const Uptime deadline = overdue_ && write.op == Op::renew ? give_up_at_ : trusted_until_;
  const bool finish = is_finish(write.op);
  if (write.op == Op::step && answer.unfit) {
    // It must not make later writes fail.
    std::erase_if(unwritten_, [&](const Step& step) { return step.name == write.text->code; });
  }
  if (finish && write.op != Op::fence && answer.unfit && has_bytes(*result_)) {
    // The work must never run again because its result cannot be kept.
    drop_bytes(*result_);
    doubtful_ = {};
    phase_ = Phase::ready;
    tell(Notice::store_error, now, out, nullptr, std::move(error));
    return out.add(Send{});
  }
  if (write.together && write.op == Op::complete && (answer.declined || answer.unfit)) {
    return on_declined(std::move(error), moment, out);
  }
  const Uptime sent_at = sent.at;
  if (error.kind == ErrorKind::in_doubt) doubtful_ = std::move(sent);
  ++write.tries;
  // A finish is retried until an operator has repaired the store.
  const bool may_pass = passing(error.kind) || (finish && error.kind == ErrorKind::misuse && !answer.unfit);
  const bool again = may_pass && now < deadline && (write.op != Op::step || write.tries < foreground_tries) && !lost_;
  if (write.tries == 1 && policy_.fixed_lease && now < deadline) {
    write.patient_until = sent_at + std::min<Uptime>(most_patience, (deadline - sent_at) / 4);
  }
  const bool waited =
      now >= deadline || ((write.tries >= foreground_tries || policy_.fixed_lease) && now >= write.patient_until);
  if (answer.no_room && waited && !write.together && !lost_ && leave_out_more(write)) {
    // The work must never run again because there is no room for its result. With a companion nothing was done yet.
    phase_ = Phase::ready;
    tell(Notice::store_error, now, out, nullptr, std::move(error));
    return out.add(Send{});
  }
  if (!again) {
    const bool tells = write.op == Op::step || (finish && write.done);
    ended_ = ended_ || finish;
    tell(Notice::store_error, now, out, nullptr, error);
    if (tells) tell(Notice::unrecorded, claimed_at_, out, nullptr, error);
    if (finish) out.add(Ended{.record = nullptr, .gone = false});
    return end_write({.kind = Finish::Kind::unrecorded, .record = nullptr, .error = std::move(error)}, out);
  }
  const bool tells = finish && write.done && waited;
  phase_ = Phase::waits;
  out.add(RetryAt{.from = now, .latest = deadline, .tries = write.tries, .turn = ++turn_});
  tell(Notice::store_error, now, out, nullptr, error);
  if (tells) {
    tell(Notice::unrecorded, claimed_at_, out, nullptr, error);
    out.add(Reply{std::exchange(write.done, nullptr),
                  {.kind = Finish::Kind::unrecorded, .record = nullptr, .error = std::move(error)}});
  }
  pump(out);  // A caller may have asked for another write.
}

void ClaimMachine::on_declined(Error error, const Moment& moment, Actions& out) {
  if (!doubtful_.next) return tell_declined(std::move(error), moment, out);
  // An earlier try may still reach the store, when its conditions hold. A write under another revision prevents that.
  // Only after it is it certain that nothing was written.
  doubtful_ = {};
  late_finish_ = true;
  current_->op = Op::fence;
  current_->tries = 0;
  current_->together->declined = std::move(error);
  phase_ = Phase::ready;
  out.add(Send{});
}

// Nothing was written: the claim continues, if its handle still exists.
void ClaimMachine::tell_declined(Error error, const Moment& moment, Actions& out) {
  const bool forgotten = dropped_ || !current_->done;
  discard(*current_, nullptr, out);
  tell(Notice::declined, claimed_at_, out, nullptr, error);
  if (forgotten) {
    ended_ = true;
    tell(Notice::abandoned, claimed_at_, out);
    out.add(Ended{.record = nullptr, .gone = false});
  } else {
    finishing_ = false;
    finish_queued_ = false;
    // There were no renewals during the finish.
    out.add(BeatAt{heartbeats() ? std::max(moment.uptime, trusted_until_ - 2 * renew_interval()) : trusted_until_});
  }
  end_write({.kind = Finish::Kind::declined, .record = nullptr, .error = std::move(error)}, out);
}

void ClaimMachine::end_write(Finish finish, Actions& out) {
  FinishDone done = std::move(current_->done);
  current_.reset();
  if (done) out.add(Reply{std::move(done), std::move(finish)});
  if (!lost_ || ended_) return pump(out);
  // The queued writes fail too, one by one.
  for (Write& write : std::exchange(queue_, {})) {
    if (is_finish(write.op)) ended_ = true;
    meet_loss(std::move(write), out);
  }
}

void ClaimMachine::meet_loss(Write&& write, Actions& out) {
  if (is_finish(write.op)) {
    tell(Notice::finish_refused, claimed_at_, out);
    discard(write, nullptr, out);
  }
  if (write.done) out.add(LookUp{.done = std::move(write.done), .is_seen = false, .seen = nullptr});
}

// The stored record names another result, so ours would never be found. But a copy of this process may be about to name
// ours, if it was copied after the result was kept.
void ClaimMachine::discard(const Write& write, const Record* stored, Actions& out) const {
  if (!write.offloaded || lost_to_copy_ || (stored != nullptr && stored->result.location == result_->location)) return;
  out.add(Discard{result_->location});
}

// ---- handed out

// The transaction has finished the claim. `record`: as stored, or null if not known.
void ClaimMachine::find_handed_out(RecordPtr record, Actions& out) {
  handed_out_ = false;
  finish_queued_ = ended_ = true;
  if (current_ && phase_ != Phase::sent) drop_current(out);
  if (record != nullptr) record_ = record;
  tell(Notice::completed, claimed_at_, out, record);
  out.add(Ended{.record = std::move(record), .gone = false, .done = std::move(handed_done_)});
  // Taken back, the claim was used further.
  for (Write& write : std::exchange(queue_, {})) come_too_late(std::move(write), out);
}

// Asked for after the transaction had finished the claim.
void ClaimMachine::come_too_late(Write&& write, Actions& out) {
  Finish finish{.kind = Finish::Kind::recorded, .record = record_, .error = {}};
  if (!is_finish(write.op)) {
    finish = {.kind = Finish::Kind::unrecorded,
              .record = nullptr,
              .error = {ErrorKind::misuse, "the operation was finished by a transaction before this step"}};
    if (write.done) tell(Notice::unrecorded, claimed_at_, out, nullptr, finish.error);
  } else if (result_) {
    discard(write, record_.get(), out);
  }
  if (write.done) out.add(Reply{std::move(write.done), std::move(finish)});
}

void ClaimMachine::lose_handed_out(RecordPtr seen, Actions& out) {
  handed_out_ = false;
  lost_ = finish_queued_ = ended_ = true;
  if (current_ && phase_ != Phase::sent) drop_current(out);
  out.add(StopWork{});
  tell(Notice::finish_refused, claimed_at_, out, seen);
  out.add(Ended{.record = nullptr, .gone = false});
  if (handed_done_) out.add(LookUp{.done = std::move(handed_done_), .is_seen = true, .seen = std::move(seen)});
}

// The transaction did not and will not finish it: the claim continues, if its handle still exists.
void ClaimMachine::end_handed_out(Error error, Actions& out) {
  handed_out_ = false;
  FinishDone done = std::move(handed_done_);
  if (lost_) {
    finish_queued_ = ended_ = true;
    return meet_loss(Write(Op::complete, std::move(done)), out);
  }
  finishing_ = false;
  tell(Notice::declined, claimed_at_, out, nullptr, error);
  if (dropped_) abandon(out);
  if (done)
    out.add(Reply{std::move(done), {.kind = Finish::Kind::declined, .record = nullptr, .error = std::move(error)}});
}

// Not known yet: a renewal or another handed_back() may show it. If nobody is left to tell, the claim lapses. The
// transaction may still commit until another attempt takes over.
void ClaimMachine::leave_handed_out(Error error, Actions& out) {
  if (handed_done_) {
    tell(Notice::unrecorded, claimed_at_, out, nullptr, error);
    out.add(Reply{std::exchange(handed_done_, nullptr),
                  {.kind = Finish::Kind::unrecorded, .record = nullptr, .error = std::move(error)}});
  }
  if (!dropped_ || !forgotten_) return;
  handed_out_ = false;
  finish_queued_ = ended_ = true;
  if (current_ && phase_ != Phase::sent) drop_current(out);
  tell(Notice::abandoned, claimed_at_, out);
  out.add(Ended{.record = nullptr, .gone = false});
}

// ---- state

ClaimMachine::Stage ClaimMachine::stage() const noexcept {
  if (ended_) return Stage::ended;
  if (current_) return phase_ == Phase::waits ? Stage::waiting : Stage::writing;
  if (lost_) return Stage::lost;
  return handed_out_ ? Stage::handed_out : Stage::idle;
}

const Step* ClaimMachine::find_step(std::string_view name) const noexcept {
  for (const auto* steps : {&record_->steps, &unwritten_}) {
    for (const Step& step : *steps) {
      if (step.name == name) return &step;
    }
  }
  return nullptr;
}

bool ClaimMachine::has_room_for(const Step& step) const noexcept {
  std::size_t sum = bytes_that_stay(*record_) + room_to_end(*record_);
  sum += step.name.size() + step.result.size();
  for (const Step& other : unwritten_) sum += other.name.size() + other.result.size();
  return sum <= setting_.max_record_bytes;
}

std::size_t ClaimMachine::inline_limit() const noexcept {
  const std::size_t most = setting_.max_record_bytes;
  const std::size_t rest = 256 + record_->key.size() + record_->holder.size() + record_->label.size() +
                           Record::max_text_bytes + Result::max_content_type_bytes + Failure::max_code_bytes +
                           Failure::max_message_bytes;
  return std::min(policy_.max_inline_bytes, most > rest ? most - rest : 0);
}

void ClaimMachine::tell(Notice notice, Uptime since, Actions& out, const RecordPtr& record,
                        std::optional<Error> error) const {
  const bool is_signal = notice == Notice::unrecorded || notice == Notice::finish_refused;
  if (!setting_.is_observed && !is_signal) return;
  out.add(Tell{.notice = notice, .since = since, .record = record, .error = std::move(error)});
}

}  // namespace once
