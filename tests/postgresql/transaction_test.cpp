// The finish of a claim in a transaction of the user's own, on the PostgreSQL store, by libpq and by libpqxx: whatever
// happens, the user's rows and the result are both there, or neither.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/postgresql.hpp>
#include <once/stores/postgresql_transaction.hpp>
#include <once/stores/pqxx_transaction.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "bank_test.hpp"
#include "stores/postgresql/schema_sql.hpp"
#include "text/hex.hpp"

namespace once::testing {
namespace {

using namespace std::chrono_literals;
using stores::FinishRefused;
using stores::PostgresqlTransaction;
using stores::PqxxTransaction;
using ::testing::HasSubstr;

// A transaction of the user's, by libpq.
class ByLibpq {
 public:
  explicit ByLibpq(const std::string& isolation = {}) {
    if (!isolation.empty()) shell_.run("SET default_transaction_isolation = '" + isolation + "'");
  }
  void begin() { transaction_.emplace(shell_.raw()); }
  void run(const std::string& sql) { shell_.run(sql); }
  void finish(const stores::SqlStatement& statement) { transaction_->finish(statement); }
  void commit() { transaction_->commit(); }
  void rollback() { transaction_->rollback(); }

 private:
  Shell shell_{test_url()};
  std::optional<PostgresqlTransaction> transaction_;
};

// The same by libpqxx.
class ByLibpqxx {
 public:
  explicit ByLibpqxx(const std::string& isolation = {}) {
    if (isolation.empty()) return;
    pqxx::nontransaction(connection_).exec("SET default_transaction_isolation = '" + isolation + "'");
  }
  void begin() {
    work_.reset();
    work_.emplace(connection_);
  }
  void run(const std::string& sql) { work_->exec(sql); }
  void finish(const stores::SqlStatement& statement) { PqxxTransaction(*work_).finish(statement); }
  void commit() { PqxxTransaction(*work_).commit(); }
  void rollback() { work_->abort(); }

 private:
  pqxx::connection connection_{test_url()};
  std::optional<pqxx::work> work_;
};

// A process: a store, an engine whose timers stand still, and how often it has renewed.
struct Process {
  explicit Process(const std::string& schema) {
    store = stores::make_postgresql_store({.url = test_url(), .schema = schema, .allow_unsafe = true});
    engine.emplace(EngineOptions{.store = store,
                                 .policy = {.lease = 9s, .on_conflict = OnConflict::fail},
                                 .observer =
                                     [renewed = renewed](const Event& event) {
                                       if (event.kind == EventKind::renewed) ++*renewed;
                                     },
                                 .clock = clock,
                                 .timers = timers});
  }
  // The next renewal is asked for. It is written by another thread.
  void beat() { timers->advance(3s); }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers = std::make_shared<ManualTimers>(clock);
  std::shared_ptr<std::atomic<int>> renewed = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<Store> store;
  std::optional<Engine> engine;
};

class PostgresqlOwn : public BankTest {
 protected:
  // The lease of every claim ended long ago.
  void lapse() { shell_.run("UPDATE records SET lease_until_ms = 1 WHERE state = 0"); }
  static RecordPtr stored(Process& p, const Claim& claim) { return blocking::get(*p.store, claim.key()).record; }
};

template <class Transaction>
class PostgresqlOwnBy : public PostgresqlOwn {};
using Libraries = ::testing::Types<ByLibpq, ByLibpqxx>;
TYPED_TEST_SUITE(PostgresqlOwnBy, Libraries);

TYPED_TEST(PostgresqlOwnBy, TheRowsAndTheResultAreCommittedTogether) {
  Process p(this->schema_);
  TypeParam own;
  const auto work = [&](Context& context) {
    HandedOut handed = context.hand_out(std::string("receipt"));
    own.begin();
    own.run(this->transfer(300));
    EXPECT_EQ(this->cents(), "1000,0") << "seen before the commit";
    EXPECT_EQ(handed.commit(own).kind, Finish::Kind::recorded);
    return std::string("receipt");
  };
  EXPECT_EQ(p.engine->run("a", "100", work).kind, Outcome::Kind::executed);
  EXPECT_EQ(this->cents(), "700,300");
  EXPECT_EQ(p.engine->run("a", "100", work).value(), "receipt");
  Process other(this->schema_);
  EXPECT_EQ(other.engine->run("a", "100", work).kind, Outcome::Kind::replayed);
  EXPECT_EQ(other.engine->run("a", "200", work).kind, Outcome::Kind::mismatch);
  EXPECT_EQ(this->cents(), "700,300");
}

TYPED_TEST(PostgresqlOwnBy, ADisplacedHolderCommitsNothingAndGetsTheOthersResult) {
  Process late(this->schema_);
  Process other(this->schema_);
  TypeParam own;
  int runs = 0;
  const Outcome outcome = late.engine->run("a", {}, [&](Context& context) {
    HandedOut handed = context.hand_out("late");
    own.begin();
    own.run(this->transfer(300));
    this->lapse();
    EXPECT_EQ(other.engine->run("a", {}, [&] { return ++runs, std::string("in time"); }).kind, Outcome::Kind::executed);
    EXPECT_EQ(handed.commit(own).kind, Finish::Kind::superseded);
    return std::string("late");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::superseded);
  EXPECT_EQ(outcome.value(), "in time");
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(this->cents(), "1000,0");
}

TYPED_TEST(PostgresqlOwnBy, ALostClaimIsReportedByAnExceptionOfItsOwn) {
  Process p(this->schema_);
  Process other(this->schema_);
  TypeParam own;
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("late"));
  this->lapse();
  Begin taken = other.engine->begin("a");
  ASSERT_EQ(taken.kind, Begin::Kind::claimed);
  own.begin();
  own.run(this->transfer(300));
  EXPECT_THROW(own.finish(handed.finish_statement()), FinishRefused);
  EXPECT_THROW(own.commit(), std::exception) << "the transaction goes on";
  EXPECT_EQ(handed.unknown().kind, Finish::Kind::lost);
  EXPECT_EQ(this->cents(), "1000,0");
  EXPECT_EQ(taken.claim.complete(Result::inlined("in time")).kind, Finish::Kind::recorded);
}

TYPED_TEST(PostgresqlOwnBy, AnOperatorsReleaseRefusesIt) {
  Process p(this->schema_);
  TypeParam own;
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  Record released = begun.claim.record();
  const Seen seen = seen_of(released);
  release(released, "by hand", effective({}), {p.store->time()->now, 1});
  ASSERT_EQ(blocking::replace(*p.store, released, seen).status, AnswerStatus::done);
  own.begin();
  own.run(this->transfer(300));
  EXPECT_EQ(handed.commit(own).kind, Finish::Kind::lost);
  EXPECT_EQ(this->cents(), "1000,0");
}

// A renewal before the finish changes the revision. One beside it waits for the row, and then finds the result.
TYPED_TEST(PostgresqlOwnBy, RenewalsGoOnBesideIt) {
  Process p(this->schema_);
  TypeParam own;
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  own.begin();
  own.run(this->transfer(300));
  p.beat();
  eventually([&] { return *p.renewed == 1; });
  const std::uint64_t revision = begun.claim.record().revision;
  own.finish(handed.finish_statement());
  p.beat();
  eventually([&] {
    return this->shell_.run("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%" +
                            this->schema_ + "%' AND pid <> pg_backend_pid()") != "0";
  });
  own.commit();
  EXPECT_EQ(handed.committed().kind, Finish::Kind::recorded);
  const RecordPtr record = this->stored(p, begun.claim);
  EXPECT_EQ(record->state, State::completed);
  EXPECT_EQ(record->result.bytes, "x");
  EXPECT_EQ(revision_count(record->revision), revision_count(revision) + 1);
  EXPECT_FALSE(begun.claim.stop_token().stop_requested());
  EXPECT_EQ(this->cents(), "700,300");
}

// The claim is still the user's: he repeats the transaction, not the claim.
TYPED_TEST(PostgresqlOwnBy, ATransactionThatFailsIsRepeated) {
  Process p(this->schema_);
  TypeParam own;
  int tries = 0;
  const Outcome outcome = p.engine->run("a", {}, [&](Context& context) {
    for (const int amount : {5000, 300}) {
      ++tries;
      HandedOut handed = context.hand_out("moved " + std::to_string(amount));
      own.begin();
      try {
        own.run(this->transfer(amount));
      } catch (const std::exception&) {  // There is not so much.
        own.rollback();
        EXPECT_EQ(handed.rolled_back().kind, Finish::Kind::declined);
        continue;
      }
      EXPECT_EQ(handed.commit(own).kind, Finish::Kind::recorded);
      return "moved " + std::to_string(amount);
    }
    return std::string("nothing");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::executed);
  EXPECT_EQ(tries, 2);
  EXPECT_EQ(this->cents(), "700,300");
  EXPECT_EQ(p.engine->run("a", {}, [] { return std::string(); }).value(), "moved 300");
}

TYPED_TEST(PostgresqlOwnBy, WhatFailsAtTheCommitIsDeclined) {
  Process p(this->schema_);
  TypeParam own;
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  own.begin();
  own.run(this->transfer(1) + "; INSERT INTO " + this->schema_ + ".log VALUES ('carol')");
  const Finish finish = handed.commit(own);
  EXPECT_EQ(finish.kind, Finish::Kind::declined);
  EXPECT_THAT(finish.error.message, HasSubstr("foreign key constraint"));
  EXPECT_EQ(finish.error.kind, ErrorKind::unavailable) << finish.error.message;
  EXPECT_EQ(this->cents(), "1000,0");
  EXPECT_EQ(this->stored(p, begun.claim)->state, State::in_progress);
  EXPECT_EQ(begun.claim.complete(Result::inlined("y")).kind, Finish::Kind::recorded);
}

TYPED_TEST(PostgresqlOwnBy, AConnectionLostWhileItCommitsIsInDoubt) {
  Process p(this->schema_);
  TypeParam own;
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  own.begin();
  own.run(this->transfer(1) + "; INSERT INTO " + this->schema_ + ".trap VALUES (1)");
  EXPECT_EQ(handed.commit(own).kind, Finish::Kind::unrecorded) << "the record is read: nothing was committed yet";
  EXPECT_EQ(this->cents(), "1000,0");
  EXPECT_EQ(this->stored(p, begun.claim)->state, State::in_progress);
}

// The finish meets a renewal that came after the snapshot. Only the transaction is repeated.
TYPED_TEST(PostgresqlOwnBy, UnderSerializableARenewalMakesTheTransactionFailButNotTheClaim) {
  for (const std::string isolation : {"repeatable read", "serializable"}) {
    Process p(this->schema_);
    TypeParam own(isolation);
    Begin begun = p.engine->begin("a " + isolation);
    const auto attempt = [&](bool renew) {
      HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
      own.begin();
      own.run(this->transfer(1));  // The snapshot.
      if (renew) {
        p.beat();
        eventually([&] { return *p.renewed == 1; });
      }
      return handed.commit(own);
    };
    const Finish failed = attempt(true);
    EXPECT_EQ(failed.kind, Finish::Kind::declined) << isolation;
    EXPECT_THAT(failed.error.message, HasSubstr("could not serialize")) << isolation;
    EXPECT_EQ(attempt(false).kind, Finish::Kind::recorded) << isolation;
  }
  EXPECT_EQ(this->cents(), "998,2");
}

// The finish does not find the claim there, which is not lost.
TYPED_TEST(PostgresqlOwnBy, ASnapshotThatIsOlderThanTheClaimIsDeclined) {
  Process p(this->schema_);
  TypeParam own("repeatable read");
  own.begin();
  own.run("SELECT 1 FROM " + this->schema_ + ".accounts");
  Begin begun = p.engine->begin("a");
  for (const bool early : {true, false}) {
    HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
    if (!early) own.begin();
    own.run(this->transfer(300));
    EXPECT_EQ(handed.commit(own).kind, early ? Finish::Kind::declined : Finish::Kind::recorded) << early;
  }
  EXPECT_EQ(this->cents(), "700,300");
}

// Else a transaction that takes longer than the retention would be forgotten as it commits, and run again.
TYPED_TEST(PostgresqlOwnBy, TheRetentionCountsFromTheFinish) {
  Process p(this->schema_);
  TypeParam own;
  const auto now = [&] { return std::stoll(this->shell_.run("SELECT now_1()")); };
  Request request = p.engine->request("a", {});
  request.policy = Policy{.retention = 1s};
  Begin begun = p.engine->begin(std::move(request));
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  const auto handed_out = now();
  own.begin();
  own.run(this->transfer(300));
  eventually([&] { return now() > handed_out + 200; });
  EXPECT_EQ(handed.commit(own).kind, Finish::Kind::recorded);
  const RecordPtr record = this->stored(p, begun.claim);
  EXPECT_GT(unix_ms(record->finished_at), handed_out + 100);
  EXPECT_EQ(record->expires_at - record->finished_at, 1s);
}

TYPED_TEST(PostgresqlOwnBy, AsynchronousCommitIsOverruled) {
  Process p(this->schema_);
  TypeParam own;
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  own.begin();
  own.run("SET LOCAL synchronous_commit = off");
  own.finish(handed.finish_statement());
  own.run("INSERT INTO " + this->schema_ + ".log SELECT 'alice' WHERE current_setting('synchronous_commit') = 'on'");
  own.commit();
  EXPECT_EQ(handed.committed().kind, Finish::Kind::recorded);
  EXPECT_EQ(this->shell_.run("SELECT count(*) FROM log"), "1");
}

class PostgresqlOwnByLibpq : public PostgresqlOwn {
 protected:
  static void expect_misuse(const std::function<void()>& call, const std::string& why) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown: " << why;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  }
};

// There a program could catch the refusal of a lost claim, and commit what stood before.
TYPED_TEST(PostgresqlOwnBy, InsideASavepointNothingIsFinished) {
  Process p(this->schema_);
  Begin begun = p.engine->begin("a");
  TypeParam own;
  for (const bool released : {false, true}) {
    HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
    own.begin();
    own.run("SAVEPOINT before");
    own.run(this->transfer(300));
    if (released) own.run("RELEASE before");
    const Finish finish = handed.commit(own);
    if (released) {
      EXPECT_EQ(finish.kind, Finish::Kind::recorded) << finish.error.message;
      continue;
    }
    EXPECT_EQ(finish.kind, Finish::Kind::declined);
    EXPECT_THAT(finish.error.message, HasSubstr("outside of savepoints"));
    EXPECT_EQ(this->cents(), "1000,0");
  }
  EXPECT_EQ(this->cents(), "700,300");
}

TEST_F(PostgresqlOwn, AnExceptionBlockIsASavepointToo) {
  Process p(schema_);
  Begin begun = p.engine->begin("a");
  const std::string call = "SELECT " + schema_ + ".finish_or_raise('" + to_hex(begun.claim.key()) + "', '" +
                           begun.claim.owner().hex() + "', 'x'); ";
  const auto block = [&](const std::string& what) {
    return "DO $$ BEGIN PERFORM" + what.substr(6) + "EXCEPTION WHEN OTHERS THEN RAISE EXCEPTION '%', SQLSTATE; END $$";
  };
  try {
    shell_.run(block(call));
    ADD_FAILURE() << "finished in an EXCEPTION block";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("ON007"));
  }
  EXPECT_EQ(stored(p, begun.claim)->state, State::in_progress);
  shell_.run("BEGIN; " + call + "COMMIT");
  EXPECT_EQ(stored(p, begun.claim)->state, State::completed);
}

TEST_F(PostgresqlOwnByLibpq, AsynchronousCommitIsOverruledAfterTheFinishToo) {
  Process p(schema_);
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  shell_.run(
      "CREATE TABLE seen (how text); CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE " +
      schema_ +
      ".seen SET how = current_setting('synchronous_commit'); RETURN NULL; END $$; CREATE CONSTRAINT TRIGGER look "
      "AFTER INSERT ON seen DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION look()");
  ByLibpq own;
  own.begin();
  own.run("INSERT INTO " + schema_ + ".seen VALUES ('')");
  own.finish(handed.finish_statement());
  own.run("SET LOCAL synchronous_commit = off");
  own.commit();
  EXPECT_EQ(handed.committed().kind, Finish::Kind::recorded);
  EXPECT_EQ(shell_.run("SELECT how FROM seen"), "on");
}

TEST_F(PostgresqlOwnByLibpq, WrongCallsAreRefused) {
  Process p(schema_);
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  Shell shell(test_url());
  expect_misuse([&] { begun.claim.complete(Result::inlined("y")); }, "handed out");
  {
    PostgresqlTransaction first(shell.raw());
    expect_misuse([&] { PostgresqlTransaction second(shell.raw()); }, "in a transaction already");
    shell.run(transfer(1));
    first.finish(handed.finish_statement());
    expect_misuse([&] { first.finish(handed.finish_statement()); }, "finished a claim already");
    expect_misuse([&] { first.commit(); }, "has ended already");
  }
  {
    PostgresqlTransaction transaction(shell.raw());
    shell.run(transfer(1) + "; COMMIT; BEGIN");
    shell.run("ROLLBACK");
    expect_misuse([&] { transaction.commit(); }, "a statement of your own has ended it");
  }
  {
    PostgresqlTransaction transaction(shell.raw());
    transaction.finish(handed.finish_statement());
    shell.run("ROLLBACK; BEGIN");  // Another transaction, which has not finished it.
    expect_misuse([&] { transaction.commit(); }, "begun another one");
  }
  PostgresqlTransaction(shell.raw()).rollback();
  ASSERT_EQ(PQenterPipelineMode(shell.raw()), 1);
  expect_misuse([&] { PostgresqlTransaction transaction(shell.raw()); }, "pipeline mode");
  ASSERT_EQ(PQexitPipelineMode(shell.raw()), 1);
  for (const bool finishes : {true, false}) {  // Left in pipeline mode, a COMMIT would not be sent at all.
    PostgresqlTransaction transaction(shell.raw());
    if (!finishes) transaction.finish(handed.finish_statement());
    ASSERT_EQ(PQenterPipelineMode(shell.raw()), 1);
    if (finishes) {
      expect_misuse([&] { transaction.finish(handed.finish_statement()); }, "pipeline mode");
    } else {
      expect_misuse([&] { transaction.commit(); }, "pipeline mode");
    }
    EXPECT_EQ(PQpipelineStatus(shell.raw()), PQ_PIPELINE_OFF);
    EXPECT_EQ(PQtransactionStatus(shell.raw()), PQTRANS_IDLE) << "not rolled back";
  }
  EXPECT_THROW(PostgresqlTransaction(nullptr), Exception);
  EXPECT_EQ(handed.rolled_back().kind, Finish::Kind::declined);
  EXPECT_EQ(begun.claim.complete(Result::inlined("y")).kind, Finish::Kind::recorded);
}

TEST_F(PostgresqlOwnByLibpq, EndedAfterTheFinishIsInDoubt) {
  Process p(schema_);
  Shell shell(test_url());
  for (const std::string end : {"COMMIT", "ROLLBACK"}) {
    Begin begun = p.engine->begin(end);
    HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
    PostgresqlTransaction transaction(shell.raw());
    transaction.finish(handed.finish_statement());
    shell.run(end);
    try {
      transaction.commit();
      ADD_FAILURE() << end;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::in_doubt);
      EXPECT_THAT(error.what(), HasSubstr("has ended it after the finish"));
    }
    EXPECT_EQ(handed.unknown().kind, end == "COMMIT" ? Finish::Kind::recorded : Finish::Kind::unrecorded);
  }
}

// 1. The finish is prepared. 2. Nothing can be said of the claim yet: it is neither committed nor refused. 3. COMMIT
// PREPARED finishes it.
TEST_F(PostgresqlOwnByLibpq, APreparedFinishIsNotCommittedYet) {
  Process p(schema_);
  Shell shell(test_url());
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  PostgresqlTransaction transaction(shell.raw());
  shell.run(transfer(300));
  transaction.finish(handed.finish_statement());
  const std::string name = "'" + schema_ + "'";
  shell.run("PREPARE TRANSACTION " + name);
  try {
    transaction.commit();
    ADD_FAILURE();
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::in_doubt);
    EXPECT_THAT(error.what(), HasSubstr("PREPARE TRANSACTION"));
  }
  const Finish before = handed.unknown();
  EXPECT_EQ(before.kind, Finish::Kind::unrecorded);
  EXPECT_THAT(before.error.message, HasSubstr("not committed yet"));
  shell.run("COMMIT PREPARED " + name);
  EXPECT_EQ(handed.unknown().kind, Finish::Kind::recorded);
  EXPECT_EQ(cents(), "700,300");
}

TEST_F(PostgresqlOwnByLibpq, CommittedWhileItIsPreparedIsDeclined) {
  Process p(schema_);
  Shell shell(test_url());
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  const std::string name = "'" + schema_ + "'";
  PostgresqlTransaction transaction(shell.raw());
  transaction.finish(handed.finish_statement());
  shell.run("PREPARE TRANSACTION " + name);
  const Finish finish = handed.committed();
  EXPECT_EQ(finish.kind, Finish::Kind::declined);
  EXPECT_THAT(finish.error.message, HasSubstr("still in progress"));
  EXPECT_THAT(finish.error.message, HasSubstr("PREPARE TRANSACTION"));
  shell.run("ROLLBACK PREPARED " + name);
  EXPECT_EQ(begun.claim.complete(Result::inlined("y")).kind, Finish::Kind::recorded);
}

TEST_F(PostgresqlOwnByLibpq, ATransactionInWhichAStatementFailedDoesNotCommitInSilence) {
  Shell shell(test_url());
  PostgresqlTransaction transaction(shell.raw());
  EXPECT_THROW(shell.run("SELECT 1 / 0"), std::runtime_error);
  EXPECT_THROW(transaction.commit(), Exception) << "the server answers ROLLBACK, which is no error";
}

TEST_F(PostgresqlOwnByLibpq, ARoleThatMayExecuteFunctionsOnlyCanFinish) {
  const std::string role = "only_" + schema_;
  shell_.run("CREATE ROLE " + role + "; " + stores::postgresql::grant_sql(schema_, role) + "GRANT ALL ON accounts TO " +
             role + "; REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC");
  {
    Process p(schema_);
    Begin begun = p.engine->begin("a");
    HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
    Shell shell(test_url());
    shell.run("SET ROLE " + role);
    {
      PostgresqlTransaction transaction(shell.raw());
      shell.run(transfer(300));
      EXPECT_EQ(handed.commit(transaction).kind, Finish::Kind::recorded);
    }
    EXPECT_THROW(shell.run("UPDATE " + schema_ + ".records SET state = 0"), std::runtime_error);
    shell.run("RESET ROLE");
  }
  EXPECT_EQ(cents(), "700,300");
  shell_.run("GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC; DROP OWNED BY " + role + "; DROP ROLE " + role);
}

// Every kind of value means the same to PostgreSQL as to the program.
TEST_F(PostgresqlOwnByLibpq, ValuesReachTheServerAsTheyAre) {
  const stores::SqlStatement statement{
      "SELECT $1::text IS NULL AND $2::bigint = -9223372036854775808 AND $3::float8 = 0.1::float8 AND "
      "$4::text = '\\x41' AND $5::bytea = '\\x005c27'::bytea AND $6::bytea = ''::bytea AND $7::text = ''",
      {nullptr, INT64_MIN, 0.1, "\\x41", stores::SqlValue::bytes(std::string("\0\\'", 3)), stores::SqlValue::bytes(""),
       ""}};
  const auto values = stores::postgresql_values(statement);
  std::vector<const char*> pointers;
  for (const auto& value : values) pointers.push_back(value ? value->c_str() : nullptr);
  Shell shell(test_url());
  PGresult* const result = PQexecParams(shell.raw(), statement.text.c_str(), static_cast<int>(pointers.size()), nullptr,
                                        pointers.data(), nullptr, nullptr, 0);
  ASSERT_EQ(PQresultStatus(result), PGRES_TUPLES_OK) << PQresultErrorMessage(result);
  EXPECT_STREQ(PQgetvalue(result, 0, 0), "t");
  PQclear(result);
}

}  // namespace
}  // namespace once::testing
