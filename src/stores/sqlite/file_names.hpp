// The log, its index and our lock are found by the file's name. Programs that open one file by two names have two of
// each, do not see each other's claims, and damage the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace once::stores::sqlite {

// Follows the path while it ends in a symbolic link, also to a file that is not there yet. Throws
// Exception(unavailable) for a loop.
std::string followed(const std::string& path);

// The file's name without any symbolic link, seen from "/". Throws Exception(unavailable).
std::string real_path(const std::string& path);

struct Names {
  std::uint32_t links = 1;        // Hard links.
  bool is_link = false;           // A symbolic one.
  bool is_mounted = false;        // The file itself, not a directory above it.
  bool are_mounts_known = false;  // Linux reports it since 5.8.
};
std::optional<Names> names_of(const std::string& path) noexcept;  // Empty: there is no such file.

// Throws Exception(misuse) if the file at `path`, a real path, or one of those beside it has another name.
void refuse_other_names(const std::string& path, bool allow_hard_links);

}  // namespace once::stores::sqlite
