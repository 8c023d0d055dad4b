// A transaction of the user's own in the file of a SQLite store, for the conformance suite.
#pragma once

#include <sqlite3.h>

#include <stdexcept>
#include <string>

#include <once/stores/sqlite_transaction.hpp>
#include <once/testing/conformance.hpp>

namespace once::testing {

// Adds to the table `counter`, which has one row.
class SqliteOwnTransaction final : public OwnTransaction {
 public:
  SqliteOwnTransaction(Store& store, const std::string& path) : transaction_(store, opened(path)) {}
  ~SqliteOwnTransaction() override {
    transaction_.rollback();
    sqlite3_close(db_);
  }
  SqliteOwnTransaction(const SqliteOwnTransaction&) = delete;
  SqliteOwnTransaction& operator=(const SqliteOwnTransaction&) = delete;

  void add() override {
    if (sqlite3_exec(db_, "UPDATE counter SET n = n + 1", nullptr, nullptr, nullptr) != SQLITE_OK) {
      throw std::runtime_error(sqlite3_errmsg(db_));
    }
  }
  void finish(const stores::SqlStatement& statement) override { transaction_.finish(statement); }
  void commit() override { transaction_.commit(); }

 private:
  sqlite3* opened(const std::string& path) {
    if (sqlite3_open(path.c_str(), &db_) != SQLITE_OK) throw std::runtime_error("open " + path);
    return db_;
  }

  sqlite3* db_ = nullptr;
  stores::SqliteTransaction transaction_;
};

}  // namespace once::testing
