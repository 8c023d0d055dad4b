// Policies: what to do where there is more than one right answer. Each enumeration lists its default first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <once/record.hpp>
#include <once/time.hpp>

namespace once {

// What a call does while another attempt has the claim.
enum class OnConflict : std::uint8_t {
  wait,  // Wait up to Policy::wait for the result, with backoff and jitter. Waiters in one process share one poll.
  fail,  // Report the conflict at once.
};
// What becomes of the claim when the work throws.
enum class OnThrow : std::uint8_t {
  release,  // A retry may run.
  store,    // The failure is stored and replayed.
  hold,     // The outcome is unknown: an operator or a callback decides.
};
// What a call does that finds a stored failure.
enum class OnStoredFailure : std::uint8_t {
  replay,   // A stored failure is replayed.
  execute,  // The next call runs the work again.
};
// What a call does whose work ran, but whose finish could not be written yet.
enum class OnUnrecorded : std::uint8_t {
  return_result,  // Return the result, report the event `unrecorded`, keep trying while the lease lives.
  fail,           // Throw Unrecorded, and keep trying.
};
// What a call does when the store is unavailable, or its claim in doubt. Other errors are reported whatever this
// says.
enum class OnStoreDown : std::uint8_t {
  refuse,           // Fail closed: the work does not run.
  run_unprotected,  // Fail open: the work runs without a claim, and an event reports it.
};
// What a call does without a key, or with a fingerprint that selects nothing.
enum class OnMissingKey : std::uint8_t {
  refuse,           // Nothing runs: Exception(misuse), or the frontend's own error.
  run_unprotected,  // Run without a claim. Reported to the observer each time; without one, on standard error once.
};
// Which keys are stored in Record::label too, as text for people. The key itself is stored whatever this says.
enum class Label : std::uint8_t {
  named,  // Keys that a caller names: the HTTP header, `once run --key`.
  all,    // Also keys taken from a payload or a message. They may be personal data, such as an e-mail address.
  none,   // None. A takeover removes the label of an earlier attempt.
};

// The choices of an operation or an engine. An operation inherits an empty member from its engine, and the engine from
// the defaults in EffectivePolicy. So a policy names only what it changes:
//
//   once::Engine engine({.store = store, .policy = {.retention = std::chrono::hours(72)}});
//   once::idempotent(engine, {.name = "report", .policy = {.lease = std::chrono::minutes(5)}}, report);  // Kept 72 h.
struct Policy {
  std::optional<Millis> lease = {};      // How long a claim is respected without renewal. 10 ms to 24 h.
  std::optional<Millis> retention = {};  // How long a result is replayed. 1 ms to 10 years, or keep_forever.
  // The same for failures: stored exceptions (OnThrow::store), Claim::fail(), and HTTP answers of 400 or more. Default:
  // `retention`.
  std::optional<Millis> failure_retention = {};
  // How long the work should take, from its claim: sets Record::expected_until. Later the record is overdue
  // (is_overdue()), which decides nothing: operators see it. 1 ms to 10 years. Default: nothing is expected.
  std::optional<Millis> expected = {};
  std::optional<Millis> wait = {};  // The longest OnConflict::wait; after it, a conflict. 0 to 24 h.
  // How far two machines' views of the store's time may differ. 0 to 1 h. Default: Capabilities::default_skew of the
  // engine's store.
  std::optional<Millis> skew = {};

  // Default: wait. HTTP, Lambda and SQS default to `fail`, because their callers retry.
  std::optional<OnConflict> on_conflict = {};
  // For calls without a key, and for calls whose fingerprint selects nothing. Default: refuse. The Powertools dialects
  // default to run_unprotected, as those libraries do.
  std::optional<OnMissingKey> on_missing_key = {};

  std::optional<OnLapse> on_lapse = {};                   // Kept in the record. Default: takeover.
  std::optional<OnThrow> on_throw = {};                   // Default: release. EngineOptions::throw_rule comes first.
  std::optional<OnStoredFailure> on_stored_failure = {};  // Default: replay.
  std::optional<OnUnrecorded> on_unrecorded = {};         // Default: return_result.
  std::optional<OnStoreDown> on_store_down = {};          // Default: refuse.

  std::optional<Label> label = {};  // Default: named.

  // Keep the input of each attempt in its record, for people (Record::input). It may be sensitive, and it is shown to
  // every reader of the store: see docs/sensitive-data.md. Default: false.
  std::optional<bool> keep_input = {};

  // Bytes. Longer results go to the offload port. Without one they are dropped, and a replay fails with ResultDropped.
  // The store's own limit applies too.
  std::optional<std::size_t> max_inline_bytes = {};

  // Bytes. Longer results are compressed in the record if that saves at least a tenth and the store keeps compressed
  // results (Capabilities::keeps_compressed). A result that is still too long is offloaded uncompressed. Default: 1 KiB
  // in a durable store; never in a memory store, where it would cost more than it saves.
  std::optional<std::size_t> compress_over_bytes = {};

  std::optional<bool> heartbeat = {};  // Renew the lease every third of its length while the work runs.

  // The lease is never extended: neither heartbeats nor steps renew it. The time that the caller waited for another
  // attempt's claim is subtracted, but 10 ms always remain. For work that its platform stops at a known time: a retry
  // need not wait longer than that. The process may stop once the work has returned, so a finish that cannot be written
  // is retried only briefly: for 2 s or a quarter of the remaining lease, whichever is less. Then it is reported as
  // unrecorded. A store that does not answer delays this by its own timeout (DynamoDbOptions::operation_timeout).
  std::optional<bool> fixed_lease = {};

  friend bool operator==(const Policy&, const Policy&) = default;
};

// A policy with every member set: decisions are made by it.
struct EffectivePolicy {
  // These mean what the members of Policy mean. Their initialisers are the defaults.
  Millis lease{30'000};                          // 30 s.
  Millis retention{86'400'000};                  // 24 h.
  std::optional<Millis> failure_retention = {};  // Empty: as retention.
  std::optional<Millis> expected = {};           // Empty: nothing is expected.
  Millis wait{10'000};                           // 10 s.
  Millis skew{0};                                // 0. An engine that is given none takes its store's.
  OnConflict on_conflict = OnConflict::wait;
  OnMissingKey on_missing_key = OnMissingKey::refuse;
  OnLapse on_lapse = OnLapse::takeover;
  OnThrow on_throw = OnThrow::release;
  OnStoredFailure on_stored_failure = OnStoredFailure::replay;
  OnUnrecorded on_unrecorded = OnUnrecorded::return_result;
  OnStoreDown on_store_down = OnStoreDown::refuse;
  Label label = Label::named;
  bool keep_input = false;
  std::size_t max_inline_bytes = 256 * 1024;            // 256 KiB.
  std::optional<std::size_t> compress_over_bytes = {};  // Empty: depends on the store, see Policy.
  bool heartbeat = true;
  bool fixed_lease = false;

  friend bool operator==(const EffectivePolicy&, const EffectivePolicy&) = default;
};

// `policy`, with its empty members taken from `usual`.
Policy fill_in(Policy policy, const Policy& usual);

// `policy`, with its empty members taken from the defaults.
EffectivePolicy effective(const Policy& policy);

// `policy`, for a process that its platform ends or freezes after `left` (at least 10 ms). The lease lasts as long,
// plus skew and clock drift on the holder's side, and nothing renews it. A shorter lease that nothing renews anyway
// stays. It waits at most half of the time. Unchanged if `left` is longer than the longest lease.
EffectivePolicy ending_within(EffectivePolicy policy, Millis left);

// Throws Exception(misuse), which names the member, if one is outside its range above.
void check(const Policy& policy);

}  // namespace once
