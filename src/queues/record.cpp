#include <once/queues/record.hpp>

namespace once::queues {

std::string_view to_string(RecordEnd end) noexcept {
  switch (end) {
    case RecordEnd::executed:
      return "executed";
    case RecordEnd::replayed:
      return "replayed";
    case RecordEnd::duplicate:
      return "duplicate";
    case RecordEnd::unrecorded:
      return "unrecorded";
    case RecordEnd::unprotected:
      return "unprotected";
    case RecordEnd::failed:
      return "failed";
    case RecordEnd::stored_failure:
      return "stored_failure";
    case RecordEnd::conflict:
      return "conflict";
    case RecordEnd::mismatch:
      return "mismatch";
    case RecordEnd::poison:
      return "poison";
    case RecordEnd::unknown:
      return "unknown";
    case RecordEnd::lost:
      return "lost";
    case RecordEnd::error:
      return "error";
    case RecordEnd::blocked:
      return "blocked";
    case RecordEnd::out_of_time:
      return "out_of_time";
  }
  return "?";
}

}  // namespace once::queues
