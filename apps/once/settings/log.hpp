// --log and --log-level: docs/log.md.
#pragma once

#include <optional>
#include <string>

#include <once/engine/event.hpp>
#include <once/engine/log.hpp>

namespace CLI {
class App;
}

namespace once::cli {

struct LogFlags {
  std::string format;
  std::string level = "info";
};

void add_log_flags(CLI::App& command, LogFlags& flags, const std::string& usual_format);
std::optional<LogOptions> log_options(const LogFlags& flags);  // Empty: none.

// Writes to standard error. Without options, it does nothing.
Observer log_observer(const std::optional<LogOptions>& options);
// The same for services, which say for each operation that ONCE_DISABLED is set, even if the log leaves it out.
Observer service_log_observer(const std::optional<LogOptions>& options);

}  // namespace once::cli
