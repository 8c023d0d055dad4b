// Which metric counts which event, for every format. docs/metrics.md lists them.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include <once/engine/event.hpp>

namespace once::event_metrics {

inline constexpr std::string_view operations = "once_operations_total";
inline constexpr std::string_view claims = "once_claims_total";
inline constexpr std::string_view reconcile = "once_reconcile_total";
inline constexpr std::string_view work_duration = "once_work_duration_seconds";
inline constexpr std::string_view begin_duration = "once_begin_duration_seconds";
inline constexpr std::string_view store_errors = "once_store_errors_total";

// Of `claims`.
inline constexpr std::array claim_kinds{EventKind::claimed, EventKind::resumed, EventKind::took_over};
// Of `operations`: how a call ends, with or without a claim. A replayed failure is counted apart.
inline constexpr std::array ends{EventKind::completed, EventKind::failed,     EventKind::held,
                                 EventKind::released,  EventKind::abandoned,  EventKind::finish_refused,
                                 EventKind::replayed,  EventKind::conflict,   EventKind::mismatch,
                                 EventKind::unknown,   EventKind::unprotected};
inline constexpr std::string_view stored_failure = "stored_failure";
// Of `reconcile`.
inline constexpr std::array questions{EventKind::reconciled, EventKind::reconcile_later, EventKind::reconcile_gave_up};
// Of `begin_duration`.
inline constexpr std::array begins{EventKind::claimed,  EventKind::resumed,  EventKind::took_over, EventKind::replayed,
                                   EventKind::conflict, EventKind::mismatch, EventKind::unknown};

struct Single {
  EventKind kind;
  std::string_view name;
  std::string_view help;
};
inline constexpr std::array<Single, 5> singles{{
    {EventKind::renewal_lost, "once_claims_lost_total", "Claims whose lease ended while the work ran."},
    {EventKind::unrecorded, "once_unrecorded_total", "Finishes that could not be written at first."},
    {EventKind::declined, "once_declined_total", "Finishes whose accompanying writes the store refused."},
    {EventKind::renewed, "once_renewals_total", "Renewals of leases."},
    {EventKind::step_recorded, "once_steps_total", "Steps that were stored."},
}};

inline bool is_one_of(const auto& kinds, EventKind kind) noexcept {
  return std::ranges::find(kinds, kind) != kinds.end();
}

inline bool is_stored_failure(const Event& event) noexcept {
  return event.kind == EventKind::replayed && event.record != nullptr && event.record->state == State::failed;
}

}  // namespace once::event_metrics
