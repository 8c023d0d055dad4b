// What a person may do to records: decide an unknown one, give a claim up, prolong, sweep, count. Used by the program
// `once`; anything else with an operator's face uses the same rules.
//
// The plan_ functions are pure: the record that was seen goes in, the record to write comes out, or why not. apply()
// writes it under the condition that nothing has changed since. Every change keeps who did it and why in Record::note.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <once/callback.hpp>
#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/offload.hpp>
#include <once/record.hpp>
#include <once/result.hpp>
#include <once/store.hpp>
#include <once/time.hpp>

namespace once::operate {

// Who changes a record, and why. Both must hold something other than blanks.
struct Reason {
  std::string by;    // "alice@host".
  std::string text;  // Cut to what Record::note holds.
};

// How a record looks to an operator: what is stored, and what follows from the time.
enum class Standing : std::uint8_t {
  running,    // In progress, its lease lives.
  lapsed,     // In progress, its lease has run out: the next caller takes it over, or finds it unknown under hold.
  released,   // In progress, given up: the next caller takes it over.
  completed,  // Its result is replayed.
  failed,     // Its failure is replayed.
  unknown,    // Waits for a decision.
  expired,    // Counts as gone; sweep removes it.
};

std::string_view to_string(Standing standing) noexcept;               // "running" …
std::optional<Standing> standing_from_string(std::string_view name);  // Empty for other words.
Standing standing(const Record& record, Time now) noexcept;

// The next record, or why there is none: text for people that says what to do instead.
struct Plan {
  std::optional<Record> next;
  std::string refusal;  // Empty if `next` is set.
};

enum class As : std::uint8_t {
  completed,  // It took place: `result` is replayed from now on.
  failed,     // It failed: `failure`, with `result`, is replayed from now on.
  released,   // It did not take place: the next caller runs it.
};

struct Resolution {
  As as = As::completed;
  Result result;
  Failure failure;
  Millis retention{86'400'000};  // How long from now the result is replayed, or the released record is kept.
  bool any_payload = false;      // released: the next caller may send another payload. Otherwise the fingerprint stays.
  // Also for a record whose claim lives (its holder is refused from then on, but what it does meanwhile is done) or
  // that has a result already (which is lost).
  bool force = false;
};

// Ends a record that is unknown, lapsed or released. The owner changes to `fresh` (random, of this change alone), so
// that whatever its holder still writes is refused.
Plan plan_resolve(const Record& seen, const Resolution& resolution, const Reason& reason, const Owner& fresh,
                  Stamp stamp);

// Gives the operation free: the next caller runs it, with the steps that are finished. The same as resolving as
// released, whatever `resolution.as` says, but that a record that is released already is refused, unless `any_payload`
// takes its fingerprint away.
Plan plan_release(const Record& seen, const Resolution& resolution, const Reason& reason, const Owner& fresh,
                  Stamp stamp);

// Prolongs a claim that is in progress, lapsed ones too, by `by` from the end of its lease or from now, whichever is
// later; the owner stays, so that its holder goes on. For a completed or failed record: keeps the result longer by
// `by`. `by`: 1 ms to 10 years. What is left of a claim's retention after its lease stays as long as it was, and at
// least `skew`, the store's default_skew: others respect the lease for so long.
Plan plan_extend(const Record& seen, Millis by, const Reason& reason, Stamp stamp, Millis skew);

// Changes what becomes of a claim in progress when its lease lapses. Only an operator takes `hold` back. The owner
// stays, so that its holder goes on. `retention`: how long from now a claim without hold is kept, unless its lease and
// the `skew` (see plan_extend) end later.
Plan plan_on_lapse(const Record& seen, OnLapse on_lapse, Millis retention, const Reason& reason, Stamp stamp,
                   Millis skew);

struct Applied {
  enum class Kind : std::uint8_t {
    done,     // Durable.
    changed,  // The record is not the one that was seen any more: `record` is what is there, empty for nothing.
    failed,   // See `error`.
  };
  Kind kind = Kind::failed;
  RecordPtr record;
  Error error;
};

// Writes `next` over what was seen. A write whose answer is lost is looked for before it is given up as in_doubt. The
// store must live until `done` is called; see Store for the rules of completions.
void apply(Store& store, const Record& seen, std::uint64_t place, Record next, Callback<void(Applied)> done);
Applied apply(Store& store, const Record& seen, std::uint64_t place, Record next);  // Waits.

// Which records are meant. Conditions are combined by "and"; those of the stored key and state are left to the store.
struct Filter {
  std::optional<Standing> standing;
  bool in_progress = false;  // Only what is running, lapsed or released.
  std::string key_prefix;    // Of the stored key; see scope_prefix().
  // A record that does not say when it was made, as other programs' may be, matches neither of these.
  std::optional<Time> created_before;      // created_at <= this.
  std::optional<Time> created_not_before;  // created_at >= this.
};

bool matches(const Filter& filter, const Record& record, Time now) noexcept;

// Calls `each` for every matching record until it gives false. Waits; pages of 500. What lies among them and cannot be
// read does not end it: after all others it gives corrupt, with the first of these and their number.
std::optional<Error> for_each(Store& store, const Filter& filter, Time now,
                              const std::function<bool(const Record&)>& each);

// Up to `limit` (1 to 10 000) of the matching records, from `cursor` on, which is empty or ListPage::cursor of the page
// before. Waits, and looks 20 times at the most: where few records match, a page may have fewer, or none, and yet not
// be the last, which has no cursor. ListPage::unreadable has what could not be read between them.
ListPage page(Store& store, const Filter& filter, Time now, std::string cursor, std::size_t limit);

struct SweepOptions {
  Time expired_before{};             // Records with expires_at <= this go.
  std::shared_ptr<Offload> offload;  // Where their results may be kept outside the store. Empty: nowhere.
  std::function<bool(std::size_t removed)> progress;  // Called between slices; false stops. May be empty.
};

struct Swept {
  std::size_t removed = 0;          // Records.
  std::size_t results_removed = 0;  // Results outside the store that belonged to them.
  // What stopped it; what was removed stays removed. corrupt: what could not be read, or the first of several; it was
  // left alone, and where the store can, the sweep went on to the others.
  std::optional<Error> error;
};

// Removes expired records, in slices that do not hold up writers, and the results they kept outside the store. Waits.
Swept sweep(Store& store, const SweepOptions& options);

// What stats and doctor count.
struct Counts {
  std::uint64_t records = 0;
  std::array<std::uint64_t, 7> by_standing{};  // Indexed by Standing.
  std::uint64_t bytes = 0;                     // record_bytes() of all.
  std::uint64_t offloaded = 0;                 // Results outside the store …
  std::uint64_t offloaded_bytes = 0;           // … and their size.
  std::uint64_t dropped = 0;                   // Results that were kept nowhere.
  std::optional<Time> oldest_created;
  std::optional<Time> oldest_unknown;  // finished_at of the one that has waited longest for a decision.
  std::optional<Time> oldest_lapsed;   // lease_until of the one that lapsed first.

  [[nodiscard]] std::uint64_t of(Standing standing) const { return by_standing.at(static_cast<std::size_t>(standing)); }
};

void count(const Record& record, Time now, Counts& counts);

// The store's time where it tells, else this host's. For what was just read from the store: some stores, DynamoDB among
// them, know their time only after their first answer.
Time now(const Store& store, const Clock& clock) noexcept;

// The same before anything was asked: a store that would tell only with an answer is asked for a key that nobody has.
// What is decided for good, as a sweep does, is decided by the earliest it can be: now - error. Waits. Throws
// Exception: why the store does not answer, or unavailable if its answer told no time.
StoreTime learn_now(Store& store, const Clock& clock);

}  // namespace once::operate
