// Whether any other program has the store open.
#pragma once

#include <string>

namespace once::stores::sqlite {

// A shared lock on a byte of the lock's file, for as long as this lives (fcntl(2), open file description locks). It
// ends with its process. Wrong after somebody has deleted that file: so nothing but time may depend on it.
class Presence {
 public:
  explicit Presence(const std::string& lock_path) noexcept;
  ~Presence();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  [[nodiscard]] bool is_alone() const noexcept;  // Also false if it cannot be known.

 private:
  int fd_ = -1;
};

}  // namespace once::stores::sqlite
