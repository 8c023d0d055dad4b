// Owns SQLite's handles, and maps its result codes to kinds of failure.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <once/error.hpp>
#include <once/time.hpp>

namespace once::stores::sqlite {

// An Exception that remembers SQLite's extended result code.
class SqlError : public Exception {
 public:
  SqlError(ErrorKind kind, const std::string& message, int code) : Exception(kind, message), code_(code) {}
  [[nodiscard]] int code() const noexcept { return code_; }            // Extended.
  [[nodiscard]] int primary() const noexcept { return code_ & 0xFF; }  // See sqlite.org/rescode.html.
  // The statement was stopped by a trigger of the gate, and changed nothing.
  [[nodiscard]] bool is_gate() const noexcept { return code_ == SQLITE_CONSTRAINT_TRIGGER; }

 private:
  int code_;
};

// One connection. Used by one thread at a time.
class Connection {
 public:
  enum class Mode : std::uint8_t {
    write,
    read,
    immutable,  // Reads the file as it is, without its log, locks or side files: nobody may write it.
  };
  // Opens an existing file. Throws SqlError.
  Connection(const std::string& path, const std::string& vfs, Millis busy_timeout, Mode mode = Mode::write);
  // The user's own, which stays open.
  Connection(sqlite3* user, std::string path) noexcept : path_(std::move(path)), db_(user), is_users_(true) {}
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Runs statements whose rows do not matter. Throws SqlError.
  void run(const char* sql);
  [[nodiscard]] std::int64_t number(const char* sql);  // The first column of the first row; 0 without a row.

  [[nodiscard]] sqlite3* raw() const noexcept { return db_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] bool in_transaction() const noexcept { return sqlite3_get_autocommit(db_) == 0; }
  [[nodiscard]] std::int64_t changes() const noexcept { return sqlite3_changes(db_); }

  // The failure of `code`, which this connection just returned.
  [[nodiscard]] SqlError error(int code) const;

 private:
  std::string path_;
  sqlite3* db_ = nullptr;
  bool is_users_ = false;
};

// A prepared statement. Blobs and texts are bound without a copy: they must live until reset().
class Statement {
 public:
  Statement(Connection& connection, std::string_view sql);  // Throws SqlError.
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void bind(int at, std::int64_t value) { sqlite3_bind_int64(statement_, at, value); }
  void bind_blob(int at, std::string_view bytes) {
    sqlite3_bind_blob64(statement_, at, bytes.data(), bytes.size(), SQLITE_STATIC);
  }
  void bind_text(int at, std::string_view text) {
    sqlite3_bind_text64(statement_, at, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8);
  }

  void bind_zeros(int at, std::size_t bytes) { sqlite3_bind_zeroblob(statement_, at, static_cast<int>(bytes)); }

  bool step();  // True: a row is there. Throws SqlError; the statement is reset then.
  void reset() noexcept { sqlite3_reset(statement_); }
  void clear() noexcept {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }

  [[nodiscard]] int type(int column) const noexcept { return sqlite3_column_type(statement_, column); }
  [[nodiscard]] std::int64_t integer(int column) const noexcept { return sqlite3_column_int64(statement_, column); }
  // Valid until the next step or reset.
  [[nodiscard]] std::string_view bytes(int column) const noexcept;

 private:
  Connection& connection_;
  sqlite3_stmt* statement_ = nullptr;
};

// Resets the statement at the end of a block, so that no lock and no binding stays.
class Resetting {
 public:
  explicit Resetting(Statement& statement) noexcept : statement_(statement) {}
  ~Resetting() { statement_.clear(); }
  Resetting(const Resetting&) = delete;
  Resetting& operator=(const Resetting&) = delete;

 private:
  Statement& statement_;
};

}  // namespace once::stores::sqlite
