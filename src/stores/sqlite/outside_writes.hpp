// Whether anybody has written to the file who does not know our lock, such as a sqlite3 shell.
#pragma once

#include <cstdint>
#include <string>

#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/file_lock.hpp"

namespace once::stores::sqlite {

// How the log stands, from the header of SQLite's index of it, which is memory shared by all connections
// (sqlite.org/walformat.html, "The WAL-Index Header"; since SQLite 3.7.0). Every commit, by whomever, changes it.
struct LogState {
  std::uint32_t commits = 0;  // iChange: counts them, from anything on.
  std::uint64_t sum = 0;      // aCksum: of the whole header. 0: not known.
};
// Inside a transaction that writes nobody changes it. Elsewhere it may be of two states, and then is neither's.
LogState log_state(Connection& connection);

// For the writer's connection, inside the lock. All programs of ours keep notes beside it (OutsideNotes); what does not
// fit, as one of them was killed before it could write them, or somebody has spoiled the file, counts as others'
// writes. That costs time only.
class OutsideWrites {
 public:
  // In a transaction that has just begun. A number, not 0, that is another whenever there were any since.
  std::uint64_t begin(Connection& connection, FileLock& lock);
  // Right after its commit, which wrote something or not.
  void committed(Connection& connection, FileLock& lock, bool wrote);

 private:
  std::uint64_t writes_ = 0;
  LogState begun_;
};

// For those who read, with a descriptor of the lock's file of their own: one that was deleted meanwhile fits nothing.
class OutsideWatch {
 public:
  explicit OutsideWatch(const std::string& lock_path) noexcept;
  ~OutsideWatch();
  OutsideWatch(const OutsideWatch&) = delete;
  OutsideWatch& operator=(const OutsideWatch&) = delete;

  // False if there may have been any since begin() gave this number; also, at times, while a program of ours commits.
  // Of what a transaction sees, asked for inside it.
  bool none_since(std::uint64_t writes, Connection& connection) const noexcept;

 private:
  int fd_ = -1;
};

}  // namespace once::stores::sqlite
