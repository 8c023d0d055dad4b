// A bank transfer, once: the rows and the result commit together in the store's own file, or not at all.
#include <sqlite3.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/stores/sqlite.hpp>
#include <once/stores/sqlite_transaction.hpp>

using once::stores::SqliteTransaction;
using once::stores::SqlRows;
using once::stores::SqlStatements;

static void exec(sqlite3* db, const char* sql) {
  if (sqlite3_exec(db, sql, nullptr, nullptr, nullptr) != SQLITE_OK) throw std::runtime_error(sqlite3_errmsg(db));
}

static int cents(sqlite3* db, const char* account) {
  sqlite3_stmt* statement = nullptr;
  sqlite3_prepare_v2(db, "SELECT cents FROM accounts WHERE id = ?", -1, &statement, nullptr);
  sqlite3_bind_text(statement, 1, account, -1, SQLITE_STATIC);
  const int found = sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int(statement, 0) : 0;
  sqlite3_finalize(statement);
  return found;
}

// [statements]
static std::string transfer(once::Context& context, int amount) {
  auto rows = std::make_shared<SqlStatements>();
  rows->add("UPDATE accounts SET cents = cents - $1 WHERE id = $2 AND cents >= $1", {amount, "alice"},
            SqlRows::exactly(1));
  rows->add("UPDATE accounts SET cents = cents + $1 WHERE id = $2", {amount, "bob"}, SqlRows::exactly(1));
  context.commit_with(rows);  // Commits with the returned result.
  return "moved " + std::to_string(amount);
}
// [/statements]

// [own]
static std::string transfer_by(sqlite3* db, once::Store& store, once::Context& context) {
  once::HandedOut handed = context.hand_out("moved 50");
  SqliteTransaction transaction(store, db);
  exec(db, "UPDATE accounts SET cents = cents - 50 WHERE id = 'alice'");
  exec(db, "UPDATE accounts SET cents = cents + 50 WHERE id = 'bob'");
  const once::Finish finish = handed.commit(transaction);  // The result, then COMMIT.
  if (finish.kind != once::Finish::Kind::recorded) throw std::runtime_error(finish.error.message);
  return "moved 50";
}
// [/own]

int main() {
  const std::shared_ptr<once::Store> store = once::stores::make_sqlite_store({.path = "bank.db"});
  const std::string path = once::stores::sqlite_status(*store)->path;
  sqlite3* db = nullptr;
  if (sqlite3_open(path.c_str(), &db) != SQLITE_OK) return 1;
  {
    SqliteTransaction transaction(*store, db);
    exec(db, "CREATE TABLE accounts (id TEXT PRIMARY KEY, cents INTEGER NOT NULL)");
    exec(db, "INSERT INTO accounts VALUES ('alice', 100), ('bob', 0)");
    transaction.commit();
  }
  once::Engine engine({.store = store, .scope = "bank"});
  const auto show = [&](const char* order, auto&& work) {
    try {
      const once::Outcome outcome = engine.run(order, {}, work);
      std::printf("%s %s: %s", order, std::string(to_string(outcome.kind)).c_str(), outcome.value().c_str());
    } catch (const once::Declined& declined) {
      std::printf("%s declined, %s", order, std::string(to_string(declined.kind())).c_str());
    }
    std::printf(" (alice %d, bob %d)\n", cents(db, "alice"), cents(db, "bob"));
  };
  for (int i = 0; i < 2; ++i) show("order-1", [](once::Context& context) { return transfer(context, 30); });
  for (int i = 0; i < 2; ++i) show("order-2", [&](once::Context& context) { return transfer_by(db, *store, context); });
  show("order-3", [](once::Context& context) { return transfer(context, 30); });
  sqlite3_close(db);
}
