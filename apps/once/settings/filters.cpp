#include "settings/filters.hpp"

#include <CLI/CLI.hpp>

#include <once/error.hpp>
#include <once/key.hpp>

#include "output/text.hpp"

namespace once::cli {

namespace {

constexpr const char* states = "in_progress, running, lapsed, released, completed, failed, unknown, expired";

}  // namespace

void add_filter_options(CLI::App& command, FilterOptions& options, const char* group) {
  const auto text = [&](const char* name, std::string& value, const std::string& help) {
    command.add_option(name, value, help)->group(group);
  };
  text("--state", options.state,
       std::string("Only records in this state: ") + states + "\n(in_progress: running, lapsed or released)");
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

bool is_empty(const FilterOptions& options) noexcept {
  return options.state.empty() && !options.has_scope && options.prefix.empty() && options.label.empty() &&
         options.holder.empty() && options.older_than.empty() && options.newer_than.empty() && !options.expired &&
         !options.overdue;
}

operate::Filter filter_of(const FilterOptions& options, Time now, bool raw_scopes, std::string_view dashes) {
  const auto named = [&](const char* name) { return std::string(dashes) + name; };
  operate::Filter filter;
  if (options.state == "in_progress") {
    filter.in_progress = true;
  } else if (!options.state.empty()) {
    filter.standing = operate::standing_from_string(options.state);
    if (!filter.standing) {
      throw Exception(ErrorKind::misuse,
                      named("state") + " is '" + escaped(options.state) + "'; it is one of " + states);
    }
  }
  if (options.expired) {
    if (!options.state.empty() && options.state != "expired") {
      throw Exception(ErrorKind::misuse, "--expired cannot be combined with --state " + options.state);
    }
    filter.standing = operate::Standing::expired;
  }
  filter.overdue = options.overdue;
  filter.label_part = options.label;
  filter.holder_part = options.holder;
  // A prefix of a name needs the scope, to become a prefix of stored keys.
  if (options.has_scope || !options.prefix.empty()) {
    filter.key_prefix = (raw_scopes ? options.scope + "#" : scope_prefix(options.scope)) + options.prefix;
  }
  if (!options.older_than.empty()) {
    filter.created_before = now - parse_duration(options.older_than, named("older-than"));
  }
  if (!options.newer_than.empty()) {
    filter.created_not_before = now - parse_duration(options.newer_than, named("newer-than"));
  }
  return filter;
}

}  // namespace once::cli
