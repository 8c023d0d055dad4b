#include <once/stores/sqlite_transaction.hpp>

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "stores/sqlite/companions.hpp"
#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/file_lock.hpp"
#include "stores/sqlite/log_state.hpp"
#include "stores/sqlite/outside_writes.hpp"
#include "stores/sqlite/store_file.hpp"

namespace once::stores {

namespace {

using namespace sqlite;

constexpr int retry_ms = 1;  // While a program that does not know our lock has SQLite's.

[[noreturn]] void misuse(const std::string& path, const std::string& why) {
  throw Exception(ErrorKind::misuse, "a transaction in the sqlite store " + path + ": " + why);
}

const StoreFile& checked_file(const Store& store) {
  const StoreFile* const file = file_of(store);
  if (file == nullptr) throw Exception(ErrorKind::misuse, store.name() + " is not a sqlite store");
  if (file->is_forked()) throw Exception(ForkGuard::error(file->path()));
  if (Companions::is_running_here()) misuse(file->path(), "a SqliteWork is in one already: use its connection");
  return *file;
}

void refuse_attached(Connection& connection) {
  Statement databases(connection, "PRAGMA database_list");
  while (databases.step()) {
    if (databases.integer(0) < 2) continue;  // main, temp
    misuse(connection.path(), "the connection has another file attached ('" + std::string(databases.bytes(1)) +
                                  "'), which would not commit together with this one in a crash: detach it");
  }
}

// The conditions under which another connection may write beside the store.
void prepare(Connection& connection) {
  sqlite3* const db = connection.raw();
  const auto refuse = [&](const std::string& why) { misuse(connection.path(), why); };
  if (db == nullptr) refuse("there is no connection");
  const char* const name = sqlite3_db_filename(db, "main");
  if (name == nullptr || connection.path() != name) {
    refuse("the connection is to '" + std::string(name == nullptr ? "" : name) +
           "': open the store's file, by its real path");
  }
  if (connection.in_transaction()) refuse("the connection is in a transaction already");
  if (sqlite3_db_readonly(db, "main") != 0) refuse("the connection can only read");
  {
    Statement mode(connection, "PRAGMA main.locking_mode");
    if (mode.step() && mode.bytes(0) != "normal") refuse("the connection has locking_mode=EXCLUSIVE");
  }
  refuse_attached(connection);
  int moved = 0;
  sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  if (moved != 0) refuse("the connection's file was deleted or replaced: open it again");
  sqlite3_wal_autocheckpoint(db, 0);
  sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  connection.run("PRAGMA main.synchronous = FULL");
  Statement journal(connection, "PRAGMA main.journal_mode");
  if (!journal.step() || journal.bytes(0) != "wal") refuse("the connection does not use the write-ahead log");
}

struct Finished {
  std::int64_t id = 0;
  std::int64_t revision = 0;
};

}  // namespace

struct SqliteTransaction::Open {
  Open(const StoreFile& its_file, sqlite3* db)
      : file(its_file), connection(db, file.path()), lock(file.path() + "-lock", file.path()) {
    prepare(connection);
    guard.emplace(lock, file.options().busy_timeout);
    file.check_identity();
    begin();
    log = Identity::of(file.path() + "-wal").inode;
    outside.begin(connection, lock);
    overwrites = overwrites_log(connection, size_of(file.path() + "-wal"));
  }
  ~Open() {
    // Before the lock is released. Fails only if SQLite has rolled back already.
    if (connection.in_transaction()) sqlite3_exec(connection.raw(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

  void begin() {
    for (std::int64_t waited = 0;; waited += retry_ms) {
      const int code = sqlite3_exec(connection.raw(), "BEGIN IMMEDIATE", nullptr, nullptr, nullptr);
      if (code == SQLITE_OK) return;
      if ((code & 0xFF) != SQLITE_BUSY || waited >= file.options().busy_timeout.count()) throw connection.error(code);
      sqlite3_sleep(retry_ms);
    }
  }

  void finish(const SqlStatement& text) {
    if (finished) misuse(file.path(), "it has finished a claim already: one for each transaction");
    refuse_ended();
    sqlite3_stmt* raw = nullptr;
    int code =
        sqlite3_prepare_v2(connection.raw(), text.text.c_str(), static_cast<int>(text.text.size()), &raw, nullptr);
    const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(raw, sqlite3_finalize);
    if (code != SQLITE_OK) throw connection.error(code);
    if (const std::string wrong = bind_values(raw, text.values); raw == nullptr || !wrong.empty()) {
      misuse(file.path(), "this is not the finish of a claim of the store: " + wrong);
    }
    code = sqlite3_step(raw);
    if ((sqlite3_extended_errcode(connection.raw())) == SQLITE_CONSTRAINT_NOTNULL) {
      throw FinishRefused(ErrorKind::unavailable,
                          "the claim is no longer this attempt's, so its transaction was rolled back: another attempt "
                          "or an operator has taken it, or it is finished");
    }
    if (code != SQLITE_ROW) throw connection.error(code);
    finished = {.id = sqlite3_column_int64(raw, 0), .revision = sqlite3_column_int64(raw, 1)};
    code = sqlite3_step(raw);
    if (code != SQLITE_DONE) throw connection.error(code);
  }

  void refuse_ended() const {
    if (connection.in_transaction()) return;
    misuse(file.path(), "a statement of your own has ended it, so its writes and the finish do not commit together");
  }

  void check() {
    refuse_ended();
    refuse_attached(connection);
    if (!finished) return;
    Statement find(connection, "SELECT 1 FROM main.records WHERE id = ?1 AND revision = ?2 AND state = 1");
    find.bind(1, finished->id);
    find.bind(2, finished->revision);
    if (find.step()) return;
    misuse(file.path(),
           "its finish was undone, perhaps by ROLLBACK TO a savepoint: finish last, outside of savepoints");
  }

  void commit() {
    const int code = sqlite3_exec(connection.raw(), "COMMIT", nullptr, nullptr, nullptr);
    if (code == SQLITE_OK) return outside.committed(connection, lock, log, true);
    const SqlError error = connection.error(code);
    switch (error.primary()) {
      case SQLITE_CONSTRAINT:  // A deferred foreign key.
        throw Exception(ErrorKind::unavailable,
                        "a transaction in the sqlite store " + file.path() + ": " + sqlite3_errmsg(connection.raw()));
      case SQLITE_BUSY:
        misuse(file.path(), "a statement is still running: reset or finalize each statement before the commit");
      case SQLITE_FULL:
        if (overwrites) break;
        throw error;
      case SQLITE_READONLY:
      case SQLITE_NOMEM:
        throw error;
      default:
        break;
    }
    // As in WritableFile::undo(): what the next process to open the file finds in the log may not be on the disk.
    LogNotes notes = lock.notes();
    notes.synced = {};
    lock.note(notes);
    throw Exception(ErrorKind::in_doubt, std::string(error.what()) + " (it may have been written anyway)");
  }

  const StoreFile& file;
  Connection connection;
  FileLock lock;
  std::optional<FileLock::Guard> guard;
  OutsideWrites outside;
  std::uint64_t log = 0;
  bool overwrites = false;  // See full_over_frames.
  std::optional<Finished> finished;
};

SqliteTransaction::SqliteTransaction(Store& store, sqlite3* db)
    : open_(std::make_unique<Open>(checked_file(store), db)) {}

SqliteTransaction::~SqliteTransaction() = default;

void SqliteTransaction::rollback() noexcept { open_.reset(); }

void SqliteTransaction::finish(const SqlStatement& statement) {
  if (open_ == nullptr) throw Exception(ErrorKind::misuse, "the transaction has ended already");
  try {
    open_->finish(statement);
  } catch (...) {  // Any failure ends it.
    open_.reset();
    throw;
  }
}

void SqliteTransaction::commit() {
  if (open_ == nullptr) throw Exception(ErrorKind::misuse, "the transaction has ended already");
  const std::unique_ptr<Open> ends = std::move(open_);  // Rolls back what is not committed.
  ends->check();
  ends->commit();
}

}  // namespace once::stores
