#include <once/decide.hpp>

#include <algorithm>
#include <utility>

#include <once/error.hpp>

namespace once {

namespace {

Millis skew_of(const Policy& policy) noexcept { return policy.skew.value_or(Millis{0}); }

// Stops at `never`: a time that was set there, by a person say, must not come round to the past.
Time later(Time time, Millis by) noexcept { return time > never - by ? never : time + by; }

std::uint64_t next_token(const Record* seen, Time now) noexcept {
  const auto floor = static_cast<std::uint64_t>(std::max<Millis::rep>(now.time_since_epoch().count(), 1));
  return seen == nullptr ? floor : std::max(seen->token + 1, floor);
}

void finish(Record& record, State state, Time now, Time expires_at) {
  record.state = state;
  record.revision += 1;
  record.lease_until = Time{};
  record.finished_at = now;
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

Decision decide(const Record* seen, const Attempt& attempt, const Policy& policy, Time now) noexcept {
  if (seen == nullptr || is_expired(seen->expires_at, now)) return {Verdict::execute};
  if (seen->owner == attempt.owner && seen->state == State::in_progress) return {Verdict::resume};
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
  const Time until = later(seen->lease_until, skew_of(policy));
  if (now < until) return {Verdict::conflict, until - now};
  return {policy.on_lapse == OnLapse::hold ? Verdict::mark_unknown : Verdict::take_over};
}

Time in_progress_expiry(const Policy& policy, Time lease_until, Time now) noexcept {
  if (policy.on_lapse == OnLapse::hold) return never;
  return std::max(later(now, policy.retention), later(lease_until, skew_of(policy)));
}

Record claimed(const Attempt& attempt, const Policy& policy, Time now, const Record* seen, Verdict verdict) {
  Record next;
  claim(next, attempt, policy, now, seen, verdict);
  return next;
}

void claim(Record& next, const Attempt& attempt, const Policy& policy, Time now, const Record* seen, Verdict verdict) {
  next.key = attempt.key;
  next.owner = attempt.owner;
  next.token = next_token(seen, now);
  next.attempt = 1;
  next.revision = seen == nullptr ? 1 : seen->revision + 1;
  next.lease_until = later(now, policy.lease);
  next.expires_at = in_progress_expiry(policy, next.lease_until, now);
  next.created_at = now;
  next.fingerprint = attempt.fingerprint;
  next.holder = attempt.holder;
  if (seen != nullptr && (verdict == Verdict::take_over || verdict == Verdict::retry)) {
    next.attempt = seen->attempt + 1;
    next.created_at = seen->created_at;
    next.steps = seen->steps;
    // An attempt that does not check payloads must not switch the check off for those that do.
    if (next.fingerprint.empty()) next.fingerprint = seen->fingerprint;
  }
}

void complete(Record& record, Result result, const Policy& policy, Time now) {
  finish(record, State::completed, now, later(now, policy.retention));
  record.result = std::move(result);
  record.failure.code.clear();
  record.failure.message.clear();
}

void fail(Record& record, Failure failure, Result result, const Policy& policy, Time now) {
  finish(record, State::failed, now, later(now, policy.retention));
  record.result = std::move(result);
  record.failure = std::move(failure);
  record.failure.code = clean_text(record.failure.code, Failure::max_code_bytes);
  record.failure.message = clean_text(record.failure.message, Failure::max_message_bytes);
}

void mark_unknown(Record& record, std::string_view reason, Time now) {
  finish(record, State::unknown, now, never);
  record.failure = {.code = "unknown", .message = clean_text(reason, Failure::max_message_bytes)};
}

void release(Record& record, std::string_view reason, const Policy& policy, Time now) {
  record.state = State::in_progress;
  record.revision += 1;
  record.lease_until = Time{};
  record.finished_at = Time{};
  record.expires_at = later(now, policy.retention);
  record.note = clean_text(reason);
  record.result = {};
  record.failure = {};
}

void renew(Record& record, const Policy& policy, Time now) {
  record.revision += 1;
  if (policy.fixed_lease) return;
  // An operator may have prolonged it further than a heartbeat would.
  record.lease_until = std::max(record.lease_until, later(now, policy.lease));
  record.expires_at = std::max(record.expires_at, in_progress_expiry(policy, record.lease_until, now));
}

void retime(Record& record, const Policy& policy, Time now) {
  record.revision += 1;
  record.lease_until = later(now, policy.lease);
  record.expires_at = in_progress_expiry(policy, record.lease_until, now);
  if (record.attempt == 1) record.created_at = now;
  if (record.revision == 2) record.token = next_token(nullptr, now);  // An insert: its token came from that clock, too.
}

void add_step(Record& record, Step step, const Policy& policy, Time now) {
  renew(record, policy, now);
  record.steps.push_back(std::move(step));
}

std::string derived_key(std::string_view stored_key, std::string_view name) {
  // The key's length in front keeps (key, name) apart from every other split of the same bytes.
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

void check(const Policy& policy) {
  const auto within = [](Millis value, Millis low, Millis high, const char* name) {
    if (value >= low && value <= high) return;
    throw Exception(ErrorKind::misuse, std::string("policy ") + name + " is " + std::to_string(value.count()) +
                                           " ms; it must be " + std::to_string(low.count()) + " to " +
                                           std::to_string(high.count()) + " ms");
  };
  using std::chrono::hours;
  within(policy.lease, Millis{10}, hours{24}, "lease");
  within(policy.retention, Millis{1}, hours{24 * 3653}, "retention");
  within(policy.wait, Millis{0}, hours{24}, "wait");
  within(policy.skew.value_or(Millis{0}), Millis{0}, hours{1}, "skew");
}

}  // namespace once
