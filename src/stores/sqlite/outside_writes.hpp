// Whether anybody has written to the file who does not know our lock, such as a sqlite3 shell.
#pragma once

#include <cstdint>
#include <string>

#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/file_lock.hpp"
#include "stores/sqlite/identity.hpp"
#include "stores/sqlite/log_state.hpp"

namespace once::stores::sqlite {

// For the writer's connection, inside the lock. All programs of ours keep notes beside it (LogNotes); what does not
// fit, as one of them was killed before it could write them, or somebody has spoiled the file, counts as others'
// writes. That costs time only.
class OutsideWrites {
 public:
  // In a transaction that has just begun. A number, not 0, that is another whenever there were any since.
  std::uint64_t begin(Connection& connection, FileLock& lock);
  // Right after its commit, which wrote something or not, and has synced that. `log`: the inode.
  void committed(Connection& connection, FileLock& lock, std::uint64_t log, bool wrote);

 private:
  std::uint64_t writes_ = 0;
  LogState begun_;
};

// What is noted of a log in this state of which everything is on the disk.
SyncedLog synced_log(std::uint64_t inode, const LogState& state) noexcept;

// For those who read, with a descriptor of the lock's file of their own. When what is there does not fit, they look
// whether that file was deleted, and another one made.
class OutsideWatch {
 public:
  explicit OutsideWatch(std::string lock_path) noexcept;
  ~OutsideWatch();
  OutsideWatch(const OutsideWatch&) = delete;
  OutsideWatch& operator=(const OutsideWatch&) = delete;

  // False if there may have been any since begin() gave this number; also, at times, while a program of ours commits.
  // Of what a transaction sees, asked for inside it.
  bool none_since(std::uint64_t writes, Connection& connection) noexcept;

 private:
  void open() noexcept;
  bool follow() noexcept;  // True: another file has the name by now.

  std::string path_;
  int fd_ = -1;
  Identity identity_;
};

}  // namespace once::stores::sqlite
