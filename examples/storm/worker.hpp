// One of the processes that take payments. Any of them may get any order, any number of times, and may die or freeze at
// any moment.
#pragma once

#include <cstdint>
#include <string>

#include "bank.hpp"
#include "wire.hpp"

namespace storm {

struct WorkerOptions {
  std::string store_path;
  std::int64_t lease_ms = 0;
  std::uint64_t seed = 0;
  bool without_once = false;  // Show what happens unprotected.
};

// Serves jobs until the director closes its end.
void run_worker(const Socket& director, const Socket& bank, const WorkerOptions& options);

}  // namespace storm
