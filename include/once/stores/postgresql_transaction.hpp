// Writes in a PostgreSQL store's own database that commit together with a result: both, or neither, even if the process
// dies, or another attempt has taken over. Three ways, the first being SqlStatements (once/stores/sql.hpp).
// docs/transactions.md says when to use which.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <once/local.hpp>
#include <once/store.hpp>
#include <once/stores/sql.hpp>

struct pg_conn;  // PGconn of libpq-fe.h

namespace once::stores {

// The values of a statement in PostgreSQL's text format, as PQexecParams() and most client libraries take them. Empty:
// NULL. Bytes are "\x" with hexadecimal digits.
std::vector<std::optional<std::string>> postgresql_values(const SqlStatement& statement);

// A function that writes by the store's own connection, in the transaction that writes the result.
// Context::commit_with(), Claim::complete(result, companion).
//
//   auto writes = [=](PGconn* db) { transfer(db, from, to, cents); };
//   context.commit_with(std::make_shared<once::stores::PostgresqlWork>(writes));
//
// It runs after the work has returned, on a thread of the store's, in a transaction of read committed isolation that
// has written the record. It may run several times, and takes effect at most once. So it must only write to the
// database. If it throws, nothing is committed and the finish is declined with the exception's text: as misuse for an
// Exception of that kind, otherwise as unavailable. So it is if a statement of it failed, even if it ignores that.
//
// As many run at one time as PostgresqlOptions::side_connections. Others wait, and fail as unavailable at the
// operation's timeout. Each of its statements ends at that timeout (statement_timeout). If it returns after that time,
// nothing is committed and it is declined.
//
// It must not end the transaction: then what it wrote before is committed, and the outcome is in doubt, even if it
// throws afterwards. It must not keep the connection, nor change the session's settings (SET LOCAL is fine), nor write
// to the store's own tables: give the store a role that may only EXECUTE its functions, and the server sees to the
// latter.
class PostgresqlWork final : public Companion {
 public:
  using Work = std::function<void(pg_conn*)>;  // Gets the store's connection, in its transaction.
  explicit PostgresqlWork(Work work);          // Throws Exception(misuse) if it is empty.

  [[nodiscard]] const Work& work() const noexcept { return work_; }  // For the store.

 private:
  Work work_;
};

// What a client library executes for PostgresqlLocal and PqxxLocal. For one transaction.
class PostgresqlLocalStatements {
 public:
  explicit PostgresqlLocalStatements(const Store& store);  // Throws Exception(misuse): another store, or a sealed one.

  [[nodiscard]] const Store& store() const noexcept { return store_; }  // As given; it must outlive this.
  // LocalTransaction::write(): one row, for answer(). Raises SQLSTATE 55P03 when the wait is over.
  [[nodiscard]] SqlStatement write(const Record& record, const Seen* seen, Millis wait) const;
  // Throws Exception(corrupt) if the row cannot be one.
  Answer answer(const std::vector<std::optional<std::string>>& row);
  // LocalTransaction::finish(): one row, or none if the transaction is another one than that of write().
  [[nodiscard]] SqlStatement finish(const Record& completion) const;
  // The Exception for a SQLSTATE and a message of the server.
  [[nodiscard]] static Error error(const std::string& state, const std::string& message);

 private:
  const Store& store_;
  std::string schema_;
  bool allow_clear_ = false;
  std::string transaction_;  // Its number.
};

// A transaction of your own connection to the store's database, which can finish a claim:
//
//   once::HandedOut handed = context.hand_out(receipt);
//   once::stores::PostgresqlTransaction transaction(connection);  // BEGIN
//   transfer(connection, from, to, cents);
//   const once::Finish finish = handed.commit(transaction);       // the finish, then COMMIT
//
// For libpqxx: once/stores/pqxx_transaction.hpp. For any other library execute the text and values of
// HandedOut::finish_statement() yourself, last in the transaction.
//
// The connection must be in no transaction and not in pipeline mode, and its role needs EXECUTE of the schema's
// functions (`once table create --role`). Any isolation will do: under repeatable read and serializable a renewal that
// came since the snapshot is a serialization failure (unavailable: repeat the transaction, not the claim). A snapshot
// that is older than the claim does not show it: finish() throws FinishRefused, and HandedOut::commit() is declined.
//
// From the finish to the end, renewals of this claim wait, and so do operators' changes of it. All else goes on.
//
// Failures. When a method throws, the transaction has been rolled back, except for in_doubt. When it is destroyed
// before commit(), it is rolled back. Exception:
// - misuse: a wrong connection, one that was left in pipeline mode, a wrong order of calls, a missing permission, an
//   older schema.
// - unavailable: the server refuses for now: a deadlock, a serialization failure, a constraint that is checked at the
//   commit; or the connection was lost before the COMMIT was sent.
// - in_doubt: the connection was lost while it committed; or a statement of your own has ended the transaction after
//   finish(). After PREPARE TRANSACTION the claim is finished by COMMIT PREPARED: until then HandedOut::unknown() is
//   unrecorded, and all writes of the record wait for its lock.
//
// Threads: one at a time. The connection must outlive it.
class PostgresqlTransaction {
 public:
  explicit PostgresqlTransaction(pg_conn* connection);  // BEGIN. Throws Exception.
  ~PostgresqlTransaction();
  PostgresqlTransaction(const PostgresqlTransaction&) = delete;
  PostgresqlTransaction& operator=(const PostgresqlTransaction&) = delete;

  // Executes HandedOut::finish_statement(), once, outside of savepoints. Throws FinishRefused if the claim was lost.
  void finish(const SqlStatement& statement);
  // Throws Exception(misuse) if the transaction with the finish is not the one that stands now.
  void commit();
  void rollback() noexcept;  // No effect after its end.

 private:
  friend class PostgresqlLocal;
  PostgresqlTransaction(pg_conn* connection, const char* begin);

  void refuse_ended();
  void refuse_pipeline();
  [[nodiscard]] Exception ended_by(const std::string& state, const std::string& message);

  pg_conn* connection_;   // Null: it has ended.
  std::string finished_;  // The revision that the finish has written. Empty: none.
};

// For run_local() (once/engine/local.hpp): claim, work and result in one transaction of your own connection, which is
// read committed whatever the session's default is. The connection and its role: as for PostgresqlTransaction. The
// store must be the engine's, and outlive it.
class PostgresqlLocal final : public LocalTransaction {
 public:
  PostgresqlLocal(const Store& store, pg_conn* connection);  // BEGIN. Throws Exception.

  [[nodiscard]] const Store& store() const noexcept override { return statements_.store(); }
  std::optional<Answer> write(const Record& record, const Seen* seen, Millis wait) override;
  void finish(const Record& completion) override;
  void commit() override { transaction_.commit(); }
  void rollback() noexcept override { transaction_.rollback(); }

 private:
  PostgresqlLocalStatements statements_;
  PostgresqlTransaction transaction_;
};

}  // namespace once::stores
