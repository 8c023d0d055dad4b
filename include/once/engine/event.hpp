// What the engine reports about its work: everything that an operator counts or logs. Delivered to a callback, never
// printed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include <once/error.hpp>
#include <once/record.hpp>

namespace once {

enum class EventKind : std::uint8_t {
  claimed,         // A fresh claim: the work may run.
  resumed,         // Our own claim, found after a lost answer: the work may run.
  took_over,       // A lapsed or released claim, or a stored failure, was claimed: the work may run. took: see below.
  replayed,        // A result was returned without running anything; `failure` in the record marks a replayed failure.
  conflict,        // A live claim of another attempt; reported once per caller, after its wait if it has one.
  mismatch,        // The key was used with another payload.
  unknown,         // A record with unknown outcome was in the way, or was just marked so after a lapse.
  step_recorded,   // A step's result is durable.
  renewed,         // The lease was prolonged.
  renewal_lost,    // The lease could not be prolonged, or another attempt has the claim: the stop token was set.
  completed,       // The result is durable. `took` is the time since the claim.
  failed,          // The failure is durable. `took` likewise.
  held,            // The outcome was recorded as unknown. `took` likewise.
  released,        // The claim was given up. `took` likewise.
  abandoned,       // A claim was forgotten without a finish: it lapses.
  finish_refused,  // A finish came too late: another attempt has the claim. Its result was not stored.
  declined,  // The writes that were to commit with a result were refused, so nothing was written; the claim stays open.
             // `error` says why. `took` is the time since the claim.
  unrecorded,   // A finish could not be written yet. completed (or failed …) follows if it still succeeds.
  unprotected,  // The work ran without a claim, because policy says so: no key, or no store.
  store_error,  // The store failed. `error` says how.
};

std::string_view to_string(EventKind kind) noexcept;

struct Event {
  EventKind kind{};
  std::string_view key;  // Stored key; empty where there is none. Valid during the call only, like every view here.
  const Record* record = nullptr;    // The record concerned, or null.
  const Error* error = nullptr;      // store_error, declined, unrecorded; otherwise null.
  std::chrono::nanoseconds took{0};  // Of the store conversation, except where the kind says otherwise.
  bool coalesced = false;            // Answered by another call's conversation or from the local cache: no round trip.
};

// Called from the thread on which it happens, several at once; must not block and must not throw.
using Observer = std::function<void(const Event&)>;

}  // namespace once
