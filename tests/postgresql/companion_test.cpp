// What users commit together with a record: their statements and functions, and how these fail.
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/platform/blocking.hpp>
#include <once/stores/postgresql.hpp>
#include <once/stores/postgresql_transaction.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "database.hpp"
#include "platform/wait.hpp"
#include "stores/postgresql/schema_sql.hpp"

namespace once::testing {
namespace companion_test {

using namespace std::chrono_literals;
using stores::PostgresqlWork;
using stores::SqlRows;
using stores::SqlStatements;
using stores::SqlValue;
using ::testing::HasSubstr;
using Status = AnswerStatus;

Record completed(Record record) {
  record.state = State::completed;
  record.revision += 1;
  record.result = Result::inlined("done");
  record.finished_at = manual_start;
  return record;
}

class PostgresqlCompanion : public ::testing::Test {
 protected:
  PostgresqlCompanion() {
    shell_.run(stores::postgresql::create_sql(schema_));
    shell_.run("SET search_path = " + schema_);
    shell_.run(
        "CREATE TABLE accounts (id text PRIMARY KEY, cents int NOT NULL CHECK (cents >= 0)); "
        "INSERT INTO accounts VALUES ('alice', 1000), ('bob', 0); "
        "CREATE TABLE log (n serial, account text REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED)");
    open({});
  }
  ~PostgresqlCompanion() override {
    store.reset();
    shell_.run("DROP SCHEMA " + schema_ + " CASCADE");
  }

  void open(stores::PostgresqlOptions options, const std::string& url = test_url()) {
    options.url = url;
    options.schema = schema_;
    options.allow_unsafe = true;
    store = stores::make_postgresql_store(std::move(options));
  }
  std::string shell(const std::string& sql) { return shell_.run(sql); }
  std::string cents() { return shell("SELECT string_agg(cents::text, ',' ORDER BY id) FROM accounts"); }

  Record claim_of(const std::string& key) {
    const Record claim = plain_record(key);
    EXPECT_EQ(blocking::insert(*store, claim).status, Status::done);
    return claim;
  }
  Answer replace_with(const Record& claim, std::shared_ptr<const Companion> companion) {
    return wait_for<Answer>([&](Done done) {
      store->replace_with(share(completed(claim)), seen_of(claim), std::move(companion), std::move(done));
    });
  }
  Answer commit(const std::string& key, std::shared_ptr<const Companion> companion) {
    return replace_with(claim_of(key), std::move(companion));
  }
  // And nothing was written; the same claim can then be completed.
  void expect_declined(std::shared_ptr<const Companion> companion, ErrorKind kind, const std::string& why) {
    const std::string before = cents();
    const Record claim = claim_of("declined#" + std::to_string(++declined_));
    const Answer answer = replace_with(claim, std::move(companion));
    EXPECT_EQ(answer.status, Status::failed) << why;
    EXPECT_TRUE(answer.declined) << why;
    EXPECT_EQ(answer.error.kind, kind) << answer.error.message;
    EXPECT_THAT(answer.error.message, HasSubstr(why));
    EXPECT_EQ(cents(), before);
    EXPECT_EQ(*blocking::get(*store, claim.key).record, claim);
    EXPECT_EQ(blocking::replace(*store, completed(claim), seen_of(claim)).status, Status::done);
  }

  [[nodiscard]] std::string in(const std::string& sql) const {  // For the store's own connections.
    std::string out = sql;
    for (const std::string table : {"accounts", "log"}) {
      for (std::size_t at = out.find(table); at != std::string::npos; at = out.find(table, at + 1)) {
        const std::string name = schema_ + "." + table;
        out.replace(at, table.size(), name);
        at += name.size() - table.size();
      }
    }
    return out;
  }
  [[nodiscard]] std::shared_ptr<SqlStatements> statement(const std::string& text, std::vector<SqlValue> values = {},
                                                         SqlRows rows = SqlRows::any()) const {
    auto statements = std::make_shared<SqlStatements>();
    statements->add(in(text), std::move(values), rows);
    return statements;
  }
  static std::shared_ptr<PostgresqlWork> work(PostgresqlWork::Work fn) {
    return std::make_shared<PostgresqlWork>(std::move(fn));
  }
  [[nodiscard]] std::shared_ptr<PostgresqlWork> work(const std::string& sql) const {
    return work([sql = in(sql)](PGconn* db) { exec(db, sql); });
  }

  const std::string schema_ = fresh_schema();
  Shell shell_;
  std::unique_ptr<Store> store;
  int declined_ = 0;
};

// faults_test.py has real promotions.
TEST_F(PostgresqlCompanion, AConnectionToAServerThatWasReplacedIsNotUsed) {
  const auto session = [&] { return shell("SELECT account FROM log ORDER BY n DESC LIMIT 1"); };
  const auto end_sessions = [&](const std::string& of) {
    shell("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'once' AND pid " +
          of);
  };
  shell("ALTER TABLE log DROP CONSTRAINT log_account_fkey");
  const auto note = statement("INSERT INTO log (account) VALUES (pg_backend_pid()::text)");
  ASSERT_EQ(commit("before", note).status, Status::done);
  const std::string left = session();
  shell(
      "ALTER FUNCTION about_1 RENAME TO real_about; CREATE FUNCTION about_1(OUT version integer, OUT unsafe text, OUT "
      "now_ms bigint, OUT cluster bigint, OUT timeline bigint) LANGUAGE sql SECURITY DEFINER AS 'SELECT version, "
      "unsafe, "
      "now_ms, cluster, timeline + 1 FROM " +
      schema_ + ".real_about()'");
  end_sessions("<> " + left);
  ASSERT_EQ(commit("after", note).status, Status::done);  // The claim's connection has met the new server.
  EXPECT_NE(session(), left);
  EXPECT_EQ(shell("SELECT count(*) FROM pg_stat_activity WHERE pid = " + left), "0");

  shell("DROP FUNCTION about_1(); ALTER FUNCTION real_about RENAME TO about_1");
  const Record claim = claim_of("back");
  end_sessions("= " + session());
  const Answer answer = replace_with(claim, note);
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable);
  EXPECT_THAT(answer.error.message, HasSubstr("already: a standby was promoted in its place"));
}

TEST_F(PostgresqlCompanion, StatementsAreWrittenWithTheRecord) {
  auto transfer = std::make_shared<SqlStatements>();
  transfer->add(in("UPDATE accounts SET cents = cents - $1 WHERE id = $2 AND cents >= $1"), {300, "alice"},
                SqlRows::exactly(1));
  transfer->add(in("UPDATE accounts SET cents = cents + $1 WHERE id = $2;"), {300, "bob"}, SqlRows::at_least(1));
  transfer->add(in("/* a /* nested */ comment */ -- and\n (SELECT 1 FROM accounts WHERE id = $1)"), {"bob"},
                SqlRows::exactly(1));
  transfer->add(in("INSERT INTO log (account) VALUES ('bob')"));
  EXPECT_EQ(commit("a#1", transfer).status, Status::done);
  EXPECT_EQ(cents(), "700,300");
  EXPECT_EQ(shell("SELECT count(*) FROM log"), "1");
  EXPECT_EQ(blocking::get(*store, "a#1").record->result.bytes, "done");
  EXPECT_EQ(replace_with(plain_record("a#1"), transfer).status, Status::refused) << "again";
  EXPECT_EQ(cents(), "700,300");
}

TEST_F(PostgresqlCompanion, ValuesArriveAsTheyAre) {
  shell("CREATE TABLE v (a float8, b bigint, c text, d text, e bytea, f bytea, g uuid, h jsonb, i timestamptz)");
  const Answer answer =
      commit("v#1", statement("INSERT INTO " + schema_ + ".v VALUES ($3, $2, $1, $4, $5, $6, $7, $8, $9)",
                              {nullptr, std::numeric_limits<std::int64_t>::min(), 0.1, "gr\u00fcn' \\x",
                               SqlValue::bytes(std::string("\0\xFF'\\", 4)), SqlValue::bytes(""),
                               "00000000-0000-0000-0000-000000000001", R"({"a": [1]})", "2026-11-25T12:00:00Z"}));
  EXPECT_EQ(answer.status, Status::done) << answer.error.message;
  EXPECT_EQ(shell("SELECT a || ' ' || b || ' ' || coalesce(c, 'NULL') || ' ' || d || ' ' || e::text || ' ' || f::text "
                  "|| ' ' || g || h || extract(epoch FROM i)::bigint FROM v"),
            "0.1 -9223372036854775808 NULL gr\u00fcn' \\x \\x00ff275c \\x 00000000-0000-0000-0000-000000000001{\"a\": "
            "[1]}1795608000");
}

TEST_F(PostgresqlCompanion, AConditionThatDoesNotHoldDeclines) {
  const std::string take = "UPDATE accounts SET cents = cents - $1 WHERE id = 'alice'";
  expect_declined(statement(take + " AND cents >= $1", {5000}, SqlRows::exactly(1)), ErrorKind::unavailable,
                  "found 0 rows instead of 1 row");
  expect_declined(statement("UPDATE accounts SET cents = 7", {}, SqlRows::exactly(1)), ErrorKind::unavailable,
                  "found 2 rows instead of 1 row");
  expect_declined(statement("SELECT 1 FROM accounts", {}, SqlRows::at_least(3)), ErrorKind::unavailable,
                  "found 2 rows instead of at least 3 rows");
  expect_declined(statement(take, {5000}), ErrorKind::unavailable, "accounts_cents_check");
  expect_declined(statement("INSERT INTO log (account) VALUES ('carol')"), ErrorKind::unavailable,
                  "at the commit: insert or update on table \"log\" violates foreign key constraint");
  expect_declined(work("UPDATE accounts SET cents = cents - 5000 WHERE id = 'alice'"), ErrorKind::unavailable,
                  "accounts_cents_check");
  expect_declined(work("INSERT INTO log (account) VALUES ('carol')"), ErrorKind::unavailable, "foreign key constraint");
}

TEST_F(PostgresqlCompanion, WhatCanNeverBeWrittenIsMisuse) {
  for (const char* const forbidden :
       {"COMMIT", "ROLLBACK", "BEGIN", "SAVEPOINT a", "SET search_path = x", "CREATE TABLE t (a int)", "DROP TABLE log",
        "CALL p()", "DO $$ BEGIN END $$", "PREPARE TRANSACTION 'x'", "COPY log TO STDOUT", "LISTEN a", "-- only this",
        "/* a", "/* a */ /* b */ truncate log"}) {
    expect_declined(statement(forbidden), ErrorKind::misuse, "only SELECT, INSERT, UPDATE, DELETE and MERGE");
  }
  expect_declined(statement("SELECT 1; COMMIT"), ErrorKind::misuse, "cannot insert multiple commands");
  expect_declined(statement("SELECT FROM nowhere"), ErrorKind::misuse, "relation \"nowhere\" does not exist");
  expect_declined(statement("SELECT $1::int", {"x"}), ErrorKind::misuse, "invalid input syntax");
  expect_declined(statement("SELECT $2::int", {1}), ErrorKind::misuse, "could not determine data type of parameter $1");
}

TEST_F(PostgresqlCompanion, AFunctionHasTheConnectionAndTheTransaction) {
  int runs = 0;
  const auto transfer = work([&](PGconn* db) {
    ++runs;
    exec(db, in("SAVEPOINT a; UPDATE accounts SET cents = 7; ROLLBACK TO a"));
    exec(db, in("UPDATE accounts SET cents = cents - 300 WHERE id = 'alice'"));
    exec(db, in("UPDATE accounts SET cents = cents + 300 WHERE id = 'bob'"));
    EXPECT_EQ(cents(), "1000,0") << "seen before the commit";
  });
  EXPECT_EQ(commit("a#1", transfer).status, Status::done);
  EXPECT_EQ(cents(), "700,300");
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(replace_with(plain_record("a#1"), transfer).status, Status::refused);
  EXPECT_EQ(runs, 1) << "for a record that is not there any more as it was seen";
}

TEST_F(PostgresqlCompanion, WhatAFunctionMustNotDo) {
  expect_declined(work([](PGconn*) { throw std::runtime_error("no"); }), ErrorKind::unavailable, "no");
  expect_declined(work([](PGconn*) { throw Exception(ErrorKind::misuse, "never"); }), ErrorKind::misuse, "never");
  expect_declined(work([](PGconn*) { throw 7; }), ErrorKind::unavailable, "no std::exception");
  expect_declined(work([](PGconn* db) { PQclear(PQexec(db, "SELECT 1 / 0")); }), ErrorKind::unavailable,
                  "had failed, so it was rolled back");
  expect_declined(work([](PGconn* db) { static_cast<void>(PQsendQuery(db, "SELECT 1")); }), ErrorKind::misuse,
                  "in the middle of a statement");
  expect_declined(work([](PGconn* db) { static_cast<void>(PQenterPipelineMode(db)); }), ErrorKind::misuse,
                  "in the middle of a statement");
  // It ended the transaction itself. Whether the record is written, only the record says.
  for (const auto& [sql, state] :
       {std::pair{"COMMIT", State::completed}, std::pair{"ROLLBACK", State::in_progress},
        std::pair{"COMMIT; BEGIN", State::completed}, std::pair{"ROLLBACK; BEGIN", State::in_progress}}) {
    const std::string key = std::string("ended#") + sql;
    const Answer answer = commit(key, work(sql));
    EXPECT_EQ(answer.error.kind, ErrorKind::in_doubt) << sql;
    EXPECT_THAT(answer.error.message, HasSubstr("ended the transaction"));
    EXPECT_EQ(blocking::get(*store, key).record->state, state) << sql;
  }
  EXPECT_EQ(commit("then", work("UPDATE accounts SET cents = 5")).status, Status::done);
}

// What a function did before it failed may be committed: then nothing may say that nothing was written.
TEST_F(PostgresqlCompanion, AFunctionThatCommitsAndThenFailsIsInDoubt) {
  const auto then = [&](const std::string& sql, const std::function<void(PGconn*)>& last) {
    return work([this, sql, last](PGconn* db) {
      exec(db, in("UPDATE accounts SET cents = cents + 1 WHERE id = 'bob'"));
      exec(db, sql);
      last(db);
    });
  };
  const auto throws = [](PGconn*) { throw std::runtime_error("no"); };
  const auto nothing = [](PGconn*) {};
  const auto ends = [](PGconn* db) { exec(db, "SELECT pg_terminate_backend(pg_backend_pid())"); };
  const std::vector<std::pair<std::string, std::shared_ptr<PostgresqlWork>>> ways = {
      {"throws", then("COMMIT", throws)},
      {"begins and throws", then("COMMIT; BEGIN", throws)},
      {"begins and fails", then("COMMIT; BEGIN", [](PGconn* db) { PQclear(PQexec(db, "SELECT 1 / 0")); })},
      {"sends it", then("SELECT 1", [](PGconn* db) { ASSERT_EQ(PQsendQuery(db, "COMMIT"), 1); })},
      {"pipelines", then("COMMIT", [](PGconn* db) { ASSERT_EQ(PQenterPipelineMode(db), 1); })},
      {"dies", then("COMMIT", ends)},
      {"returns", then("COMMIT", nothing)}};
  int n = 0;
  for (const auto& [how, companion] : ways) {
    open({});  // A new connection: on an older one the store would try again, and find the record.
    const Answer answer = commit(how, companion);
    EXPECT_EQ(answer.status, Status::failed) << how;
    EXPECT_FALSE(answer.declined) << how << ": " << answer.error.message;
    EXPECT_EQ(answer.error.kind, ErrorKind::in_doubt) << how << ": " << answer.error.message;
    EXPECT_EQ(blocking::get(*store, how).record->state, State::completed) << how;
    EXPECT_EQ(cents(), "1000," + std::to_string(++n)) << how;
  }
}

TEST_F(PostgresqlCompanion, AFunctionThatReturnsTooLateCommitsNothing) {
  open({.operation_timeout = 1'000ms});
  const Record claim = claim_of("late");
  const Answer answer = replace_with(claim, work([&](PGconn* db) {
                                       for (int i = 0; i < 2; ++i) exec(db, "SELECT pg_sleep(0.6)");
                                     }));
  EXPECT_EQ(answer.status, Status::failed);
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable) << answer.error.message;
  EXPECT_EQ(blocking::get(*store, "late").record->state, State::in_progress);
}

TEST_F(PostgresqlCompanion, AsynchronousCommitIsOverruled) {
  shell(
      "CREATE TABLE seen (how text); CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
      "UPDATE " +
      schema_ +
      ".seen SET how = current_setting('synchronous_commit'); RETURN NULL; END $$; "
      "CREATE CONSTRAINT TRIGGER look AFTER INSERT ON seen DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
      "EXECUTE FUNCTION look()");
  const std::string insert = "INSERT INTO " + schema_ + ".seen VALUES ('')";
  auto statements = std::make_shared<SqlStatements>();
  statements->add("SELECT set_config('synchronous_commit', 'off', true)").add(insert);
  EXPECT_EQ(commit("s", statements).status, Status::done);
  EXPECT_EQ(commit("f", work("SET LOCAL synchronous_commit = off; " + insert)).status, Status::done);
  EXPECT_EQ(shell("SELECT string_agg(how, ' ') FROM seen"), "on on");
}

// Its calls block, and a host that is cut off answers nothing.
TEST_F(PostgresqlCompanion, AFunctionsConnectionIsWatchedForAHostThatIsGone) {
  const auto option = [](PGconn* db, int name) {
    int value = 0;
    socklen_t size = sizeof value;
    EXPECT_EQ(getsockopt(PQsocket(db), IPPROTO_TCP, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(commit("a", work([&](PGconn* db) {
                     EXPECT_EQ(option(db, TCP_KEEPIDLE), 10);
                     EXPECT_EQ(option(db, TCP_USER_TIMEOUT), 20'000);
                   }))
                .status,
            Status::done);
}

// A block of PL/pgSQL of ours would need the right to the language; a function in it does not.
TEST_F(PostgresqlCompanion, ARoleWithoutTheLanguageCommitsThem) {
  const std::string role = schema_ + "_worker";
  shell("CREATE ROLE " + role + " LOGIN; GRANT ALL ON accounts TO " + role +
        "; REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC");
  shell(stores::postgresql::grant_sql(schema_, role));
  const std::string url = test_url();
  open({}, url + (url.find('?') == std::string::npos ? "?user=" : "&user=") + role);
  const Answer statements = commit("a", statement("UPDATE accounts SET cents = 5 WHERE id = 'alice'"));
  EXPECT_EQ(statements.status, Status::done) << statements.error.message;
  const Answer function = commit("b", work("UPDATE accounts SET cents = 6 WHERE id = 'bob'"));
  EXPECT_EQ(function.status, Status::done) << function.error.message;
  store.reset();
  shell("GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC; DROP OWNED BY " + role + "; DROP ROLE " + role);
  EXPECT_EQ(cents(), "5,6");
}

TEST_F(PostgresqlCompanion, AnOpenStrangersLockIsWaitedForAndOthersGoOn) {
  shell("BEGIN; UPDATE accounts SET cents = cents WHERE id = 'alice'");
  const Record claim = claim_of("a");
  std::thread commits([&] {
    EXPECT_EQ(replace_with(claim, statement("UPDATE accounts SET cents = 5 WHERE id = 'alice'")).status, Status::done);
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(commit("b" + std::to_string(i), work("SELECT 1")).status, Status::done);
  shell("COMMIT");
  commits.join();
  EXPECT_EQ(cents(), "5,0");
}

TEST_F(PostgresqlCompanion, ADeadlockIsTriedAgain) {
  std::atomic<int> met{0};
  std::vector<std::thread> threads;
  for (const bool forward : {true, false}) {
    const Record claim = claim_of(forward ? "forward" : "back");
    threads.emplace_back([&, claim, forward] {
      const Answer answer =
          replace_with(claim, work([&, forward, tries = std::make_shared<int>(0)](PGconn* db) {
                         const std::string first = forward ? "alice" : "bob";
                         const std::string second = forward ? "bob" : "alice";
                         exec(db, in("UPDATE accounts SET cents = cents + 1 WHERE id = '" + first + "'"));
                         if (++*tries == 1) {
                           ++met;
                           while (met < 2) std::this_thread::yield();
                         }
                         exec(db, in("UPDATE accounts SET cents = cents + 1 WHERE id = '" + second + "'"));
                       }));
      // The function told no SQLSTATE, so it is declined; statements of the store's would be tried again.
      EXPECT_TRUE(answer.status == Status::done || answer.declined) << answer.error.message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(cents() == "1001,1" || cents() == "1002,2") << cents();
}

TEST_F(PostgresqlCompanion, StatementsInADeadlockAreTriedAgain) {
  constexpr int rounds = 5;
  std::vector<std::thread> threads;
  for (const bool forward : {true, false}) {
    threads.emplace_back([&, forward] {
      for (int i = 0; i < rounds; ++i) {
        auto both = std::make_shared<SqlStatements>();
        both->add(in("UPDATE accounts SET cents = cents + 1 WHERE id = $1"), {forward ? "alice" : "bob"});
        both->add("SELECT pg_sleep(0.01)");
        both->add(in("UPDATE accounts SET cents = cents + 1 WHERE id = $1"), {forward ? "bob" : "alice"});
        const Answer answer = commit((forward ? "f" : "b") + std::to_string(i), both);
        EXPECT_EQ(answer.status, Status::done) << answer.error.message;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cents(), std::to_string(1000 + 2 * rounds) + "," + std::to_string(2 * rounds));
}

TEST_F(PostgresqlCompanion, AServerThatEndsTheSessionCommitsNothing) {
  expect_declined(work("UPDATE accounts SET cents = -1"), ErrorKind::unavailable, "check");  // The connection is open.
  const Record claim = claim_of("killed");
  const Answer answer = replace_with(claim, work([this](PGconn* db) {
                                       exec(db, in("UPDATE accounts SET cents = 5"));
                                       exec(db, "SELECT pg_terminate_backend(pg_backend_pid())");
                                     }));
  EXPECT_EQ(answer.status, Status::failed);
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable) << answer.error.message;
  EXPECT_EQ(cents(), "1000,0");
  // While it was idle: another connection is made.
  shell("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'once'");
  EXPECT_EQ(replace_with(claim, statement("UPDATE accounts SET cents = 6")).status, Status::done);
}

TEST_F(PostgresqlCompanion, AStatementThatTakesTooLongCommitsNothing) {
  open({.operation_timeout = 1'000ms});
  const Record claim = claim_of("slow");
  const Answer answer = replace_with(claim, statement("SELECT pg_sleep(60) FROM accounts"));
  EXPECT_EQ(answer.status, Status::failed);
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable) << answer.error.message;
  EXPECT_EQ(blocking::get(*store, "slow").record->state, State::in_progress);
}

TEST_F(PostgresqlCompanion, WhoWaitsBehindALongFunctionHearsInTime) {
  open({.operation_timeout = 1s, .side_connections = 1});
  std::atomic<bool> begun{false};
  std::atomic<bool> end{false};
  const Record first = claim_of("a");
  const Record second = claim_of("b");
  std::thread function([&] {
    const Answer late = replace_with(first, work([&](PGconn*) {
                                       begun = true;
                                       while (!end) std::this_thread::sleep_for(1ms);
                                     }));
    EXPECT_TRUE(late.declined) << "it took longer than its time";
  });
  eventually([&] { return begun.load(); });
  auto waits = std::async(std::launch::async, [&] { return replace_with(second, statement("SELECT 1")); });
  eventually([&] { return waits.wait_for(0s) == std::future_status::ready; });
  end = true;  // Only now.
  function.join();
  const Answer answer = waits.get();
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable);
  EXPECT_THAT(answer.error.message, HasSubstr("take too long. Nothing was written"));
}

TEST_F(PostgresqlCompanion, TheLastCompletionMayDestroyTheStore) {
  const Record claim = claim_of("a");
  std::atomic<bool> done{false};
  Store* const raw = store.get();
  raw->replace_with(share(completed(claim)), seen_of(claim), work("SELECT 1"), [&](const Answer& answer) {
    EXPECT_EQ(answer.status, Status::done);
    store.reset();
    done = true;
  });
  while (!done) std::this_thread::yield();
  open({});
  EXPECT_EQ(blocking::get(*store, "a").record->state, State::completed);
}

}  // namespace companion_test
}  // namespace once::testing
