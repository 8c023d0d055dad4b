#include "stores/sqlite/writer_connection.hpp"

#include <cstddef>
#include <string>
#include <utility>

#include <once/error.hpp>

#include "stores/sqlite/schema.hpp"

namespace once::stores::sqlite {

namespace {

void set_wal(Connection& connection) {
  Statement mode(connection, "PRAGMA journal_mode = WAL");
  if (mode.step() && mode.bytes(0) == "wal") return;
  throw Exception(ErrorKind::unavailable, "sqlite store " + connection.path() +
                                              ": this file system does not support a write-ahead log: use a local one");
}

}  // namespace

WriterConnection::WriterConnection(const StoreFile& file, RecentKeys& recent)
    : connection_(file.path(), file.vfs(), file.options().busy_timeout) {
  const SqliteOptions& options = file.options();
  has_tables(connection_);  // Checked before the journal mode writes to a foreign file.
  // Deleted and overwritten content becomes zeros. SQLite of Debian does so by default.
  // A log that grew too large, because of a long reader, is truncated when it is restarted.
  const std::size_t usual_log_bytes = std::size_t{options.checkpoint_pages} * 2 * 4096;
  connection_.run(("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = MEMORY; "
                   "PRAGMA secure_delete = ON; PRAGMA foreign_keys = ON; "
                   "PRAGMA cache_size = -" +
                   std::to_string(options.cache_bytes / 1024) +
                   "; PRAGMA journal_size_limit = " + std::to_string(usual_log_bytes))
                      .c_str());
  set_wal(connection_);
  // Lets SQLITE_FCNTL_SIZE_HINT reserve room: WritableFile::reserve().
  int chunk_bytes = 64 * 1024;
  sqlite3_file_control(connection_.raw(), "main", SQLITE_FCNTL_CHUNK_SIZE, &chunk_bytes);
  sqlite3_wal_hook(
      connection_.raw(),
      [](void* self, sqlite3*, const char*, int pages) {
        auto& ours = *static_cast<WriterConnection*>(self);
        ours.log_pages_ = static_cast<std::uint32_t>(pages);
        ours.wrote_ = true;
        return SQLITE_OK;
      },
      this);
  file.check_identity();  // Checked before a replaced file gets tables.
  make_tables(connection_);
  companions_.emplace(connection_, file);  // First, as it would make others prepare their statements again.
  rows_.emplace(connection_, recent, options.recent_keys);
  begin_.emplace(connection_, "BEGIN IMMEDIATE");
  commit_.emplace(connection_, "COMMIT");
}

void WriterConnection::begin(FileLock& lock) {
  begin_->step();
  begin_->reset();
  outside_writes_ = outside_.begin(connection_, lock);
  const bool rolled_back = !std::exchange(committed_, false);
  if (rolled_back || outside_.others_wrote()) sealed_.reset();
  changes_ = sqlite3_total_changes(connection_.raw());
}

bool WriterConnection::is_sealed() {
  if (!sealed_) sealed_ = is_marked_sealed(connection_);
  return *sealed_;
}

void WriterConnection::seal() {
  if (is_sealed()) return;
  mark_sealed(connection_);
  sealed_ = true;
}

bool WriterConnection::has_changed() const noexcept { return sqlite3_total_changes(connection_.raw()) != changes_; }

bool WriterConnection::commit(FileLock& lock, std::uint64_t log) {
  wrote_ = false;
  commit_->step();
  commit_->reset();
  committed_ = true;
  outside_.committed(connection_, lock, log, wrote_);
  return wrote_;
}

}  // namespace once::stores::sqlite
