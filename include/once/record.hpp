// The record: everything a store keeps about one operation. A store writes and reads it whole, and makes no decision.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/fingerprint.hpp>
#include <once/result.hpp>
#include <once/time.hpp>
#include <once/trace.hpp>

namespace once {

// Expired is not a state: it follows from expires_at. Stores keep the numbers, so never renumber them.
enum class State : std::uint8_t {
  in_progress = 0,  // Claimed: an attempt runs it, or its lease has lapsed.
  completed = 1,    // Has a result, which is replayed.
  failed = 2,       // Has a failure, which is replayed.
  unknown = 3,      // The operation began, its outcome is not known. An operator or a callback must decide.
};

std::string_view to_string(State state) noexcept;               // "in_progress" …
std::optional<State> state_from_string(std::string_view name);  // Empty for other words.

// 128 random bits, new for every claim. All zero: no owner.
struct Owner {
  std::array<std::uint8_t, 16> bytes{};  // In the order of hex().

  [[nodiscard]] std::string hex() const;                       // 32 lower-case digits.
  static std::optional<Owner> from_hex(std::string_view hex);  // Empty unless 32 hexadecimal digits.

  friend bool operator==(const Owner&, const Owner&) = default;
};

// A finished part of an operation. Kept in the record, so that a takeover resumes after it.
struct Step {
  std::string name = {};    // 1 to max_name_bytes bytes, unique in its record.
  std::string result = {};  // Any bytes.

  static constexpr std::size_t max_name_bytes = 255;  // Longer names are refused as misuse.

  friend bool operator==(const Step&, const Step&) = default;
};

// What happens to a claim whose lease lapsed.
enum class OnLapse : std::uint8_t {
  takeover = 0,  // The next caller takes it over: at least once.
  hold = 1,      // It is not run again and becomes unknown: at most once. Applies to all later callers of the key too.
};

std::string_view to_string(OnLapse on_lapse) noexcept;               // "takeover", "hold".
std::optional<OnLapse> on_lapse_from_string(std::string_view name);  // Empty for other words.

// One thing that happened to an operation: an attempt that ended, or what an operator did.
struct HistoryEntry {
  // How it ended: "released", "lapsed", "failed", "unknown", "completed", or "displaced" by an operator while its claim
  // was live. Or what was done: "lease extended to 2026-05-17T09:30:00.250Z" …
  std::string what = {};
  std::string who = {};       // The holder, or the operator.
  std::string why = {};       // The reason, if one was given. lapsed, displaced: the last note.
  std::uint32_t attempt = 0;  // Which attempt. 0: an operator's act.
  Time began_at{};            // When the attempt was claimed. The epoch: not known, or an act.
  Time at{};                  // When it ended, or was done. lapsed: when its lease ended.
  TraceParent trace = {};     // The span of the attempt. Empty: it was not traced, or an act.
  // Of an operator's act: the record's revision that it wrote, and the one that it replaced. So the holder of a live
  // claim can tell it from what a copy of its process wrote: see leads_back(). 0: an attempt, or not known.
  std::uint64_t revision = 0;
  std::uint64_t replaced = 0;  // As revision.

  static constexpr std::size_t max_text_bytes = 256;  // Of each of the three texts, UTF-8.

  friend bool operator==(const HistoryEntry&, const HistoryEntry&) = default;
};

// What the record itself no longer tells: attempts that were given up or replaced, each of them once, and operators'
// acts. In the order in which they were written down. The oldest are dropped when there are more than max_entries, or
// when the record becomes too large for its store. Acts that the holder of a live claim may not have seen yet are never
// dropped: see unseen_acts().
struct History {
  std::vector<HistoryEntry> entries = {};  // The oldest first.
  std::uint32_t dropped = 0;               // How many were dropped; stops at the greatest number.
  TraceParent trace = {};  // The span of the record's present attempt, which a replay links to. Empty: not traced.

  static constexpr std::size_t max_entries = 16;     // More, if the holder has not seen so many acts.
  static constexpr std::size_t trace_bytes = 96;     // What a span counts for in record_bytes() …
  static constexpr std::size_t revision_bytes = 64;  // … and what the revisions of an act count for.
  // How many acts in a row an operator may do to a live claim whose holder writes nothing.
  static constexpr std::size_t max_unseen_acts = 64;

  friend bool operator==(const History&, const History&) = default;
};

// A history as one text, for stores that keep it in one column or attribute. Empty for an empty history. Otherwise the
// number of dropped entries, then for each entry: what, who, why, attempt, began_at and at in milliseconds; each as a
// netstring ("5:hello,"). A span is written like an entry, with `what` "trace" and TraceParent::text() as `who`, all
// else empty or 0: first that of the present attempt, and those of entries after them. The revisions of an act are
// written after it in the same way: `what` is "revision", `who` is the one that it wrote, `why` the one that it
// replaced.
std::string history_text(const History& history);
std::optional<History> history_from_text(std::string_view text);  // Empty if it is malformed.

// All that a store keeps of one operation.
struct Record {
  std::string key = {};              // Key::stored(): 1 to max_key_bytes bytes, any values.
  State state = State::in_progress;  // Says which of the fields below are set.

  Owner owner = {};            // Who holds it, or held it last.
  std::uint64_t token = 0;     // Fencing token: only grows for a key, across deletion and expiry too. At most 2^63 - 1.
  std::uint32_t attempt = 0;   // How often the operation was claimed, from 1.
  std::uint64_t revision = 0;  // Grows with every write: see next_revision(). From 2^20, below 2^53.

  Time lease_until{};  // in_progress: until when the claim is respected. The epoch itself: released, any attempt may
                       // take it.
  Time expires_at = never;  // From then on it counts as gone: is_expired().
  Time created_at{};        // When the first claim of this record was made.
  Time finished_at{};       // completed, failed, unknown: when. Otherwise the epoch.
  Time expected_until{};    // When the work should be done; heartbeats never move it. The epoch: not set.

  OnLapse on_lapse = OnLapse::takeover;  // hold once any attempt asked for it: only an operator takes it back.

  Fingerprint fingerprint = {};  // Of the payload. Empty: any payload matches.

  std::string holder = {};  // Free text for people: host, pid, function, request id. At most max_text_bytes, UTF-8.
  // Free text for people: the last heartbeat's note, or an operator's reason for the last change.
  std::string note = {};
  // The key as people know it, for finding: "order-17". At most max_text_bytes, UTF-8. May be empty.
  std::string label = {};
  History history = {};  // The last attempts and operators' acts.

  // What the present attempt was called with, if its policy keeps inputs: for people, decides nothing. Any bytes. The
  // beginning, if it is longer than max_input_bytes, or than the store has room for.
  std::string input = {};
  std::uint64_t input_bytes = 0;  // The size of the whole input, of which `input` may be a part. 0: not kept.

  std::vector<Step> steps = {};  // In the order they finished.

  Result result = {};    // completed: what is replayed. failed: bytes that belong to the failure, often none.
  Failure failure = {};  // failed: what is replayed. unknown: the reason.

  static constexpr std::size_t max_text_bytes = 1024;        // Of holder, note and label, each.
  static constexpr std::size_t max_input_bytes = 64 * 1024;  // Longer inputs are kept as their beginning.

  friend bool operator==(const Record&, const Record&) = default;
};

// A revision is a counter of the record's writes above 20 random bits. So it grows with every write, and two different
// writes over the same record have different revisions. A write that is sent again keeps its revision. Example:
// 1. A inserts, revision (1, r). The network delivers the insert twice, the second time after the record was swept.
// 2. The ghost is marked unknown: (2, s).
// 3. A late takeover that saw the old record at (2, t) is refused, because s is not t.
inline constexpr unsigned revision_random_bits = 20;
// After `before`; 0: the first. Only the low 20 bits of `random` count.
std::uint64_t next_revision(std::uint64_t before, std::uint32_t random) noexcept;
// How many writes made it: 1 for an insert.
constexpr std::uint64_t revision_count(std::uint64_t revision) noexcept { return revision >> revision_random_bits; }

// Whether a store may hold it: from 2^20, below 2^53.
constexpr bool is_revision(std::uint64_t revision) noexcept {
  return revision_count(revision) != 0 && revision >> 53U == 0;
}

// An in_progress record that was given up: the next attempt takes it over, under any on_lapse.
inline bool is_released(const Record& record) noexcept {
  return record.state == State::in_progress && record.lease_until == Time{};
}

// Encrypted, and not opened: the key that it names is not known here. See once/seal.hpp.
inline bool is_sealed(const Record& record) noexcept { return record.result.placement == Placement::sealed; }

// The error of everyone who would have to read or change such a record.
Error sealed_error(const Record& record);

// Should have ended by now: still in progress, perhaps with a live lease, after expected_until. A released record
// counts too, because its operation has not ended.
inline bool is_overdue(const Record& record, Time now) noexcept {
  return record.state == State::in_progress && record.expected_until != Time{} && record.expected_until <= now &&
         !is_expired(record.expires_at, now);
}

// A record as it is passed around: shared, and never changed. Null: there is none.
using RecordPtr = std::shared_ptr<const Record>;

// Moves the record in.
inline RecordPtr share(Record record) { return std::make_shared<const Record>(std::move(record)); }

// To keep and change.
inline std::optional<Record> copy_of(const RecordPtr& record) {
  return record == nullptr ? std::nullopt : std::optional(*record);
}

}  // namespace once
