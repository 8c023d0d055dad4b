// Whether another program has the store open.
#pragma once

#include <string>

#include "stores/sqlite/fork_guard.hpp"

namespace once::stores::sqlite {

// Holds a shared lock on a byte of the lock file (fcntl(2), open file description locks). It ends with its process,
// even if that has children. Wrong after the lock file was deleted, so only speed may depend on it.
class Presence {
 public:
  explicit Presence(const std::string& lock_path);
  [[nodiscard]] bool is_alone() const noexcept;  // Also false if it cannot be known.

 private:
  OwnDescriptor file_;
};

}  // namespace once::stores::sqlite
