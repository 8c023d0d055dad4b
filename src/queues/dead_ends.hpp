// OnDeadEnd::park: keeps a record for an operator.
#pragma once

#include <optional>
#include <string>

#include <once/engine/engine.hpp>
#include <once/policy.hpp>

#include "queues/keyed_record.hpp"

namespace once::queues {

// Keeps the record under its own name, in `scope` + "/parked", because its key may be another record's, or missing.
// Blocks. Returns an error if it fails; then the record must come again.
std::optional<std::string> park(Engine& engine, const std::string& scope, const KeyedRecord& keyed,
                                const std::string& why, const Policy& policy, const std::string& holder);

}  // namespace once::queues
