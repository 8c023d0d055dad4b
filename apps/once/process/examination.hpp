// The work of `once doctor`: is the store sound, and what waits for an operator?
#pragma once

#include "settings/access.hpp"

namespace once::cli {

// As on the command line.
struct DoctorOptions {
  StoreOptions store;
  bool probe = false;
  bool quick = false;
  bool mixed = false;
  bool json = false;
};

// Blocks, and prints what it finds. Returns the exit code.
int examine(const DoctorOptions& options);

}  // namespace once::cli
