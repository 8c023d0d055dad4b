// What users commit together with a record: runs it on the writer's connection, in the transaction of a whole group,
// and keeps it from harming the store or the others of the group.
#pragma once

#include <optional>
#include <string>

#include <once/error.hpp>
#include <once/store.hpp>
#include <once/stores/sql.hpp>
#include <once/stores/sqlite_transaction.hpp>

#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/store_file.hpp"

namespace once::stores::sqlite {

// Thrown if the companion has ended the whole transaction, for example by INSERT OR ROLLBACK. The others of the group
// must be written again, without it.
struct TransactionEnded {
  Error error;
};

// Binds the values to $1, $2 … Empty if that worked, otherwise what is wrong.
std::string bind_values(sqlite3_stmt* statement, const std::vector<SqlValue>& values);

// Of one connection, and used by its thread.
class Companions {
 public:
  Companions(Connection& connection, const StoreFile& file);
  ~Companions();
  Companions(const Companions&) = delete;
  Companions& operator=(const Companions&) = delete;

  [[nodiscard]] static bool knows(const Companion& companion) noexcept;
  // Whether this thread runs a SqliteWork now.
  [[nodiscard]] static bool is_running_here() noexcept;

  // A savepoint in the group's transaction. Throws SqlError.
  void begin() { savepoint_.step(), savepoint_.reset(); }
  void keep() { release_.step(), release_.reset(); }
  void undo();

  // Between begin() and keep() or undo(). Empty: written. Otherwise why it is declined: undo() then. Throws
  // TransactionEnded, and SqlError if the disk or the file failed.
  std::optional<Error> write(const Companion& companion);

 private:
  enum class Guest { none, statements, work };  // Whose statements are prepared now.

  static int authorize(void* self, int action, const char* first, const char* second, const char* database,
                       const char* trigger);
  void deny(const std::string& what);
  std::optional<Error> write_statements(const SqlStatements& statements);
  std::optional<Error> write_statement(const SqlStatements& statements, std::size_t n);
  std::optional<Error> run_work(const SqliteWork& work);
  std::optional<Error> left_behind();  // What is wrong with the state after it.
  // The failure of a statement, or of the work. Throws SqlError if it is not the user's fault.
  Error failure(int code, const std::string& who) const;
  [[nodiscard]] Error late(const std::string& who) const;

  Connection& connection_;
  const StoreFile& file_;
  Guest guest_ = Guest::none;
  std::string denied_;  // What the guest was not allowed to do. Empty: nothing.
  Uptime until_{};
  bool is_late_ = false;
  Statement savepoint_;
  Statement release_;
  Statement undo_;
};

}  // namespace once::stores::sqlite
