// SQLite's write-ahead log, written in one piece.
#pragma once

#include <sqlite3.h>
#include <unistd.h>

#include <memory>
#include <string>

namespace once::stores::sqlite {

// An extended code of this VFS's own for a write of the log that found no room, and whose frames may be there all the
// same: those that were not written may be as in the log from before. After SQLITE_FULL itself the last one is missing.
inline constexpr int full_over_frames = SQLITE_FULL | (1 << 8);

// A VFS that forwards to the one named `base` (empty: SQLite's default). It collects writes to a write-ahead log, and
// writes them at once when the log is synced. SQLite itself makes two system calls for each page of a commit, and a
// group of claims changes a hundred pages.
//
// Use it only with synchronous=FULL: then SQLite shows no frame of the log before it has synced it. Every other access
// to the log (read, size, truncate) first writes the collected data.
//
// It also distinguishes a failed read from damage: SQLite takes EIO for a damaged file (SQLITE_IOERR_CORRUPTFS).
//
// Registered with SQLite under a name of its own while it lives. So a plugin that carries a copy of this library leaves
// nothing behind when it closes its stores and is unloaded. It must outlive its connections.
class WalVfs {
 public:
  explicit WalVfs(const std::string& base);  // Throws Exception(misuse) for an unknown base. Thread-safe.
  WalVfs(const WalVfs&) = delete;
  WalVfs& operator=(const WalVfs&) = delete;
  ~WalVfs();

  [[nodiscard]] const std::string& name() const noexcept { return registered_->name; }

 private:
  struct Registered {
    std::string name;
    sqlite3_vfs vfs{};
    pid_t process = getpid();
  };
  std::unique_ptr<Registered> registered_;
};

}  // namespace once::stores::sqlite
