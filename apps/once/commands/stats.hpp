// Counts, as stats and doctor show them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <once/operate.hpp>

namespace once::cli {

nlohmann::ordered_json counts_json(const operate::Counts& counts);

}  // namespace once::cli
