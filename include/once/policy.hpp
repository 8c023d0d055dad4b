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

struct Policy {
  Millis lease{30'000};          // How long a claim is respected without renewal. 10 ms to 24 h.
  Millis retention{86'400'000};  // How long a result is replayed. 1 ms to 10 years.
  Millis wait{10'000};           // OnConflict::wait: how long at most; then it is a conflict. 0 to 24 h.
  // How far two machines' views of the store's time may differ. 0 to 1 h. Empty: Capabilities::default_skew of the
  // store, filled in by the engine; decide() alone takes it for 0.
  std::optional<Millis> skew;

  // Empty: what the engine's policy says, and if that says nothing either: wait; in HTTP, Lambda and SQS, where
  // somebody else asks again, fail.
  std::optional<OnConflict> on_conflict;
  // The same for what has no key, and for what has one but nothing to compare where a comparison is asked for. Nothing
  // said: refuse; in the dialects of Powertools run_unprotected, as those libraries do.
  std::optional<OnMissingKey> on_missing_key;

  OnLapse on_lapse = OnLapse::takeover;
  OnThrow on_throw = OnThrow::release;
  OnStoredFailure on_stored_failure = OnStoredFailure::replay;
  OnUnrecorded on_unrecorded = OnUnrecorded::return_result;
  OnStoreDown on_store_down = OnStoreDown::refuse;

  // Results longer than this go to the offload port; without one they are dropped, and a replay is an error that says
  // so. Never more than the store's own limit. Bytes.
  std::size_t max_inline_bytes = 256 * 1024;

  // Results longer than this are compressed in the record, if that makes them at least a tenth smaller and the store
  // keeps such (Capabilities::keeps_compressed). Those still too long after that are offloaded, as they were. Empty:
  // 1 KiB in a durable store; never in one that is only memory, where it would cost more than it saves. Bytes.
  std::optional<std::size_t> compress_over_bytes;

  bool heartbeat = true;  // Renew the lease at a third of it while the work runs.

  // The lease that a claim begins with is all that it gets: neither heartbeats nor steps prolong it, and what the
  // caller waited for somebody else's claim is taken off it (10 ms are left at least). For work that is ended from
  // outside at a known time, so that a retry need not wait for longer. And because nobody may be there to go on trying
  // once the work has returned, a finish that cannot be written is tried for up to 2 s, or a quarter of what is left of
  // the lease, before it is told as unrecorded. A store that does not answer at all holds it up for as long as that
  // store waits (DynamoDbOptions::operation_timeout).
  bool fixed_lease = false;

  friend bool operator==(const Policy&, const Policy&) = default;
};

// `policy`, with what it leaves open of skew, on_conflict and on_missing_key taken from `usual`.
Policy fill_in(Policy policy, const Policy& usual);

// Throws Exception(misuse) that names the member, if one is outside the range above.
void check(const Policy& policy);

}  // namespace once
