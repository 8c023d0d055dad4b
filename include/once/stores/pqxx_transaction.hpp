// For users of libpqxx: a transaction of your own in a PostgreSQL store's database that can finish a claim. Needs
// libpqxx 6.4 where it is included; the store itself does not.
//
//   once::HandedOut handed = context.hand_out(receipt);
//   pqxx::work work(connection);
//   transfer(work, from, to, cents);
//   once::stores::PqxxTransaction transaction(work);
//   const once::Finish finish = handed.commit(transaction);  // the finish, then COMMIT
//
// once/stores/postgresql_transaction.hpp says what the connection's role needs, and who waits. Repeat the transaction,
// not the claim, after pqxx::serialization_failure and pqxx::deadlock_detected: handed.commit() is `declined` then, and
// the claim is still yours. examples/postgresql/transfer.cpp is a whole program.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <pqxx/pqxx>

#include <once/stores/postgresql_transaction.hpp>

namespace once::stores {

// Of a pqxx::work, or another pqxx::transaction or robusttransaction, which must outlive it. Threads: one at a time.
template <class Transaction>
class PqxxTransaction {
  static_assert(std::is_base_of_v<pqxx::dbtransaction, Transaction> &&
                    !std::is_base_of_v<pqxx::subtransaction, Transaction>,
                "once: the finish goes into a whole transaction, such as pqxx::work: a pqxx::subtransaction does not "
                "commit, and a pqxx::nontransaction has none");

 public:
  // Sends nothing.
  explicit PqxxTransaction(Transaction& transaction) noexcept : transaction_(transaction) {}

  // Executes HandedOut::finish_statement(). Throws FinishRefused if the claim was lost, otherwise libpqxx's exceptions.
  // The transaction is aborted then. Inside a savepoint the server refuses it (SQLSTATE ON007).
  void finish(const SqlStatement& statement) {
    const auto texts = postgresql_values(statement);
    std::vector<const char*> values;
    values.reserve(texts.size());
    for (const auto& text : texts) values.push_back(text ? text->c_str() : nullptr);
    try {
      transaction_.exec_params(statement.text, pqxx::prepare::make_dynamic_params(values.begin(), values.end()));
    } catch (const pqxx::sql_error& error) {
      transaction_.abort();
      if (error.sqlstate() == "ON001") throw FinishRefused(ErrorKind::unavailable, error.what());
      throw;
    }
  }

  // Throws Exception(in_doubt) if the connection was lost while it committed, otherwise libpqxx's exceptions.
  void commit() {
    try {
      transaction_.commit();
    } catch (const pqxx::in_doubt_error& error) {
      throw Exception(ErrorKind::in_doubt, error.what());
    }
  }

 private:
  Transaction& transaction_;
};

// For run_local() (once/engine/local.hpp): claim, work and result in one transaction, which must be read committed (as
// a pqxx::work is, unless the session's default is another). The store must be the engine's, and outlive it.
template <class Transaction>
class PqxxLocal final : public LocalTransaction {
 public:
  // Sends nothing. Throws Exception(misuse) for another kind of store, or a sealed one.
  PqxxLocal(const Store& store, Transaction& transaction)
      : statements_(store), work_(transaction), transaction_(transaction) {}
  ~PqxxLocal() override { rollback(); }
  PqxxLocal(const PqxxLocal&) = delete;
  PqxxLocal& operator=(const PqxxLocal&) = delete;

  [[nodiscard]] const Store& store() const noexcept override { return statements_.store(); }

  std::optional<Answer> write(const Record& record, const Seen* seen, Millis wait) override {
    try {
      return statements_.answer(row_of(statements_.write(record, seen, wait)));
    } catch (const pqxx::sql_error& error) {
      rollback();
      if (error.sqlstate() == "55P03") return std::nullopt;
      throw Exception(PostgresqlLocalStatements::error(error.sqlstate(), error.what()));
    }
  }
  void finish(const Record& completion) override {
    try {
      if (!row_of(statements_.finish(completion)).empty()) return;
    } catch (const pqxx::sql_error& error) {
      rollback();
      throw Exception(PostgresqlLocalStatements::error(error.sqlstate(), error.what()));
    }
    rollback();
    throw Exception(ErrorKind::misuse, "the work has ended the transaction in which it was claimed, which it must not");
  }
  void commit() override {
    over_ = true;
    try {
      transaction_.commit();
    } catch (const pqxx::sql_error& error) {
      throw Exception(PostgresqlLocalStatements::error(error.sqlstate(), error.what()));
    }
  }
  void rollback() noexcept override {
    if (std::exchange(over_, true)) return;
    try {
      work_.abort();
    } catch (const std::exception&) {  // The connection is lost, and with it the transaction.
    }
  }

 private:
  // Empty: there is no row.
  std::vector<std::optional<std::string>> row_of(const SqlStatement& statement) {
    const auto texts = postgresql_values(statement);
    std::vector<const char*> values;
    values.reserve(texts.size());
    for (const auto& text : texts) values.push_back(text ? text->c_str() : nullptr);
    const pqxx::result result =
        work_.exec_params(statement.text, pqxx::prepare::make_dynamic_params(values.begin(), values.end()));
    std::vector<std::optional<std::string>> row;
    if (result.empty()) return row;
    for (const auto& field : result.front()) {
      if (field.is_null()) {
        row.emplace_back();
      } else {
        row.emplace_back(field.c_str());
      }
    }
    return row;
  }

  PostgresqlLocalStatements statements_;
  Transaction& work_;
  PqxxTransaction<Transaction> transaction_;
  bool over_ = false;
};

}  // namespace once::stores
