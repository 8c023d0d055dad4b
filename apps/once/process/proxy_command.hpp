// The work of `once proxy`: a reverse proxy that makes a service's endpoints run once for each key.
#pragma once

#include <string>

#include "settings/proxy_settings.hpp"

namespace CLI {
class App;
}

namespace once::cli {

// As on the command line.
struct ProxyCommand {
  explicit ProxyCommand(CLI::App& command) : flags(command) {}

  std::string config;  // Empty: none.
  bool check = false;
  bool json = false;
  bool no_files = false;
  ProxyFlags flags;
};

// Checks the settings, or runs the proxy until a signal ends it. Returns the exit code. Throws Exception.
int proxy_command(const ProxyCommand& command);

}  // namespace once::cli
