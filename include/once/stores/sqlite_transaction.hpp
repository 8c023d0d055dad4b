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
//   auto writes = [=](sqlite3* db) { transfer(db, from, to, cents); };
//   context.commit_with(std::make_shared<once::stores::SqliteWork>(writes));
//
// It runs after the work has returned, on the store's writer thread, while all other writers wait: keep it short. It
// may run several times, and takes effect at most once. So it must only write to the database. If it throws, nothing is
// committed and the finish is declined with the exception's text: as misuse for an Exception of that kind, otherwise as
// unavailable.
//
// Declined too, as misuse, even if the function ignores the error that SQLite gave it:
// - statements that begin or end a transaction (savepoints of its own are allowed), ATTACH, PRAGMA, and changes of the
//   schema: make tables in a SqliteTransaction. Virtual tables (FTS5, R-trees) cannot be used either;
// - writes to the store's own tables (records, key_index, dropped_keys, once_meta);
// - a statement that it has neither reset nor finalized.
// And as unavailable:
// - foreign keys that do not hold at the end (they are checked: PRAGMA foreign_keys is on), and
// - statements that run longer than SqliteOptions::work_timeout.
//
// Do not keep the connection, nor a statement of it, nor change its settings (busy timeout, hooks, authorizer). Calls
// that write to the same store fail as misuse there; do not wait for another thread that writes to it.
class SqliteWork final : public Companion {
 public:
  using Work = std::function<void(sqlite3*)>;  // Gets the store's connection, in its transaction.
  explicit SqliteWork(Work work);              // Throws Exception(misuse) if it is empty.

  [[nodiscard]] const Work& work() const noexcept { return work_; }  // For the store.

 private:
  Work work_;
};

// A transaction of your own connection to the store's file, which can finish a claim:
//
//   once::HandedOut handed = context.hand_out(receipt);
//   once::stores::SqliteTransaction transaction(*store, db);  // BEGIN IMMEDIATE
//   transfer(db, from, to, cents);
//   const once::Finish finish = handed.commit(transaction);   // the finish, then COMMIT
//
// Without a claim it is the way to write to the file beside a store, for example to make your tables.
//
// The connection. Its main database must be the store's file, by its real path (SqliteStatus::path), without attached
// ones: files that are attached to each other do not commit together in a crash. No transaction may be open. The
// constructor sets wal_autocheckpoint to 0 (so your wal_hook is gone), synchronous to FULL, and
// SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE; leave them so, as the store's log must be copied by the store. Never write by this
// connection without a SqliteTransaction, nor to the store's own tables. Foreign keys are checked if you turn that on.
//
// Others. From the constructor to the end, all other writers to the file wait, in every process: claims and renewals
// too. They fail as unavailable after their busy_timeout (5 s). So a transaction must take a small part of the lease;
// let it do nothing but write. Do not call the store's engine for other keys meanwhile, on any thread that you wait
// for: it waits for you.
//
// Failures. When a method throws, the transaction has been rolled back, except for in_doubt. When it is destroyed
// before commit(), it is rolled back. Exception:
// - misuse: another store's, a wrong connection, a wrong order of calls, a fork.
// - unavailable: the file is locked by another program for longer than busy_timeout; no space left; a failed write.
// - in_doubt: commit() failed while it synced. The store shows the state before it, until the last program has closed
//   the file; then it may show the commit (docs/decisions/sqlite-disks.md). A later commit of any program settles that
//   it did not take place.
// - corrupt: SQLite found damage.
//
// Threads: one at a time. The store and the connection must outlive it.
class SqliteTransaction {
 public:
  // BEGIN IMMEDIATE, which waits for other writers. Throws Exception.
  SqliteTransaction(Store& store, sqlite3* db);
  ~SqliteTransaction();
  SqliteTransaction(const SqliteTransaction&) = delete;
  SqliteTransaction& operator=(const SqliteTransaction&) = delete;

  // Executes HandedOut::finish_statement(), once. Throws FinishRefused if the claim was lost.
  void finish(const SqlStatement& statement);
  // Throws Exception(misuse) if the finish was undone by ROLLBACK TO a savepoint.
  void commit();
  void rollback() noexcept;  // No effect after its end.

 private:
  struct Open;
  std::unique_ptr<Open> open_;  // Null: it has ended.
};

}  // namespace once::stores
