// A file of rules for a person to edit.
#pragma once

#include <string>
#include <string_view>

#include "frontends/mcp/tools.hpp"

namespace once::mcp {

// TOML, with each tool, what the server says of it, and the choices. It protects nothing and refuses what may act,
// until a person has chosen. `server`: its name, as it says. Texts of the server stand in comments and in quotes only.
std::string suggestion(const Tools& tools, std::string_view server);

// As a string of TOML, in ASCII. Empty if TOML cannot have it.
std::string toml_quoted(std::string_view text);

}  // namespace once::mcp
