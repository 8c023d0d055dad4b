#include "engine/flights.hpp"

#include <algorithm>
#include <utility>

#include "engine/claim_state.hpp"
#include "engine/core.hpp"

namespace once {

namespace {

constexpr Millis first_poll{20};
constexpr Millis most_poll{1'000};
constexpr Millis least_lease{10};  // Policy::lease.

// How long until the claim in the way has lapsed; a millisecond more, to be sure.
Millis lapse_of(const Decision& decision) noexcept { return decision.retry_after + Millis{1}; }

EventKind event_of_answer(Begin::Kind kind) noexcept {
  switch (kind) {
    case Begin::Kind::conflict:
      return EventKind::conflict;
    case Begin::Kind::mismatch:
      return EventKind::mismatch;
    case Begin::Kind::unknown:
      return EventKind::unknown;
    default:
      return EventKind::replayed;
  }
}

}  // namespace

EventKind Flights::event_of(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::resume:
      return EventKind::resumed;
    case Verdict::retry:
    case Verdict::take_over:
      return EventKind::took_over;
    default:
      return EventKind::claimed;
  }
}

std::optional<Begin> Flights::cached(const Request& request, const EffectivePolicy& policy) {
  if (!core_.cache.enabled()) return std::nullopt;
  const std::string& key = request.key.stored();
  const Uptime since = core_.options.observer ? core_.uptime() : Uptime{};
  RecordPtr record = core_.cache.find(key);
  if (record == nullptr) return std::nullopt;
  // No owner is needed: cached records are finished.
  Attempt attempt;
  attempt.fingerprint = request.fingerprint;
  // The latest possible time, so that a cached record expires early rather than late.
  const Moment moment = core_.moment();
  const Decision decision = decide(record.get(), attempt, policy, moment.now + moment.error);
  if (decision.verdict != Verdict::replay && decision.verdict != Verdict::mismatch) {
    core_.cache.remove(key);
    return std::nullopt;
  }
  Begin begin = begin_of(decision, std::move(record));
  if (core_.options.observer) {
    const auto trace = core_.trace_of(request.trace);
    core_.tell({.kind = event_of_answer(begin.kind),
                .key = key,
                .record = begin.record.get(),
                .trace = trace.get(),
                .took = core_.uptime() - since,
                .coalesced = true});
  }
  return begin;
}

void Flights::join(Caller&& caller) {
  const HashedKey name(caller.attempt->flight());
  Shard& shard = shard_of(name);
  std::shared_ptr<ClaimState> holder;  // Released without the mutex: it may be the last reference.
  std::unique_lock lock(shard.mutex);
  const auto place = shard.flights.find(name);
  if (place == shard.flights.end()) {
    Flight& flight = add(shard, name);
    flight.first = caller.attempt;
    flight.hash = name.hash;
    // Its lease starts when the caller came. That is before the request is sent, which is safe, and saves reading the
    // clock.
    const Uptime now = caller.since;
    flight.callers.push_back(std::move(caller));
    return converse(std::move(lock), &flight, {.now = now});
  }
  Flight& flight = place->second;
  if (flight.phase == Phase::claiming) {
    caller.late = true;
    flight.callers.push_back(std::move(caller));
    return;
  }
  const Uptime now = core_.uptime();
  const bool waits = caller.waits(now);
  if (flight.phase == Phase::polling) {
    const Uptime until = caller.wait_until;
    flight.callers.push_back(std::move(caller));
    if (waits) return set_timer(flight, until);
    // The last poll may be old. A caller that does not wait gets a fresh answer, and all others get it too.
    return ask_again(std::move(lock), flight);
  }
  holder = holder_of(flight);
  if (holder != nullptr) {
    std::shared_ptr<const Record> record = holder->record();
    const Decision decision = decide(record.get(), *caller.attempt, caller.attempt->policy, core_.moment().earliest());
    if (decision.verdict == Verdict::conflict && waits) {
      set_timer(flight, std::min(caller.wait_until, now + lapse_of(decision)));
      caller.late = holder->finishing();
      flight.callers.push_back(std::move(caller));
      return;
    }
    if (decision.verdict == Verdict::conflict || decision.verdict == Verdict::mismatch) {
      lock.unlock();
      return reply(std::move(caller), begin_of(decision, std::move(record)));
    }
  }
  // This process's claim looks lapsed: ask the store.
  flight.callers.push_back(std::move(caller));
  ask_again(std::move(lock), flight);
}

std::shared_ptr<ClaimState> Flights::holder_of(const Flight& flight) {
  // The claim exists: its destructor calls forget() under the mutex. But it may be waiting for the mutex there.
  return flight.holder == nullptr ? nullptr : flight.holder->weak_from_this().lock();
}

void Flights::converse(std::unique_lock<WordLock> lock, Flight* flight, Conversation::Start start) {
  Caller& leader = flight->callers.front();
  leader.led = true;
  EngineAttempt& attempt = *leader.attempt;             // Owned by the leader, which the flight owns.
  if (start.kind != Conversation::Start::Kind::seen) {  // `seen` is an older answer: it does not serve late callers.
    for (Caller& caller : flight->callers) caller.late = false;
  }
  Millis lease = attempt.policy.lease;
  // The work is stopped at a fixed time, so the time spent waiting for another claim is subtracted from its lease.
  if (attempt.policy.fixed_lease && attempt.policy.on_conflict == OnConflict::wait) {
    lease = std::max(least_lease, lease - std::chrono::floor<Millis>(core_.uptime() - leader.since));
  }
  lock.unlock();
  // The conversation keeps the core alive, and so this object, until its last callback.
  Conversation::start(core_.shared_from_this(), attempt, lease, std::move(start),
                      [this, flight](Conversation::End&& end) { on_end(flight, std::move(end)); });
}

void Flights::on_end(Flight* flight, Conversation::End&& end) {
  const HashedKey name(flight->first->flight(), flight->hash);
  Shard& shard = shard_of(name);
  std::unique_lock lock(shard.mutex);
  if (end.kind == Conversation::End::Kind::seen) return go_on(shard, std::move(lock), flight, end.record, end.place);
  if (end.kind == Conversation::End::Kind::failed) {
    // The error is the answer to all callers.
    Replies replies;
    for (Caller& caller : flight->callers) {
      Begin begin;
      begin.error = end.error;
      // With a record, no caller runs unprotected: the store had answered before.
      begin.record = end.record != nullptr ? end.record : flight->seen != nullptr ? flight->seen : caller.missed;
      replies.emplace_back(std::move(caller), std::move(begin));
    }
    erase(shard, shard.flights.find(name));
    lock.unlock();
    return reply(std::move(replies));
  }
  Caller leader = std::move(flight->callers.front());
  flight->callers.erase(flight->callers.begin());
  std::shared_ptr<ClaimState> state = claimed(end, leader.attempt);
  state->flight_hash = flight->hash;
  flight->phase = Phase::held;
  flight->holder = state.get();
  const Uptime due = state->first_beat();
  shard.claims.add(*state, due);
  Replies replies;
  std::shared_ptr<EngineCore> core;  // Keeps the core alive: the claim's caller may drop the claim at once.
  if (!flight->callers.empty()) {
    core = core_.shared_from_this();
    // The others find a conflict or a mismatch with the live claim. Any other verdict is handled when the timer fires.
    for (Caller& caller : flight->callers) caller.late = false;  // Its finish has not begun.
    settle(*flight, state->record(), true, replies);
    if (!flight->callers.empty()) set_timer(*flight, look_at_holder(*flight, state->record()));
  }
  lock.unlock();
  core_.heartbeats.schedule(due);
  Begin begin;
  begin.kind = Begin::Kind::claimed;
  begin.claim = Claim(std::move(state));
  begin.verdict = end.verdict;
  reply(std::move(leader), std::move(begin));
  if (!replies.empty()) reply(std::move(replies));
}

void Flights::begin_at(ClaimsServer& server, Caller&& caller) {
  caller.led = true;
  const auto kept = std::make_shared<Caller>(std::move(caller));
  const EffectivePolicy& policy = kept->attempt->policy;
  const Millis wait = policy.on_conflict == OnConflict::wait ? policy.wait : Millis{0};
  server.begin(*kept->attempt, policy, wait,
               [this, core = core_.shared_from_this(), kept](ClaimsServer::Begun&& begun) {
                 begun_at_server(std::move(*kept), std::move(begun));
               });
}

void Flights::begun_at_server(Caller&& caller, ClaimsServer::Begun&& begun) {
  Begin begin;
  if (begun.claim != nullptr) {
    caller.attempt->owner = begun.record->owner;
    auto state = std::make_shared<ClaimState>(core_.shared_from_this(), caller.attempt, std::move(begun.record), 0,
                                              begun.sent, core_.uptime(), begun.until, std::move(begun.claim));
    core_.heartbeats.schedule(add_without_flight(*state));
    begin.kind = Begin::Kind::claimed;
    begin.claim = Claim(std::move(state));
    begin.verdict = begun.decision.verdict;
  } else if (begun.record != nullptr) {
    begin = begin_of(begun.decision, std::move(begun.record));
  } else {
    core_.tell({.kind = EventKind::store_error,
                .key = caller.attempt->key,
                .trace = caller.attempt->trace.get(),
                .error = &begun.error});
    begin.error = std::move(begun.error);
    begin.is_unreadable = begun.is_unreadable;
  }
  reply(std::move(caller), std::move(begin));
}

Uptime Flights::add_without_flight(ClaimState& claim) {
  const HashedKey name(claim.attempt->flight());
  claim.flight_hash = name.hash;
  const Uptime due = claim.first_beat();
  Shard& shard = shard_of(name);
  const std::lock_guard lock(shard.mutex);
  shard.claims.add(claim, due);
  return due;
}

void Flights::attach(std::shared_ptr<EngineAttempt> attempt, Callback<void(Attached&&)> done) {
  auto call = std::make_shared<Attaching>(Attaching{std::move(attempt), std::move(done), core_.uptime()});
  EngineAttempt& its = *call->attempt;
  Conversation::start(core_.shared_from_this(), its, its.policy.lease, {.kind = Conversation::Start::Kind::read},
                      [this, call](Conversation::End&& end) { attached(*call, std::move(end)); });
}

void Flights::attached(Attaching& call, Conversation::End&& end) {
  Attached answer;
  switch (end.kind) {
    case Conversation::End::Kind::failed:
      answer.finish.kind = Finish::Kind::unrecorded;
      answer.finish.record = std::move(end.record);
      answer.finish.error = std::move(end.error);
      core_.tell_failed(*call.attempt, answer.finish.error);
      return call.done(std::move(answer));
    case Conversation::End::Kind::seen:
      return not_attached(std::move(call), std::move(end.record));
    case Conversation::End::Kind::claimed:
      break;
  }
  const std::shared_ptr<EngineCore> core = core_.shared_from_this();  // The caller may drop the claim at once.
  if (!end.record->fingerprint.empty()) {  // A later result of another payload is not this claim's.
    call.attempt->fingerprint = end.record->fingerprint;
  }
  std::shared_ptr<ClaimState> state = claimed(end, call.attempt);
  const Uptime due = add_without_flight(*state);
  {
    const HashedKey name(state->attempt->flight(), state->flight_hash);
    Shard& shard = shard_of(name);
    std::shared_ptr<ClaimState> holder;  // As in join().
    std::unique_lock lock(shard.mutex);
    // A flight that another handle of the claim holds would answer from what that knows, until it learns of its loss.
    const auto flight = shard.flights.find(name);
    if (flight != shard.flights.end() && flight->second.phase == Phase::held) {
      holder = holder_of(flight->second);
      if (holder != nullptr && holder->attempt->owner == state->attempt->owner) {
        if (flight->second.callers.empty()) {
          erase(shard, flight);
        } else {
          ask_again(std::move(lock), flight->second);
        }
      }
    }
  }
  core_.heartbeats.schedule(due);
  if (core_.options.observer) {
    const RecordPtr record = state->record();
    core_.tell({.kind = EventKind::resumed,
                .key = record->key,
                .record = record.get(),
                .trace = state->attempt->trace.get(),
                .took = core_.uptime() - call.since});
  }
  answer.claim = Claim(std::move(state));
  call.done(std::move(answer));
}

void Flights::not_attached(Attaching&& call, std::shared_ptr<const Record> record) {
  const EngineAttempt& attempt = *call.attempt;
  const Verdict verdict = decide(record.get(), attempt, attempt.policy, core_.moment().earliest()).verdict;
  const bool stands = record != nullptr && verdict != Verdict::execute;
  const bool own =
      stands && record->owner == attempt.owner && (record->state == State::completed || record->state == State::failed);
  const Finish::Kind kind = own                          ? Finish::Kind::recorded
                            : verdict == Verdict::replay ? Finish::Kind::superseded
                                                         : Finish::Kind::lost;
  auto kept = std::make_shared<Attaching>(std::move(call));
  const auto answer = [this, kept](std::shared_ptr<const Record> whole, Finish::Kind how, Error error) {
    const EventKind told = how != Finish::Kind::lost                            ? EventKind::replayed
                           : whole != nullptr && whole->state == State::unknown ? EventKind::unknown
                                                                                : EventKind::conflict;
    core_.tell({.kind = told,
                .key = kept->attempt->key,
                .record = whole.get(),
                .trace = kept->attempt->trace.get(),
                .took = core_.uptime() - kept->since});
    Attached over;
    over.finish = {.kind = how, .record = std::move(whole), .error = std::move(error)};
    kept->done(std::move(over));
  };
  if (kind == Finish::Kind::lost) return answer(std::move(record), kind, {});
  core_.fetch(std::move(record), [core = core_.shared_from_this(), kept, answer, kind](
                                     std::shared_ptr<const Record> whole, std::optional<Error> error) {
    if (!error) return answer(std::move(whole), kind, {});
    core->tell({.kind = EventKind::store_error,
                .key = whole->key,
                .record = whole.get(),
                .trace = kept->attempt->trace.get(),
                .error = &*error});
    answer(std::move(whole), kind == Finish::Kind::recorded ? kind : Finish::Kind::lost, std::move(*error));
  });
}

Flights::Flight& Flights::add(Shard& shard, const HashedKey& name) {
  if (shard.spare.empty()) return shard.flights.try_emplace(name).first->second;
  Table::node_type node = std::move(shard.spare.back());
  shard.spare.pop_back();
  node.key() = name;
  return shard.flights.insert(std::move(node)).position->second;
}

void Flights::erase(Shard& shard, Table::iterator flight) {
  constexpr std::size_t most_spare = 8;
  drop_timer(flight->second);
  Table::node_type node = shard.flights.extract(flight);
  if (shard.spare.size() == most_spare || node.mapped().callers.capacity() > 1) return;
  Flight& ended = node.mapped();
  static_cast<Course&>(ended) = {};
  ended.callers.clear();  // Keeps its capacity.
  shard.spare.push_back(std::move(node));
}

Flights::Rest Flights::settle(Flight& flight, const std::shared_ptr<const Record>& record, bool own, Replies& replies) {
  const Uptime now = core_.uptime();
  const Time moment = core_.moment().earliest();
  std::vector<Caller> rest;
  std::size_t leader = 0;
  bool has_leader = false;
  bool has_late = false;
  for (Caller& caller : flight.callers) {
    const Decision decision = decide(record.get(), *caller.attempt, caller.attempt->policy, moment);
    switch (decision.verdict) {
      case Verdict::conflict:
        if (caller.waits(now)) {
          rest.push_back(std::move(caller));
          continue;
        }
        [[fallthrough]];
      case Verdict::replay:
      case Verdict::replay_failure:
      case Verdict::mismatch:
      case Verdict::unknown:
        if (caller.late && !own) {
          has_late = true;
          rest.push_back(std::move(caller));
          continue;
        }
        replies.emplace_back(std::move(caller), begin_of(decision, record));
        continue;
      case Verdict::execute:
      case Verdict::retry:
      case Verdict::take_over:
      case Verdict::mark_unknown:
      case Verdict::resume:
        if (!has_leader) leader = rest.size();
        has_leader = true;
        rest.push_back(std::move(caller));
    }
  }
  if (has_leader)
    std::rotate(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(leader),
                rest.begin() + static_cast<std::ptrdiff_t>(leader) + 1);
  flight.callers = std::move(rest);
  return has_leader ? Rest::talks : has_late ? Rest::asks : Rest::waits;
}

void Flights::go_on(Shard& shard, std::unique_lock<WordLock> lock, Flight* flight,
                    const std::shared_ptr<const Record>& record, std::uint64_t place) {
  Replies replies;
  const Rest rest = settle(*flight, record, false, replies);
  drop_timer(*flight);
  flight->holder = nullptr;
  if (rest != Rest::waits) {
    flight->phase = Phase::claiming;
    flight->seen = record;
  } else if (flight->callers.empty()) {
    erase(shard, shard.flights.find(HashedKey(flight->first->flight(), flight->hash)));
  } else {
    flight->phase = Phase::polling;
    flight->seen = record;
    set_timer(*flight, std::min(next_poll(*flight), first_deadline(*flight)));
  }
  lock.unlock();
  if (record != nullptr && record->state == State::completed && record->result.placement == Placement::inlined) {
    core_.cache.put(record);
  }
  reply(std::move(replies));
  if (rest == Rest::waits) return;
  Conversation::Start start;
  if (rest == Rest::asks) {
    start.kind = Conversation::Start::Kind::read;
  } else if (record != nullptr) {
    start = {.kind = Conversation::Start::Kind::seen, .record = record, .place = place};
  }
  lock.lock();
  converse(std::move(lock), flight, std::move(start));
}

void Flights::ask_again(std::unique_lock<WordLock> lock, Flight& flight) {
  flight.phase = Phase::claiming;
  flight.holder = nullptr;
  drop_timer(flight);
  converse(std::move(lock), &flight, {.kind = Conversation::Start::Kind::read});
}

void Flights::ended(ClaimState& claim, const std::shared_ptr<const Record>& record, bool gone) {
  const HashedKey name(claim.attempt->flight(), claim.flight_hash);
  Shard& shard = shard_of(name);
  std::unique_lock lock(shard.mutex);
  shard.claims.remove(claim);
  const auto found = shard.flights.find(name);
  if (found == shard.flights.end() || found->second.phase != Phase::held || found->second.holder != &claim) return;
  if (found->second.callers.empty()) {
    return erase(shard, found);
  }
  if (record != nullptr || gone) return go_on(shard, std::move(lock), &found->second, record, 0);
  ask_again(std::move(lock), found->second);  // Not known what is stored now.
}

void Flights::beat_at(ClaimState& claim, Uptime due) {
  {
    const std::lock_guard lock(shard_of(HashedKey(claim.attempt->flight(), claim.flight_hash)).mutex);
    if (!claim.live_link.linked) return;
    claim.live_link.due = due;
  }
  core_.heartbeats.schedule(due);
}

void Flights::forget(ClaimState& claim) noexcept {
  if (!claim.live_link.linked.load(std::memory_order_acquire))
    return;  // Most claims have ended before they are destroyed.
  const HashedKey name(claim.attempt->flight(), claim.flight_hash);
  Shard& shard = shard_of(name);
  const std::lock_guard lock(shard.mutex);
  shard.claims.remove(claim);
  const auto found = shard.flights.find(name);
  if (found != shard.flights.end() && found->second.holder == &claim) found->second.holder = nullptr;
}

Uptime Flights::collect_due(Uptime now, std::vector<std::shared_ptr<ClaimState>>& due) {
  Uptime next = Uptime::max();
  for (Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    next = std::min(next, shard.claims.collect(now, due));
  }
  return next;
}

// Cancels the timer too, because it keeps the engine and the store alive until it fires.
void Flights::drop_timer(Flight& flight) noexcept {
  if (flight.timer) core_.options.timers->cancel(flight.timer_id);
  flight.timer.reset();
  ++flight.turn;
}

void Flights::set_timer(Flight& flight, Uptime at) {
  if (flight.timer && *flight.timer <= at) return;
  drop_timer(flight);
  flight.timer = at;
  flight.timer_id = core_.options.timers->at(at, [this, core = core_.shared_from_this(), key = flight.first->key,
                                                  turn = flight.turn] { on_timer(key, turn); });
}

Uptime Flights::next_poll(Flight& flight) const {
  Millis next = core_.backoff(++flight.polls, first_poll, most_poll);
  const Caller& caller = flight.callers.front();
  const Decision decision =
      decide(flight.seen.get(), *caller.attempt, caller.attempt->policy, core_.moment().earliest());
  // The lease may end before the next poll.
  if (decision.verdict == Verdict::conflict) next = std::min(next, lapse_of(decision));
  return core_.uptime() + next;
}

Uptime Flights::look_at_holder(const Flight& flight, const std::shared_ptr<const Record>& record) const {
  const Caller& caller = flight.callers.front();
  const Decision decision = decide(record.get(), *caller.attempt, caller.attempt->policy, core_.moment().earliest());
  return std::min(first_deadline(flight), core_.uptime() + lapse_of(decision));
}

Uptime Flights::first_deadline(const Flight& flight) noexcept {
  Uptime at = Uptime::max();
  for (const Caller& caller : flight.callers) at = std::min(at, caller.wait_until);
  return at;
}

void Flights::on_timer(const std::string& key, std::uint64_t turn) {
  const HashedKey name(key);
  Shard& shard = shard_of(name);
  std::shared_ptr<ClaimState> holder;  // As in join().
  std::unique_lock lock(shard.mutex);
  const auto found = shard.flights.find(name);
  if (found == shard.flights.end() || found->second.turn != turn) return;
  Flight& flight = found->second;
  drop_timer(flight);
  // The answer serves all callers, also those whose wait has ended.
  if (flight.phase == Phase::polling) return ask_again(std::move(lock), flight);
  if (flight.phase != Phase::held) return;
  holder = holder_of(flight);
  if (holder == nullptr) return;  // ended() will be called.
  Replies replies;
  const std::shared_ptr<const Record> record = holder->record();
  if (settle(flight, record, true, replies) == Rest::talks) {
    ask_again(std::move(lock), flight);  // It looks lapsed, although its holder may not know.
  } else {
    if (!flight.callers.empty()) set_timer(flight, look_at_holder(flight, record));
    lock.unlock();
  }
  reply(std::move(replies));
}

Begin Flights::begin_of(const Decision& decision, std::shared_ptr<const Record> record) {
  Begin begin;
  begin.record = std::move(record);
  begin.retry_after = decision.retry_after;
  switch (decision.verdict) {
    case Verdict::replay:
      begin.kind = Begin::Kind::replayed;
      break;
    case Verdict::replay_failure:
      begin.kind = Begin::Kind::stored_failure;
      break;
    case Verdict::conflict:
      begin.kind = Begin::Kind::conflict;
      break;
    case Verdict::mismatch:
      begin.kind = Begin::Kind::mismatch;
      break;
    default:
      begin.kind = Begin::Kind::unknown;
      break;
  }
  return begin;
}

std::shared_ptr<ClaimState> Flights::claimed(Conversation::End& end, std::shared_ptr<EngineAttempt>& attempt) {
  return std::make_shared<ClaimState>(std::move(end.core), std::move(attempt), std::move(end.record), end.place,
                                      end.leased_at, end.claimed_at, end.trusted_until);
}

void Flights::reply(Replies replies) {
  for (auto& [caller, begin] : replies) reply(std::move(caller), std::move(begin));
}

void Flights::reply(Caller&& caller, Begin&& begin) {
  // Only for the observer.
  const auto took = core_.options.observer ? core_.uptime() - caller.since : std::chrono::nanoseconds{0};
  if (begin.kind == Begin::Kind::error) {  // store_error was reported already.
    core_.tell_failed(*caller.attempt, begin.error);
    return caller.done(std::move(begin));
  }
  if (begin.kind == Begin::Kind::claimed) {
    if (core_.options.observer) {
      const RecordPtr record = begin.claim.state_->record();
      core_.tell({.kind = event_of(begin.verdict),
                  .key = begin.claim.key(),
                  .record = record.get(),
                  .trace = begin.claim.state_->attempt->trace.get(),
                  .took = took});
    }
    return caller.done(std::move(begin));
  }
  const auto answer = [this](Caller& to, Begin& with, std::chrono::nanoseconds span) {
    core_.tell({.kind = event_of_answer(with.kind),
                .key = to.attempt->key,
                .record = with.record.get(),
                .trace = to.attempt->trace.get(),
                .took = span,
                .coalesced = !to.led});
    to.done(std::move(with));
  };
  const Result* result = begin.record == nullptr ? nullptr : &begin.record->result;
  const bool replays = begin.kind == Begin::Kind::replayed || begin.kind == Begin::Kind::stored_failure;
  if (!replays || !EngineCore::must_fetch(*result)) {
    return answer(caller, begin, took);
  }
  struct Fetch {
    Caller caller;
    Begin begin;
  };
  std::shared_ptr<const Record> record = begin.record;
  auto state = std::make_shared<Fetch>(Fetch{std::move(caller), std::move(begin)});
  core_.fetch(std::move(record), [this, core = core_.shared_from_this(), state, answer](
                                     std::shared_ptr<const Record> whole, std::optional<Error> error) {
    const RecordPtr& before = state->caller.missed;
    const std::string_view missed = before == nullptr ? std::string_view() : before->result.location;
    if (error && error->kind != ErrorKind::unavailable && missed != whole->result.location) {
      // Perhaps another attempt found the record expired, claimed the key and removed the result. Then the record is
      // another now. If it is the same, the result is really lost.
      state->caller.missed = std::move(whole);
      return join(std::move(state->caller));
    }
    state->begin.record = std::move(whole);
    if (error) {
      core_.tell({.kind = EventKind::store_error,
                  .key = state->begin.record->key,
                  .record = state->begin.record.get(),
                  .trace = state->caller.attempt->trace.get(),
                  .error = &*error});
      state->begin.kind = Begin::Kind::error;
      state->begin.is_unreadable = error->kind == ErrorKind::misuse || error->kind == ErrorKind::corrupt;
      state->begin.error = std::move(*error);
      core_.tell_failed(*state->caller.attempt, state->begin.error);
      return state->caller.done(std::move(state->begin));
    }
    if (state->begin.kind == Begin::Kind::replayed) core_.cache.put(state->begin.record);
    answer(state->caller, state->begin, core_.uptime() - state->caller.since);
  });
}

}  // namespace once
