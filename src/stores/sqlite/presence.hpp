// Whether any other program has the store open.
#pragma once

#include <string>

#include "stores/sqlite/fork_guard.hpp"

namespace once::stores::sqlite {

// A shared lock on a byte of the lock's file, for as long as this lives (fcntl(2), open file description locks). It
// ends with its process, whatever children that one has. Wrong after somebody has deleted that file: so nothing but
// time may depend on it.
class Presence {
 public:
  explicit Presence(const std::string& lock_path);
  [[nodiscard]] bool is_alone() const noexcept;  // Also false if it cannot be known.

 private:
  OwnDescriptor file_;
};

}  // namespace once::stores::sqlite
