// What users commit together with a record: their statements and functions, and what these may not do to the store or
// to the others of a group.
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/platform/blocking.hpp>
#include <once/stores/sqlite.hpp>
#include <once/stores/sqlite_transaction.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "one_group.hpp"
#include "platform/wait.hpp"
#include "scratch.hpp"
#include "sound.hpp"

namespace once::testing {
namespace companion_test {

using namespace std::chrono_literals;
using stores::SqliteWork;
using stores::SqlRows;
using stores::SqlStatements;
using stores::SqlValue;
using ::testing::HasSubstr;

Record completed(Record record) {
  record.state = State::completed;
  record.revision += 1;
  record.result = Result::inlined("done");
  record.finished_at = manual_start;
  return record;
}

void exec(sqlite3* db, const std::string& sql) {
  if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    throw std::runtime_error(sqlite3_errmsg(db));
  }
}

class SqliteCompanion : public ::testing::Test {
 protected:
  SqliteCompanion() {
    open();
    shell(R"sql(
CREATE TABLE accounts (id TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));
INSERT INTO accounts VALUES ('alice', 1000), ('bob', 0);
CREATE TABLE log (n INTEGER PRIMARY KEY AUTOINCREMENT, account TEXT REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE strict_log (account TEXT REFERENCES accounts (id));
CREATE TABLE spy (x); CREATE TRIGGER spying AFTER INSERT ON spy BEGIN UPDATE records SET token = 7; END;
)sql");
  }

  void open() { store = stores::make_sqlite_store({.path = scratch_.file(), .clock = clock}); }
  std::string shell(const std::string& sql) { return Shell(scratch_.file()).run(sql); }
  std::string cents() { return shell("SELECT group_concat(cents) FROM (SELECT cents FROM accounts ORDER BY id)"); }

  Answer replace_with(const Record& claim, std::shared_ptr<const Companion> companion) {
    return wait_for<Answer>([&](Done done) {
      store->replace_with(share(completed(claim)), seen_of(claim), std::move(companion), std::move(done));
    });
  }
  Answer commit(const std::string& key, std::shared_ptr<const Companion> companion) {
    const Record claim = plain_record(key);
    EXPECT_EQ(blocking::insert(*store, claim).status, AnswerStatus::done);
    return replace_with(claim, std::move(companion));
  }
  // And nothing was written; the same claim can then be completed.
  void expect_declined(std::shared_ptr<const Companion> companion, ErrorKind kind, const std::string& why) {
    const std::string before = cents();
    const Record claim = plain_record("declined#" + std::to_string(++declined_));
    ASSERT_EQ(blocking::insert(*store, claim).status, AnswerStatus::done);
    const Answer answer = replace_with(claim, std::move(companion));
    EXPECT_EQ(answer.status, AnswerStatus::failed) << why;
    EXPECT_TRUE(answer.declined) << why;
    EXPECT_EQ(answer.error.kind, kind) << answer.error.message;
    EXPECT_THAT(answer.error.message, HasSubstr(why));
    EXPECT_EQ(cents(), before);
    EXPECT_EQ(*blocking::get(*store, claim.key).record, claim);
    EXPECT_EQ(blocking::replace(*store, completed(claim), seen_of(claim)).status, AnswerStatus::done);
  }

  static std::shared_ptr<SqlStatements> statement(const std::string& text, std::vector<SqlValue> values = {},
                                                  SqlRows rows = SqlRows::any()) {
    auto statements = std::make_shared<SqlStatements>();
    statements->add(text, std::move(values), rows);
    return statements;
  }
  static std::shared_ptr<SqliteWork> work(SqliteWork::Work fn) { return std::make_shared<SqliteWork>(std::move(fn)); }
  static std::shared_ptr<SqliteWork> work(const std::string& sql) {
    return work([sql](sqlite3* db) { exec(db, sql); });
  }

  const SoundScratch scratch_;
  const std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::unique_ptr<Store> store;
  int declined_ = 0;
};

TEST_F(SqliteCompanion, StatementsAreWrittenWithTheRecord) {
  auto transfer = std::make_shared<SqlStatements>();
  transfer->add("UPDATE accounts SET cents = cents - $1 WHERE id = $2 AND cents >= $1", {300, "alice"},
                SqlRows::exactly(1));
  transfer->add("UPDATE accounts SET cents = cents + $1 WHERE id = $2;", {300, "bob"}, SqlRows::at_least(1));
  transfer->add("SELECT 1 FROM accounts WHERE id = $1", {"bob"}, SqlRows::exactly(1));
  transfer->add("INSERT INTO log (account) VALUES ('bob')");
  EXPECT_EQ(commit("a#1", transfer).status, AnswerStatus::done);
  EXPECT_EQ(cents(), "700,300");
  EXPECT_EQ(shell("SELECT n FROM log"), "1");
  EXPECT_EQ(blocking::get(*store, "a#1").record->result.bytes, "done");
  // Nobody took it for the write of another program.
  const Record claim = plain_record("a#1");
  const Answer again = replace_with(claim, transfer);
  EXPECT_EQ(again.status, AnswerStatus::refused);
  EXPECT_EQ(cents(), "700,300");
}

TEST_F(SqliteCompanion, ValuesArriveAsTheyAre) {
  shell("CREATE TABLE v (a, b, c, d, e, f)");
  EXPECT_EQ(commit("v#1", statement("INSERT INTO v VALUES ($3, $2, $1, $4, $5, $6)",
                                    {nullptr, std::numeric_limits<std::int64_t>::min(), 2.5, "gr\u00fcn",
                                     SqlValue::bytes(std::string("\0\xFF", 2)), SqlValue::bytes("")}))
                .status,
            AnswerStatus::done);
  EXPECT_EQ(shell("SELECT quote(a) || quote(b) || quote(c) || quote(d) || quote(e) || quote(f) FROM v"),
            "2.5-9223372036854775808NULL'gr\u00fcn'X'00FF'X''");
  EXPECT_EQ(SqlValue(true), SqlValue(1));
  static_assert(!std::is_constructible_v<SqlValue, char>);
  EXPECT_THROW(SqlValue(std::string("a\0b", 3)), Exception);
  EXPECT_THROW(SqlValue("\xFF"), Exception);
  EXPECT_THROW(static_cast<void>(SqlValue(std::numeric_limits<std::uint64_t>::max())), Exception);
}

TEST_F(SqliteCompanion, AConditionThatDoesNotHoldDeclines) {
  const std::string take = "UPDATE accounts SET cents = cents - $1 WHERE id = 'alice'";
  expect_declined(statement(take + " AND cents >= $1", {5000}, SqlRows::exactly(1)), ErrorKind::unavailable,
                  "found 0 rows instead of 1 row");
  expect_declined(statement("UPDATE accounts SET cents = 7", {}, SqlRows::exactly(1)), ErrorKind::unavailable,
                  "found 2 rows instead of 1 row");
  expect_declined(statement("SELECT 1 FROM accounts", {}, SqlRows::at_least(3)), ErrorKind::unavailable,
                  "found 2 rows instead of at least 3 rows");
  expect_declined(statement(take, {5000}), ErrorKind::unavailable, "CHECK constraint failed: cents >= 0");
  expect_declined(statement("INSERT INTO strict_log VALUES ('carol')"), ErrorKind::unavailable,
                  "FOREIGN KEY constraint failed");
  expect_declined(statement("INSERT INTO log (account) VALUES ('carol')"), ErrorKind::unavailable,
                  "a foreign key does not hold");
  auto second = statement("UPDATE accounts SET cents = 0 WHERE id = 'alice'");
  second->add("UPDATE accounts SET cents = $1 WHERE id = $2", {0, "a customer whose name nobody may read"},
              SqlRows::exactly(1));
  expect_declined(second, ErrorKind::unavailable, "statement 2 (UPDATE accounts SET cents = $1 WHERE id = $2) found 0");
}

TEST_F(SqliteCompanion, AStatementThatCannotWorkDeclines) {
  const std::vector<std::tuple<std::string, std::vector<SqlValue>, std::string>> wrong = {
      {"UPDATE accounts SET", {}, "incomplete input"},
      {"UPDATE nowhere SET a = 1", {}, "no such table"},
      {"UPDATE accounts SET cents = 1; DELETE FROM accounts", {}, "something follows the statement"},
      {"-- nothing", {}, "there is no statement in it"},
      {"UPDATE accounts SET cents = $1", {}, "it has a parameter $1, and was given 0 values"},
      {"UPDATE accounts SET cents = $2", {1, 2}, "it was given a value for $1, which it does not have"},
      {"UPDATE accounts SET cents = ?", {1}, "its parameter ? is not called $1"},
      {"UPDATE accounts SET cents = :cents", {1}, "its parameter :cents is not called $1"},
      {"UPDATE accounts SET cents = $1x", {1}, "its parameter $1x is not called $1"},
      {"UPDATE accounts SET cents = $0", {1}, "it has a parameter $0"},
      {"COMMIT", {}, "uses COMMIT, which would end the store's own transaction"},
      {"ROLLBACK", {}, "uses ROLLBACK"},
      {"BEGIN", {}, "uses BEGIN"},
      {"SAVEPOINT s", {}, "uses a savepoint"},
      {"RELEASE once_companion", {}, "uses a savepoint"},
      {"PRAGMA synchronous = OFF", {}, "uses PRAGMA synchronous"},
      {"ATTACH ':memory:' AS other", {}, "attaches"},
      {"CREATE TABLE t (a)", {}, "changes the schema"},
      {"CREATE TEMP TABLE records (a)", {}, "changes the schema"},
      {"DROP TABLE accounts", {}, "changes the schema"},
      {"DELETE FROM records", {}, "writes to 'records'"},
      {"UPDATE Records SET token = 1", {}, "writes to 'records'"},
      {"INSERT INTO main.key_index VALUES (1, 1)", {}, "writes to 'key_index'"},
      {"DELETE FROM once_meta", {}, "writes to 'once_meta'"},
      {"DELETE FROM sqlite_sequence", {}, "writes to 'sqlite_sequence'"},
      {"INSERT INTO spy VALUES (1)", {}, "writes to 'records'"},  // By a trigger.
      {"VACUUM", {}, ""},
  };
  for (const auto& [text, values, why] : wrong) {
    SCOPED_TRACE(text);
    auto statements = statement("UPDATE accounts SET cents = cents + 1");
    statements->add(text, values);
    expect_declined(statements, ErrorKind::misuse, why);
    if (!statements->entries()[1].statement.values.empty()) continue;
    // A function that ignores the error is declined too, where it is not only malformed.
    const bool malformed =
        why.find("uses") != 0 && why.find("writes") != 0 && why.find("changes") != 0 && why.find("attaches") != 0;
    if (malformed || text == "SAVEPOINT s") continue;
    expect_declined(work([sql = text](sqlite3* db) {
                      exec(db, "UPDATE accounts SET cents = cents + 1");
                      sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr);
                    }),
                    ErrorKind::misuse, why);
  }
  EXPECT_EQ(cents(), "1000,0");
}

TEST_F(SqliteCompanion, LimitsAreCheckedWhenItIsFilled) {
  SqlStatements statements;
  EXPECT_THROW(statements.add(" ; "), Exception);
  EXPECT_THROW(statements.add(std::string("SELECT\0 1", 9)), Exception);
  EXPECT_THROW(statements.add("SELECT 1", {}, {.least = 2, .most = 1}), Exception);
  EXPECT_THROW(statements.add("SELECT $1", {std::string(SqlStatements::max_bytes, 'x')}), Exception);
  for (std::size_t i = 0; i < SqlStatements::max_statements; ++i) statements.add("SELECT 1");
  EXPECT_THROW(statements.add("SELECT 1"), Exception);
  EXPECT_EQ(statements.entries().size(), SqlStatements::max_statements);
  EXPECT_EQ(statements.bytes(), SqlStatements::max_statements * 8);
  EXPECT_THROW(SqliteWork({}), Exception);
}

TEST_F(SqliteCompanion, AFunctionWritesByTheStoresConnection) {
  EXPECT_EQ(commit("w#1", work([](sqlite3* db) {
                     exec(db, "SAVEPOINT mine; UPDATE accounts SET cents = 1; ROLLBACK TO mine; RELEASE mine");
                     exec(db, "UPDATE accounts SET cents = cents + 5 WHERE id = 'bob'; SAVEPOINT left_open");
                   }))
                .status,
            AnswerStatus::done);
  EXPECT_EQ(cents(), "1000,5");
}

TEST_F(SqliteCompanion, AFunctionThatThrowsAfterItHasWrittenDeclines) {
  expect_declined(work([](sqlite3* db) {
                    exec(db, "UPDATE accounts SET cents = 1");
                    throw std::runtime_error("the bank is closed");
                  }),
                  ErrorKind::unavailable, "the bank is closed");
  expect_declined(work([](sqlite3* db) {
                    exec(db, "UPDATE accounts SET cents = 1");
                    throw Exception(ErrorKind::misuse, "no such currency");
                  }),
                  ErrorKind::misuse, "no such currency");
  expect_declined(work([](sqlite3* db) {
                    exec(db, "UPDATE accounts SET cents = 1");
                    throw 7;
                  }),
                  ErrorKind::unavailable, "not a std::exception");
}

TEST_F(SqliteCompanion, AFunctionThatLeavesSomethingBehindDeclines) {
  static sqlite3_stmt* left = nullptr;
  expect_declined(work([](sqlite3* db) {
                    sqlite3_prepare_v2(db, "UPDATE accounts SET cents = cents + 1 RETURNING id", -1, &left, nullptr);
                    sqlite3_step(left);
                  }),
                  ErrorKind::misuse, "left a statement running");
  sqlite3_finalize(left);
  expect_declined(work("INSERT INTO log (account) VALUES ('carol')"), ErrorKind::unavailable,
                  "a foreign key does not hold");
}

TEST_F(SqliteCompanion, AFunctionMayNotWaitForTheWriterThatRunsIt) {
  Answer inner;
  expect_declined(work([&](sqlite3*) {
                    inner = blocking::insert(*store, plain_record("inner#1"));
                    if (inner.status == AnswerStatus::failed) throw Exception(inner.error);
                  }),
                  ErrorKind::misuse, "for whose writer it would wait for ever");
  EXPECT_FALSE(blocking::get(*store, "inner#1").record);
  EXPECT_EQ(blocking::insert(*store, plain_record("inner#1")).status, AnswerStatus::done);
}

// SQLite rolls the whole transaction back when a statement is interrupted: nobody else is harmed.
TEST_F(SqliteCompanion, StatementsThatRunTooLongDecline) {
  const std::string endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) ";
  const auto late = [&](const std::string& sql) {
    return work([sql, c = clock](sqlite3* db) {
      exec(db, "UPDATE accounts SET cents = 1");
      c->advance(2s);
      exec(db, sql);
    });
  };
  expect_declined(late(endless + "SELECT count(*) FROM n"), ErrorKind::unavailable, "ran for longer than 1000 ms");
  expect_declined(late(endless + "INSERT INTO log (account) SELECT 'bob' FROM n"), ErrorKind::unavailable,
                  "ran for longer than 1000 ms");
}

// Of four in one group the second ends the transaction of all.
TEST_F(SqliteCompanion, OneThatEndsTheTransactionDoesNotHarmItsGroup) {
  for (const auto& bad : std::vector<std::shared_ptr<const Companion>>{
           statement("INSERT OR ROLLBACK INTO accounts VALUES ('bob', 1)"),
           work("INSERT OR ROLLBACK INTO accounts VALUES ('bob', 1)"), statement("UPDATE accounts SET cents = -1"),
           work([](sqlite3*) { throw std::runtime_error("UNIQUE constraint failed, says the work"); })}) {
    const std::string n = std::to_string(++declined_);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(blocking::insert(*store, plain_record(n + "#" + std::to_string(i))).status, AnswerStatus::done);
    }
    const std::string before = shell("SELECT cents FROM accounts WHERE id = 'bob'");
    int calls = 0;
    std::vector<Answer> answers;
    {
      Together group(*store);
      group.replace_with(completed(plain_record(n + "#0")), seen_of(plain_record(n + "#0")), work([&](sqlite3* db) {
                           ++calls;
                           exec(db, "UPDATE accounts SET cents = cents + 1 WHERE id = 'bob'");
                         }));
      group.insert(plain_record(n + "#new"));
      group.replace_with(completed(plain_record(n + "#1")), seen_of(plain_record(n + "#1")), bad);
      group.replace_with(completed(plain_record(n + "#2")), seen_of(plain_record(n + "#2")),
                         statement("UPDATE accounts SET cents = cents + 10 WHERE id = 'bob'"));
      answers = group.finish();
    }
    EXPECT_EQ(answers[0].status, AnswerStatus::done) << answers[0].error.message;
    EXPECT_EQ(answers[1].status, AnswerStatus::done) << answers[1].error.message;
    EXPECT_TRUE(answers[2].declined);
    EXPECT_THAT(answers[2].error.message, HasSubstr("constraint failed"));
    EXPECT_EQ(answers[3].status, AnswerStatus::done) << answers[3].error.message;
    EXPECT_GE(calls, 1);
    EXPECT_EQ(std::stoi(shell("SELECT cents FROM accounts WHERE id = 'bob'")), std::stoi(before) + 11);
    EXPECT_EQ(blocking::get(*store, n + "#1").record->state, State::in_progress);
    EXPECT_TRUE(blocking::get(*store, n + "#new").record);
  }
}

// SQLite opens them by a CREATE TABLE, which cannot be told from the user's.
TEST_F(SqliteCompanion, VirtualTablesAreForOnesOwnTransaction) {
  shell("CREATE VIRTUAL TABLE notes USING fts5(text)");
  expect_declined(statement("INSERT INTO notes VALUES ($1)", {"once upon a time"}), ErrorKind::misuse,
                  "vtable constructor failed: notes");
}

// Whoever changes the tables meanwhile, the statements are prepared anew.
TEST_F(SqliteCompanion, ATableMayChangeBetweenTwoOfThem) {
  EXPECT_EQ(commit("s#1", statement("UPDATE accounts SET cents = 1")).status, AnswerStatus::done);
  shell("ALTER TABLE accounts ADD COLUMN note TEXT");
  EXPECT_EQ(commit("s#2", statement("UPDATE accounts SET note = 'x'", {}, SqlRows::exactly(2))).status,
            AnswerStatus::done);
}

}  // namespace companion_test
}  // namespace once::testing
