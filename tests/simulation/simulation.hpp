// One run of a small world: several processes with an engine each, one store, operators, and a network and clocks that
// go wrong, on one thread in virtual time. Everything that happens follows from the seed. An auditor watches.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>

#include <once/record.hpp>
#include <once/store.hpp>

#include "auditor.hpp"

namespace once::simulation {

// Bugs that are put in on purpose, to show that the auditor sees them.
enum class Bug : std::uint8_t {
  none,
  store_ignores_revision,      // A replacement needs only the owner.
  store_inserts_over,          // An insert needs nothing.
  store_forgets_acknowledged,  // Some writes are acknowledged and not carried out.
  store_answers_another_key,   // Now and then an answer brings another key's record.
  engine_writes_regardless,    // A refused replacement is sent again over whatever is there.
  engine_takes_live_claims,    // A record in the way is shown with a lapsed lease.
  engine_deletes_claims,       // Now and then a renewal removes the claim instead.
  engine_loses_steps,          // A takeover does not write the steps.
  engine_keeps_token,          // A takeover writes the old token.
  engine_replays_stale,        // Answers show the first result a key ever had.
  engine_swallows_answers,     // Now and then an answer never comes.
  engine_answers_twice,        // Now and then a caller is answered twice.
  clock_far_off,               // The store does not tell its time, and clocks differ by more than the skew.
  engine_repeats_revisions,    // A revision is a bare counter, so that two different writes may share it.
  engine_forgets_hold,         // A takeover writes that the record is not held.
  engine_forgets_history,      // A takeover writes the history as it was, without the attempt that it replaces.
  engine_repeats_history,      // A renewal appends the newest entry of the history again.
  store_reads_stale,           // A read shows what stood there one write before.
  store_commits_apart,         // A refused write commits its companions all the same.
  offload_loses_results,       // A result is gone as soon as its record is written.
  store_commits_displaced,     // A transaction of a displaced owner's can finish the record of the next one.
  store_commits_rows_apart,    // A transaction whose finish was refused commits its rows all the same.
  store_forgets_transactions,  // Some commits of transactions are acknowledged and not carried out.
  store_finishes_released,     // A transaction can finish a claim that was released.
  store_writes_back_record,    // A transaction's finish writes the whole record as it was when it was handed out.
  store_tells_wrong_time,      // The time that the store tells is off by more than it says.
  clock_runs_slow,             // A host's clock runs at two thirds of the true speed.
  engine_declines_in_doubt,    // A transaction whose outcome is not known is taken for rolled back.
  engine_ignores_payload,      // Answers do not show which payload a record is of.
  engine_resets_attempt,       // A takeover counts the attempts from one again.
  engine_loses_fingerprint,    // A takeover does not write the fingerprint.
  engine_serves_expired,       // Answers show results as if they never expired.
  engine_ignores_refusals,     // A holder's refused write is taken for one that did not arrive.
  clock_sleeps,                // A host's clock of leases stands still while the host does.
  engine_adopts_copies,        // Whatever shows a claim's own owner is adopted, also what a copy of the process wrote.
  copy_repeats_draws,          // A copy of a process draws the same random bytes as the process.
  // Of a process that sleeps over the end of a lease:
  engine_looks_before_sleep,     // Work acts on what its claim said when it was looked at last.
  engine_loses_sleeping_claims,  // The claim is given up as soon as its lease has ended.
  engine_tries_for_ever,         // It is never given up.
  engine_forgets_loss,           // A claim that was given up is there again after the next write.
  engine_believes_renewals,      // A renewal that was refused is taken for one that was written.
  engine_attaches_anew,          // A claim that is taken up gets a new token.
  // In what the DynamoDB store sends, …
  dynamodb_puts_unconditionally,       // A record is put under no condition.
  dynamodb_compares_no_revision,       // A put names only the owner.
  dynamodb_transacts_unconditionally,  // A record with companions is put under no condition.
  dynamodb_encodes_no_steps,           // An item has no steps.
  dynamodb_reads_inconsistently,       // A read does not ask for what was written last.
  dynamodb_sends_no_token,             // A transaction that is sent again is not recognised.
  // … and in what it and its client make of the answers.
  dynamodb_believes_lost_answers,  // A write whose answer was lost is taken for done.
  dynamodb_ignores_status,         // A refusal is taken for success.
  // In the disk below the SQLite store, …
  sqlite_syncs_late,             // A commit is acknowledged before its sync, which comes with the next one.
  sqlite_skips_syncs,            // Commits are not synced.
  sqlite_copies_unsynced,        // What is copied from the log into the file is not synced.
  sqlite_believes_failed_syncs,  // A sync that failed is taken for one that worked.
  sqlite_loses_pages,            // Some pages of a commit are not written to the log.
  // … in what it is asked, and in what is made of its answers.
  sqlite_compares_no_revision,  // A replacement needs only the owner.
  sqlite_reads_stale,           // A read shows the record as it was one write before.
  sqlite_swaps_answers,         // The operations of a group get each other's answers.
  sqlite_believes_doubts,       // A write in doubt is taken for done.
};
inline constexpr Bug last_bug = Bug::sqlite_believes_doubts;
const char* to_string(Bug bug);

// The engines' store: the simulated one, or the code of a real one over a simulated wire or disk.
enum class Which : std::uint8_t { simulated, dynamodb, sqlite };
inline constexpr Which last_store = Which::sqlite;
const char* to_string(Which store);
Which store_of(Bug bug);  // Where it can be planted.

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t operations = 1'000;  // Calls of begin().
  Bug bug = Bug::none;
  Which store = Which::simulated;
  std::ostream* trace = nullptr;  // Where to tell everything that happens; null: nowhere.
};

struct Report {
  std::uint64_t digest = 0;  // Of everything that happened: equal for equal seeds.
  std::uint64_t events = 0;
  Auditor::Totals totals;
  std::uint64_t crashes = 0, power_cuts = 0, pauses = 0, jumps = 0, lost_answers = 0, late_writes = 0,
                operator_acts = 0, effects = 0, doubled_effects = 0, copies = 0;
};

// Throws Violation.
Report run(const Options& options);

}  // namespace once::simulation
