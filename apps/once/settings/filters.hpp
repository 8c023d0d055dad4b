// Which records to select: flags of ls, find, stats, and of acts on many records.
#pragma once

#include <string>
#include <string_view>

#include <once/operate.hpp>
#include <once/time.hpp>

namespace CLI {
class App;
}

namespace once::cli {

struct FilterOptions {
  std::string state;
  std::string scope;
  std::string prefix;
  std::string label;
  std::string holder;
  std::string older_than;
  std::string newer_than;
  bool has_scope = false;
  bool expired = false;
  bool overdue = false;
};

// `group`: their heading in the help. If the command has a --scope of its own, that one is left to the caller.
void add_filter_options(CLI::App& command, FilterOptions& options, const char* group = "Options");
bool is_empty(const FilterOptions& options) noexcept;

// Throws Exception(misuse) for unknown words; `dashes` is the prefix of option names in its text.
operate::Filter filter_of(const FilterOptions& options, Time now, bool raw_scopes, std::string_view dashes = "--");

}  // namespace once::cli
