#include "stores/sqlite/store_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <once/error.hpp>

#include "platform/directory.hpp"
#include "platform/file.hpp"
#include "platform/host_boot.hpp"
#include "stores/sqlite/file_names.hpp"
#include "stores/sqlite/file_system.hpp"

namespace once::stores::sqlite {

namespace {

// If the directory may be written but not read, syncs the whole file system, through `file`, which can be read.
void sync_names_in(const std::filesystem::path& directory, const std::string& file, const std::string& where) {
  int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool is_readable = fd >= 0 || errno != EACCES;
  if (!is_readable) fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const auto sync = is_readable ? fsync : syncfs;
  const bool synced = fd >= 0 && (sync(fd) == 0 || errno == EINVAL);  // EINVAL: nothing to sync (fsync(2)).
  const int number = errno;
  if (fd >= 0) ::close(fd);
  if (!synced) {
    throw Exception(ErrorKind::unavailable, where + "cannot sync the directory " + directory.string() + ": " +
                                                std::strerror(number) + ": nothing was written; check the disk");
  }
}

// Creates the file and its directories if the options say so. The file's name is not synced yet.
void make_file(const SqliteOptions& options) {
  const std::string where = "sqlite store " + options.path + ": ";
  const auto refuse = [&](const std::string& what, int number) {
    throw Exception(ErrorKind::unavailable,
                    where + what + (number == 0 ? "" : std::string(": ") + std::strerror(number)));
  };
  const std::filesystem::path directory = directory_of(options.path);
  struct stat found {};
  if (stat(directory.c_str(), &found) != 0) {
    if (errno != ENOENT) refuse("cannot open the directory " + directory.string(), errno);
    if (!options.create || !options.create_directories) {
      refuse("the directory " + directory.string() + " does not exist: create it (mkdir -p), or name another file", 0);
    }
    std::filesystem::path made;
    bool is_new = false;  // Also below a directory that another process just makes.
    for (const auto& part : directory) {
      made /= part;
      is_new = is_new || stat(made.c_str(), &found) != 0;
      if (!is_new) continue;
      if (stat(directory_of(made.string()).c_str(), &found) != 0 || !make_directory(made.string(), 0700, found)) {
        refuse("cannot create the directory " + made.string(), errno);
      }
      sync_names_in(directory_of(made.string()), made.string(), where);
    }
  } else if (!S_ISDIR(found.st_mode)) {
    refuse(directory.string() + " is not a directory", 0);
  }
  if (stat(options.path.c_str(), &found) == 0) {
    if (!S_ISREG(found.st_mode)) {
      throw Exception(ErrorKind::misuse, where + "this is not a regular file: name one, in a directory of your own");
    }
    return;
  }
  if (errno != ENOENT) refuse("cannot be examined", errno);
  if (!options.create) {
    refuse("the file does not exist, and only a program that claims keys, such as once run, creates it: check the path",
           0);
  }
  // Only if the file is new: then no connection of this process has it open, whose locks a close() would end
  // (sqlite.org/howtocorrupt.html, 2.2).
  const int fd = ::open(options.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) {
    const bool adopted = stat(directory.c_str(), &found) == 0 && set_mode_and_owner(fd, 0600, found);
    const int number = errno;
    ::close(fd);
    if (!adopted) refuse("cannot set the mode and owner of the new file", number);
  } else if (errno != EEXIST) {
    refuse("cannot be created", errno);
  }
}

// Creates the file if needed, and sets `path` to its only name.
SqliteOptions prepared(SqliteOptions options) {
  options.path = followed(options.path);
  if (options.read_only) options.create = false;
  if (!options.allow_shared_file_system && !(options.read_only && size_of(options.path + "-wal") == 0)) {
    refuse_shared_file_system(options.path);
  }
  make_file(options);
  options.path = real_path(options.path);
  refuse_other_names(options.path, options.allow_hard_links);
  return options;
}

}  // namespace

StoreFile::StoreFile(SqliteOptions options)
    : asked_(options.path),
      fork_guard_(asked_),
      vfs_(options.vfs),
      options_(prepared(std::move(options))),
      identity_(Identity::of(path())) {}

void StoreFile::sync_directory() const {
  // Through the lock file: closing the database itself would end SQLite's locks.
  sync_names_in(directory_of(path()), path() + "-lock", "sqlite store " + path() + ": ");
}

void StoreFile::check_identity() const {
  check_identity(path());
  if (asked_ != path()) check_identity(asked_);  // Through links, which may lead elsewhere now.
}

void StoreFile::check_index() const {
  constexpr std::uint64_t least = 32 * 1024;  // Its first part (sqlite.org/walformat.html).
  const std::string index = path() + "-shm";
  // Without the name nothing was cut: it was deleted, or the VFS keeps its index elsewhere.
  if (!Identity::of(index).there || size_of(index) >= least) return;
  throw Exception(ErrorKind::unavailable,
                  "sqlite store " + path() +
                      ": its -shm file was cut while it was open, so the store does not touch it: stop all programs "
                      "that use it, and start them again");
}

void StoreFile::check_identity(const std::string& path) const {
  const Identity now = Identity::of(path);
  if (now == identity_) return;
  throw Exception(ErrorKind::unavailable,
                  "sqlite store " + path + ": the file was " + (now.there ? "replaced" : "deleted") +
                      " while it was open; the store no longer reads or writes the old file: put it back, or restart "
                      "the programs that use it");
}

void StoreFile::learn(Connection& connection, bool is_alone) {
  hash_key_ = read_hash_key(connection);
  const auto boot = [this]() -> HostBoot {
    if (!options_.boot_id.empty()) return {.id = options_.boot_id};
    try {
      return host_boot();
    } catch (const Exception&) {  // A reader claims nothing: the wall clock will do.
      if (!options_.read_only) throw;
      return {};
    }
  };
  try {
    clock_ = settle_clock(connection, *options_.clock, boot(), is_alone, !options_.read_only);
  } catch (const SqlError&) {
    throw;
  } catch (const Exception& error) {
    throw Exception(error.kind(), "sqlite store " + path() + ": not opened, and nothing was done: " + error.what());
  }
}

StoreTime StoreFile::time() const noexcept {
  return {Time(std::chrono::floor<Millis>(options_.clock->uptime() - clock_.boot.clock_ahead) + clock_.offset),
          Millis{0}};
}

std::uint64_t size_of(const std::string& path) noexcept {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 ? static_cast<std::uint64_t>(found.st_size) : 0;
}

}  // namespace once::stores::sqlite
