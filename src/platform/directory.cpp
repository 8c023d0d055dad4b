#include "platform/directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "platform/file.hpp"

namespace once {

namespace {

// False: it has entries, or they cannot be read (errno).
bool is_empty(int directory) {
  const int copy = fcntl(directory, F_DUPFD_CLOEXEC, 0);
  DIR* const entries = copy < 0 ? nullptr : fdopendir(copy);
  if (entries == nullptr) {
    const int number = errno;
    if (copy >= 0) ::close(copy);
    errno = number;
    return false;
  }
  bool empty = true;
  errno = 0;
  for (const dirent* entry = nullptr; empty && (entry = readdir(entries)) != nullptr;) {
    const std::string_view name = entry->d_name;
    empty = name == "." || name == "..";
  }
  const int number = errno != 0 ? errno : ENOTEMPTY;
  empty = empty && errno == 0;
  closedir(entries);
  errno = number;
  return empty;
}

// For a directory that was just made: its mode and owner. The name is no proof of what it names now. For example:
//
// 1. Root makes a directory in a user's home.
// 2. The user renames it, and puts there a link to /etc, or another directory of root's.
// 3. Root must not give that away. So it is no link, it belongs to this process's user, and it is empty.
bool adopt(const std::string& made, unsigned mode, const struct stat& model) {
  const auto open_it = [&] { return ::open(made.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW); };
  Fd file(open_it());
  // The umask has closed it to its owner.
  if (!file && errno == EACCES && fchmodat(AT_FDCWD, made.c_str(), mode, AT_SYMLINK_NOFOLLOW) == 0) {
    file.reset(open_it());
  }
  struct stat found {};
  if (!file || fstat(file.get(), &found) != 0) return false;
  if (found.st_uid != geteuid()) {
    errno = EPERM;
    return false;
  }
  return is_empty(file.get()) && set_mode_and_owner(file.get(), mode, model);
}

}  // namespace

bool make_directory(const std::string& path, unsigned mode, const struct stat& model) {
  std::string made = directory_of(path) + "/.once-new-XXXXXX";
  if (mkdtemp(made.data()) == nullptr) return false;
  if (adopt(made, mode, model) && rename(made.c_str(), path.c_str()) == 0) return true;
  const int number = errno;
  rmdir(made.c_str());
  struct stat found {};
  const bool there = stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
  errno = number;
  return there;
}

std::string directory_of(const std::string& path) {
  std::string_view name = path;
  while (name.size() > 1 && name.ends_with('/')) name.remove_suffix(1);
  const std::filesystem::path directory = std::filesystem::path(name).parent_path();
  return directory.empty() ? "." : directory.string();
}

}  // namespace once
