// OnDeadEnd::hold: a record is kept for a person.
#pragma once

#include <optional>
#include <string>

#include <once/engine/engine.hpp>
#include <once/policy.hpp>

#include "queues/item.hpp"

namespace once::queues {

// Keeps the record under its own name, in `scope` + "/held": its key may be another record's, or not to be had. Waits.
// Gives what went wrong; the record must come again then.
std::optional<std::string> hold(Engine& engine, const std::string& scope, const Item& item, const std::string& why,
                                const Policy& policy, const std::string& holder);

}  // namespace once::queues
