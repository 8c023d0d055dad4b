// Which file a name leads to.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace once::stores::sqlite {

struct Identity {
  std::uint32_t device_major = 0;
  std::uint32_t device_minor = 0;
  std::uint64_t inode = 0;
  bool there = false;

  static Identity of(const std::string& path) noexcept { return of(AT_FDCWD, path.c_str(), 0); }
  static Identity of(int descriptor) noexcept { return of(descriptor, "", AT_EMPTY_PATH); }
  friend bool operator==(const Identity&, const Identity&) = default;

 private:
  // Unlike stat(), does not ask for times. Since Linux 6.13 the next write to a file whose times were read stores a new
  // time (docs.kernel.org/filesystems/multigrain-ts.html), and some file systems then write the inode in each
  // fdatasync().
  static Identity of(int directory, const char* path, int flags) noexcept {
    struct statx found {};
    if (statx(directory, path, flags, STATX_INO, &found) != 0) return {};
    return {found.stx_dev_major, found.stx_dev_minor, found.stx_ino, true};
  }
};

}  // namespace once::stores::sqlite
