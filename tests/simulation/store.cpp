// The store: what a request does to its records, and the planted bugs in it.
#include "parts.hpp"

#include <algorithm>
#include <array>

#include <once/operate.hpp>

namespace once::simulation {

using namespace std::chrono_literals;

namespace {
constexpr const char* planted = "planted";
}

Answer Simulation::carry_out(ProcessId by, const Asking& asking) {
  auditor_.at(world_.utc());
  const Bug bug = by == operators ? Bug::none : options_.bug;
  const auto found = records_.find(asking.key);
  Record* stands = found == records_.end() ? nullptr : &found->second;
  Answer answer;
  if (asking.reads) {
    if (stands != nullptr) answer.record = share(*stands);
    if (bug == Bug::store_reads_stale && previous_.contains(asking.key)) {
      answer.record = share(previous_.at(asking.key));
    }
    return leave(by, asking, std::move(answer));
  }
  // As DynamoDB recognises the token of a transaction for ten minutes, which is longer than any world. Without it a
  // late copy would find its record again if the insert came twice too, after the first one expired and was swept.
  const bool stands_so = stands != nullptr && asking.next && stands->owner == asking.next->owner &&
                         stands->revision == asking.next->revision;
  if (asking.companion != nullptr && !(stands_so && !config_.tokens) &&
      committed_.contains({asking.next->owner.hex(), asking.next->revision})) {
    return leave(by, asking, std::move(answer));
  }
  bool holds = stands == nullptr;
  if (asking.how == Wrote::insert) {
    holds = holds || bug == Bug::store_inserts_over;
  } else {
    holds = stands != nullptr && (stands->owner == asking.seen.owner || bug == Bug::engine_writes_regardless) &&
            (stands->revision == asking.seen.revision || bug == Bug::store_ignores_revision ||
             bug == Bug::engine_writes_regardless);
  }
  if (!holds) {
    answer.status = AnswerStatus::refused;
    const auto* const apart = dynamic_cast<const Charge*>(asking.companion.get());
    if (apart != nullptr && bug == Bug::store_commits_apart) auditor_.charged(apart->call);
    if (stands != nullptr) answer.record = share(*stands);
    return leave(by, asking, std::move(answer));
  }
  if (asking.next && record_bytes(*asking.next) > max_record_bytes()) {
    demand_room(by, asking);
    return leave(by, asking, Answer::cannot_keep("the record is too large"));
  }
  if (config_.forbids && by != operators) {
    // The same record is unfit whenever it comes.
    if (asking.next && asking.next->revision % 64 == 7) return leave(by, asking, Answer::cannot_keep(unfit));
    if (!calm_ && world_.chance(20)) return leave(by, asking, Answer::fail(ErrorKind::misuse, forbidden));
  }
  const auto* charge = dynamic_cast<const Charge*>(asking.companion.get());
  if (charge != nullptr && charge->impossible) {
    return leave(by, asking, Answer::decline(ErrorKind::misuse, "the writes can never be made"));
  }
  if (charge != nullptr && world_.chance(config_.declines)) {
    return leave(by, asking, Answer::decline(ErrorKind::unavailable, "a condition of the writes does not hold"));
  }
  if (bug == Bug::store_forgets_acknowledged && world_.chance(20)) return leave(by, asking, std::move(answer));
  Seen seen = asking.seen;
  std::optional<Record> next = asking.next;
  if (bug == Bug::engine_writes_regardless && asking.how == Wrote::replace) {
    // The engine would have read, and written over what it found.
    seen = {.owner = stands->owner, .revision = stands->revision, .place = 0};
    next->revision = next_revision(stands->revision, 0);
  }
  lands(by, asking, seen, next ? &*next : nullptr);
  if (charge != nullptr) {
    auditor_.charged(charge->call);
    committed_.insert({next->owner.hex(), next->revision});
  }
  if (next) {
    if (next->state == State::completed) first_result_.try_emplace(asking.key, *next);
    if (stands != nullptr) previous_.insert_or_assign(asking.key, *stands);
    if (bug == Bug::offload_loses_results && next->result.placement == Placement::offloaded) {
      drop(next->result.location);
    }
    records_.insert_or_assign(asking.key, *std::move(next));
  } else {
    records_.erase(asking.key);
  }
  return leave(by, asking, std::move(answer));
}

void Simulation::lands(ProcessId by, const Asking& asking, const Seen& seen, const Record* next) {
  trace(by, "lands", asking.key, [&] { return next != nullptr ? text_of(*next) : std::string("removed"); });
  digest(asking.key, next != nullptr ? next->revision : 0, next != nullptr ? next->token : 0);
  auditor_.landed(by, asking.how, asking.key, seen, next);
}

void Simulation::asks(ProcessId id, const Asking& asking) {
  auditor_.at(world_.utc());
  if (asking.reads || asking.how == Wrote::insert) auditor_.sent(id, asking.reads, asking.key);
  if (config_.copies && copy_ == nullptr && asking.next) auditor_.built(id, *asking.next);
  trace(id,
        asking.reads                   ? "read"
        : asking.how == Wrote::insert  ? "insert"
        : asking.how == Wrote::replace ? "replace"
                                       : "remove",
        asking.key, [&] { return asking.next ? text_of(*asking.next) : std::string(); });
}

void Simulation::answers(ProcessId id, const Asking& asking, Answer answer, Done& done) {
  auditor_.at(world_.utc());
  if (asking.reads || asking.how == Wrote::insert) auditor_.got(id, asking.reads, asking.key);
  trace(id, "answer", asking.key, [&] { return describe(answer); });
  const bool draws_more =
      main_ == nullptr && config_.storms && !calm_ && answer.status == AnswerStatus::failed && world_.chance(300);
  if (draws_more) strike(id, asking.key);
  const bool by_holder =
      !asking.reads && asking.how != Wrote::insert && (!asking.next || asking.next->owner == asking.seen.owner);
  if (by_holder && answer.status == AnswerStatus::refused &&
      (answer.record == nullptr || !(answer.record->owner == asking.seen.owner))) {
    auditor_.refused(id, asking.seen.owner);
    if (options_.bug == Bug::engine_ignores_refusals) answer = Answer::fail(ErrorKind::unavailable, "not refused");
    const bool renews = asking.next && asking.next->state == State::in_progress && !is_released(*asking.next);
    if (options_.bug == Bug::engine_believes_renewals && renews) answer = {};
  }
  if (by_holder && answer.status == AnswerStatus::done && asking.next) auditor_.renewed(id, *asking.next);
  if (by_holder && answer.status == AnswerStatus::refused) {
    auditor_.not_renewed(id, asking.seen.owner);
    if (answer.record != nullptr) auditor_.renewed(id, *answer.record);
  }
  const bool declined = answer.declined;
  done(std::move(answer));
  if (declined && config_.misuses) misuse_after_decline(id, asking);
}

void Simulation::stored(ProcessId by, const Asking& asking, const Record* next) {
  auditor_.at(world_.utc());
  lands(by, asking, asking.seen, next);
  if (next == nullptr) {
    records_.erase(asking.key);
  } else if (asking.next && *next == *asking.next) {
    records_.insert_or_assign(asking.key, *next);
  } else {
    throw Violation("store: another record of " + asking.key + " is stored than was asked for: " + text_of(*next));
  }
}

void Simulation::swept(const std::string& key) {
  auditor_.at(world_.utc());
  auto at = records_.find(key);
  erase_swept(at);
}

// Other callers would never get any further with that key.
void Simulation::demand_room(ProcessId by, const Asking& asking) {
  if (by == operators || asking.how == Wrote::insert) return;
  if (asking.next->state == State::unknown || asking.next->owner != asking.seen.owner) {
    throw Violation("answers: a record of " + asking.key + " has no room to be ended: " + text_of(*asking.next));
  }
}

// Puts the store's time on the answer, and planted faults into it.
Answer Simulation::leave(ProcessId by, const Asking& asking, Answer answer) {
  if (config_.tells == Tells::in_answers) {
    const std::int64_t error = config_.told_error.count();
    const Millis off{static_cast<std::int64_t>(world_.below(static_cast<std::uint64_t>(2 * error - 1))) - error + 1};
    answer.time = StoreTime{world_.utc() + off, config_.told_error};
    if (options_.bug == Bug::store_tells_wrong_time && world_.chance(500)) answer.time->now += 5s;
  } else if (config_.tells == Tells::by_call) {
    answer.time = StoreTime{world_.utc(), Millis{0}};
  }
  if (by == operators || !answer.record) return answer;
  if (options_.bug == Bug::engine_adopts_copies && !asking.reads && answer.status == AnswerStatus::refused) {
    const Owner own = asking.next ? asking.next->owner : asking.seen.owner;
    Record explained = *answer.record;
    // As if an operator had written it over what the claim knows.
    const std::uint64_t known = asking.how == Wrote::insert ? asking.next->revision : asking.seen.revision;
    if (explained.owner == own && explained.revision != known) {
      explained.history.entries.push_back({.what = planted, .revision = explained.revision, .replaced = known});
      answer.record = share(std::move(explained));
    }
    return answer;
  }
  if (options_.bug == Bug::store_answers_another_key && world_.chance(10)) {
    answer.record = share(records_.begin()->second);
  } else if (options_.bug == Bug::engine_takes_live_claims && answer.record->state == State::in_progress) {
    Record lapsed = *answer.record;
    lapsed.lease_until = Time{Millis{1}};
    answer.record = share(std::move(lapsed));
  } else if (options_.bug == Bug::engine_ignores_payload || options_.bug == Bug::engine_serves_expired) {
    Record other = *answer.record;
    if (options_.bug == Bug::engine_ignores_payload) other.fingerprint = {};
    if (options_.bug == Bug::engine_serves_expired && other.state == State::completed) other.expires_at = never;
    answer.record = share(std::move(other));
  } else if (options_.bug == Bug::engine_replays_stale && answer.record->state == State::completed) {
    Record first = first_result_.at(asking.key);
    first.expires_at = answer.record->expires_at;
    answer.record = share(std::move(first));
  }
  return answer;
}

void Simulation::plant_in_request(Asking& asking) {
  if (asking.how != Wrote::replace || asking.reads) return;
  const bool claims = !(asking.next->owner == asking.seen.owner);
  if (options_.bug == Bug::engine_adopts_copies) {
    std::erase_if(asking.next->history.entries, [](const HistoryEntry& entry) { return entry.what == planted; });
  }
  switch (options_.bug) {
    case Bug::engine_deletes_claims:
      if (!claims && asking.next->state == State::in_progress && world_.chance(100)) {
        asking.how = Wrote::remove;
        asking.next.reset();
      }
      break;
    case Bug::engine_loses_steps:
      if (claims) asking.next->steps.clear();
      break;
    case Bug::engine_forgets_hold:
      if (claims) asking.next->on_lapse = OnLapse::takeover;
      break;
    case Bug::engine_forgets_history:
      if (claims && !asking.next->history.entries.empty()) asking.next->history.entries.pop_back();
      break;
    case Bug::engine_repeats_history:
      if (!claims && !asking.next->history.entries.empty()) {
        append(asking.next->history, asking.next->history.entries.back());
      }
      break;
    case Bug::engine_keeps_token:
      if (claims) asking.next->token = 1;
      break;
    case Bug::engine_resets_attempt:
      if (claims) asking.next->attempt = 1;
      break;
    case Bug::engine_attaches_anew:
      if (const auto stands = records_.find(asking.key);
          !claims && stands != records_.end() && stands->second.holder != asking.next->holder) {
        ++asking.next->token;
      }
      break;
    case Bug::engine_loses_fingerprint:
      if (claims) asking.next->fingerprint = {};
      break;
    default:
      break;
  }
}
}  // namespace once::simulation
