// The decision, and the changes to a record that may follow from it. Pure: time, randomness and records come in as
// arguments, a decision or the next record comes out. Everything here is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <once/policy.hpp>
#include <once/record.hpp>

namespace once {

// The whole input of a call, or null: none is to be kept.
using InputPtr = std::shared_ptr<const std::string>;

// The beginning of an input, at most `max_bytes` of it. A character of UTF-8 is not cut.
std::string_view input_beginning(std::string_view input, std::size_t max_bytes = Record::max_input_bytes) noexcept;

// One try at claiming a key.
struct Attempt {
  std::string key = {};          // Key::stored().
  Owner owner = {};              // Random, new for each attempt. Zeros: none is drawn yet, so no record is its own.
  Fingerprint fingerprint = {};  // Empty: matches every record.
  std::string holder = {};       // Record::holder.
  std::string label = {};        // Record::label.
  std::shared_ptr<const CallTrace> trace = nullptr;  // Null: not traced.
  InputPtr input = nullptr;                          // Record::input. Null: not kept.
  std::uint64_t input_bytes = 0;                     // Record::input_bytes.
};

// What the record says to an attempt.
enum class Verdict : std::uint8_t {
  execute,         // No record, or an expired one: make a fresh claim.
  resume,          // This attempt has the claim already: the store's answer was lost.
  mismatch,        // The key was used with another payload.
  replay,          // A result is stored.
  replay_failure,  // A failure is stored.
  retry,           // A failure is stored and the policy says to execute again: claim it, keep its steps.
  unknown,         // The outcome is not known: an operator or a callback decides.
  conflict,        // Another attempt has a live claim.
  take_over,       // A lapsed or released claim: claim it, keep its steps.
  mark_unknown,    // A lapsed claim under `hold`: no caller may run it again.
};

std::string_view to_string(Verdict verdict) noexcept;  // "execute" …

// What decide() returns.
struct Decision {
  Verdict verdict = Verdict::execute;  // execute, retry, take_over: call claim() next. mark_unknown: mark_lapsed().
  Millis retry_after{0};               // conflict: what is left of the lease, plus the skew. Never 0.

  friend bool operator==(const Decision&, const Decision&) = default;
};

// `seen` is the record in the way, or null. A test prints every combination into docs/decision-table.md.
Decision decide(const Record* seen, const Attempt& attempt, const EffectivePolicy& policy, Time now) noexcept;

// What every write needs: the time, and random bits for its revision (next_revision()). Use a stamp for one write only:
// the next one needs new bits.
struct Stamp {
  // Neither has a default, so that no write forgets one.
  Stamp(Time stamp_now, std::uint32_t stamp_random) noexcept : now(stamp_now), random(stamp_random) {}
  Time now;              // The store's time if it tells it, otherwise the host's.
  std::uint32_t random;  // The low 20 bits count.
};

// The record that a new claim writes: by insert if `seen` is null, otherwise by replace. The verdict is execute, retry
// or take_over. The last two keep steps and created_at, increment the attempt, and add the replaced attempt to the
// history. The input is the new attempt's, or none. They keep the label, unless the policy is Label::none,
// expected_until unless the policy sets it anew, and `hold` if the record or the policy says so. token = max(seen token
// + 1, now in ms).
Record claimed(const Attempt& attempt, const EffectivePolicy& policy, Stamp stamp, const Record* seen, Verdict verdict);
// The same, written into `next`, which must be new.
void claim(Record& next, const Attempt& attempt, const EffectivePolicy& policy, Stamp stamp, const Record* seen,
           Verdict verdict);

// Each of these takes `record`, a copy of the stored one, and changes it into the one to write over it, under the next
// revision.
//
// Ends the claim with a result, kept for Policy::retention.
void complete(Record& record, Result&& result, const EffectivePolicy& policy, Stamp stamp);
// Ends it with a failure, whose texts are cut to their limits. Kept for Policy::failure_retention.
void fail(Record& record, Failure failure, Result&& result, const EffectivePolicy& policy, Stamp stamp);
// Ends it without an outcome. Does not expire. `reason`: Failure::message, cut to its limit.
void mark_unknown(Record& record, std::string_view reason, Stamp stamp);
void mark_lapsed(Record& record, Stamp stamp);  // mark_unknown() for a claim whose lease has lapsed under `hold`.
void release(Record& record, std::string_view reason, const EffectivePolicy& policy,
             Stamp stamp);  // Steps kept, lease given up.
void renew(Record& record, const EffectivePolicy& policy,
           Stamp stamp);  // With Policy::fixed_lease, changes only the revision.
// Computes a claim's times again, after its clock turned out to be wrong.
void retime(Record& record, const EffectivePolicy& policy, Stamp stamp);
void add_step(Record& record, Step step, const EffectivePolicy& policy, Stamp stamp);  // Also renews.

// ---- history

// Cuts the entry's texts to max_text_bytes (clean_text()), and drops the oldest entries over max_entries, but none of
// the last `keep` ones.
void append(History& history, HistoryEntry entry, std::size_t keep = 0);

// Whether `record` was written under this revision, or only operators have changed it since: each of their acts names
// the revision that it wrote and the one that it replaced. For example, the holder knows revision 5:
// 1. An operator extends the lease: revision 6, and an entry "6 replaced 5". It leads back to 5: the holder goes on.
// 2. A copy of the holder's process renews: revision 7. It leads back to 7 only: the holder has lost the claim.
bool leads_back(const Record& record, std::uint64_t revision) noexcept;

// How many acts at the end of the history the holder may not have seen: those done to a live claim since an attempt
// wrote it the last time. They stay until it writes again. 0 for a record that is no claim, or released.
std::size_t unseen_acts(const Record& record) noexcept;

// Appends how the attempt of `seen` ended, unless `history` has that. Call it before a write over what `seen` tells.
void append_attempt(History& history, const Record& seen, Time now);

// Drops what a store of records of `max_record_bytes` has no room for: first the end of the input, then the oldest
// entries of the history, but no unseen_acts(). Neither may make its record unwritable for an attempt. In progress, it
// also leaves room_to_end().
void shorten(Record& record, std::size_t max_record_bytes);

// When a record in progress expires: never before its lease ends. Under `hold` it does not expire.
Time in_progress_expiry(OnLapse on_lapse, const EffectivePolicy& policy, Time lease_until, Time now) noexcept;

// When a failure that is stored now expires.
Time failure_expiry(const EffectivePolicy& policy, Time now) noexcept;

// How many bytes `record`, in progress, may still grow by until it has ended. Counts texts of the greatest length
// (holder, note, failure, content type) and one history entry. A holder leaves this much room in its store: otherwise
// nobody could end the record.
std::size_t room_to_end(const Record& record) noexcept;

// A key for a service downstream: the same for every attempt at this operation, different for another name or key. 64
// hexadecimal digits of SHA-256, which reveal neither key nor scope.
std::string derived_key(std::string_view stored_key, std::string_view name);

// Cuts UTF-8 text to at most `max_bytes`, never inside a character. Bytes that are not UTF-8 become U+FFFD.
std::string clean_text(std::string_view text, std::size_t max_bytes = Record::max_text_bytes);

}  // namespace once
