#include "operators/filters.hpp"

#include <once/error.hpp>
#include <once/key.hpp>

#include "operators/words.hpp"

namespace once::operators {

const char* const state_words = "in_progress, running, lapsed, released, completed, failed, unknown, expired";

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
                      named("state") + " is '" + escaped(options.state) + "'; it is one of " + state_words);
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

}  // namespace once::operators
