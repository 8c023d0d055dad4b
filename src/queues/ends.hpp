// How an operation ended, by its stored record.
#pragma once

#include <once/record.hpp>

namespace once::queues {

// For Begin or Outcome of kind `error`: true if only the offloaded result could not be fetched, which a queue does not
// need.
inline bool is_done(const RecordPtr& record) noexcept { return record != nullptr && record->state == State::completed; }
inline bool has_failed(const RecordPtr& record) noexcept { return record != nullptr && record->state == State::failed; }

}  // namespace once::queues
