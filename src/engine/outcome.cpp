#include <string>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>

namespace once {

std::string_view to_string(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::claimed:
      return "claimed";
    case EventKind::resumed:
      return "resumed";
    case EventKind::took_over:
      return "took_over";
    case EventKind::replayed:
      return "replayed";
    case EventKind::conflict:
      return "conflict";
    case EventKind::mismatch:
      return "mismatch";
    case EventKind::unknown:
      return "unknown";
    case EventKind::step_recorded:
      return "step_recorded";
    case EventKind::renewed:
      return "renewed";
    case EventKind::renewal_lost:
      return "renewal_lost";
    case EventKind::work_done:
      return "work_done";
    case EventKind::completed:
      return "completed";
    case EventKind::failed:
      return "failed";
    case EventKind::held:
      return "held";
    case EventKind::released:
      return "released";
    case EventKind::abandoned:
      return "abandoned";
    case EventKind::finish_refused:
      return "finish_refused";
    case EventKind::declined:
      return "declined";
    case EventKind::unrecorded:
      return "unrecorded";
    case EventKind::unprotected:
      return "unprotected";
    case EventKind::reconciled:
      return "reconciled";
    case EventKind::reconcile_later:
      return "reconcile_later";
    case EventKind::reconcile_gave_up:
      return "reconcile_gave_up";
    case EventKind::store_error:
      return "store_error";
  }
  return "?";
}

std::string_view to_string(Outcome::Kind kind) noexcept {
  switch (kind) {
    case Outcome::Kind::executed:
      return "executed";
    case Outcome::Kind::replayed:
      return "replayed";
    case Outcome::Kind::superseded:
      return "superseded";
    case Outcome::Kind::unrecorded:
      return "unrecorded";
    case Outcome::Kind::unprotected:
      return "unprotected";
    case Outcome::Kind::stored_failure:
      return "stored_failure";
    case Outcome::Kind::conflict:
      return "conflict";
    case Outcome::Kind::mismatch:
      return "mismatch";
    case Outcome::Kind::unknown:
      return "unknown";
    case Outcome::Kind::lost:
      return "lost";
    case Outcome::Kind::error:
      return "error";
  }
  return "?";
}

const std::string& Outcome::value() const {
  const std::string who = record == nullptr ? std::string("another caller") : record->holder;
  switch (kind) {
    case Kind::executed:
    case Kind::unrecorded:
    case Kind::unprotected:
      return result.bytes;
    case Kind::replayed:
    case Kind::superseded:
      if (result.placement == Placement::dropped && result.size == 0) {  // Nothing is too small to keep.
        throw ResultDropped(ErrorKind::misuse,
                            "the operation is done, but its result could not be encoded, so it was not kept; the "
                            "caller that ran it got the codec's exception (for JSON, text must be UTF-8)",
                            record);
      }
      if (result.placement == Placement::dropped) {
        throw ResultDropped(ErrorKind::misuse,
                            "the operation is done, but its result of " + std::to_string(result.size) +
                                " bytes was too large to keep: configure an offload or a larger max_inline_bytes",
                            record);
      }
      return result.bytes;
    case Kind::stored_failure:
      throw StoredFailure(ErrorKind::misuse, record->failure.code + ": " + record->failure.message, record);
    case Kind::conflict:
      throw Conflict(
          "the operation is being run by " + who + "; try again in " + std::to_string(retry_after.count()) + " ms",
          record, retry_after);
    case Kind::mismatch:
      throw Mismatch(ErrorKind::misuse, "the idempotency key was already used with another payload; use a new key",
                     record);
    case Kind::unknown:
      throw OutcomeUnknown(ErrorKind::misuse,
                           "the operation was started by " + who + " and its outcome is not known (" +
                               (record == nullptr ? std::string() : record->failure.message) +
                               "); find out what it did, then resolve the record",
                           record);
    case Kind::lost:
      throw ClaimLost(
          ErrorKind::unavailable,
          "the work ran, but its claim was lost meanwhile and its result was not stored; try again for the result" +
              (error.message.empty() ? std::string() : " (" + error.message + ")"),
          record);
    case Kind::error:
      throw StoreFailed(error.kind, error.message, record);
  }
  throw StoreFailed(ErrorKind::corrupt, "an outcome of an unknown kind", record);
}

}  // namespace once
