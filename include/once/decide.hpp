// The decision, and the changes of a record that may follow from it. Pure: time, randomness and records come in as
// arguments, a decision or the next record comes out. Everything here is thread-safe.
#pragma once

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
Decision decide(const Record* seen, const Attempt& attempt, const Policy& policy, Time now) noexcept;

// What a new claim writes: over nothing (insert; seen is null), or over the record it saw (replace). Verdict is
// execute, retry or take_over; the last two keep steps and created_at and count the attempt on. token = max(seen token
// + 1, now in ms).
Record claimed(const Attempt& attempt, const Policy& policy, Time now, const Record* seen, Verdict verdict);
// The same into a new record, where it lies.
void claim(Record& next, const Attempt& attempt, const Policy& policy, Time now, const Record* seen, Verdict verdict);

// Each of these turns `record`, a copy of what is stored, into what a holder or an operator writes over it, revision
// one up.
void complete(Record& record, Result result, const Policy& policy, Time now);
void fail(Record& record, Failure failure, Result result, const Policy& policy, Time now);
void mark_unknown(Record& record, std::string_view reason, Time now);
void release(Record& record, std::string_view reason, const Policy& policy, Time now);  // Steps kept, lease given up.
void renew(Record& record, const Policy& policy, Time now);  // Under Policy::fixed_lease only the revision.
// A claim whose times were counted on a clock that has turned out wrong, counted anew.
void retime(Record& record, const Policy& policy, Time now);
void add_step(Record& record, Step step, const Policy& policy, Time now);  // Renews as well.

// The end of the expiry for a record that is in progress: never before its lease ends, never at all under hold.
Time in_progress_expiry(const Policy& policy, Time lease_until, Time now) noexcept;

// A name for the service downstream: the same for every attempt at this operation, another for every other name or
// key. 64 hexadecimal digits of SHA-256, so that neither key nor scope can be read from it.
std::string derived_key(std::string_view stored_key, std::string_view name);

// Cuts UTF-8 text to at most `max_bytes`, never inside a character; bytes that are not UTF-8 become U+FFFD.
std::string clean_text(std::string_view text, std::size_t max_bytes = Record::max_text_bytes);

}  // namespace once
