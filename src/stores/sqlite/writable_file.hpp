// The file as its writer has it: in turns with other processes, by one connection at a time, and so that whatever is
// read of the log is on the disk (docs/decisions/failed-syncs.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "stores/sqlite/file_lock.hpp"
#include "stores/sqlite/key_index.hpp"
#include "stores/sqlite/log_state.hpp"
#include "stores/sqlite/presence.hpp"
#include "stores/sqlite/store_file.hpp"
#include "stores/sqlite/writer_connection.hpp"

namespace once::stores::sqlite {

// Used by one thread, but for checkpoint_error().
class WritableFile {
 public:
  // Opens the file. All that can be read of it is on the disk then. Throws Exception.
  WritableFile(StoreFile& file, RecentKeys& recent);
  // Indexes keys and copies the log, where that spares the next opener work. Nothing depends on it.
  ~WritableFile();
  WritableFile(const WritableFile&) = delete;
  WritableFile& operator=(const WritableFile&) = delete;

  // Waits for the turn of this process, which lasts as long as what is returned. Throws Exception(unavailable).
  [[nodiscard]] FileLock::Turn turn() { return FileLock::Turn(lock_, file_.options().busy_timeout); }

  // All below are for a turn.

  // First: the file is the one that was opened, and the connection works. Throws Exception(unavailable).
  void make_ready();
  // False after a failure: there is no connection before the next make_ready().
  [[nodiscard]] bool is_ready() const noexcept { return connection_ != nullptr; }

  // A transaction: begin(), for keys learn_keys(), what is done with rows(), then commit(), or for keys
  // commit_with_keys(). After a SqlError: undo().
  void begin() { connection_->begin(lock_); }
  void learn_keys();
  [[nodiscard]] Rows& rows() noexcept { return connection_->rows(); }
  void commit();
  void commit_with_keys();
  // True if it may have been committed all the same.
  bool undo(const SqlError& error);

  // Copies the log into the file when it is long: a checkpoint beside another process's write is what the WAL-reset bug
  // of SQLite up to 3.51.2 takes (sqlite.org/wal.html#walresetbug).
  [[nodiscard]] bool checkpoint_due() const noexcept { return log_pages_ >= checkpoint_at_; }
  void checkpoint();
  // After a write that failed with this code: if there was no room for the log to grow, what it holds is copied into
  // the file, so that its room can be used anew. True if that was done.
  bool made_room(int code) { return code == SQLITE_FULL && copy_log(); }
  // Why the last copy failed; empty if it did not. From any thread.
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
  void index_if_more_than(std::size_t few);
  [[nodiscard]] bool should_index_on_close() const noexcept;
  void tidy_up();

  StoreFile& file_;
  RecentKeys& recent_;
  FileLock lock_;
  const Presence presence_;
  Identity log_;    // Of the -wal.
  Identity index_;  // Of the -shm.
  FirstPage first_page_;
  // Does nothing but keep the log's index, which says how much of the log is committed, for as long as the store lives:
  // the next connection would make it anew from what can be read, and so trust what a sync that failed has left.
  std::unique_ptr<Connection> anchor_;
  std::unique_ptr<WriterConnection> connection_;  // Null after a failure.
  bool committing_ = false;
  std::uint32_t log_pages_ = 0;
  std::uint32_t checkpoint_at_ = file_.options().checkpoint_pages;
  Time noted_{};

  mutable std::mutex checkpoint_error_mutex_;
  std::string checkpoint_error_;
};

}  // namespace once::stores::sqlite
