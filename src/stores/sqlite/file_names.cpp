#include "stores/sqlite/file_names.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <system_error>

#include <once/error.hpp>

namespace once::stores::sqlite {

namespace {

constexpr int most_links = 40;  // The kernel's limit (path_resolution(7)).

}  // namespace

std::string followed(const std::string& path) {
  std::filesystem::path now = path;
  for (int links = 0; links <= most_links; ++links) {
    std::error_code is_no_link;
    const auto target = std::filesystem::read_symlink(now, is_no_link);
    if (is_no_link) return now.string();
    now = now.parent_path() / target;  // An absolute target replaces the whole path.
  }
  throw Exception(ErrorKind::unavailable,
                  "sqlite store " + path + ": this symbolic link points back to itself: make it point at the file");
}

std::string real_path(const std::string& path) {
  std::error_code failed;
  const auto real = std::filesystem::canonical(path, failed);
  if (!failed) return real.string();
  throw Exception(ErrorKind::unavailable, "sqlite store " + path + ": cannot be followed to its file: " +
                                              failed.message() + ": check the path and the permissions");
}

std::optional<Names> names_of(const std::string& path) noexcept {
  struct statx found {};
  if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_NLINK | STATX_TYPE, &found) != 0) return std::nullopt;
  return Names{.links = found.stx_nlink,
               .is_link = S_ISLNK(found.stx_mode),
               .is_mounted = (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0,
               .are_mounts_known = (found.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0};
}

void refuse_other_names(const std::string& path, bool allow_hard_links) {
  const std::string why =
      ". Programs that open it under another name do not see the claims made under this name, and damage the file. ";
  for (const char* const suffix : {"", "-wal", "-shm", "-lock"}) {
    const std::string file = path + suffix;
    const auto names = names_of(file);
    if (!names) continue;
    const auto refuse = [&](const std::string& what) {
      throw Exception(ErrorKind::misuse, "sqlite store " + path + ": not opened: " + what);
    };
    if (names->is_mounted) {
      refuse(file + " is mounted by itself (as by docker run -v of a file, or subPath)" + why +
             "Mount its directory instead");
    }
    if (names->is_link) refuse(file + " is a symbolic link: stop all programs that use it, then move the file there");
    if (names->links > 1 && !allow_hard_links) {
      refuse(file + " has " + std::to_string(names->links) + " names (hard links)" + why +
             "Remove the others (find / -xdev -samefile " + file +
             "), or write allow_hard_links=1 if they are backups that no program opens");
    }
  }
}

}  // namespace once::stores::sqlite
