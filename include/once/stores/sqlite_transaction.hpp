// Writes in a SQLite store's own file that commit together with a result. The user's tables are in the same file, so
// both are written, or neither: even if the process dies, or another attempt has taken over. Three ways, the first
// being SqlStatements (once/stores/sql.hpp). docs/transactions.md says when to use which.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <once/store.hpp>
#include <once/stores/sql.hpp>

struct sqlite3;  // sqlite3.h

namespace once::stores {

// A function that writes by the store's own connection, in the transaction that writes the result.
// Context::commit_with(), Claim::complete(result, companion).
//
//   context.commit_with(std::make_shared<once::stores::SqliteWork>([=](sqlite3* db) { transfer(db, from, to, cents);
//   }));
//
// It runs after the work has returned, on the store's writer thread, while all other writers wait: keep it short. It
// may run several times, and takes effect at most once. So it must only write to the database. If it throws, nothing is
// committed and the finish is declined with the exception's text: as misuse for an Exception of that kind, otherwise as
// unavailable.
//
// Declined too, as misuse, even if the function ignores the error that SQLite gave it:
// - statements that begin or end a transaction (savepoints of its own are allowed), ATTACH, PRAGMA, and changes of the
//   schema: make tables in a SqliteTransaction. Virtual tables (FTS5, R-trees) cannot be used either;
// - writes to the store's own tables (records, key_index, once_meta);
// - a statement that it has neither reset nor finalized.
// And as unavailable:
// - foreign keys that do not hold at the end (they are checked: PRAGMA foreign_keys is on), and
// - statements that run longer than SqliteOptions::work_timeout.
//
// Do not keep the connection, nor a statement of it, nor change its settings (busy timeout, hooks, authorizer). Calls
// that write to the same store fail as misuse there; do not wait for another thread that writes to it.
class SqliteWork final : public Companion {
 public:
  using Work = std::function<void(sqlite3*)>;
  explicit SqliteWork(Work work);  // Throws Exception(misuse) if it is empty.

  [[nodiscard]] const Work& work() const noexcept { return work_; }

 private:
  Work work_;
};

}  // namespace once::stores
