#include <once/decide.hpp>

#include <algorithm>
#include <utility>

#include <once/error.hpp>

namespace once {

namespace {

// Stops at `never`: a time near it, perhaps set by an operator, must not overflow into the past.
Time later(Time time, Millis by) noexcept { return time > never - by ? never : time + by; }

std::uint64_t next_token(const Record* seen, Time now) noexcept {
  const auto floor = static_cast<std::uint64_t>(std::max<Millis::rep>(now.time_since_epoch().count(), 1));
  return seen == nullptr ? floor : std::max(seen->token + 1, floor);
}

void raise_revision(Record& record, Stamp stamp) noexcept {
  record.revision = next_revision(record.revision, stamp.random);
}

OnLapse stricter(OnLapse one, OnLapse other) noexcept {
  return one == OnLapse::hold || other == OnLapse::hold ? OnLapse::hold : OnLapse::takeover;
}

void finish(Record& record, State state, Stamp stamp, Time expires_at) {
  record.state = state;
  raise_revision(record, stamp);
  record.lease_until = Time{};
  record.finished_at = stamp.now;
  record.expires_at = expires_at;
}

}  // namespace

std::string_view to_string(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::execute:
      return "execute";
    case Verdict::resume:
      return "resume";
    case Verdict::mismatch:
      return "mismatch";
    case Verdict::replay:
      return "replay";
    case Verdict::replay_failure:
      return "replay_failure";
    case Verdict::retry:
      return "retry";
    case Verdict::unknown:
      return "unknown";
    case Verdict::conflict:
      return "conflict";
    case Verdict::take_over:
      return "take_over";
    case Verdict::mark_unknown:
      return "mark_unknown";
  }
  return "?";
}

Decision decide(const Record* seen, const Attempt& attempt, const EffectivePolicy& policy, Time now) noexcept {
  if (seen == nullptr || is_expired(seen->expires_at, now)) return {Verdict::execute};
  const bool is_own = seen->owner == attempt.owner && !(attempt.owner == Owner());
  if (is_own && seen->state == State::in_progress) return {Verdict::resume};
  if (!seen->fingerprint.empty() && !attempt.fingerprint.empty() && !(seen->fingerprint == attempt.fingerprint)) {
    return {Verdict::mismatch};
  }
  switch (seen->state) {
    case State::completed:
      return {Verdict::replay};
    case State::failed:
      return {policy.on_stored_failure == OnStoredFailure::execute ? Verdict::retry : Verdict::replay_failure};
    case State::unknown:
      return {Verdict::unknown};
    case State::in_progress:
      break;
  }
  if (is_released(*seen)) return {Verdict::take_over};
  const Time until = later(seen->lease_until, policy.skew);
  if (now < until) return {Verdict::conflict, until - now};
  return {stricter(policy.on_lapse, seen->on_lapse) == OnLapse::hold ? Verdict::mark_unknown : Verdict::take_over};
}

Time in_progress_expiry(OnLapse on_lapse, const EffectivePolicy& policy, Time lease_until, Time now) noexcept {
  if (on_lapse == OnLapse::hold) return never;
  return std::max(later(now, policy.retention), later(lease_until, policy.skew));
}

Time failure_expiry(const EffectivePolicy& policy, Time now) noexcept {
  return later(now, policy.failure_retention.value_or(policy.retention));
}

Record claimed(const Attempt& attempt, const EffectivePolicy& policy, Stamp stamp, const Record* seen,
               Verdict verdict) {
  Record next;
  claim(next, attempt, policy, stamp, seen, verdict);
  return next;
}

void claim(Record& next, const Attempt& attempt, const EffectivePolicy& policy, Stamp stamp, const Record* seen,
           Verdict verdict) {
  const Time now = stamp.now;
  next.key = attempt.key;
  next.owner = attempt.owner;
  next.token = next_token(seen, now);
  next.attempt = 1;
  next.revision = next_revision(seen == nullptr ? 0 : seen->revision, stamp.random);
  next.lease_until = later(now, policy.lease);
  next.created_at = now;
  if (policy.expected) next.expected_until = later(now, *policy.expected);
  next.on_lapse = policy.on_lapse;
  next.fingerprint = attempt.fingerprint;
  next.holder = attempt.holder;
  if (!attempt.label.empty()) next.label = attempt.label;
  if (seen != nullptr && (verdict == Verdict::take_over || verdict == Verdict::retry)) {
    next.attempt = seen->attempt + 1;
    next.created_at = seen->created_at;
    if (!policy.expected) next.expected_until = seen->expected_until;
    next.on_lapse = stricter(policy.on_lapse, seen->on_lapse);
    if (!seen->label.empty() && policy.label != Label::none) next.label = seen->label;
    next.history = seen->history;
    append_attempt(next.history, *seen, now);
    next.history.trace = {};
    next.steps = seen->steps;
    // An attempt without a fingerprint must not switch the check off for others.
    if (next.fingerprint.empty()) next.fingerprint = seen->fingerprint;
  }
  if (attempt.trace != nullptr) next.history.trace = attempt.trace->work;
  if (attempt.input != nullptr) {
    next.input = *attempt.input;
    next.input_bytes = attempt.input_bytes;
  }
  next.expires_at = in_progress_expiry(next.on_lapse, policy, next.lease_until, now);
}

void complete(Record& record, Result&& result, const EffectivePolicy& policy, Stamp stamp) {
  finish(record, State::completed, stamp, later(stamp.now, policy.retention));
  record.result = std::move(result);
  record.failure.code.clear();
  record.failure.message.clear();
}

void fail(Record& record, Failure failure, Result&& result, const EffectivePolicy& policy, Stamp stamp) {
  finish(record, State::failed, stamp, failure_expiry(policy, stamp.now));
  record.result = std::move(result);
  record.failure = std::move(failure);
  record.failure.code = clean_text(record.failure.code, Failure::max_code_bytes);
  record.failure.message = clean_text(record.failure.message, Failure::max_message_bytes);
}

void mark_unknown(Record& record, std::string_view reason, Stamp stamp) {
  finish(record, State::unknown, stamp, never);
  record.failure = {.code = "unknown", .message = clean_text(reason, Failure::max_message_bytes)};
}

void mark_lapsed(Record& record, Stamp stamp) {
  append_attempt(record.history, record, stamp.now);
  mark_unknown(record, "the lease of " + record.holder + " expired before it finished", stamp);
}

void release(Record& record, std::string_view reason, const EffectivePolicy& policy, Stamp stamp) {
  record.state = State::in_progress;
  raise_revision(record, stamp);
  record.lease_until = Time{};
  record.finished_at = Time{};
  record.expires_at = later(stamp.now, policy.retention);
  record.note = clean_text(reason);
  record.result = {};
  record.failure = {};
  append_attempt(record.history, record, stamp.now);  // The record does not tell when it was released.
}

void renew(Record& record, const EffectivePolicy& policy, Stamp stamp) {
  raise_revision(record, stamp);
  if (policy.fixed_lease) return;
  // An operator may have extended it further than a heartbeat would.
  record.lease_until = std::max(record.lease_until, later(stamp.now, policy.lease));
  record.expires_at =
      std::max(record.expires_at, in_progress_expiry(record.on_lapse, policy, record.lease_until, stamp.now));
}

void retime(Record& record, const EffectivePolicy& policy, Stamp stamp) {
  raise_revision(record, stamp);
  record.lease_until = later(stamp.now, policy.lease);
  record.expires_at = in_progress_expiry(record.on_lapse, policy, record.lease_until, stamp.now);
  if (record.attempt == 1) record.created_at = stamp.now;
  if (policy.expected) record.expected_until = later(stamp.now, *policy.expected);
  // The second write follows an insert, whose token came from that clock too.
  if (revision_count(record.revision) == 2) record.token = next_token(nullptr, stamp.now);
}

void add_step(Record& record, Step step, const EffectivePolicy& policy, Stamp stamp) {
  renew(record, policy, stamp);
  record.steps.push_back(std::move(step));
}

std::size_t room_to_end(const Record& record) noexcept {
  constexpr std::size_t entry = 64 + 3 * HistoryEntry::max_text_bytes + History::trace_bytes;
  constexpr std::size_t most = 2 * Record::max_text_bytes + Failure::max_code_bytes + Failure::max_message_bytes +
                               Result::max_content_type_bytes + entry;
  const std::size_t has = record.holder.size() + record.note.size();
  return most > has ? most - has : 0;
}

std::string derived_key(std::string_view stored_key, std::string_view name) {
  // The key's length distinguishes (key, name) from every other split of the same bytes.
  std::string text = std::to_string(stored_key.size());
  text.append(":").append(stored_key).append(name);
  return to_hex(sha256(text));
}

void check(const Result& result) {
  const auto within = [](const std::string& text, std::size_t most, const char* name) {
    if (text.size() <= most) return;
    throw Exception(ErrorKind::misuse, std::string("the result's ") + name + " has " + std::to_string(text.size()) +
                                           " bytes; it may have " + std::to_string(most));
  };
  within(result.content_type, Result::max_content_type_bytes, "content type");
  within(result.location, Result::max_location_bytes, "location");
}

namespace {

// Visits each pair of corresponding members, of a Policy and another one or an EffectivePolicy.
template <class From, class Into, class Visit>
void with_each(const From& from, Into& into, Visit&& visit) {
  visit(from.lease, into.lease);
  visit(from.retention, into.retention);
  visit(from.failure_retention, into.failure_retention);
  visit(from.expected, into.expected);
  visit(from.wait, into.wait);
  visit(from.skew, into.skew);
  visit(from.on_conflict, into.on_conflict);
  visit(from.on_missing_key, into.on_missing_key);
  visit(from.on_lapse, into.on_lapse);
  visit(from.on_throw, into.on_throw);
  visit(from.on_stored_failure, into.on_stored_failure);
  visit(from.on_unrecorded, into.on_unrecorded);
  visit(from.on_store_down, into.on_store_down);
  visit(from.label, into.label);
  visit(from.keep_input, into.keep_input);
  visit(from.max_inline_bytes, into.max_inline_bytes);
  visit(from.compress_over_bytes, into.compress_over_bytes);
  visit(from.heartbeat, into.heartbeat);
  visit(from.fixed_lease, into.fixed_lease);
}

}  // namespace

Policy fill_in(Policy policy, const Policy& usual) {
  with_each(usual, policy, [](const auto& from, auto& into) {
    if (!into) into = from;
  });
  return policy;
}

EffectivePolicy effective(const Policy& policy) {
  EffectivePolicy all;
  with_each(policy, all, [](const auto& said, auto& into) {
    if (said) into = *said;
  });
  return all;
}

EffectivePolicy ending_within(EffectivePolicy policy, Millis left) {
  constexpr Millis longest_lease = std::chrono::hours{24};
  // The skew on both sides and the drift of clocks. Without them the holder would stop trusting its lease, and refuse
  // to begin steps, while it still has time.
  if (left >= longest_lease - longest_lease / 1'000 - policy.skew) return policy;
  const Millis until_end = left + policy.skew;
  const Millis lease = until_end + until_end / 4'000 + Millis{1};
  const bool renewed = !policy.fixed_lease;  // By heartbeats or by steps.
  policy.lease = renewed ? lease : std::min(policy.lease, lease);
  policy.heartbeat = false;
  policy.fixed_lease = true;  // A step must not extend the lease: the retry after a timeout would wait longer.
  policy.wait = std::min(policy.wait, left / 2);
  return policy;
}

void check(const Policy& policy) {
  const auto within = [](std::optional<Millis> said, Millis low, Millis high, const char* name) {
    if (!said) return;
    const Millis value = *said;
    if (value >= low && value <= high) return;
    throw Exception(ErrorKind::misuse, std::string("policy ") + name + " is " + std::to_string(value.count()) +
                                           " ms; it must be " + std::to_string(low.count()) + " to " +
                                           std::to_string(high.count()) + " ms");
  };
  using std::chrono::hours;
  within(policy.lease, Millis{10}, hours{24}, "lease");
  if (policy.retention != keep_forever) within(policy.retention, Millis{1}, hours{24 * 3653}, "retention");
  if (policy.failure_retention != keep_forever) {
    within(policy.failure_retention, Millis{1}, hours{24 * 3653}, "failure_retention");
  }
  within(policy.expected, Millis{1}, hours{24 * 3653}, "expected");
  within(policy.wait, Millis{0}, hours{24}, "wait");
  within(policy.skew, Millis{0}, hours{1}, "skew");
}

}  // namespace once
