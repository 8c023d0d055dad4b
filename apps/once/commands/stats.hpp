// Counts, as stats and doctor show them.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>

#include <once/operate.hpp>

namespace once::cli {

inline constexpr std::array all_standings = {
    operate::Standing::running, operate::Standing::lapsed,  operate::Standing::released, operate::Standing::completed,
    operate::Standing::failed,  operate::Standing::unknown, operate::Standing::expired};

nlohmann::ordered_json counts_json(const operate::Counts& counts);

}  // namespace once::cli
