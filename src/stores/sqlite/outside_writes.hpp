// Detects writes by programs that do not use our lock, such as a sqlite3 shell.
#pragma once

#include <cstdint>
#include <string>

#include "platform/file.hpp"
#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/file_lock.hpp"
#include "stores/sqlite/identity.hpp"
#include "stores/sqlite/log_state.hpp"

namespace once::stores::sqlite {

// For the writer's connection, inside the lock. Each once process keeps notes in the lock file (LogNotes). If they do
// not match (a process was killed before it wrote them, or the file was damaged), that counts as a foreign write. It
// only costs time.
class OutsideWrites {
 public:
  // Call it in a new transaction. Returns a number, not 0, which changes after each foreign write.
  std::uint64_t begin(Connection& connection, FileLock& lock);
  // After begin(): whether anybody else, also another store of this process, may have written since our last commit.
  [[nodiscard]] bool others_wrote() const noexcept { return others_wrote_; }
  // Call it right after the synced commit. `log`: the log's inode. `wrote`: whether the commit wrote something.
  void committed(Connection& connection, FileLock& lock, std::uint64_t log, bool wrote);

 private:
  std::uint64_t writes_ = 0;
  LogState begun_;
  std::uint64_t seen_ = 0;  // The log's sum after our last transaction. 0: not known.
  bool others_wrote_ = true;
};

// The note for a log in this state that is completely on the disk.
SyncedLog synced_log(std::uint64_t inode, const LogState& state) noexcept;

// For readers, with their own descriptor of the lock file. If the notes do not match, they check whether the lock file
// was deleted and created again.
class OutsideWatch {
 public:
  explicit OutsideWatch(std::string lock_path) noexcept;

  // False if there may have been foreign writes since begin() returned this number; sometimes also while a once process
  // commits. Call it inside a transaction, about what that sees.
  bool none_since(std::uint64_t writes, Connection& connection) noexcept;

 private:
  void open() noexcept;
  bool follow() noexcept;  // True: another file has the name now.

  std::string path_;
  Fd file_;
  Identity identity_;
};

}  // namespace once::stores::sqlite
