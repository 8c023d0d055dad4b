// All commands and options as JSON, from which tools/manual makes the manual pages and the completions of shells.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace CLI {
class App;
}

namespace once::cli {

// {"name", "description", "footer", "options": [...], "commands": [...]}, each command the same. An option:
// {"names": ["--json"], "value": "TEXT" or null for a switch, "choices", "default", "repeatable", "description"}.
nlohmann::ordered_json command_tree(const CLI::App& command);

}  // namespace once::cli
