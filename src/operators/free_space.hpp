// How much room a file system has left.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace once::operators {

struct FreeSpace {
  std::uint64_t free_bytes = 0;  // For users other than root, for whom a part may be reserved.
  std::uint64_t total_bytes = 0;
  std::uint64_t free_files = 0;   // How many more files can be made.
  std::uint64_t total_files = 0;  // 0: the file system has no such limit.

  [[nodiscard]] bool is_out_of_names() const noexcept { return total_files > 0 && free_files == 0; }
  // No room for the next operations: the SQLite store reserves about so much, so that it can finish what it lets begin.
  [[nodiscard]] bool is_full() const noexcept { return free_bytes < 256U * 1024 || is_out_of_names(); }
  // Soon so: less than a twentieth, or than the 64 MiB that the log and the file may take together in a busy minute.
  [[nodiscard]] bool is_low() const noexcept {
    return free_bytes < 64U * 1024 * 1024 || free_bytes < total_bytes / 20 ||
           (total_files > 0 && free_files < total_files / 20);
  }
};

// Of the file system of a file or directory, by statvfs(3). Empty if it cannot be read.
std::optional<FreeSpace> free_space(const std::string& path);

}  // namespace once::operators
