// The policies: what to do in each situation that has more than one right answer. Defaults come first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <once/record.hpp>
#include <once/time.hpp>

namespace once {

enum class OnConflict : std::uint8_t {
  wait,  // Up to Policy::wait for the result: by timer, with backoff and jitter; waiters in one process share one poll.
  fail,  // Say so at once.
};
enum class OnThrow : std::uint8_t {
  release,  // A retry may run.
  store,    // The failure is kept and replayed.
  hold,     // Unknown: a person or a callback decides.
};
enum class OnStoredFailure : std::uint8_t {
  replay,   // A stored failure is replayed.
  execute,  // A stored failure may be tried again.
};
enum class OnUnrecorded : std::uint8_t {
  return_result,  // The finish could not be written: return the result, say so by event, keep trying while the lease
                  // lives.
  raise,          // Throw instead (and still keep trying).
};
enum class OnStoreDown : std::uint8_t {
  refuse,           // Fail closed: the work is not run.
  run_unprotected,  // Fail open: the work is run without a claim, and counted.
};
enum class OnMissingKey : std::uint8_t {
  refuse,           // Nothing is run: Exception(misuse), or what the frontend has for it.
  run_unprotected,  // Run without a claim. The observer is told each time; without one, standard error once.
};

// What an operation, or an engine, says. A member that is empty says nothing: the operation inherits it from the
// engine, and the engine from the defaults, which EffectivePolicy has. So a policy names only what it changes:
//
//   once::Engine engine({.store = store, .policy = {.retention = std::chrono::hours(72)}});
//   once::idempotent(engine, {.name = "report", .policy = {.lease = std::chrono::minutes(5)}}, report);  // Kept 72 h.
struct Policy {
  std::optional<Millis> lease = {};      // How long a claim is respected without renewal. 10 ms to 24 h.
  std::optional<Millis> retention = {};  // How long a result is replayed. 1 ms to 10 years.
  std::optional<Millis> wait = {};       // OnConflict::wait: how long at most; then it is a conflict. 0 to 24 h.
  // How far two machines' views of the store's time may differ. 0 to 1 h. Where the engine says nothing either:
  // Capabilities::default_skew of its store.
  std::optional<Millis> skew = {};

  // Where nobody says anything, HTTP, Lambda and SQS have `fail`, as there somebody else asks again.
  std::optional<OnConflict> on_conflict = {};
  // For what has no key, and for what has one but nothing to compare where a comparison is asked for. Where nobody says
  // anything, the dialects of Powertools have run_unprotected, as those libraries do.
  std::optional<OnMissingKey> on_missing_key = {};

  std::optional<OnLapse> on_lapse = {};
  std::optional<OnThrow> on_throw = {};
  std::optional<OnStoredFailure> on_stored_failure = {};
  std::optional<OnUnrecorded> on_unrecorded = {};
  std::optional<OnStoreDown> on_store_down = {};

  // Results longer than this go to the offload port; without one they are dropped, and a replay is an error that says
  // so. Never more than the store's own limit. Bytes.
  std::optional<std::size_t> max_inline_bytes = {};

  // Results longer than this are compressed in the record, if that makes them at least a tenth smaller and the store
  // keeps such (Capabilities::keeps_compressed). Those still too long after that are offloaded, as they were. Where
  // nobody says anything: 1 KiB in a durable store; never in one that is only memory, where it would cost more than it
  // saves. Bytes.
  std::optional<std::size_t> compress_over_bytes = {};

  std::optional<bool> heartbeat = {};  // Renew the lease at a third of it while the work runs.

  // The lease that a claim begins with is all that it gets: neither heartbeats nor steps prolong it, and what the
  // caller waited for somebody else's claim is taken off it (10 ms are left at least). For work that is ended from
  // outside at a known time, so that a retry need not wait for longer. And because nobody may be there to go on trying
  // once the work has returned, a finish that cannot be written is tried for up to 2 s, or a quarter of what is left of
  // the lease, before it is told as unrecorded. A store that does not answer at all holds it up for as long as that
  // store waits (DynamoDbOptions::operation_timeout).
  std::optional<bool> fixed_lease = {};

  friend bool operator==(const Policy&, const Policy&) = default;
};

// A policy with nothing left open: what decisions are made by. The members are those of Policy, with the defaults.
struct EffectivePolicy {
  Millis lease{30'000};
  Millis retention{86'400'000};
  Millis wait{10'000};
  Millis skew{0};
  OnConflict on_conflict = OnConflict::wait;
  OnMissingKey on_missing_key = OnMissingKey::refuse;
  OnLapse on_lapse = OnLapse::takeover;
  OnThrow on_throw = OnThrow::release;
  OnStoredFailure on_stored_failure = OnStoredFailure::replay;
  OnUnrecorded on_unrecorded = OnUnrecorded::return_result;
  OnStoreDown on_store_down = OnStoreDown::refuse;
  std::size_t max_inline_bytes = 256 * 1024;
  std::optional<std::size_t> compress_over_bytes;  // Empty: as the store is, see Policy.
  bool heartbeat = true;
  bool fixed_lease = false;

  friend bool operator==(const EffectivePolicy&, const EffectivePolicy&) = default;
};

// `policy`, with what it leaves open taken from `usual`.
Policy fill_in(Policy policy, const Policy& usual);

// `policy`, with what it leaves open taken from the defaults.
EffectivePolicy effective(const Policy& policy);

// Throws Exception(misuse) that names the member, if one is outside the range above.
void check(const Policy& policy);

}  // namespace once
