// The writer's side of the file. Processes take turns, and everything that is read of the log is on the disk first
// (docs/decisions/sqlite-disks.md).
//
// 1. A writes a commit to the log, and is killed before it syncs it.
// 2. B opens the file. The kernel still has the pages, so for SQLite the commit is there.
// 3. If B returned it now, a power cut could remove it afterwards.
// 4. So B compares the log with the note in the lock file, which A wrote after its last sync. They differ: B writes the
//    log again, syncs it and its directory, and notes that. Only then does it answer.
// (SqliteDiskFault.WhatAKilledProcessHasWrittenButNotSyncedIsSyncedBeforeItIsTold)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "platform/file.hpp"
#include "stores/sqlite/file_lock.hpp"
#include "stores/sqlite/key_index.hpp"
#include "stores/sqlite/log_state.hpp"
#include "stores/sqlite/store_file.hpp"
#include "stores/sqlite/writer_connection.hpp"

namespace once::stores::sqlite {

// Used by one thread, except checkpoint_error().
class WritableFile {
 public:
  // Opens the file. Afterwards everything that can be read of it is on the disk. Throws Exception.
  WritableFile(StoreFile& file, RecentKeys& recent);
  // Indexes keys and copies the log, to save the next opener work. Correctness does not depend on it.
  ~WritableFile();
  WritableFile(const WritableFile&) = delete;
  WritableFile& operator=(const WritableFile&) = delete;

  // Waits until this process has the lock, and keeps it as long as the returned object. Throws Exception(unavailable).
  [[nodiscard]] FileLock::Guard lock() { return FileLock::Guard(lock_, file_.options().busy_timeout); }

  // Call the functions below only while you hold lock().

  // Call it first: checks that the file is the one that was opened, and that the connection works. Throws
  // Exception(unavailable).
  void make_ready();
  // False after a failure: there is no connection until the next make_ready().
  [[nodiscard]] bool is_ready() const noexcept { return connection_ != nullptr; }

  // A transaction: begin(), changes by rows(), commit(). With keys: learn_keys() after begin(), and commit_with_keys().
  // After a SqlError: undo().
  void begin() { connection_->begin(lock_); }
  void learn_keys();
  [[nodiscard]] Rows& rows() noexcept { return connection_->rows(); }
  [[nodiscard]] Connection& connection() noexcept { return connection_->connection(); }
  [[nodiscard]] Companions& companions() noexcept { return connection_->companions(); }
  [[nodiscard]] bool is_sealed() { return connection_->is_sealed(); }
  void seal() { connection_->seal(); }
  void forget_seal() noexcept { connection_->forget_seal(); }
  void commit();
  void commit_with_keys();
  // True if it may have been committed.
  bool undo(const SqlError& error);
  void forget();  // The transaction was rolled back, by SQLite or by whom it ran.

  // Copies a long log into the file. During a turn, because the WAL-reset bug of SQLite up to 3.51.2 needs a checkpoint
  // during another process's write (sqlite.org/wal.html#walresetbug).
  [[nodiscard]] bool checkpoint_due() const noexcept { return log_pages_ >= checkpoint_at_; }
  void checkpoint();
  // Copies all of the log into the file, and cuts it off. Throws SqlError, also if some reader needs the log: it does
  // not wait.
  void cut_log();
  // After a write that failed with this code. If the log had no room to grow, copies it into the file, so that its room
  // can be used again. True if that was done.
  bool made_room(int code) { return code == SQLITE_FULL && copy_log(); }
  // Before a write: whether the database has room for so many bytes more, and for some small finishes. Then it is
  // reserved, so that the log can be copied on a full disk too, and its own room serves finishes again.
  [[nodiscard]] bool reserve(std::uint64_t bytes);
  // Before claims, after reserve(): why there is no room left for their finishes too, on the disk, in a quota, or below
  // the limit on the size of files. Empty: there is, and some is reserved behind the log. It may copy the log, to make
  // room.
  [[nodiscard]] std::string why_no_room_for_claims(bool is_reserved);
  // Whether the files stay below the limit if they grow by this much. A log that was copied whole, and that no reader
  // needs, begins anew with the next write, although its length stays.
  [[nodiscard]] bool can_grow_by(std::uint64_t bytes, bool log_begins_anew);
  // Why the last copy failed, or empty. From any thread.
  [[nodiscard]] std::string checkpoint_error() const;

 private:
  void open();
  void check_log() const;
  void check_first_page();
  [[nodiscard]] bool is_log_true();
  void make_log_true();
  void note_synced(const SyncedLog& synced) noexcept;
  void note_time_if_due();
  bool copy_log();
  [[nodiscard]] int end_log(int mode);
  [[nodiscard]] bool begins_anew();
  [[nodiscard]] std::uint64_t log_bytes();
  [[nodiscard]] int reserve_log();
  void reserve_again();
  [[nodiscard]] int reserve_index();
  void index_if_more_than(std::size_t few);
  [[nodiscard]] bool should_index_on_close() const noexcept;
  void tidy_up();

  StoreFile& file_;
  RecentKeys& recent_;
  FileLock lock_;
  Identity log_;    // Of the -wal.
  Identity index_;  // Of the -shm.
  FirstPage first_page_;
  // Only keeps the log's index alive, which says how much of the log is committed. Without it, the next connection
  // would rebuild the index from what can be read, and so trust data of a failed sync.
  std::unique_ptr<Connection> anchor_;
  std::unique_ptr<WriterConnection> connection_;  // Null after a failure.
  bool committing_ = false;
  std::uint32_t log_pages_ = 0;
  std::uint32_t checkpoint_at_ = file_.options().checkpoint_pages;
  Time noted_{};
  Fd log_file_;                     // Of the -wal, to reserve room. SQLite takes no locks on it.
  std::uint64_t reserved_to_ = 0;   // In the log …
  std::uint64_t reserved_in_ = 0;   // … with these salts.
  std::uint64_t reserved_for_ = 0;  // In the database: the last reserve().
  std::uint64_t index_bytes_ = 0;   // At least so long is the -shm.

  mutable std::mutex checkpoint_error_mutex_;
  std::string checkpoint_error_;
};

}  // namespace once::stores::sqlite
