// once mcp: the tools of a server of the Model Context Protocol, over standard input and output.
#pragma once

#include <string>
#include <vector>

#include "settings/access.hpp"
#include "settings/log.hpp"

namespace once::cli {

struct McpOptions {
  std::string config;
  StoreOptions store;
  std::string principal;
  std::string run;
  LogFlags log;
};

// Serves the client on standard input and output until it or the server ends.
int mcp_command(const McpOptions& options, const std::vector<std::string>& command);
// Starts the server, and compares its tools with the file.
int mcp_check(const McpOptions& options, const std::vector<std::string>& command);
// Starts the server, and prints a file of rules for its tools.
int mcp_suggest(const std::vector<std::string>& command);

}  // namespace once::cli
