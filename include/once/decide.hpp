// The decision, and the changes of a record that may follow from it. Pure: time, randomness and records come in as
// arguments, a decision or the next record comes out. Everything here is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <once/policy.hpp>
#include <once/record.hpp>

namespace once {

// One try at claiming a key.
struct Attempt {
  std::string key;
  Owner owner;  // Of this attempt alone.
  Fingerprint fingerprint;
  std::string holder;
};

enum class Verdict : std::uint8_t {
  execute,         // Nothing there, or expired: a fresh claim.
  resume,          // The claim is ours already, only the answer was lost.
  mismatch,        // The key was used for another payload.
  replay,          // A result is there.
  replay_failure,  // A failure is there.
  retry,           // A failure is there and policy says to try again: claim it, keeping its steps.
  unknown,         // Only a person or a callback decides.
  conflict,        // A live claim of somebody else.
  take_over,       // A lapsed or released claim: claim it, keeping its steps.
  mark_unknown,    // A lapsed claim that nobody may re-run.
};

std::string_view to_string(Verdict verdict) noexcept;

struct Decision {
  Verdict verdict = Verdict::execute;
  Millis retry_after{0};  // conflict: what is left of the lease, skew included. More than 0.

  friend bool operator==(const Decision&, const Decision&) = default;
};

// `seen` is the record in the way, or null. The table is docs/decision-table.md, printed by a test over every
// combination.
Decision decide(const Record* seen, const Attempt& attempt, const EffectivePolicy& policy, Time now) noexcept;

// What every write is made with: the time, and random bits for its revision (see next_revision()). One stamp makes one
// write: a second write needs new bits.
struct Stamp {
  Stamp(Time stamp_now, std::uint32_t stamp_random) noexcept : now(stamp_now), random(stamp_random) {}
  Time now;
  std::uint32_t random;
};

// What a new claim writes: over nothing (insert; seen is null), or over the record it saw (replace). Verdict is
// execute, retry or take_over; the last two keep steps, created_at, label, input and history, count the attempt on, and
// keep `hold` if either the record or the policy says it. token = max(seen token + 1, now in ms).
Record claimed(const Attempt& attempt, const EffectivePolicy& policy, Stamp stamp, const Record* seen, Verdict verdict);
// The same into a new record, where it lies.
void claim(Record& next, const Attempt& attempt, const EffectivePolicy& policy, Stamp stamp, const Record* seen,
           Verdict verdict);

// Each of these turns `record`, a copy of what is stored, into what a holder or an operator writes over it, under the
// next revision.
void complete(Record& record, Result result, const EffectivePolicy& policy, Stamp stamp);
void fail(Record& record, Failure failure, Result result, const EffectivePolicy& policy, Stamp stamp);
void mark_unknown(Record& record, std::string_view reason, Stamp stamp);
void release(Record& record, std::string_view reason, const EffectivePolicy& policy,
             Stamp stamp);                                               // Steps kept, lease given up.
void renew(Record& record, const EffectivePolicy& policy, Stamp stamp);  // Under Policy::fixed_lease only the revision.
// A claim whose times were counted on a clock that has turned out wrong, counted anew.
void retime(Record& record, const EffectivePolicy& policy, Stamp stamp);
void add_step(Record& record, Step step, const EffectivePolicy& policy, Stamp stamp);  // Renews as well.

// When a record in progress expires: never before its lease ends, and not at all under hold.
Time in_progress_expiry(OnLapse on_lapse, const EffectivePolicy& policy, Time lease_until, Time now) noexcept;

// How much `record`, in progress, may still grow in record_bytes() before it has ended, whoever ends it: by other texts
// of the greatest length (holder, note, failure, content type) and one entry of its history. A holder leaves so much
// room for it in its store, or nobody could end it any more.
std::size_t room_to_end(const Record& record) noexcept;

// A name for the service downstream: the same for every attempt at this operation, another for every other name or
// key. 64 hexadecimal digits of SHA-256, so that neither key nor scope can be read from it.
std::string derived_key(std::string_view stored_key, std::string_view name);

// Cuts UTF-8 text to at most `max_bytes`, never inside a character; bytes that are not UTF-8 become U+FFFD.
std::string clean_text(std::string_view text, std::size_t max_bytes = Record::max_text_bytes);

}  // namespace once
