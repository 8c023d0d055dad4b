// Shared by resolve, release, extend and rm: find the record, plan, show, write conditionally. With --all: select many,
// have their number confirmed, and write each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "operators/changes.hpp"
#include "settings/access.hpp"
#include "settings/filters.hpp"
#include "settings/key_options.hpp"

namespace CLI {
class App;
}

namespace once::cli {

struct ChangeOptions {
  StoreOptions store;
  KeyOptions key;
  std::string reason;
  std::string by;
  std::optional<std::uint64_t> if_revision;
  bool dry_run = false;
  bool json = false;
  bool all = false;      // Instead of one key: all records that this selects.
  FilterOptions filter;  // Its scope is that of `key`.
  std::optional<std::uint64_t> confirm;
};

void add_change_options(CLI::App& command, ChangeOptions& options,
                        const char* why = "Why you change it; kept in the record",
                        const char* who = "Who changes it; kept in the record (default: USER@HOST)");

// Changes one record, prints the result and returns the exit code. 0: done. exit_no_record. exit_conflict: the plan
// refuses, or the record has changed. exit_found_problems: removed, but something of it is left. With --all:
// act_on_all().
int change(const ChangeOptions& options, const Act& act);

// For a command that has --all. Returns the exit code: 0 if all selected records were changed,
// exit_conflict if some were left, exit_found_problems if something of removed ones is left.
int act_on_all(const ChangeOptions& options, const Act& act);

}  // namespace once::cli
