// The director of the storm: plays the impatient clients, and causes crashes and freezes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bank.hpp"

namespace storm {

struct Options {
  std::uint64_t seed = 1;
  int orders = 40;
  int requests = 600;
  int workers = 6;
  int crashes = 8;     // Workers that are killed (kill -9) while they charge.
  int freezes = 2;     // Workers that are stopped while they charge, for longer than their lease.
  double seconds = 6;  // The requests are spread over this time.
  std::int64_t lease_ms = 800;
  bool without_once = false;
  bool json = false;
  std::string directory;
  std::string program;  // As it was called.
};

// What happened.
struct Summary {
  int answered = 0;
  int repeated = 0;  // Asked again by clients: after a conflict, a crash, a freeze.
  int executions = 0;
  int replays = 0;
  int takeovers = 0;
  int conflicts = 0;
  int crashes = 0;
  int freezes = 0;
  int late_refused = 0;  // Owners whose step or finish came after they had lost their claim.

  std::vector<std::string> problems;          // Must be empty.
  std::map<std::uint32_t, Account> accounts;  // The bank's ledger.
};

// Plays it to the end; all started processes have ended when it returns. Creates new files at `store_path` and
// `ledger_path`.
Summary play(const Options& options, const std::string& store_path, const std::string& ledger_path);

}  // namespace storm
