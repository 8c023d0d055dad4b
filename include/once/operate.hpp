// What an operator may do to records: decide an unknown one, release or extend a claim, remove, sweep, count. The
// program `once` uses these functions. Any other tool for operators should too.
//
// The plan_ functions are pure: they take the record that was seen, and return the record to write or a refusal.
// apply() writes it on condition that nothing has changed since. Record::note says who made the change, and why, and so
// does an entry of Record::history.
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
#include <once/clock.hpp>
#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/offload.hpp>
#include <once/record.hpp>
#include <once/result.hpp>
#include <once/store.hpp>
#include <once/time.hpp>

namespace once::operate {

// Who changes a record, and why. Neither may be blank.
struct Reason {
  std::string by = {};    // "alice@host".
  std::string text = {};  // Cut to the length of Record::note.
};

// How a record looks to an operator: its state, and what follows from the time.
enum class Standing : std::uint8_t {
  running,    // In progress, with a live lease.
  lapsed,     // In progress, the lease has ended: the next caller takes it over, or marks it unknown under `hold`.
  released,   // In progress, but given up: the next caller takes it over.
  completed,  // Its result is replayed.
  failed,     // Its failure is replayed.
  unknown,    // Waits for a decision.
  expired,    // Counts as gone; sweep removes it.
};

std::string_view to_string(Standing standing) noexcept;               // "running" …
std::optional<Standing> standing_from_string(std::string_view name);  // Empty for other words.
// Compares its times with `now`, the store's time: now() or learn_now().
Standing standing(const Record& record, Time now) noexcept;

// The next record, or a refusal: text for people that says what to do instead.
struct Plan {
  std::optional<Record> next = {};  // For apply(); that of plan_remove() for remove(). Empty: refused.
  std::string refusal = {};         // Empty if `next` is set.
};

// How an operator ends an operation.
enum class As : std::uint8_t {
  completed,  // It took place: `result` is replayed from now on.
  failed,     // It failed: `failure`, with `result`, is replayed from now on.
  released,   // It did not take place: the next caller runs it.
};

// An operator's decision.
struct Resolution {
  As as = As::completed;  // Says which of the following members count.
  Result result = {};     // completed, failed: at most as check(const Result&) allows.
  Failure failure = {};   // failed: what is replayed. Its texts are cut to their limits.
  Millis retention{
      86'400'000};  // Up to keep_forever. How long from now the result is replayed, or the released record is kept.
  bool any_payload = false;  // released: the next caller may send another payload. Otherwise the fingerprint stays.
  // Also change a record with a live claim or a result. The holder's writes are refused from then on, but its work may
  // go on. A result that is there is lost.
  bool force = false;
};

// Ends a record that is unknown, lapsed or released. The owner becomes `fresh` (random, new for each change), so that
// later writes of its holder are refused.
Plan plan_resolve(const Record& seen, const Resolution& resolution, const Reason& reason, const Owner& fresh,
                  Stamp stamp);

// Releases the operation: the next caller runs it, after its finished steps. Ignores `resolution.as`, otherwise like
// plan_resolve() with As::released. A record that is released already is refused, unless `any_payload` removes its
// fingerprint.
Plan plan_release(const Record& seen, const Resolution& resolution, const Reason& reason, const Owner& fresh,
                  Stamp stamp);

// Extends a claim in progress, also a lapsed one, by `by` from the end of its lease or from now, whichever is later.
// The owner stays, so that its holder goes on. Extends the retention of a completed or failed record by `by`. Range: 1
// ms to 10 years. A claim is kept after its lease for as long as before, and at least for `skew`, the store's
// default_skew: others respect the lease until then.
Plan plan_extend(const Record& seen, Millis by, const Reason& reason, Stamp stamp, Millis skew);

// Changes what happens to a claim in progress when its lease lapses. Only an operator can take `hold` back. The owner
// stays, so that its holder goes on. `retention`: how long from now a claim without `hold` is kept, unless its lease
// and the `skew` (see plan_extend) end later.
Plan plan_on_lapse(const Record& seen, OnLapse on_lapse, Millis retention, const Reason& reason, Stamp stamp,
                   Millis skew);

// Whether the record may be removed. `next` is the record as it was seen, for remove(). Refused for a live claim
// without `force`, as its holder may be at work; with it, the holder's writes are refused from then on. Afterwards the
// operation can run again, whatever became of it. Nothing keeps the reason.
Plan plan_remove(const Record& seen, bool force, const Reason& reason, Time now);

// How apply() or remove() ended.
struct Applied {
  // Whether the store was changed.
  enum class Kind : std::uint8_t {
    done,     // Durable.
    changed,  // The record changed since it was seen. `record` is the present one, or empty.
    failed,   // See `error`.
  };
  Kind kind = Kind::failed;  // Says what the other members are.
  RecordPtr record = {};     // done: as written; null after remove().
  Error error = {};          // failed: why. in_doubt: it may have been written.
  bool unfit = false;  // failed: because the store can never keep `next`, as Answer::unfit. Not a fault of the store.
};

// Writes `next` over the record that was seen. After a lost answer it reads the record, and gives in_doubt only if that
// fails too. The store must live until `done` is called. Store has the rules for completions.
void apply(Store& store, const Record& seen, std::uint64_t place, Record next, Callback<void(Applied)> done);
Applied apply(Store& store, const Record& seen, std::uint64_t place, Record next);  // Blocks.

// Removes the record that was seen. `record` is null if it is gone, then and there or by an earlier try whose answer
// was lost. It leaves the record's offloaded result: remove that next. (In the other order, a record could be left
// whose result is missing.) Otherwise like apply().
void remove(Store& store, const Record& seen, std::uint64_t place, Callback<void(Applied)> done);
Applied remove(Store& store, const Record& seen, std::uint64_t place);  // Blocks.

// Which records to select. Conditions are combined by "and". The store checks those on stored key and state.
struct Filter {
  std::optional<Standing> standing = {};  // Empty: any.
  bool in_progress = false;               // Only running, lapsed or released records.
  bool overdue = false;                   // Only overdue ones: is_overdue().
  std::string key_prefix = {};            // Of the stored key; see scope_prefix().
  // The label contains this text. Upper and lower case of ASCII letters count as the same.
  std::string label_part = {};
  std::string holder_part = {};  // The holder does.
  // A record without created_at (other programs write such) matches neither of these.
  std::optional<Time> created_before = {};      // created_at <= this.
  std::optional<Time> created_not_before = {};  // created_at >= this.
};

// Whether all conditions hold. `now`: the store's time.
bool matches(const Filter& filter, const Record& record, Time now) noexcept;

// The conditions that a store can check, for pages of 500; matches() checks the others.
ListQuery query_of(const Filter& filter, Time now);

// Calls `each` for every matching record until it returns false. Blocks; reads pages of 500. Records that cannot be
// read do not stop it: after the others it returns corrupt, with the first of them and their number. `progress` may be
// empty. It is called after each page with the number of records that the store has returned so far, and ends the
// reading by false.
std::optional<Error> for_each(Store& store, const Filter& filter, Time now,
                              const std::function<bool(const Record&)>& each,
                              const std::function<bool(std::uint64_t read)>& progress = {});

// Up to `limit` (1 to 10 000) matching records from `cursor` on. `cursor` is empty or ListPage::cursor of the page
// before. Blocks, and reads at most 20 pages of the store. So a page may have fewer records, or none; only the last one
// has no cursor. ListPage::unreadable has the records that could not be read.
ListPage page(Store& store, const Filter& filter, Time now, std::string cursor, std::size_t limit);

// What sweep() removes.
struct SweepOptions {
  Time expired_before{};                                   // Records with expires_at <= this are removed.
  std::shared_ptr<Offload> offload = {};                   // Where their offloaded results are. Empty: nowhere.
  std::function<bool(std::size_t removed)> progress = {};  // Called between slices; false stops. May be empty.
  std::size_t limit = 0;  // At most about so many records, 1 to 10 000; the others are left for the next call. 0: all.
};

// What sweep() has removed.
struct Swept {
  std::size_t removed = 0;          // Records.
  std::size_t results_removed = 0;  // Results outside the store that belonged to them.
  // What stopped it; removed records stay removed. corrupt: the first record that could not be read. It was left, and
  // the sweep went on if the store can continue after it.
  std::optional<Error> error = {};
};

// Removes expired records and their offloaded results, in slices that do not block writers. Blocks.
Swept sweep(Store& store, const SweepOptions& options);

// What `once stats` and `once doctor` count.
struct Counts {
  std::uint64_t records = 0;                   // All, also expired ones.
  std::array<std::uint64_t, 7> by_standing{};  // Indexed by Standing.
  std::uint64_t bytes = 0;                     // record_bytes() of all.
  std::uint64_t offloaded = 0;                 // Offloaded results …
  std::uint64_t offloaded_bytes = 0;           // … and their size.
  std::uint64_t dropped = 0;                   // Results that were too large to keep.
  std::optional<Time> oldest_created = {};     // Empty: there is none with created_at.
  std::optional<Time> oldest_unknown = {};     // finished_at of the one that has waited longest for a decision.
  std::optional<Time> oldest_failed = {};      // finished_at of the stored failure that ended first.
  std::uint64_t overdue = 0;                   // is_overdue(): running, lapsed or released.
  std::optional<Time> oldest_overdue = {};     // expected_until of the one that should have ended first.
  std::optional<Time> oldest_lapsed = {};      // lease_until of the one that lapsed first.
  std::uint64_t lapsed_on_hold = 0;            // Of the lapsed ones: those that become unknown, and are not run again.

  // How many records look like that.
  [[nodiscard]] std::uint64_t of(Standing standing) const { return by_standing.at(static_cast<std::size_t>(standing)); }
};

// Adds the record to `counts`.
void count(const Record& record, Time now, Counts& counts);

// The store's time if it reports one, otherwise this host's. Call it after reading from the store: some stores, such as
// DynamoDB, report a time only after their first answer.
Time now(const Store& store, const Clock& clock) noexcept;

// The same before anything was read: asks a store that reports its time only with an answer for a key that does not
// exist. Decide irreversible things, such as a sweep, by the earliest possible time: now - error. Blocks. Throws
// Exception: the store's error, or unavailable if its answer had no time.
StoreTime learn_now(Store& store, const Clock& clock);

// Writes a record that no other program uses, reads it and removes it: whether the store takes new operations now, with
// a full disk, a closed gate or a lost lock. The record is a completed one, so no program counts it among those in
// progress; if it cannot be removed, it expires after a minute. `holder`: Record::holder. `done` gets what failed,
// whose message begins with the step: "a record could not be written: …". The store must live until then. Store has the
// rules for completions. Costs a write unit or two in stores that charge for them.
void probe(Store& store, const Clock& clock, Random& random, std::string holder,
           Callback<void(std::optional<Error>)> done);

}  // namespace once::operate
