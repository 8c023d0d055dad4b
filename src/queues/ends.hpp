// What a stored record says of how its operation ended.
#pragma once

#include <once/record.hpp>

namespace once::queues {

// Of Begin or Outcome with the kind `error`: only the result could not be fetched from where it was offloaded, and a
// queue does not need it.
inline bool is_done(const RecordPtr& record) noexcept { return record != nullptr && record->state == State::completed; }
inline bool has_failed(const RecordPtr& record) noexcept { return record != nullptr && record->state == State::failed; }

}  // namespace once::queues
