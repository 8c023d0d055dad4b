// Events of the engine, for logs and counters. Delivered to a callback, never printed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include <once/error.hpp>
#include <once/record.hpp>
#include <once/trace.hpp>

namespace once {

// What happened to an operation, or to the store.
enum class EventKind : std::uint8_t {
  claimed,         // A fresh claim: the work may run.
  resumed,         // This attempt's claim, found after a lost answer: the work may run.
  took_over,       // A lapsed or released claim, or a stored failure, was claimed: the work may run.
  replayed,        // A result was returned, nothing ran. A replayed failure has `failure` in the record.
  conflict,        // Another attempt has a live claim. Reported once per caller, after its wait.
  mismatch,        // The key was used with another payload.
  unknown,         // The outcome is unknown, or the claim lapsed and was marked unknown now.
  step_recorded,   // A step's result is durable.
  renewed,         // The lease was renewed.
  renewal_lost,    // The lease could not be renewed, or another attempt has the claim. The stop token was set.
  work_done,       // The work has ended; its finish (complete, fail, hold) is written next. `took`: as for completed.
  completed,       // The result is durable. `took` is the time since the claim.
  failed,          // The failure is durable. `took`: as for completed.
  held,            // The outcome was recorded as unknown. `took`: as for completed.
  released,        // The claim was given up. `took`: as for completed.
  abandoned,       // A claim was dropped without a finish: it lapses.
  finish_refused,  // A finish came too late: another attempt has the claim. Its result was not stored.
  declined,     // The writes that were to commit with a result were refused. Nothing was written, the claim stays open.
                // `error` says why. `took`: as for completed.
  unrecorded,   // A finish could not be written yet. completed (or failed …) follows if it still succeeds.
  unprotected,  // The work ran without a claim, because policy says so: no key, or no store.
  reconciled,   // The service was asked about an unknown operation, and its answer was written: see the record's state.
  reconcile_later,    // The service was asked, and the outcome is still unknown. `error` says why.
  reconcile_gave_up,  // The service was asked too often without an answer. An operator decides.
  store_error,        // The store failed. `error` says how.
};

std::string_view to_string(EventKind kind) noexcept;  // "claimed" …

// One thing that happened.
struct Event {
  EventKind kind{};                  // Says which of the other members are set.
  std::string_view key = {};         // Stored key, or empty. Views are valid during the call only.
  const Record* record = nullptr;    // The record concerned, or null. For claims: as it was written.
  const CallTrace* trace = nullptr;  // Of the call that caused it, or null: not traced.
  const Error* error = nullptr;      // store_error, declined, unrecorded, reconcile_later; otherwise null.
  std::chrono::nanoseconds took{0};  // Of the store conversation, except where the kind says otherwise.
  bool coalesced = false;            // Answered by another call's conversation or from the local cache: no round trip.
};

// Called on the thread that causes the event, by several threads at once. Must not block and must not throw.
using Observer = std::function<void(const Event&)>;

}  // namespace once
