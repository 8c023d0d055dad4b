#include "stores/sqlite/connection.hpp"

#include <cerrno>
#include <cstring>

#include "platform/file.hpp"
#include "text/ascii.hpp"
#include "text/percent.hpp"

namespace once::stores::sqlite {

namespace {

// The reason of the operating system, if there is one.
std::string system_reason(sqlite3* db) {
  const int number = db == nullptr ? 0 : sqlite3_system_errno(db);
  return number == 0 ? std::string() : std::string(" (") + std::strerror(number) + ")";
}

bool is_plain_in_uri(char c) noexcept {
  return text::is_letter_or_digit(c) || c == '/' || c == '-' || c == '_' || c == '.';
}

}  // namespace

Connection::Connection(const std::string& path, const std::string& vfs, Millis busy_timeout, Mode mode) : path_(path) {
  // The path has no symbolic link: SQLite would follow it, and have its log in another place.
  const int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_NOFOLLOW |
                    (mode == Mode::write ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY) |
                    (mode == Mode::immutable ? SQLITE_OPEN_URI : 0);
  const std::string name =
      mode == Mode::immutable ? "file:" + text::percent_encoded(path, is_plain_in_uri) + "?immutable=1" : path;
  const int code = sqlite3_open_v2(name.c_str(), &db_, flags, vfs.empty() ? nullptr : vfs.c_str());
  if (code != SQLITE_OK) {
    const SqlError failure = error(code);
    sqlite3_close_v2(db_);
    throw failure;
  }
  sqlite3_busy_timeout(db_, static_cast<int>(busy_timeout.count()));
  // Otherwise the last connection would copy the log on close, without our lock.
  sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  sqlite3_db_config(db_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
}

Connection::~Connection() {
  if (!is_users_) sqlite3_close_v2(db_);
}

void Connection::run(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) throw error(code);
}

std::int64_t Connection::number(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

SqlError Connection::error(int code) const {
  const std::string where = "sqlite store " + path_ + ": ";
  const std::string detail = db_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(db_);
  if (code == SQLITE_CONSTRAINT_TRIGGER) return {ErrorKind::misuse, where + detail, code};
  // SQLite calls only ENOSPC "full".
  const int reason = db_ == nullptr ? 0 : sqlite3_system_errno(db_);
  const int primary = code & 0xFF;
  if (primary == SQLITE_FULL || (primary == SQLITE_IOERR && (reason == EDQUOT || reason == EFBIG))) {
    return {
        ErrorKind::unavailable,
        where + "no space left for it" + system_reason(db_) + ": free some, then try again" + file_size_limit_text(),
        code};
  }
  switch (primary) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return {ErrorKind::unavailable,
              where + "another program holds the file, such as a sqlite3 shell inside a transaction: " + detail, code};
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return {
          ErrorKind::unavailable,
          where +
              "cannot be written: check the permissions of the file, of the files beside it and of its directory: " +
              detail,
          code};
    case SQLITE_CANTOPEN:
      return {ErrorKind::unavailable,
              where + "cannot be opened" + system_reason(db_) +
                  ": check the path, and the permissions of the file, of the files beside it and of its directory",
              code};
    case SQLITE_IOERR:
      return {ErrorKind::unavailable, where + "input or output failed" + system_reason(db_) + ": " + detail, code};
    case SQLITE_NOMEM:
      return {ErrorKind::unavailable, where + "out of memory", code};
    case SQLITE_TOOBIG:
      return {ErrorKind::misuse, where + "a record is too large: " + detail, code};
    case SQLITE_NOTADB:
      return {ErrorKind::corrupt,
              where +
                  "not a SQLite database, or its first page is damaged: restore a backup, or name "
                  "another file",
              code};
    case SQLITE_CORRUPT:
      return {ErrorKind::corrupt,
              where + "damaged: " + detail +
                  ". Stop the programs that use it, then restore a backup, or try the sqlite3 shell's .recover and "
                  "rebuild the index of keys of the new file (docs/stores/sqlite.md)",
              code};
    default:
      return {ErrorKind::corrupt,
              where + "SQLite says \"" + detail + "\" (code " + std::to_string(code) +
                  "): its tables may have been changed by hand",
              code};
  }
}

Statement::Statement(Connection& connection, std::string_view sql) : connection_(connection) {
  const int code = sqlite3_prepare_v3(connection.raw(), sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement_, nullptr);
  if (code != SQLITE_OK) throw connection.error(code);
}

bool Statement::step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  const SqlError failure = connection_.error(code);
  reset();
  throw failure;
}

std::string_view Statement::bytes(int column) const noexcept {
  const void* data = sqlite3_column_blob(
      statement_, column);  // Called first, because it may convert the value and so change its size.
  if (data == nullptr) return {};
  return {static_cast<const char*>(data), static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

}  // namespace once::stores::sqlite
