#include "auditor.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace once::simulation {

namespace {

bool expired(const Record& record, Time now) { return record.expires_at != never && record.expires_at <= now; }

bool compatible(const Fingerprint& a, const Fingerprint& b) { return a.empty() || b.empty() || a == b; }

bool says(const Error& error, const std::optional<std::string>& text) {
  return text && error.message.find(*text) != std::string::npos;
}

// The same result, wherever its bytes are.
bool same_result(const Result& asked, const Result& stored) {
  if (stored.placement == Placement::inlined) return asked.bytes == stored.bytes;
  if (asked.placement != Placement::inlined) return asked.digest == stored.digest;
  return asked.bytes.size() == stored.size && sha256(asked.bytes) == stored.digest;
}

// The first as the store has it, the second as a caller was given it.
bool same_stored(const Result& a, const Result& b) {
  if (a.placement == Placement::compressed && b.placement == Placement::inlined) return same_result(b, a);
  if (a.placement != b.placement) return false;
  return a.placement == Placement::inlined ? a.bytes == b.bytes : a.digest == b.digest && a.location == b.location;
}

bool begins_with(const std::vector<Step>& steps, const std::vector<Step>& prefix) {
  return steps.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), steps.begin());
}

bool are_among(const std::vector<Step>& steps, const std::vector<Step>& all) {
  auto from = all.begin();
  return std::all_of(steps.begin(), steps.end(), [&](const Step& step) {
    from = std::find(from, all.end(), step);
    return from != all.end() && (++from, true);
  });
}

// By how much a host's clock may measure a lease wrong, and what is lost in rounding.
Millis clock_error(Millis lease) { return lease / 1'000 + Millis{2}; }

CallId twin_number(CallId call) { return call < copied_calls ? call + copied_calls : call - copied_calls; }

std::string text_of(const Record& record) {
  return std::string(to_string(record.state)) + " owner " + record.owner.hex().substr(0, 8) + " revision " +
         std::to_string(record.revision) + " attempt " + std::to_string(record.attempt) + " token " +
         std::to_string(record.token) + " lease_until " +
         std::to_string(record.lease_until.time_since_epoch().count()) + " expires_at " +
         std::to_string(record.expires_at.time_since_epoch().count());
}

}  // namespace

std::size_t Auditor::OwnerHash::operator()(const Owner& owner) const noexcept {
  std::size_t hash = 0;
  std::memcpy(&hash, owner.bytes.data(), sizeof hash);
  return hash;
}

void Auditor::violate(const char* rule, const std::string& key, const std::string& what) const {
  std::string text =
      std::string(rule) + ": key " + key + " at " + std::to_string(now_.time_since_epoch().count()) + ": " + what;
  const auto found = keys_.find(key);
  if (found != keys_.end() && found->second.record) text += "\n  stored: " + text_of(*found->second.record);
  throw Violation(text);
}

Auditor::Call& Auditor::call_of(CallId call) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) throw Violation("answers: call " + std::to_string(call) + " was never made");
  return found->second;
}

void Auditor::built(ProcessId by, const Record& next) { built_[by].emplace(next.owner.hex(), next.revision); }

void Auditor::copied(ProcessId original, ProcessId copy) {
  copies_ = {original, copy};
  shared_ = std::move(built_[original]);
  built_.clear();
  for (const auto& [owner, revision] : shared_) shared_owners_.insert(owner);
  for (auto& [key, state] : keys_) {
    if (state.writer == original) state.writer = operators;
  }
  std::vector<std::pair<CallId, Call>> calls;
  for (const auto& [id, call] : calls_) {
    if (call.what.process != original) continue;
    calls.emplace_back(id + copied_calls, call).second.what.process = copy;
  }
  for (auto& [id, call] : calls) calls_.emplace(id, std::move(call));
  const auto double_entries = [&](auto& all) {
    auto doubled = all;
    for (const auto& [of, value] : doubled) {
      if (of.first == original) all[{copy, of.second}] = value;
    }
  };
  double_entries(talks_);
  double_entries(finishing_);
  event_count_[copy] = event_count_[original];
  expected_[copy] = expected_[original];
}

bool Auditor::are_copies(ProcessId one, ProcessId other) const noexcept {
  return one != operators && (copies_ == std::pair(one, other) || copies_ == std::pair(other, one));
}

bool Auditor::share_claim(ProcessId one, ProcessId other, const Owner& owner) const {
  return one == other || (are_copies(one, other) && shared_owners_.contains(owner.hex()));
}

bool Auditor::may_attach(ProcessId process, const Owner& owner) const {
  const auto found = attachers_.find(owner);
  return found != attachers_.end() && found->second.contains(process);
}

bool Auditor::is_committed(const Call& attached) const {
  for (std::optional<CallId> next = attached.earlier; next; next = calls_.at(*next).earlier) {
    if (calls_.at(*next).handed.landed) return true;
  }
  return false;
}

std::vector<Auditor::Call*> Auditor::calls_with(const Owner& owner) {
  std::vector<Call*> all;
  const auto first = owners_.find(owner);
  if (first == owners_.end()) return all;
  for (std::optional<CallId> next = first->second; next; next = calls_.at(*next).earlier) {
    for (const CallId id : {*next, *next + copied_calls, *next - copied_calls}) {
      const auto found = calls_.find(id);
      if (found != calls_.end() && found->second.owner == owner) all.push_back(&found->second);
    }
  }
  return all;
}

Auditor::Call* Auditor::call_with(const Owner& owner, ProcessId process) {
  for (Call* call : calls_with(owner)) {
    if (call->what.process == process) return call;
  }
  return nullptr;
}

// The same call in the copy, or in the process that was copied.
const Auditor::Call* Auditor::twin_of(CallId call) const {
  const auto found = calls_.find(twin_number(call));
  return found == calls_.end() ? nullptr : &found->second;
}

const Record* Auditor::shadow(const std::string& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() || !found->second.record ? nullptr : &*found->second.record;
}

void Auditor::landed(ProcessId by, Wrote how, const std::string& key, const Seen& seen, const Record* next) {
  ++totals_.writes;
  ++changes_;
  Key& state = keys_[key];
  const Record* before = state.record ? &*state.record : nullptr;
  if (how == Wrote::insert && before != nullptr) violate("store", key, "an insert landed over a record");
  if (how != Wrote::insert) {
    if (before == nullptr) violate("store", key, "a conditional write landed on nothing");
    if (!(before->owner == seen.owner) || before->revision != seen.revision) {
      violate("store", key,
              "a write landed whose condition does not hold (revision " + std::to_string(seen.revision) + " of " +
                  seen.owner.hex().substr(0, 8) + ")");
    }
  }
  if (next != nullptr && next->key != key) violate("store", key, "a record of another key landed: " + next->key);
  if (next != nullptr && how != Wrote::insert &&
      revision_count(next->revision) != revision_count(before->revision) + 1) {
    violate("store", key, "the revision's count does not grow by one: " + text_of(*next));
  }
  if (by == operators) {
    state.last_operator_act = now_;
    if (next != nullptr) {
      if (!expired(*before, now_)) check_history(key, *before, *next, 1, 2);
      return keep(state, *next, true);
    }
    vanish(state, nullptr);
    state.deleted = true;
    return;
  }

  if (how == Wrote::insert) state.inserted = next->revision;
  // Another call of that process may find a claim lapsed under hold, and mark it.
  const bool marks =
      next != nullptr && next->state == State::unknown && before != nullptr && before->lease_until <= now_;
  const bool is_own = before != nullptr && (next == nullptr || next->owner == before->owner);
  const bool is_over = before != nullptr && expired(*before, now_ + rules_.early);  // A new claim by the same call.
  if (is_own && !marks && !is_over && are_copies(by, state.writer)) {
    violate("copies", key,
            "process " + std::to_string(by) + " wrote over what its copy had written: " +
                (next == nullptr ? std::string("removed") : text_of(*next)));
  }
  const bool is_shared = next != nullptr && shared_.contains({next->owner.hex(), next->revision});
  if (next == nullptr) {
    Call* call = call_with(before->owner, by);
    if (call == nullptr || call->what.process != by || call->finish != FinishKind::release) {
      violate("deletion", key, "a claim was removed that nobody released");
    }
    if (before->state != State::in_progress) violate("deletion", key, "a finished record was removed");
    if (!before->steps.empty()) violate("deletion", key, "a claim with finished steps was removed");
    if (before->on_lapse == OnLapse::hold) violate("deletion", key, "a claim under hold was removed");
    vanish(state, nullptr);
    state.deleted = true;
    return;
  }

  Call* const holder = before == nullptr ? nullptr : call_with(before->owner, by);
  const bool alive = before != nullptr && !expired(*before, now_ + rules_.early);
  if (before == nullptr || !(next->owner == before->owner)) {
    if (next->state != State::in_progress) violate("lineage", key, "a first write that is no claim: " + text_of(*next));
    check_claim(key, before, *next);
    const auto claimer = claimers_.find(next->owner);
    // Unless a copy of the first one's insert came after the claim that another took up was removed.
    if (claimer != claimers_.end() && !share_claim(by, claimer->second, next->owner) &&
        !may_attach(claimer->second, next->owner)) {
      violate("copies", key, "two processes drew one owner: " + text_of(*next));
    }
    claimers_[next->owner] = by;
  } else if (alive && before->state != State::in_progress) {
    violate("result", key, "an engine wrote over a finished record: " + text_of(*next));
  } else if (const auto claimer = claimers_.find(before->owner);
             claimer != claimers_.end() && !share_claim(by, claimer->second, before->owner) &&
             next->state == State::in_progress && may_attach(by, before->owner)) {
    check_attach(key, *before, *next);
    claimer->second = by;
  } else if (claimer != claimers_.end() && !share_claim(by, claimer->second, before->owner)) {
    // Not the holder's process: the only thing it may do is mark a lapsed claim.
    if (next->state != State::unknown) violate("lineage", key, "a stranger wrote for the holder: " + text_of(*next));
    if (before->lease_until > now_) violate("live", key, "a live claim was marked unknown");
    check_history(key, *before, *next, 1, 1);
  } else if (holder != nullptr) {
    check_holder(key, *before, *next, *holder);
    if (alive)
      check_history(key, *before, *next, is_released(*next) ? 1 : 0,
                    is_released(*next) || next->state == State::unknown ? 1 : 0);
    for (Call* call : calls_with(before->owner)) {
      if (call != holder && !is_shared) continue;
      call->steps_landed = std::max(call->steps_landed, next->steps.size());
      call->hold_landed = call->hold_landed || next->state == State::unknown;
    }
  } else if (next->state == State::unknown) {
    if (before->lease_until > now_) violate("live", key, "a live claim was marked unknown");
  } else if (next->state != State::in_progress) {
    violate("result", key, "a result without work: " + text_of(*next));
  }  // Otherwise a claim that nobody was given yet is counted anew, or claimed again after it expired.
  state.writer = is_shared ? operators : by;
  keep(state, *next, false);
}

void Auditor::check_claim(const std::string& key, const Record* before, const Record& next) {
  if (next.lease_until == Time{}) violate("lineage", key, "a claim without a lease: " + text_of(next));
  if (next.expires_at < next.lease_until) violate("lineage", key, "a claim that expires before its lease ends");
  if (before != nullptr && next.token <= before->token) {
    violate("token", key, "does not grow: " + text_of(next));
  }
  if (before == nullptr || expired(*before, now_ + rules_.early)) return;
  switch (before->state) {
    case State::completed:
      violate("result", key, "an unexpired result was claimed over: " + text_of(next));
    case State::unknown:
      violate("result", key, "an unknown record was claimed over: " + text_of(next));
    case State::failed:
    case State::in_progress:
      break;
  }
  ++totals_.takeovers;
  if (before->state == State::in_progress && before->lease_until > now_) {
    violate("live", key, "a live claim was taken over: " + text_of(next));
  }
  if (before->on_lapse == OnLapse::hold) {
    if (next.on_lapse != OnLapse::hold) violate("hold", key, "forgotten by a takeover: " + text_of(next));
    if (before->state == State::in_progress && !is_released(*before))
      violate("hold", key, "taken over: " + text_of(next));
  }
  if (next.attempt != before->attempt + 1) violate("lineage", key, "the attempt is not counted on: " + text_of(next));
  if (!(next.steps == before->steps)) violate("lineage", key, "finished steps were lost: " + text_of(next));
  if (next.created_at != before->created_at) violate("lineage", key, "created_at changed: " + text_of(next));
  if (!before->fingerprint.empty() && !(next.fingerprint == before->fingerprint)) {
    violate("lineage", key, "the fingerprint changed: " + text_of(next));
  }
  const auto& told = before->history.entries;
  const bool is_told = std::any_of(told.begin(), told.end(),
                                   [&](const HistoryEntry& entry) { return entry.attempt == before->attempt; });
  check_history(key, *before, next, is_told ? 0 : 1, is_told ? 0 : 1);
}

// `before` was unexpired. `least`, `most`: how many entries the write may add.
void Auditor::check_history(const std::string& key, const Record& before, const Record& next, std::size_t least,
                            std::size_t most) const {
  const auto& old = before.history.entries;
  const auto& now = next.history.entries;
  const auto wrong = [&](const char* what) { violate("history", key, std::string(what) + ": " + text_of(next)); };
  if (next.history.dropped < before.history.dropped) wrong("fewer entries are counted as dropped");
  const std::size_t dropped = next.history.dropped - before.history.dropped;
  if (dropped + now.size() < old.size() + least) wrong("an entry is missing");
  if (dropped + now.size() > old.size() + most) wrong("an entry too many");
  // Acts that the holder may not have seen are kept, whatever their number.
  std::size_t unseen = 0;
  for (std::uint64_t at = next.revision; unseen < now.size() && now[now.size() - 1 - unseen].revision == at; ++unseen) {
    at = now[now.size() - 1 - unseen].replaced;
  }
  if (now.size() > std::max({once::History::max_entries, old.size(), unseen})) wrong("it is too long");
  if (dropped > old.size()) return;  // No room for the new ones either.
  const std::size_t kept = old.size() - dropped;
  if (!std::equal(now.begin(), now.begin() + static_cast<std::ptrdiff_t>(kept),
                  old.begin() + static_cast<std::ptrdiff_t>(dropped))) {
    wrong("what was written down has changed");
  }
  if (now.size() == kept || now[kept].attempt == 0) return;
  const HistoryEntry& added = now[kept];
  if (added.attempt != before.attempt || added.who != before.holder) wrong("another attempt was written down");
  if (added.what == "lapsed" && (before.lease_until > now_ || added.at != before.lease_until)) {
    wrong("a lapse at another time was written down");
  }
}

void Auditor::check_attach(const std::string& key, const Record& before, const Record& next) const {
  const auto wrong = [&](const char* what) { violate("attach", key, std::string(what) + ": " + text_of(next)); };
  if (before.state != State::in_progress || is_released(before)) wrong("what was taken up is no claim");
  if (is_released(next) || next.lease_until < before.lease_until) wrong("the lease was shortened");
  if (next.token != before.token) wrong("the token changed");
  if (next.attempt != before.attempt || next.created_at != before.created_at || next.on_lapse != before.on_lapse ||
      !(next.fingerprint == before.fingerprint) || !(next.steps == before.steps)) {
    wrong("more than the lease and the holder changed");
  }
}

void Auditor::check_holder(const std::string& key, const Record& before, const Record& next, const Call& holder) const {
  // A copy of the claim's insert came after its removal, and then one of the write that counted it on the store's
  // clock.
  const bool counted_anew = holder.displaced && before.revision == keys_.at(key).inserted;
  const bool same_time = next.token == before.token && next.created_at == before.created_at;
  if (!(same_time || counted_anew) || next.attempt != before.attempt || !(next.fingerprint == before.fingerprint) ||
      next.on_lapse != before.on_lapse) {
    violate("lineage", key, "a holder changed what is not his: " + text_of(next));
  }
  switch (next.state) {
    case State::in_progress:
      if (!begins_with(next.steps, before.steps)) violate("lineage", key, "a finished step was lost: " + text_of(next));
      // Refused steps may land as copies, on a copy of the claim's insert that came after its removal.
      if (!begins_with(holder.steps, next.steps) && !(holder.displaced && are_among(next.steps, holder.asked_steps))) {
        violate("lineage", key, "a step that no work gave: " + text_of(next));
      }
      if (next.lease_until == Time{} && holder.finish != FinishKind::release) {
        violate("deletion", key, "a claim was given up that nobody released");
      }
      if (next.lease_until != Time{} && next.lease_until < before.lease_until && !counted_anew) {
        violate("lineage", key, "a renewal shortened the lease: " + text_of(next));
      }
      return;
    case State::completed: {
      // Copies of the claim's insert and of a finish that had been declined came after its record had expired.
      const bool late = has_outlived(holder) && holder.declined && same_result(*holder.declined, next.result);
      if (!late && (holder.finish != FinishKind::complete || !same_result(holder.result, next.result))) {
        violate("result", key, "what is stored is not what the work gave: " + text_of(next));
      }
      return;
    }
    case State::failed:
      if (holder.finish != FinishKind::fail || !(holder.failure == next.failure)) {
        violate("result", key, "what is stored is not how the work failed: " + text_of(next));
      }
      return;
    case State::unknown: {
      // Under hold its own process may find it lapsed. A release that learns of an operator's hold only from its
      // refusal is written as one; also if the claim was made under hold, and an operator took that away meanwhile.
      const bool knew_hold = holder.held && keys_.at(key).last_operator_act < holder.at;
      // He keeps to it if the operator takes that back.
      const bool was_set = before.on_lapse == OnLapse::hold || keys_.at(key).last_operator_act >= holder.at;
      const bool learns = holder.finish == FinishKind::release && was_set && !knew_hold;
      if (holder.finish != FinishKind::hold && !learns && before.lease_until > now_) {
        violate("live", key, "a live claim was marked unknown: " + text_of(next));
      }
      return;
    }
  }
}

void Auditor::keep(Key& state, const Record& next, bool by_operator) {
  const std::vector<Call*> holders = calls_with(next.owner);
  if (next.state == State::in_progress) {
    for (Call* call : holders) call->lease_until = std::max(call->lease_until, next.lease_until);
  }
  const bool released = is_released(next);
  Stood* const last = state.stood.empty() ? nullptr : &state.stood.back();
  const bool goes_on = last != nullptr && last->until == present && last->owner == next.owner &&
                       last->state == next.state && last->released == released && last->fingerprint == next.fingerprint;
  if (!goes_on || by_operator) {
    vanish(state, &next);
    state.stood.push_back({next.owner, next.state, released, next.fingerprint});
  }
  // Its finish was refused, so its result was removed; then copies of the claim's insert and of the finish came.
  const bool late = std::any_of(holders.begin(), holders.end(), [](const Call* call) { return call->displaced; });
  if (next.result.placement == Placement::offloaded && !late && !offloaded_.contains(next.result.location)) {
    violate("offload", next.key, "a record names a result that is not kept: " + next.result.location);
  }
  if (next.state == State::completed || next.state == State::failed) {
    state.history.push_back({.owner = next.owner,
                             .state = next.state,
                             .result = next.result,
                             .failure = next.failure,
                             .fingerprint = next.fingerprint,
                             .expires_at = next.expires_at});
  }
  state.record = next;
}

// Nothing stands there any more, or something else is about to.
void Auditor::vanish(Key& state, const Record* next) {
  if (!state.stood.empty() && state.stood.back().until == present) state.stood.back().until = changes_;
  if (!state.history.empty() && state.history.back().until == present) state.history.back().until = changes_;
  if (!state.record) return;
  if (next == nullptr || !(next->owner == state.record->owner)) {
    for (Call* call : calls_with(state.record->owner)) {
      call->displaced = true;
      call->displaced_by = changes_;
      call->outlived = call->outlived || expired(*state.record, now_ + rules_.early);
    }
  }
  state.record.reset();
}

// Its record expired and went, or the one that an operator, or another attempt, had put in its place.
bool Auditor::has_outlived(const Call& call) const {
  return call.outlived || (call.displaced && keys_.at(call.what.key).swept > call.displaced_by);
}

void Auditor::offloaded(const std::string& location) { offloaded_.insert(location); }

void Auditor::dropped(const std::string& location) {
  offloaded_.erase(location);
  for (const auto& [key, state] : keys_) {
    if (state.record && state.record->result.placement == Placement::offloaded &&
        state.record->result.location == location && !expired(*state.record, now_)) {
      violate("offload", key, "its result was removed: " + location);
    }
  }
}

void Auditor::swept(const std::string& key) {
  Key& state = keys_[key];
  if (!state.record) violate("store", key, "nothing was swept");
  if (!expired(*state.record, now_)) violate("store", key, "an unexpired record was swept");
  state.swept = ++changes_;
  vanish(state, nullptr);
  state.deleted = true;
}

void Auditor::sent(ProcessId by, bool reads, const std::string& key) {
  const int open = ++talks_[{by, key}].at(reads ? 1 : 0);
  const int most = reads ? 1 + finishing_[{by, key}] : 1;
  if (open > most) {
    violate("sharing", key,
            "process " + std::to_string(by) + " has " + std::to_string(open) + (reads ? " reads" : " inserts") +
                " under way at once");
  }
}

void Auditor::got(ProcessId by, bool reads, const std::string& key) { --talks_[{by, key}].at(reads ? 1 : 0); }

void Auditor::asked(CallId call, const Asked& what) {
  ++totals_.asked;
  Call& made = calls_[call];
  made.what = what;
  made.at = now_;
  made.after = changes_;
}

void Auditor::answered(CallId id, const Begin& begin) {
  Call& call = call_of(id);
  const std::string& key = call.what.key;
  if (++call.answers > 1) violate("answers", key, "call " + std::to_string(id) + " was answered twice");
  const Record* record = begin.record.get();
  if (record != nullptr && record->key != key) violate("replay", key, "was given a record of " + record->key);
  const auto expect = [&](EventKind kind) { ++expected_[call.what.process].at(static_cast<std::size_t>(kind)); };
  const Key& state = keys_[key];
  const auto needs = [&](bool holds, const char* what) {
    if (!holds) {
      violate("replay", key,
              "call " + std::to_string(id) + ": " + what + (record == nullptr ? "" : ": " + text_of(*record)));
    }
  };
  switch (begin.kind) {
    case Begin::Kind::claimed:
      call.claimed = true;
      call.owner = begin.claim.owner();
      call.lease_until = call.known_until = begin.claim.record().lease_until;
      if (state.record && state.record->owner == call.owner) {
        call.lease_until = std::max(call.lease_until, state.record->lease_until);
      }
      // It may have gone while the answer was on its way.
      call.displaced = !state.record || !(state.record->owner == call.owner);
      if (const auto [other, is_first] = owners_.emplace(call.owner, id);
          !is_first && (other->second != twin_number(id) || !shared_owners_.contains(call.owner.hex()))) {
        violate("start", key, "one claim was given to two callers");
      }
      expect(begin.verdict == Verdict::resume                                         ? EventKind::resumed
             : begin.verdict == Verdict::take_over || begin.verdict == Verdict::retry ? EventKind::took_over
                                                                                      : EventKind::claimed);
      return;
    case Begin::Kind::replayed:
    case Begin::Kind::stored_failure: {
      ++totals_.replayed;
      expect(EventKind::replayed);
      const State wanted = begin.kind == Begin::Kind::replayed ? State::completed : State::failed;
      needs(record != nullptr && record->state == wanted, "a replay without a result");
      needs(compatible(record->fingerprint, call.what.fingerprint), "the result of another payload");
      const auto matches = [&](const Stored& stored) {
        return stored.state == wanted && stored.failure == record->failure &&
               (record->result.placement == Placement::offloaded ? stored.result.digest == record->result.digest
                                                                 : same_stored(stored.result, record->result)) &&
               compatible(stored.fingerprint, call.what.fingerprint) &&
               stored.expires_at + rules_.expiry_slack >= call.at && (rules_.cached || stored.until > call.after);
      };
      needs(std::any_of(state.history.begin(), state.history.end(), matches),
            "a result that was not stored under this key, or not any more");
      if (record->result.placement == Placement::offloaded && record->result.size != 0) {
        needs(sha256(record->result.bytes) == record->result.digest, "bytes that are not those of the result");
      }
      return;
    }
    case Begin::Kind::conflict:
      ++totals_.conflicts;
      expect(EventKind::conflict);
      needs(record != nullptr && record->state == State::in_progress, "a conflict without a claim");
      needs(begin.retry_after > Millis{0}, "a conflict with nothing to wait for");
      seen(call, *record, own_claim(call, *record));
      if (rules_.late && record->lease_until + *rules_.late <= call.at) {
        violate("seen", key, "call " + std::to_string(id) + ": a conflict with a lapsed claim: " + text_of(*record));
      }
      return;
    case Begin::Kind::mismatch:
      ++totals_.mismatches;
      expect(EventKind::mismatch);
      needs(record != nullptr && !compatible(record->fingerprint, call.what.fingerprint), "a mismatch that is none");
      seen(call, *record, own_claim(call, *record) || (rules_.cached && record->state == State::completed));
      return;
    case Begin::Kind::unknown:
      ++totals_.unknown;
      expect(EventKind::unknown);
      needs(record != nullptr && record->state == State::unknown, "an unknown that is none");
      seen(call, *record, false);
      return;
    case Begin::Kind::error:
      ++totals_.errors;
      if (begin.error.kind == ErrorKind::corrupt ||
          (begin.error.kind == ErrorKind::misuse && !passes(begin.error) && !says(begin.error, rules_.unfit))) {
        violate("replay", key, "an error that no fault of the store accounts for: " + begin.error.message);
      }
      return;
  }
}

void Auditor::attaches(CallId id, CallId earlier, const Owner& owner, const Asked& what) {
  asked(id, what);
  Call& call = calls_.at(id);
  call.owner = owner;
  call.earlier = earlier;
  attachers_[owner].insert(what.process);
  ++finishing_[{what.process, what.key}];  // It reads at once, whatever conversation goes on.
}

void Auditor::attached(CallId id, const Attached& answer) {
  Call& call = call_of(id);
  const std::string& key = call.what.key;
  if (++call.answers > 1) violate("answers", key, "call " + std::to_string(id) + " was answered twice");
  --finishing_[{call.what.process, key}];
  const Key& state = keys_[key];
  const Record* stored = state.record ? &*state.record : nullptr;
  const bool stands = stored != nullptr && stored->owner == call.owner;
  const auto wrong = [&](const char* what) { violate("attach", key, "call " + std::to_string(id) + " " + what); };
  if (answer.claim) {
    ++totals_.attached;
    ++expected_[call.what.process].at(static_cast<std::size_t>(EventKind::resumed));
    if (!(answer.claim.owner() == call.owner)) wrong("was given another's claim");
    call.claimed = true;
    call.lease_until = call.known_until = answer.claim.record().lease_until;
    if (stands) call.lease_until = std::max(call.lease_until, stored->lease_until);
    call.displaced = !stands;  // It may have gone while the answer was on its way.
    owners_[call.owner] = id;
    return;
  }
  const auto was_stored = [&](const auto& matches) {
    return std::any_of(state.history.begin(), state.history.end(), [&](const Stored& one) {
      return one.until > call.after && same_stored(one.result, answer.finish.record->result) && matches(one);
    });
  };
  const Record* const told = answer.finish.record.get();
  const auto expect = [&](EventKind kind) { ++expected_[call.what.process].at(static_cast<std::size_t>(kind)); };
  switch (answer.finish.kind) {
    case Finish::Kind::recorded:
      expect(EventKind::replayed);
      if (!was_stored([&](const Stored& one) { return one.owner == call.owner; }))
        wrong("was told of no finish of its");
      return;
    case Finish::Kind::superseded:
      expect(EventKind::replayed);
      if (!was_stored([&](const Stored& one) { return !(one.owner == call.owner); })) wrong("was told of no result");
      return;
    case Finish::Kind::lost:
      expect(told != nullptr && told->state == State::unknown ? EventKind::unknown : EventKind::conflict);
      if (stands && stored->state == State::in_progress && !is_released(*stored) &&
          !expired(*stored, now_ + rules_.early) && !calls_.at(*call.earlier).displaced &&
          (told == nullptr || told->revision == stored->revision)) {  // Otherwise it was written since it was read.
        wrong("was told that its claim is lost, and has it");
      }
      return;
    case Finish::Kind::unrecorded:
      return;
    case Finish::Kind::declined:
      wrong("was declined");
  }
}

// Did the record stand there when the call was made, or later? `whenever`: at any time.
void Auditor::seen(const Call& call, const Record& record, bool whenever) const {
  const auto& stood = keys_.at(call.what.key).stood;
  const auto matches = [&](const Stood& one) {
    return one.owner == record.owner && one.state == record.state && one.released == is_released(record) &&
           one.fingerprint == record.fingerprint && (whenever || one.until > call.after);
  };
  if (std::none_of(stood.begin(), stood.end(), matches)) {
    violate("seen", call.what.key,
            "told of a record that did not stand there when it was asked for: " + text_of(record));
  }
}

// A process tells of its own claims from memory: an operator's act is seen by the claim's next write.
bool Auditor::own_claim(const Call& call, const Record& record) {
  if (record.state != State::in_progress) return false;
  const Call* const claimed = call_with(record.owner, call.what.process);
  return claimed != nullptr && !claimed->over;
}

void Auditor::refused(ProcessId by, const Owner& holder) {
  if (Call* call = call_with(holder, by)) call->refused = true;
}

void Auditor::renewed(ProcessId by, const Record& record) {
  Call* const call = call_with(record.owner, by);
  if (call == nullptr || record.state != State::in_progress || is_released(record)) return;
  call->known_until = std::max(call->known_until, record.lease_until);
  call->tries_from = std::max(call->tries_from, call->known_until);
  if (std::exchange(call->slept, false)) ++totals_.saved;
}

void Auditor::not_renewed(ProcessId by, const Owner& holder) {
  if (Call* call = call_with(holder, by)) call->was_refused = true;
}

void Auditor::woke(ProcessId process) {
  for (auto& [id, call] : calls_) {
    if (call.what.process != process || !call.started || call.finish || call.is_told_of_loss) continue;
    call.tries_from = std::max(call.tries_from, now_);
    if (call.slept || call.known_until + rules_.lease_slack > now_) continue;
    call.slept = true;
    ++totals_.slept;
  }
}

void Auditor::told_to_stop(CallId id) {
  Call& call = call_of(id);
  if (!call.stopped) call.stopped = now_;
}

void Auditor::told_of_loss(CallId id) {
  Call& call = call_of(id);
  call.is_told_of_loss = true;
  const std::optional<Millis> lease = call.what.heartbeats;
  if (!lease || call.was_refused || call.finish || call.handed.was) return;
  if (!call.stopped || now_ < *call.stopped + *lease - clock_error(*lease)) {
    violate("sleep", call.what.key,
            "call " + std::to_string(id) + " was given up before a renewal was tried for a lease");
  }
}

void Auditor::about_to_act(CallId id, bool is_ours) {
  const Call& call = calls_.at(id);
  const auto wrong = [&](const char* what) { violate("sleep", call.what.key, "call " + std::to_string(id) + what); };
  const std::optional<Millis> lease = call.what.heartbeats;
  const bool is_open = lease && !call.is_told_of_loss && !call.refused && !call.finish && !call.handed.was;
  if (is_open &&
      now_ > std::max(call.tries_from, call.known_until + rules_.lease_slack) + *lease + clock_error(*lease)) {
    wrong(" still tries to renew a claim more than a lease after it ended");
  }
  if (!is_ours) return;
  if (lease && call.is_told_of_loss) wrong(" has its claim again after it was given up");
  acts(id);
  if (call.refused) violate("stops", call.what.key, "call " + std::to_string(id) + " goes on after it was refused");
  if (call.lease_until + rules_.lease_slack <= now_) {
    violate("stops", call.what.key, "call " + std::to_string(id) + " goes on after its lease");
  }
}

void Auditor::acts(CallId id) const {
  const Call& call = calls_.at(id);
  if (call.known_until + rules_.lease_slack > now_) return;
  violate("sleep", call.what.key, "call " + std::to_string(id) + " acts after the last lease that it knows of");
}

void Auditor::work_started(CallId id, const Claim& claim) {
  Call& call = call_of(id);
  const std::string& key = call.what.key;
  ++totals_.executed;
  if (!call.claimed || call.started) violate("start", key, "work started without a claim, or twice");
  call.started = true;
  call.token = claim.token();
  Key& state = keys_[key];
  // What the copy of the call has made of the claim is not known here before the next write.
  const Call* const twin = twin_of(id);
  const bool is_shared = twin != nullptr && twin->owner == call.owner;
  const bool operator_came = state.last_operator_act >= call.at || is_shared;
  // A transaction that was handed to the killed process may commit at any time: the work's next write learns of it.
  if (!operator_came && !is_committed(call)) {
    if (!state.record) violate("start", key, "work started under a claim that is gone");
    if (!(state.record->owner == call.owner) || state.record->state != State::in_progress) {
      violate("start", key, "call " + std::to_string(id) + " starts work while somebody else has the claim");
    }
    if (state.record->lease_until + rules_.lease_slack <= now_) violate("start", key, "work started on a lapsed lease");
    if (state.record->token != claim.token()) violate("token", key, "the work was given another token");
    if (!(claim.record().steps == state.record->steps)) violate("lineage", key, "the work was not given the steps");
  }
  const auto slack = static_cast<std::uint64_t>(rules_.token_slack.count());
  const auto asked_at = static_cast<std::uint64_t>(call.at.time_since_epoch().count());
  const bool grows = claim.token() > state.top_token;
  if (call.earlier) {
    // A copy of its first write may have come after the claim was removed.
    const Call& earlier = calls_.at(*call.earlier);
    if (claim.token() != earlier.token && !earlier.displaced)
      violate("attach", key, "the work goes on with another token");
  } else if (!grows && !operator_came &&
             (!state.deleted || claim.token() + slack < std::min(state.top_token, asked_at))) {
    violate("token", key,
            "call " + std::to_string(id) + " has token " + std::to_string(claim.token()) + ", and one with " +
                std::to_string(state.top_token) + " has run");
  }
  if (!operator_came) {
    state.top_token = claim.token();
    state.deleted = false;
  }
  call.started_after = changes_;
  call.steps = claim.record().steps;
  call.asked_steps = call.steps;
  call.steps_landed = call.steps.size();
  if (!compatible(claim.record().fingerprint, call.what.fingerprint)) violate("start", key, "for another payload");
  call.held = claim.record().on_lapse == OnLapse::hold;
  if (call.what.holds && !call.held && !operator_came) violate("hold", key, "its claim was not made under it");
  if (state.execution && calls_.at(*state.execution).held && !operator_came &&
      !(calls_.at(*state.execution).owner == call.owner)) {
    const Call& before = calls_.at(*state.execution);
    const std::vector<Call*> holders = calls_with(before.owner);
    const bool given_up = std::any_of(holders.begin(), holders.end(), [&](const Call* held) {
      return held->finish == FinishKind::release || (held->finish == FinishKind::fail && call.what.retries_failures) ||
             state.last_operator_act >= held->at;
    });
    const bool over = std::any_of(state.history.begin(), state.history.end(), [&](const Stored& stored) {
      return stored.owner == before.owner && stored.expires_at <= now_ + rules_.early;
    });
    if (!given_up && !over) violate("hold", key, "a second execution: call " + std::to_string(id));
  }
  state.execution = id;
}

void Auditor::finish_asked(CallId id, FinishKind kind, const Result& result, const Failure& failure) {
  Call& call = call_of(id);
  call.finish = kind;
  call.charges = false;
  call.result = result;
  call.failure = failure;
  ++call.finishes_open;
  ++finishing_[{call.what.process, call.what.key}];
}

void Auditor::step_asked(CallId id, const std::string& name, const std::string& result) {
  Call& call = call_of(id);
  call.steps.push_back({name, result});
  call.asked_steps.push_back({name, result});
  ++call.finishes_open;
  ++finishing_[{call.what.process, call.what.key}];
}

void Auditor::charges(CallId id) { call_of(id).charges = true; }

void Auditor::charged(CallId id) {
  Call& call = call_of(id);
  const bool late = has_outlived(call) && call.declined;
  if (!call.charges && !late) {
    violate("together", call.what.key, "call " + std::to_string(id) + " was told that it was declined");
  }
  if (++call.charged > 1 && !late)
    violate("together", call.what.key, "call " + std::to_string(id) + " has charged twice");
}

// ---- a transaction of the user's own

void Auditor::handed_out(CallId id, const Result& result) {
  Call& call = call_of(id);
  call.handed = {.open = true, .was = true, .result = result};
  ++finishing_[{call.what.process, call.what.key}];  // A claim that was lost is read at once.
}

void Auditor::not_handed_out(CallId id) {
  Call& call = call_of(id);
  call.handed = {};
  --finishing_[{call.what.process, call.what.key}];
}

void Auditor::rows_committed(CallId id) {
  Call& call = call_of(id);
  rows_alone_ = id;
  if (++call.handed.rows > 1) violate("hand-out", call.what.key, "call " + std::to_string(id) + " has committed twice");
}

void Auditor::rows_were_alone() const {
  const Call& call = calls_.at(*rows_alone_);
  violate("hand-out", call.what.key, "call " + std::to_string(*rows_alone_) + " has committed rows without its result");
}

void Auditor::transaction_landed(CallId id, const Record& next) {
  ++totals_.writes;
  ++totals_.transactions;
  ++changes_;
  Call& call = call_of(id);
  const std::string& key = call.what.key;
  Key& state = keys_[key];
  const auto wrong = [&](const char* what) { violate("hand-out", key, "call " + std::to_string(id) + ": " + what); };
  if (!state.record || !(state.record->owner == call.owner) || state.record->state != State::in_progress ||
      is_released(*state.record)) {
    wrong("a transaction committed whose claim does not stand");
  }
  if (std::exchange(rows_alone_, std::nullopt) != id) wrong("a result was committed without the rows");
  // A copy of the claim's insert may come after everybody was told that the claim is gone.
  if (!call.handed.was || (call.handed.never && !call.displaced)) wrong("it committed after it was certain not to");
  if (revision_count(next.revision) != revision_count(state.record->revision) + 1)
    wrong("its revision does not follow");
  if (next.state != State::completed || !same_result(call.handed.result, next.result)) wrong("another result");
  Record rest = next;
  rest.state = state.record->state;
  rest.revision = state.record->revision;
  rest.lease_until = state.record->lease_until;
  rest.finished_at = state.record->finished_at;
  rest.expires_at = state.record->expires_at;
  rest.result = state.record->result;
  rest.failure = state.record->failure;
  if (!(rest == *state.record)) wrong("it changed more than the result");
  call.handed.landed = true;
  call.handed.on_copy = call.displaced;
  call.handed.landed_at = now_;
  call.handed.expires_at = next.expires_at;
  keep(state, next, false);
}

void Auditor::outcome_told(CallId id, bool rolled_back) {
  Call& call = call_of(id);
  if (rolled_back) call.handed.never = true;
  ++call.finishes_open;
  ++finishing_[{call.what.process, call.what.key}];
}

// The claim's process reads the record once more, and nobody learns when.
void Auditor::hand_out_forgotten(CallId id) {
  Call& call = call_of(id);
  call.handed.open = false;
  ++finishing_[{call.what.process, call.what.key}];
}

void Auditor::taken_back(CallId id) {
  Call& call = call_of(id);
  call.handed.open = false;
  call.handed.taken_back = true;
}

void Auditor::check_handed_out(const Call& call, const Finish& finish, const std::string& key) const {
  const auto wrong = [&](const char* what) { violate("hand-out", key, what); };
  switch (finish.kind) {
    case Finish::Kind::recorded:
      if (is_committed(call)) return;  // The claim was finished by the transaction of the killed process.
      if (!call.handed.landed || call.handed.rows != 1) wrong("recorded, but the transaction was not committed");
      if (finish.record != nullptr &&
          (finish.record->state != State::completed || !same_result(call.handed.result, finish.record->result))) {
        wrong("recorded, with another result");
      }
      return;
    case Finish::Kind::superseded:
    case Finish::Kind::lost:
    case Finish::Kind::declined: {
      // Its result may have expired before it was asked for, or an operator has decided otherwise.
      const bool stays =
          call.handed.expires_at > now_ + rules_.early && keys_.at(key).last_operator_act < call.handed.landed_at;
      if (call.handed.landed && !call.handed.on_copy && stays) {
        wrong("told that it was not committed, but it was");
      }
      return;
    }
    case Finish::Kind::unrecorded:
      return;
  }
}

void Auditor::finish_answered(CallId id, FinishKind kind, const Finish& finish, const std::string& step) {
  Call& call = call_of(id);
  const std::string& key = call.what.key;
  if (call.finishes_open == 0) violate("answers", key, "a finish or step was answered twice");
  --call.finishes_open;
  --finishing_[{call.what.process, key}];
  const bool handed = kind == FinishKind::hand_out;
  if (handed) {
    check_handed_out(call, finish, key);
    if (finish.kind != Finish::Kind::unrecorded) call.handed.open = false;
    call.handed.never =
        call.handed.never || !(finish.kind == Finish::Kind::recorded || finish.kind == Finish::Kind::unrecorded);
    if (!call.handed.open && finish.kind != Finish::Kind::declined) call.over = true;
    if (finish.kind != Finish::Kind::superseded && finish.kind != Finish::Kind::lost) return;
  } else {
    if (kind != FinishKind::step && ++call.finish_answers > 1) violate("answers", key, "a finish was answered twice");
    call.over =
        kind != FinishKind::step && finish.kind != Finish::Kind::unrecorded && finish.kind != Finish::Kind::declined;
  }
  const Key& state = keys_[key];
  const Record* stored = state.record ? &*state.record : nullptr;
  const bool ours = stored != nullptr && stored->owner == call.owner && stored->state == State::in_progress &&
                    stored->lease_until != Time{} && !call.displaced && !are_copies(state.writer, call.what.process);
  switch (finish.kind) {
    case Finish::Kind::recorded:
      ++totals_.recorded;
      // A transaction that was taken back has finished it all the same: its record is what is told.
      if (call.handed.taken_back && call.handed.landed && kind != FinishKind::step &&
          (!call.outlived || (finish.record != nullptr && finish.record->state == State::completed &&
                              same_result(call.handed.result, finish.record->result)))) {
        return check_handed_out(call, finish, key);
      }
      switch (kind) {
        case FinishKind::complete:
        case FinishKind::fail:
          if (call.charges && call.charged == 0)
            violate("together", key, "recorded, but nothing was committed with it");
          if (std::none_of(state.history.begin(), state.history.end(), [&](const Stored& one) {
                return one.owner == call.owner && (kind == FinishKind::complete ? same_result(call.result, one.result)
                                                                                : one.failure == call.failure);
              })) {
            violate("recorded", key, "call " + std::to_string(id) + " was told recorded, but nothing landed");
          }
          return;
        case FinishKind::hold:
          if (!call.hold_landed) violate("recorded", key, "a hold was told recorded, but nothing landed");
          return;
        case FinishKind::release:
          if (ours) violate("recorded", key, "a release was told recorded, but the claim stands");
          return;
        case FinishKind::step: {
          const auto end = call.steps.begin() + static_cast<std::ptrdiff_t>(call.steps_landed);
          if (std::none_of(call.steps.begin(), end, [&](const Step& s) { return s.name == step; })) {
            violate("recorded", key, "step " + step + " was told recorded, but never landed");
          }
          return;
        }
        case FinishKind::hand_out:
          return;
      }
      return;
    case Finish::Kind::superseded: {
      ++totals_.superseded;
      const Record* other = finish.record.get();
      if (other == nullptr || other->key != key || other->state != State::completed) {
        violate("superseded", key, "without a result");
      }
      if (!compatible(other->fingerprint, call.what.fingerprint)) violate("superseded", key, "by another payload");
      if (std::none_of(state.history.begin(), state.history.end(), [&](const Stored& one) {
            return one.state == State::completed && one.until > call.started_after &&
                   (other->result.placement == Placement::offloaded ? one.result.digest == other->result.digest
                                                                    : same_stored(one.result, other->result));
          })) {
        violate("superseded", key, "by a result that was never stored");
      }
      if (other->result.placement == Placement::offloaded && sha256(other->result.bytes) != other->result.digest) {
        violate("superseded", key, "without the result's bytes");
      }
      return;
    }
    case Finish::Kind::lost:
      ++totals_.lost;
      if (ours) violate("superseded", key, "call " + std::to_string(id) + " was told lost, but has the claim");
      return;
    case Finish::Kind::unrecorded:
      ++totals_.unrecorded;
      // Too large, and not kept at all.
      if (kind == FinishKind::step && finish.error.kind == ErrorKind::misuse && !passes(finish.error)) {
        // Unless an earlier try was written after all.
        const auto landed = call.steps.begin() + static_cast<std::ptrdiff_t>(call.steps_landed);
        call.steps.erase(std::remove_if(landed, call.steps.end(), [&](const Step& s) { return s.name == step; }),
                         call.steps.end());
      }
      return;
    case Finish::Kind::declined:
      if (!call.charges) violate("together", key, "call " + std::to_string(id) + " had nothing to be declined");
      if (call.charged > 0) violate("together", key, "call " + std::to_string(id) + " was declined, and has charged");
      call.charges = false;
      call.declined = call.result;
      --call.finish_answers;
      return;
  }
}

// A refusal as misuse that another try may not meet.
bool Auditor::passes(const Error& error) const { return says(error, rules_.misuse) || says(error, rules_.clock); }

void Auditor::died(ProcessId process) {
  built_.erase(process);
  std::erase_if(talks_, [&](const auto& entry) { return entry.first.first == process; });
  std::erase_if(finishing_, [&](const auto& entry) { return entry.first.first == process; });
  event_count_.erase(process);
  expected_.erase(process);
  for (auto& [id, call] : calls_) {
    if (call.what.process != process) continue;
    if (call.answers == 0) call.answers = 1;
    call.finishes_open = 0;
  }
}

void Auditor::end() {
  if (rows_alone_) rows_were_alone();
  for (const auto& [id, call] : calls_) {
    if (call.answers == 0) violate("answers", call.what.key, "call " + std::to_string(id) + " was never answered");
    if (call.finishes_open > 0) {
      violate("answers", call.what.key, "a finish or step of call " + std::to_string(id) + " was never answered");
    }
  }
  for (const auto& [process, expected] : expected_) {
    const auto& counted = event_count_[process];
    for (const EventKind kind : {EventKind::claimed, EventKind::resumed, EventKind::took_over, EventKind::replayed,
                                 EventKind::conflict, EventKind::mismatch, EventKind::unknown}) {
      const auto i = static_cast<std::size_t>(kind);
      if (expected.at(i) != counted.at(i)) {
        throw Violation("events: process " + std::to_string(process) + " told " + std::to_string(counted.at(i)) + " " +
                        std::string(to_string(kind)) + " for " + std::to_string(expected.at(i)) + " answers");
      }
    }
  }
}

}  // namespace once::simulation
