// Flags of programs with an admin port: probes, metrics, the operators' API and its console.
#pragma once

#include <string>

#include "operators/admin_port.hpp"
#include "output/names.hpp"

namespace CLI {
class App;
}

namespace once::cli {

struct AdminFlags : AdminPortOptions {
  std::string stats_interval = "60s";  // See parse_interval(). Its caller looks at the store.
};
void add_admin_flags(CLI::App& command, AdminFlags& flags);

// Help texts of some of them.
extern const char* const console_origin_help;
extern const char* const audit_log_help;
extern const char* const stats_interval_help;

}  // namespace once::cli
