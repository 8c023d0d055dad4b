// What resolve, release and extend have in common: find the record, plan, show, write under condition.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <once/operate.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "access.hpp"
#include "identity.hpp"

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
};

void add_change_options(CLI::App& command, ChangeOptions& options);

using Planner = std::function<operate::Plan(const Record& seen, const operate::Reason& reason, Time now)>;

// Gives the exit code: 0 done, exit_no_record, exit_conflict when the plan refuses or the record has changed.
int change(const ChangeOptions& options, const Planner& planner);

Owner fresh_owner();

}  // namespace once::cli
