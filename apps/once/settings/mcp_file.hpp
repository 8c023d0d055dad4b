// The file of `once mcp`: rules for the tools of a server. TOML 1.0; docs/mcp.md lists its settings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <once/time.hpp>

#include "frontends/mcp/rules.hpp"
#include "settings/proxy_settings.hpp"

namespace once::cli {

struct McpFile {
  mcp::RuleOptions rules;
  std::string store;    // As --store. Empty: none is named.
  std::string offload;  // As --offload.
  Millis answer_timeout{600'000};
  Millis stop_within{30'000};
  Millis sweep_interval{60'000};
  std::uint64_t message_limit = std::uint64_t{10} * 1024 * 1024;
  std::uint64_t buffer_limit = std::uint64_t{64} * 1024 * 1024;
  std::uint64_t max_requests = 1'000;
};

// Adds all errors to `complaints`; then do not use the result.
McpFile parse_mcp_file(const std::string& name, std::string text, std::vector<Complaint>& complaints);
McpFile read_mcp_file(const std::string& name, std::vector<Complaint>& complaints);

}  // namespace once::cli
