#include <once/operate.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>

#include "platform/wait.hpp"
#include "text/ascii.hpp"
#include "text/rfc3339.hpp"

namespace once::operate {

namespace {

constexpr std::size_t page_records = 500;
constexpr std::size_t sweep_slice = 500;
constexpr unsigned page_looks = 20;
constexpr unsigned doubt_tries = 3;
constexpr Millis most_extension = std::chrono::hours{24 * 3653};

constexpr std::array<std::string_view, 7> standing_names = {"running", "lapsed",  "released", "completed",
                                                            "failed",  "unknown", "expired"};

bool blank(std::string_view text) noexcept { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

Plan refuse(std::string text) { return {.next = std::nullopt, .refusal = std::move(text)}; }

std::optional<Plan> without_reason(const Reason& reason) {
  if (blank(reason.by)) return refuse("the author of the change is empty");
  if (blank(reason.text)) return refuse("the reason is empty: say why; the reason is kept in the record");
  return std::nullopt;
}

std::optional<Plan> cannot_change(const Record& seen, const Reason& reason) {
  if (is_sealed(seen)) return refuse(sealed_error(seen).message);
  return without_reason(reason);
}

// The note and the history say who did what to the record, and why. The history's `what` has `detail` too. `next` has
// its revision already.
void sign(Record& next, const Record& seen, const std::string& what, const Reason& reason, Time now,
          const std::string& detail = {}) {
  next.note = clean_text(what + " by " + reason.by + ": " + reason.text);
  append(next.history,
         {.what = what + detail,
          .who = reason.by,
          .why = reason.text,
          .at = now,
          .revision = next.revision,
          .replaced = seen.revision},
         next.owner == seen.owner ? unseen_acts(seen) + 1 : 0);
}

// A holder that writes nothing has seen none of the acts before this one, and needs them all.
std::optional<Plan> too_many_unseen(const Record& seen) {
  if (unseen_acts(seen) < History::max_unseen_acts) return std::nullopt;
  return refuse("operators have changed this claim " + std::to_string(History::max_unseen_acts) +
                " times since its holder wrote it. Wait until the holder renews it or the lease expires");
}

std::string until(Time end) { return end == never ? " without end" : " to " + text::rfc3339(end); }

Time later_by(Time time, Millis by) noexcept { return time > never - by ? never : time + by; }

// Why an operator must not end this record without force, or empty.
std::string objection(Standing now) {
  switch (now) {
    case Standing::running:
      return "its claim is live: the holder may be at work. Wait until the lease expires, or force the change";
    case Standing::completed:
    case Standing::failed:
      return "it has already ended (" + std::string(to_string(now)) +
             "), and its result would be lost. Force the change if you want that";
    case Standing::lapsed:
    case Standing::released:
    case Standing::unknown:
    case Standing::expired:
      return {};
  }
  return {};
}

// Throws Exception(misuse) if the retention is out of range.
EffectivePolicy policy_with(Millis retention, Millis skew = {}) {
  const Policy policy{.retention = retention, .skew = skew};
  check(policy);
  return effective(policy);
}

}  // namespace

std::string_view to_string(Standing standing) noexcept { return standing_names.at(static_cast<std::size_t>(standing)); }

std::optional<Standing> standing_from_string(std::string_view name) {
  const auto found = std::find(standing_names.begin(), standing_names.end(), name);
  if (found == standing_names.end()) return std::nullopt;
  return static_cast<Standing>(found - standing_names.begin());
}

Standing standing(const Record& record, Time now) noexcept {
  if (record.expires_at <= now) return Standing::expired;
  switch (record.state) {
    case State::completed:
      return Standing::completed;
    case State::failed:
      return Standing::failed;
    case State::unknown:
      return Standing::unknown;
    case State::in_progress:
      break;
  }
  if (is_released(record)) return Standing::released;
  return now < record.lease_until ? Standing::running : Standing::lapsed;
}

Plan plan_resolve(const Record& seen, const Resolution& resolution, const Reason& reason, const Owner& fresh,
                  Stamp stamp) {
  if (auto refused = cannot_change(seen, reason)) return std::move(*refused);
  const Standing was = standing(seen, stamp.now);
  if (was == Standing::expired) {
    return refuse("it has expired, so the next caller runs the operation again anyway");
  }
  if (std::string why = objection(was); !why.empty() && !resolution.force) return refuse(std::move(why));
  const EffectivePolicy policy = policy_with(resolution.retention);
  Record next = seen;
  next.owner = fresh;
  append_attempt(next.history, seen, stamp.now);
  switch (resolution.as) {
    case As::completed:
      complete(next, Result(resolution.result), policy, stamp);
      break;
    case As::failed:
      fail(next, resolution.failure, Result(resolution.result), policy, stamp);
      break;
    case As::released:
      release(next, {}, policy, stamp);
      if (resolution.any_payload) next.fingerprint = {};
      break;
  }
  const char* const as = resolution.as == As::completed ? "resolved as completed"
                         : resolution.as == As::failed  ? "resolved as failed"
                                                        : "released";
  sign(next, seen, as, reason, stamp.now);
  return {.next = std::move(next), .refusal = {}};
}

Plan plan_release(const Record& seen, const Resolution& resolution, const Reason& reason, const Owner& fresh,
                  Stamp stamp) {
  const bool changes = resolution.any_payload && !seen.fingerprint.empty();
  if (standing(seen, stamp.now) == Standing::released && !changes) {
    return refuse("it is already released: the next caller runs the operation");
  }
  Resolution released = resolution;
  released.as = As::released;
  return plan_resolve(seen, released, reason, fresh, stamp);
}

Plan plan_extend(const Record& seen, Millis by, const Reason& reason, Stamp stamp, Millis skew) {
  if (auto refused = cannot_change(seen, reason)) return std::move(*refused);
  if (by < Millis{1} || by > most_extension) {
    return refuse("it can be extended by 1 ms to 10 years, not by " + std::to_string(by.count()) + " ms");
  }
  if (auto refused = too_many_unseen(seen)) return std::move(*refused);
  Record next = seen;
  next.revision = next_revision(seen.revision, stamp.random);
  switch (standing(seen, stamp.now)) {
    case Standing::running:
    case Standing::lapsed: {
      next.lease_until = later_by(std::max(seen.lease_until, stamp.now), by);
      // Other callers respect the lease for the skew longer.
      next.expires_at = later_by(next.lease_until, std::max(seen.expires_at - seen.lease_until, skew));
      sign(next, seen, "lease extended", reason, stamp.now, until(next.lease_until));
      break;
    }
    case Standing::completed:
    case Standing::failed:
      next.expires_at = later_by(seen.expires_at, by);
      sign(next, seen, "retention extended", reason, stamp.now, until(next.expires_at));
      break;
    case Standing::released:
      return refuse("it is released: there is no claim to extend");
    case Standing::unknown:
      return refuse("its outcome is unknown: it does not expire until an operator resolves it");
    case Standing::expired:
      return refuse("it has expired, so the next caller runs the operation again anyway");
  }
  return {.next = std::move(next), .refusal = {}};
}

Plan plan_on_lapse(const Record& seen, OnLapse on_lapse, Millis retention, const Reason& reason, Stamp stamp,
                   Millis skew) {
  if (auto refused = cannot_change(seen, reason)) return std::move(*refused);
  const Standing was = standing(seen, stamp.now);
  if (was != Standing::running && was != Standing::lapsed && was != Standing::released) {
    return refuse("it is " + std::string(to_string(was)) + ": only a claim in progress has a lease that can lapse");
  }
  if (seen.on_lapse == on_lapse) return refuse("it already says " + std::string(to_string(on_lapse)));
  if (auto refused = too_many_unseen(seen)) return std::move(*refused);
  const EffectivePolicy policy = policy_with(retention, skew);
  Record next = seen;
  next.revision = next_revision(seen.revision, stamp.random);
  next.on_lapse = on_lapse;
  // A released record expires too: see release().
  if (was != Standing::released) {
    next.expires_at = in_progress_expiry(on_lapse, policy, seen.lease_until, stamp.now);
  }
  sign(next, seen, "on lapse " + std::string(to_string(on_lapse)), reason, stamp.now);
  return {.next = std::move(next), .refusal = {}};
}

Plan plan_remove(const Record& seen, bool force, const Reason& reason, Time now) {
  if (auto refused = without_reason(reason)) return std::move(*refused);
  if (is_sealed(seen) && !force) {
    return refuse(sealed_error(seen).message +
                  ". If the key is lost, force the removal: a result outside of the store "
                  "is not removed with it");
  }
  const Standing is = standing(seen, now);
  if (is == Standing::running && !force) return refuse(objection(is));
  return {.next = seen, .refusal = {}};
}

namespace {

// Whether this is the record that we wanted to write. The owner is not enough: extending keeps it.
bool is_ours(const Record& stored, const Record& meant) noexcept {
  return stored.owner == meant.owner && stored.revision == meant.revision;
}

struct Change {
  Store& store;
  Seen seen;
  RecordPtr next;
  Callback<void(Applied)> done;
  unsigned doubts = 0;
};

void finish(const std::shared_ptr<Change>& change, Applied::Kind kind, RecordPtr record, Error error = {},
            bool unfit = false) {
  Callback<void(Applied)> done = std::move(change->done);
  done({.kind = kind, .record = std::move(record), .error = std::move(error), .unfit = unfit});
}

void look(const std::shared_ptr<Change>& change, Error doubt);

void write(const std::shared_ptr<Change>& change) {
  change->store.replace(change->next, change->seen, [change](Answer answer) {
    switch (answer.status) {
      case AnswerStatus::done:
        return finish(change, Applied::Kind::done, std::move(change->next));
      case AnswerStatus::refused:
        if (change->doubts > 0 && answer.record && is_ours(*answer.record, *change->next)) {
          return finish(change, Applied::Kind::done, std::move(change->next));
        }
        return finish(change, Applied::Kind::changed, std::move(answer.record));
      case AnswerStatus::failed:
        if (answer.error.kind == ErrorKind::in_doubt) return look(change, std::move(answer.error));
        // An earlier try may still arrive.
        if (change->doubts > 0) {
          answer.error.kind = ErrorKind::in_doubt;
          answer.unfit = false;
        }
        return finish(change, Applied::Kind::failed, nullptr, std::move(answer.error), answer.unfit);
    }
  });
}

// The answer was lost. A read shows whether the write happened. If not, it is made again under the same condition.
void look(const std::shared_ptr<Change>& change, Error doubt) {
  if (++change->doubts > doubt_tries) return finish(change, Applied::Kind::failed, nullptr, std::move(doubt));
  change->store.get(change->next->key, [change, doubt = std::move(doubt)](Answer answer) mutable {
    if (answer.status == AnswerStatus::failed) {
      return finish(change, Applied::Kind::failed, nullptr, std::move(doubt));
    }
    if (answer.record && is_ours(*answer.record, *change->next)) {
      return finish(change, Applied::Kind::done, std::move(change->next));
    }
    write(change);
  });
}

}  // namespace

void apply(Store& store, const Record& seen, std::uint64_t place, Record next, Callback<void(Applied)> done) {
  shorten(next, store.capabilities().max_record_bytes);
  write(std::make_shared<Change>(Change{.store = store,
                                        .seen = {.owner = seen.owner, .revision = seen.revision, .place = place},
                                        .next = share(std::move(next)),
                                        .done = std::move(done)}));
}

Applied apply(Store& store, const Record& seen, std::uint64_t place, Record next) {
  return wait_for<Applied>(
      [&](Callback<void(Applied)> done) { apply(store, seen, place, std::move(next), std::move(done)); });
}

namespace {

struct Removal {
  Store& store;
  std::string key;
  Seen seen;
  Callback<void(Applied)> done;
  unsigned doubts = 0;
};

// Under its condition it can be tried again: a removal that took place leaves nothing that it holds for.
void take_away(const std::shared_ptr<Removal>& removal) {
  removal->store.remove(removal->key, removal->seen, [removal](Answer answer) {
    const bool failed = answer.status == AnswerStatus::failed;
    if (failed && answer.error.kind == ErrorKind::in_doubt && ++removal->doubts <= doubt_tries) {
      return take_away(removal);
    }
    Applied applied{.kind = Applied::Kind::done, .record = std::move(answer.record), .error = std::move(answer.error)};
    if (failed) {
      applied.kind = Applied::Kind::failed;
      if (removal->doubts > 0) applied.error.kind = ErrorKind::in_doubt;
    } else if (answer.status == AnswerStatus::refused && (applied.record || removal->doubts == 0)) {
      applied.kind = Applied::Kind::changed;
    }
    Callback<void(Applied)> done = std::move(removal->done);
    done(std::move(applied));
  });
}

}  // namespace

void remove(Store& store, const Record& seen, std::uint64_t place, Callback<void(Applied)> done) {
  take_away(std::make_shared<Removal>(Removal{.store = store,
                                              .key = seen.key,
                                              .seen = {.owner = seen.owner, .revision = seen.revision, .place = place},
                                              .done = std::move(done)}));
}

Applied remove(Store& store, const Record& seen, std::uint64_t place) {
  return wait_for<Applied>([&](Callback<void(Applied)> done) { remove(store, seen, place, std::move(done)); });
}

bool matches(const Filter& filter, const Record& record, Time now) noexcept {
  const Standing is = standing(record, now);
  if (filter.standing && is != *filter.standing) return false;
  if (filter.in_progress && is != Standing::running && is != Standing::lapsed && is != Standing::released) return false;
  if (filter.overdue && !is_overdue(record, now)) return false;
  if (!std::string_view(record.key).starts_with(filter.key_prefix)) return false;
  if (!text::contains_letters(record.label, filter.label_part)) return false;
  if (!text::contains_letters(record.holder, filter.holder_part)) return false;
  if (!filter.created_before && !filter.created_not_before) return true;
  if (record.created_at == Time{}) return false;  // Written by another program without created_at.
  if (filter.created_before && record.created_at > *filter.created_before) return false;
  return !filter.created_not_before || record.created_at >= *filter.created_not_before;
}

namespace {

std::optional<State> state_of(std::optional<Standing> standing) noexcept {
  if (!standing) return std::nullopt;
  switch (*standing) {
    case Standing::running:
    case Standing::lapsed:
    case Standing::released:
      return State::in_progress;
    case Standing::completed:
      return State::completed;
    case Standing::failed:
      return State::failed;
    case Standing::unknown:
      return State::unknown;
    case Standing::expired:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

ListQuery query_of(const Filter& filter, Time now) {
  ListQuery query;
  query.state = filter.in_progress || filter.overdue ? State::in_progress : state_of(filter.standing);
  query.key_prefix = filter.key_prefix;
  if (filter.standing == Standing::expired) query.expired_at = now;
  query.limit = page_records;
  return query;
}

std::optional<Error> for_each(Store& store, const Filter& filter, Time now,
                              const std::function<bool(const Record&)>& each,
                              const std::function<bool(std::uint64_t read)>& progress) {
  std::uint64_t read = 0;
  ListQuery query = query_of(filter, now);
  std::optional<Error> unreadable;
  std::size_t others = 0;
  for (;;) {
    ListPage page = blocking::list(store, query);
    if (page.error) return std::move(page.error);
    for (const Record& record : page.records) {
      if (matches(filter, record, now) && !each(record)) return std::nullopt;
    }
    read += page.records.size();
    if (progress && !progress(read)) return std::nullopt;
    others += page.unreadable.size();
    if (!page.unreadable.empty() && !unreadable) {
      unreadable = std::move(page.unreadable.front());
      others -= 1;
    }
    if (page.cursor.empty()) break;
    query.cursor = std::move(page.cursor);
  }
  if (others > 0) unreadable->message += " (and " + std::to_string(others) + " more that cannot be read)";
  return unreadable;
}

ListPage page(Store& store, const Filter& filter, Time now, std::string cursor, std::size_t limit) {
  ListQuery query = query_of(filter, now);
  query.cursor = std::move(cursor);
  ListPage found;
  for (unsigned looks = 0; looks < page_looks && found.records.size() < limit; ++looks) {
    query.limit = limit - found.records.size();  // So that its cursor is also ours.
    ListPage part = blocking::list(store, query);
    if (part.error) return part;
    std::copy_if(std::make_move_iterator(part.records.begin()), std::make_move_iterator(part.records.end()),
                 std::back_inserter(found.records), [&](const Record& record) { return matches(filter, record, now); });
    std::move(part.unreadable.begin(), part.unreadable.end(), std::back_inserter(found.unreadable));
    found.cursor = query.cursor = std::move(part.cursor);
    if (found.cursor.empty()) break;
  }
  return found;
}

Swept sweep(Store& store, const SweepOptions& options) {
  Swept swept;
  std::optional<Error> unreadable;
  const auto go_on = [&] { return !options.progress || options.progress(swept.removed); };
  std::size_t at_once = options.limit == 0 ? sweep_slice : options.limit;
  if (options.offload) {
    // Records with offloaded results are removed one by one, each before its result. In the other order a record could
    // be left whose result is missing.
    ListQuery query;
    query.expired_at = options.expired_before;
    query.limit = options.limit == 0 ? page_records : options.limit;
    bool more = true;
    while (more && go_on()) {
      ListPage page = blocking::list(store, query);
      if (page.error) {
        swept.error = std::move(page.error);
        return swept;
      }
      if (!page.unreadable.empty() && !unreadable) unreadable = std::move(page.unreadable.front());
      for (Record& record : page.records) {
        if (record.result.placement != Placement::offloaded) continue;
        Answer answer = blocking::remove(store, record.key, {.owner = record.owner, .revision = record.revision});
        if (answer.status == AnswerStatus::refused) continue;  // The key is in use again.
        if (answer.status == AnswerStatus::done) {
          swept.removed += 1;
          OffloadAnswer gone = wait_for<OffloadAnswer>([&](Callback<void(OffloadAnswer)> done) {
            options.offload->remove(record.result.location, std::move(done));
          });
          if (!gone.error) swept.results_removed += 1;
          swept.error = std::move(gone.error);
        } else {
          swept.error = std::move(answer.error);
        }
        if (swept.error) return swept;
      }
      query.cursor = std::move(page.cursor);
      more = !query.cursor.empty() && options.limit == 0;
      // Not those of later pages, whose results are not removed yet.
      if (options.limit != 0) at_once = page.records.size() - swept.removed;
    }
  }
  bool more = at_once > 0;
  while (more && go_on()) {
    SweepAnswer answer = blocking::sweep(store, options.expired_before, at_once);
    swept.removed += answer.removed;
    more = answer.more && options.limit == 0;
    if (!answer.error) continue;
    if (answer.error->kind != ErrorKind::corrupt) {
      swept.error = std::move(answer.error);
      return swept;
    }
    if (!unreadable) unreadable = std::move(answer.error);
  }
  swept.error = std::move(unreadable);
  return swept;
}

void count(const Record& record, Time now, Counts& counts) {
  const auto earlier = [](std::optional<Time>& kept, Time time) { kept = kept ? std::min(*kept, time) : time; };
  const Standing is = standing(record, now);
  counts.records += 1;
  counts.by_standing.at(static_cast<std::size_t>(is)) += 1;
  counts.bytes += record_bytes(record);
  if (record.result.placement == Placement::offloaded) {
    counts.offloaded += 1;
    counts.offloaded_bytes += record.result.size;
  }
  if (record.result.placement == Placement::dropped) counts.dropped += 1;
  if (record.created_at != Time{}) earlier(counts.oldest_created, record.created_at);
  if (is == Standing::unknown) earlier(counts.oldest_unknown, record.finished_at);
  if (is == Standing::failed) earlier(counts.oldest_failed, record.finished_at);
  if (is == Standing::lapsed) {
    earlier(counts.oldest_lapsed, record.lease_until);
    if (record.on_lapse == OnLapse::hold) counts.lapsed_on_hold += 1;
  }
  if (is_overdue(record, now)) {
    counts.overdue += 1;
    earlier(counts.oldest_overdue, record.expected_until);
  }
}

Time now(const Store& store, const Clock& clock) noexcept {
  const std::optional<StoreTime> told = store.time();
  return told ? told->now : clock.now();
}

StoreTime learn_now(Store& store, const Clock& clock) {
  if (const auto told = store.time()) return *told;
  if (!store.capabilities().tells_time) return {.now = clock.now()};
  const Answer answer = blocking::get(store, Key("once", "what time is it").stored());
  if (answer.status == AnswerStatus::failed) throw Exception(answer.error);
  if (const auto told = store.time()) return *told;
  if (answer.time) return *answer.time;
  throw Exception(ErrorKind::unavailable,
                  store.name() +
                      " answered without a believable time, which is needed to tell what has expired. Look for a "
                      "proxy in between that drops or writes the Date header");
}

namespace {

struct Probe {
  Store& store;
  RecordPtr record;
  Callback<void(std::optional<Error>)> done;

  // False: the probe has ended.
  bool went(const Answer& answer, const char* step) {
    if (answer.status == AnswerStatus::done) return true;
    const bool failed = answer.status == AnswerStatus::failed;
    done(Error{.kind = failed ? answer.error.kind : ErrorKind::corrupt,
               .message = std::string("a record could not be ") + step + ": " +
                          (failed ? answer.error.message : "another one is in its place")});
    return false;
  }
};

}  // namespace

void probe(Store& store, const Clock& clock, Random& random, std::string holder,
           Callback<void(std::optional<Error>)> done) {
  std::array<std::uint8_t, 4> bits{};
  random.fill(bits);
  const Stamp stamp(now(store, clock), std::bit_cast<std::uint32_t>(bits));  // No other program reads it.
  Attempt attempt{.key = {}, .owner = {}, .fingerprint = {}, .holder = std::move(holder)};
  random.fill(attempt.owner.bytes);
  attempt.key = Key("once", "probe " + attempt.owner.hex()).stored();
  EffectivePolicy policy;
  policy.lease = policy.retention = Millis{60'000};
  Record record = claimed(attempt, policy, stamp, nullptr, Verdict::execute);
  complete(record, Result(), policy, stamp);
  const auto trial =
      std::make_shared<Probe>(Probe{.store = store, .record = share(std::move(record)), .done = std::move(done)});
  store.insert(trial->record, [trial](const Answer& inserted) {
    if (!trial->went(inserted, "written")) return;
    trial->store.get(trial->record->key, [trial](const Answer& read) {
      if (!trial->went(read, "read")) return;
      if (!read.record || !(*read.record == *trial->record)) {
        return trial->done(Error{.kind = ErrorKind::corrupt, .message = "what was read is not what was written"});
      }
      trial->store.remove(trial->record->key,
                          {.owner = trial->record->owner, .revision = trial->record->revision, .place = read.place},
                          [trial](const Answer& removed) {
                            if (trial->went(removed, "removed")) trial->done(std::nullopt);
                          });
    });
  });
}

}  // namespace once::operate
