#include "settings/filters.hpp"

#include <CLI/CLI.hpp>
#include <string>

namespace once::cli {

void add_filter_options(CLI::App& command, FilterOptions& options, const char* group) {
  const auto text = [&](const char* name, std::string& value, const std::string& help) {
    command.add_option(name, value, help)->group(group);
  };
  text("--state", options.state,
       std::string("Only records in this state: ") + state_words + "\n(in_progress: running, lapsed or released)");
  if (command.get_option_no_throw("--scope") == nullptr) {
    command
        .add_option_function<std::string>(
            "-s,--scope", [&options](const std::string& scope) { options.scope = scope, options.has_scope = true; },
            "Only keys in this scope")
        ->group(group);
  }
  text("--prefix", options.prefix,
       "Only keys that start with TEXT, in the scope of --scope (default: the empty scope)");
  text("--label", options.label, "Only labels that contain TEXT, in upper or lower case");
  text("--holder", options.holder, "Only holders that contain TEXT, in upper or lower case, as in web-1");
  text("--older-than", options.older_than, "Only records created at least this long ago, as in 24h");
  text("--newer-than", options.newer_than, "Only records created at most this long ago, as in 24h");
  command
      .add_flag("--overdue", options.overdue, "Only operations that should have ended by now (--expect of once run)")
      ->group(group);
  command.add_flag("--expired", options.expired, "Only expired records: the same as --state expired")->group(group);
}

}  // namespace once::cli
