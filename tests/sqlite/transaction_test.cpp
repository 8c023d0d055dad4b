// The finish of a claim in a transaction of the user's own, on the SQLite store: whatever happens, the user's rows and
// the result are both there, or neither.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/platform/blocking.hpp>
#include <once/seal.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/sqlite.hpp>
#include <once/stores/sqlite_transaction.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "faulty_vfs.hpp"
#include "scratch.hpp"
#include "sound.hpp"

namespace once::testing {
namespace transaction_test {

using namespace std::chrono_literals;
using stores::FinishRefused;
using stores::SqliteTransaction;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A connection of the user's.
class Bank {
 public:
  explicit Bank(const std::string& path, const char* vfs = nullptr) {
    if (sqlite3_open_v2(path.c_str(), &db_, SQLITE_OPEN_READWRITE, vfs) != SQLITE_OK) {
      throw std::runtime_error("open " + path);
    }
    run("PRAGMA foreign_keys = ON");
  }
  ~Bank() { sqlite3_close(db_); }
  Bank(const Bank&) = delete;
  Bank& operator=(const Bank&) = delete;

  void run(const std::string& sql) const {
    if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
      throw std::runtime_error(sqlite3_errmsg(db_));
    }
  }
  void transfer(int cents) const {
    run("UPDATE accounts SET cents = cents - " + std::to_string(cents) + " WHERE id = 'alice'; " +
        "UPDATE accounts SET cents = cents + " + std::to_string(cents) + " WHERE id = 'bob'");
  }
  [[nodiscard]] sqlite3* raw() const noexcept { return db_; }

 private:
  sqlite3* db_ = nullptr;
};

constexpr const char* tables = R"sql(
CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));
INSERT INTO accounts VALUES ('alice', 1000), ('bob', 0) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS log (account TEXT REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED);
)sql";

// What an engine told, from any thread.
class Events {
 public:
  void add(EventKind kind) {
    const std::lock_guard lock(mutex_);
    names_.emplace_back(to_string(kind));
  }
  std::vector<std::string> names() const {
    const std::lock_guard lock(mutex_);
    return names_;
  }
  std::ptrdiff_t count(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    return std::count(names_.begin(), names_.end(), name);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> names_;
};

// A process: a clock, a store, an engine, and what the engine told.
struct Process {
  explicit Process(const std::string& path, std::chrono::nanoseconds later = 0ns, const std::string& vfs = {}) {
    clock->advance(later);
    store = stores::make_sqlite_store({.path = path, .busy_timeout = 200ms, .clock = clock, .vfs = vfs});
    engine.emplace(EngineOptions{.store = store,
                                 .policy = {.lease = 9s, .on_conflict = OnConflict::fail},
                                 .observer = [told = told](const Event& event) { told->add(event.kind); },
                                 .clock = clock,
                                 .timers = timers});
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers = std::make_shared<ManualTimers>(clock);
  std::shared_ptr<Store> store;
  std::shared_ptr<Events> told = std::make_shared<Events>();
  std::optional<Engine> engine;
};

class SqliteOwn : public ::testing::Test {
 protected:
  SqliteOwn() {
    const auto store = stores::make_sqlite_store({.path = path, .clock = std::make_shared<ManualClock>()});
    const Bank bank(path);
    SqliteTransaction transaction(*store, bank.raw());
    bank.run(tables);
    transaction.commit();
  }
  ~SqliteOwn() override { disk_faults().heal(); }

  [[nodiscard]] std::string cents() const {
    return Shell(path).run("SELECT group_concat(cents) FROM (SELECT cents FROM accounts ORDER BY id)");
  }

  const SoundScratch scratch_;
  const std::string path = scratch_.file();
};

TEST_F(SqliteOwn, TheRowsAndTheResultAreCommittedTogether) {
  Process p(path);
  const Bank bank(path);
  const auto work = [&](Context& context) {
    HandedOut handed = context.hand_out(std::string("receipt"));
    SqliteTransaction transaction(*p.store, bank.raw());
    bank.transfer(300);
    EXPECT_EQ(cents(), "1000,0") << "seen before the commit";
    EXPECT_EQ(handed.commit(transaction).kind, Finish::Kind::recorded);
    EXPECT_EQ(handed.unknown().kind, Finish::Kind::recorded) << "asked again";
    return std::string("receipt");
  };
  EXPECT_EQ(p.engine->run("a", "100", work).kind, Outcome::Kind::executed);
  EXPECT_EQ(cents(), "700,300");
  const Outcome again = p.engine->run("a", "100", work);
  EXPECT_EQ(again.kind, Outcome::Kind::replayed);
  EXPECT_EQ(again.result.bytes, "receipt");
  EXPECT_EQ(cents(), "700,300");
  EXPECT_THAT(p.told->names(), ElementsAre("claimed", "work_done", "completed", "replayed"));
  Process other(path);
  EXPECT_EQ(other.engine->run("a", "100", work).kind, Outcome::Kind::replayed);
  EXPECT_EQ(other.engine->run("a", "200", work).kind, Outcome::Kind::mismatch);
}

// The key index in memory stays as it is: a transaction that keeps to the lock is no foreign write.
TEST_F(SqliteOwn, NoProgramTakesItForAForeignWrite) {
  Process p(path);
  Process other(path);
  const Bank bank(path);
  const auto notes = [&] { return Shell(path).run("SELECT count(*) FROM records"); };
  const auto writes = [&] {
    const int fd = ::open((path + "-lock").c_str(), O_RDONLY | O_CLOEXEC);
    std::uint64_t number = 0;
    EXPECT_EQ(pread(fd, &number, sizeof number, 256 + 8), ssize_t{sizeof number});
    ::close(fd);
    return number;
  };
  ASSERT_EQ(blocking::insert(*other.store, plain_record("k#1")).status, AnswerStatus::done);
  const std::uint64_t before = writes();
  for (int i = 0; i < 5; ++i) {
    const std::string key = "k" + std::to_string(i);
    Begin begun = p.engine->begin(key);
    HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
    SqliteTransaction transaction(*p.store, bank.raw());
    bank.transfer(1);
    ASSERT_EQ(handed.commit(transaction).kind, Finish::Kind::recorded);
    ASSERT_EQ(blocking::insert(*other.store, plain_record("other#" + key)).status, AnswerStatus::done);
    EXPECT_EQ(writes(), before);
  }
  EXPECT_EQ(notes(), "11");
  expect_sound(path, {p.store.get(), other.store.get()});
}

TEST_F(SqliteOwn, ADisplacedHoldersTransactionCannotCommit) {
  Process late(path);
  const Bank bank(path);
  Begin begun = late.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("late"));
  Process other(path, 20s);  // The lease lapsed meanwhile.
  Begin taken = other.engine->begin("a");
  ASSERT_EQ(taken.kind, Begin::Kind::claimed);
  {
    SqliteTransaction transaction(*late.store, bank.raw());
    bank.transfer(300);
    EXPECT_THROW(transaction.finish(handed.finish_statement()), FinishRefused);
    EXPECT_NE(sqlite3_get_autocommit(bank.raw()), 0) << "still open";
    EXPECT_THROW(transaction.commit(), Exception);
  }
  EXPECT_EQ(cents(), "1000,0");
  EXPECT_EQ(handed.unknown().kind, Finish::Kind::lost);
  EXPECT_EQ(taken.claim.complete(Result::inlined("in time")).kind, Finish::Kind::recorded);
  EXPECT_EQ(blocking::get(*other.store, taken.claim.key()).record->result.bytes, "in time");
}

TEST_F(SqliteOwn, ADisplacedHolderGetsTheOthersResult) {
  Process late(path);
  const Bank bank(path);
  int runs = 0;
  const Outcome outcome = late.engine->run("a", {}, [&](Context& context) {
    HandedOut handed = context.hand_out("late");
    Process other(path, 20s);
    EXPECT_EQ(other.engine->run("a", {}, [&] { return ++runs, std::string("in time"); }).kind, Outcome::Kind::executed);
    SqliteTransaction transaction(*late.store, bank.raw());
    bank.transfer(300);
    EXPECT_EQ(handed.commit(transaction).kind, Finish::Kind::superseded);
    return std::string("late");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::superseded);
  EXPECT_EQ(outcome.value(), "in time");
  EXPECT_EQ(cents(), "1000,0");
}

TEST_F(SqliteOwn, AnOperatorsReleaseRefusesIt) {
  Process p(path);
  const Bank bank(path);
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  Record released = begun.claim.record();
  const Seen seen = seen_of(released);
  release(released, "by hand", effective({}), {p.store->time()->now, 1});
  ASSERT_EQ(blocking::replace(*p.store, released, seen).status, AnswerStatus::done);
  SqliteTransaction transaction(*p.store, bank.raw());
  bank.transfer(300);
  EXPECT_EQ(handed.commit(transaction).kind, Finish::Kind::lost);
  EXPECT_EQ(cents(), "1000,0");
}

// A renewal before the finish changes the revision, one beside it waits for the lock, one after it finds the result.
TEST_F(SqliteOwn, RenewalsGoOnBesideIt) {
  Process p(path);
  const Bank bank(path);
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  const auto renewed = [&] { return p.told->count("renewed"); };
  const auto beat = [&](std::ptrdiff_t until) {
    p.timers->advance(3s);
    while (renewed() < until) std::this_thread::yield();
  };
  beat(1);
  beat(2);
  const std::uint64_t revision = begun.claim.record().revision;
  {
    SqliteTransaction transaction(*p.store, bank.raw());
    bank.transfer(300);
    transaction.finish(handed.finish_statement());
    p.timers->advance(3s);  // Waits for the lock, and fails after the busy timeout, or meets the finish.
    transaction.commit();
  }
  EXPECT_EQ(handed.committed().kind, Finish::Kind::recorded);
  p.timers->advance(3s);
  const RecordPtr record = blocking::get(*p.store, begun.claim.key()).record;
  EXPECT_EQ(record->state, State::completed);
  EXPECT_EQ(revision_count(record->revision), revision_count(revision) + 1);
  EXPECT_FALSE(begun.claim.stop_token().stop_requested());
  EXPECT_EQ(cents(), "700,300");
}

TEST_F(SqliteOwn, ASavepointThatIsRolledBackWithTheFinishIsNoticed) {
  Process p(path);
  const Bank bank(path);
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  struct Trap {
    SqliteTransaction transaction;
    const Bank& bank;
    void finish(const stores::SqlStatement& statement) {
      bank.run("SAVEPOINT before");
      transaction.finish(statement);
      bank.run("ROLLBACK TO before");
      bank.transfer(300);
    }
    void commit() { transaction.commit(); }
  } trap{SqliteTransaction(*p.store, bank.raw()), bank};
  const Finish finish = handed.commit(trap);
  EXPECT_EQ(finish.kind, Finish::Kind::declined);
  EXPECT_EQ(finish.error.kind, ErrorKind::misuse);
  EXPECT_THAT(finish.error.message, HasSubstr("ROLLBACK TO a savepoint"));
  EXPECT_EQ(cents(), "1000,0");
}

// The claim is still the user's: he repeats the transaction, not the claim.
TEST_F(SqliteOwn, ATransactionThatFailsIsRepeated) {
  Process p(path);
  const Bank bank(path);
  int tries = 0;
  const Outcome outcome = p.engine->run("a", {}, [&](Context& context) {
    for (const int amount : {5000, 300}) {
      ++tries;
      HandedOut handed = context.hand_out("moved " + std::to_string(amount));
      SqliteTransaction transaction(*p.store, bank.raw());
      try {
        bank.transfer(amount);
      } catch (const std::runtime_error&) {  // There is not so much.
        transaction.rollback();
        EXPECT_EQ(handed.rolled_back().kind, Finish::Kind::declined);
        continue;
      }
      EXPECT_EQ(handed.commit(transaction).kind, Finish::Kind::recorded);
      return "moved " + std::to_string(amount);
    }
    return std::string("nothing");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::executed);
  EXPECT_EQ(tries, 2);
  EXPECT_EQ(cents(), "700,300");
  EXPECT_EQ(p.engine->run("a", {}, [] { return std::string(); }).value(), "moved 300");
}

TEST_F(SqliteOwn, WhatFailsAtTheCommitIsDeclined) {
  Process p(path);
  const Bank bank(path);
  Begin begun = p.engine->begin("a");
  const auto attempt = [&](const std::string& sql) {
    HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
    SqliteTransaction transaction(*p.store, bank.raw());
    bank.transfer(1);
    bank.run(sql);
    return handed.commit(transaction);
  };
  Finish finish = attempt("INSERT INTO log VALUES ('carol')");
  EXPECT_EQ(finish.kind, Finish::Kind::declined);
  EXPECT_THAT(finish.error.message, HasSubstr("FOREIGN KEY constraint failed"));
  for (const char* const end : {"COMMIT", "ROLLBACK"}) {
    finish = attempt(end);
    EXPECT_NE(finish.kind, Finish::Kind::recorded) << end;
  }
  EXPECT_EQ(blocking::get(*p.store, begun.claim.key()).record->state, State::in_progress);
}

TEST_F(SqliteOwn, AWordThatIsNotTrueIsFoundOut) {
  Process p(path);
  const Bank bank(path);
  // "committed", and it was not.
  Begin begun = p.engine->begin("a");
  {
    HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
    const Finish finish = handed.committed();
    EXPECT_EQ(finish.kind, Finish::Kind::declined);
    EXPECT_EQ(finish.error.kind, ErrorKind::misuse);
    EXPECT_THAT(finish.error.message, HasSubstr("did not finish the claim"));
  }
  EXPECT_EQ(begun.claim.complete(Result::inlined("y")).kind, Finish::Kind::recorded);
  // "rolled back", and it was not: the next write finds out.
  begun = p.engine->begin("b");
  {
    HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
    SqliteTransaction transaction(*p.store, bank.raw());
    bank.transfer(1);
    transaction.finish(handed.finish_statement());
    transaction.commit();
    EXPECT_EQ(handed.rolled_back().kind, Finish::Kind::declined);
  }
  const Finish finish = begun.claim.complete(Result::inlined("y"));
  EXPECT_EQ(finish.kind, Finish::Kind::superseded);
  EXPECT_EQ(finish.record->result.bytes, "x");
}

TEST_F(SqliteOwn, WrongCallsAreRefused) {
  Process p(path);
  const Bank bank(path);
  Begin begun = p.engine->begin("a");
  {
    HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
    EXPECT_THROW(static_cast<void>(begun.claim.hand_out(Result::inlined("x"))), Exception);
    EXPECT_THROW(begun.claim.complete(Result::inlined("y")), Exception);
    EXPECT_THROW(begun.claim.add_step("s", "x"), Exception);
    SqliteTransaction transaction(*p.store, bank.raw());
    transaction.finish(handed.finish_statement());
    EXPECT_THROW(transaction.finish(handed.finish_statement()), Exception) << "finished twice";
    EXPECT_EQ(handed.rolled_back().kind, Finish::Kind::declined);
  }
  EXPECT_THROW(static_cast<void>(begun.claim.hand_out(Result::inlined(std::string(std::size_t{65} << 20U, 'x')))),
               Exception);
  EXPECT_EQ(begun.claim.complete(Result::inlined("y")).kind, Finish::Kind::recorded);
  const auto memory = stores::make_memory_store(p.clock);
  EXPECT_THROW(SqliteTransaction(*memory, bank.raw()), Exception);
  Engine engine({.store = stores::make_memory_store(p.clock)});
  Begin elsewhere = engine.begin("a");
  EXPECT_THROW(static_cast<void>(elsewhere.claim.hand_out(Result::inlined("x"))), Exception);
  EXPECT_EQ(elsewhere.claim.complete(Result::inlined("y")).kind, Finish::Kind::recorded) << "still the caller's";
}

TEST_F(SqliteOwn, AWrongConnectionIsRefused) {
  Process p(path);
  const auto refused = [&](const Bank& bank, const std::string& why) {
    try {
      const SqliteTransaction transaction(*p.store, bank.raw());
      FAIL() << why;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  { const Shell other(scratch_.file("other.db")); }
  Shell(scratch_.file("other.db")).run("CREATE TABLE t (a)");
  refused(Bank(scratch_.file("other.db")), "open the store's file");
  {
    const Bank bank(path);
    bank.run("BEGIN");
    refused(bank, "in a transaction already");
  }
  {
    const Bank bank(path);
    bank.run("ATTACH '" + scratch_.file("other.db") + "' AS other");
    refused(bank, "has another file attached ('other')");
  }
  {
    const Bank bank(path);
    bank.run("PRAGMA locking_mode = EXCLUSIVE");
    refused(bank, "locking_mode=EXCLUSIVE");
  }
  const Bank bank(path);
  SqliteTransaction transaction(*p.store, bank.raw());
  transaction.commit();  // Nothing was written.
}

// SQLITE_BUSY: somebody who does not know the lock, then somebody who does.
TEST_F(SqliteOwn, ALockedFileIsWaitedForThenReported) {
  Process p(path);
  const Bank bank(path);
  {
    Shell shell(path);
    shell.run("BEGIN IMMEDIATE");
    try {
      const SqliteTransaction transaction(*p.store, bank.raw());
      FAIL();
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unavailable);
      EXPECT_THAT(error.what(), HasSubstr("another program holds the file"));
    }
  }
  const Bank second(path);
  SqliteTransaction transaction(*p.store, bank.raw());
  EXPECT_THROW(SqliteTransaction(*p.store, second.raw()), Exception);
  EXPECT_EQ(blocking::insert(*p.store, plain_record("k#1")).error.kind, ErrorKind::unavailable);
}

TEST_F(SqliteOwn, AFullDiskAtTheCommitDeclines) {
  Process p(path);
  const Bank bank(path, faulty_vfs().c_str());
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  SqliteTransaction transaction(*p.store, bank.raw());
  bank.transfer(300);
  transaction.finish(handed.finish_statement());
  disk_faults().full = true;
  try {
    transaction.commit();
    FAIL();
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
  }
  disk_faults().heal();
  EXPECT_EQ(handed.rolled_back().kind, Finish::Kind::declined);
  EXPECT_EQ(cents(), "1000,0");
  EXPECT_EQ(begun.claim.complete(Result::inlined("y")).kind, Finish::Kind::recorded);
}

// What the disk did not take may be in the log from before: another store has copied it, and it begins anew.
TEST_F(SqliteOwn, AFullDiskUnderALogThatBeginsAnewIsInDoubt) {
  Process p(path);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(blocking::insert(*p.store, plain_record("k#" + std::to_string(i))).status, AnswerStatus::done);
  }
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  Shell(path).run("PRAGMA wal_checkpoint(RESTART)");
  const Bank bank(path, faulty_vfs().c_str());
  SqliteTransaction transaction(*p.store, bank.raw());
  bank.transfer(300);
  transaction.finish(handed.finish_statement());
  disk_faults().full = true;
  try {
    transaction.commit();
    FAIL();
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::in_doubt);
  }
  disk_faults().heal();
  EXPECT_EQ(handed.unknown().kind, Finish::Kind::unrecorded);
  EXPECT_EQ(cents(), "1000,0");
}

// A sync of the user's own connection fails: the record shows the state before. The next commit takes its place.
TEST_F(SqliteOwn, AFailedSyncAtTheCommitIsInDoubtAndReadAsBefore) {
  Process p(path);
  const Bank bank(path, faulty_vfs().c_str());
  Begin begun = p.engine->begin("a");
  HandedOut handed = begun.claim.hand_out(Result::inlined("x"));
  {
    SqliteTransaction transaction(*p.store, bank.raw());
    bank.transfer(300);
    transaction.finish(handed.finish_statement());
    disk_faults().log_sync = true;
    try {
      transaction.commit();
      FAIL();
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::in_doubt);
    }
    disk_faults().heal();
  }
  const Finish finish = handed.unknown();
  EXPECT_EQ(finish.kind, Finish::Kind::unrecorded);
  EXPECT_EQ(cents(), "1000,0");
  Process other(path, 20s);
  const Outcome outcome = other.engine->run("a", {}, [&](Context& context) {
    HandedOut again = context.hand_out("again");
    const Bank healthy(path);
    SqliteTransaction transaction(*other.store, healthy.raw());
    healthy.transfer(300);
    EXPECT_EQ(again.commit(transaction).kind, Finish::Kind::recorded);
    return std::string("again");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::executed);
  EXPECT_EQ(cents(), "700,300");
  EXPECT_EQ(handed.unknown().kind, Finish::Kind::superseded);
}

TEST_F(SqliteOwn, WorkThatReturnsWithoutACommitIsDeclined) {
  Process p(path);
  const Bank bank(path);
  const auto forgets = [&](Context& context) {
    HandedOut handed = context.hand_out("x");
    static_cast<void>(handed.rolled_back());
    return std::string("x");
  };
  EXPECT_THROW(static_cast<void>(p.engine->run("a", {}, forgets)), Declined);
  const auto leaves_open = [&](Context& context) {
    const HandedOut handed = context.hand_out("x");
    return std::string("x");
  };
  EXPECT_THROW(static_cast<void>(p.engine->run("a", {}, leaves_open)), Unrecorded);
  const auto throws = [&](Context& context) -> std::string {
    HandedOut handed = context.hand_out("x");
    SqliteTransaction transaction(*p.store, bank.raw());
    bank.transfer(1);
    throw std::runtime_error("no");
  };
  EXPECT_THROW(static_cast<void>(p.engine->run("b", {}, throws)), std::runtime_error);
  const auto throws_late = [&](Context& context) -> std::string {
    HandedOut handed = context.hand_out("x");
    SqliteTransaction transaction(*p.store, bank.raw());
    bank.transfer(300);
    EXPECT_EQ(handed.commit(transaction).kind, Finish::Kind::recorded);
    throw std::runtime_error("the printer is on fire");
  };
  EXPECT_THROW(static_cast<void>(p.engine->run("c", {}, throws_late)), std::runtime_error);
  EXPECT_EQ(p.engine->run("c", {}, throws_late).kind, Outcome::Kind::replayed);
  EXPECT_EQ(cents(), "700,300");
}

TEST_F(SqliteOwn, LargeResultsAreCompressedAndRetentionIsKept) {
  Process p(path);
  const Bank bank(path);
  for (const bool is_forever : {false, true}) {
    Begin begun = p.engine->begin(Request{.key = Key("", is_forever ? "f" : "t"),
                                          .fingerprint = {},
                                          .policy = Policy{.retention = is_forever ? keep_forever : Millis{60'000}}});
    ASSERT_EQ(begun.kind, Begin::Kind::claimed);
    HandedOut handed = begun.claim.hand_out(Result::inlined(std::string(100'000, 'x'), "text/plain"));
    SqliteTransaction transaction(*p.store, bank.raw());
    const Finish finish = handed.commit(transaction);
    ASSERT_EQ(finish.kind, Finish::Kind::recorded);
    EXPECT_EQ(finish.record->result.placement, Placement::compressed);
    EXPECT_EQ(finish.record->result.content_type, "text/plain");
    EXPECT_EQ(finish.record->expires_at, is_forever ? never : p.store->time()->now + 60s);
    EXPECT_EQ(finish.record->finished_at, p.store->time()->now);
  }
  EXPECT_EQ(p.engine->run("t", {}, [] { return std::string(); }).value().size(), 100'000U);
  p.clock->advance(10min);
  EXPECT_EQ(blocking::sweep(*p.store, p.store->time()->now, 100).removed, 1U);
}

// Its text is bound to the revision and the lease, which a hand-out does not know.
// Else a transaction that takes longer than the retention would be forgotten as it commits, and run again.
TEST_F(SqliteOwn, TheRetentionCountsFromTheFinish) {
  Process p(path);
  const Bank bank(path);
  Request request = p.engine->request("a", {});
  request.policy = Policy{.retention = 1s};
  int runs = 0;
  const auto work = [&](Context& context) {
    ++runs;
    HandedOut handed = context.hand_out(std::string("receipt"));
    SqliteTransaction transaction(*p.store, bank.raw());
    bank.transfer(300);
    p.clock->advance(1500ms);
    EXPECT_EQ(handed.commit(transaction).kind, Finish::Kind::recorded);
    return std::string("receipt");
  };
  EXPECT_EQ(p.engine->run(request, work).kind, Outcome::Kind::executed);
  p.clock->advance(900ms);
  EXPECT_EQ(p.engine->run(request, work).kind, Outcome::Kind::replayed);
  p.clock->advance(101ms);
  EXPECT_EQ(p.engine->run(request, work).kind, Outcome::Kind::executed);
  EXPECT_EQ(runs, 2);
}

TEST_F(SqliteOwn, ASealedStoreHandsNothingOut) {
  const auto clock = std::make_shared<ManualClock>();
  Engine engine({.store = seal(stores::make_sqlite_store({.path = scratch_.file("sealed.db"), .clock = clock}),
                               {{.id = "k", .bytes = {1, 2, 3}}}),
                 .clock = clock});
  EXPECT_FALSE(engine.options().store->capabilities().hands_out);
  Begin begun = engine.begin("a");
  try {
    static_cast<void>(begun.claim.hand_out(Result::inlined("secret")));
    FAIL();
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_THAT(error.what(), HasSubstr("cannot be finished by a transaction of your own"));
  }
  EXPECT_EQ(begun.claim.complete(Result::inlined("secret")).kind, Finish::Kind::recorded) << "still the caller's";
}

// ---- kill -9 at each step

enum class Step { before, begun, written, finished, committed, told };

class SqliteOwnKilled : public SqliteOwn, public ::testing::WithParamInterface<Step> {
 protected:
  // A process that dies at `last`.
  void attempt(Step last) const {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto die_at = [&](Step step) {
        if (step == last) kill(getpid(), SIGKILL);
      };
      Process p(path);
      const Bank bank(path);
      Begin begun = p.engine->begin("a");
      HandedOut handed = begun.claim.hand_out(Result::inlined("from the grave"));
      die_at(Step::before);
      {
        SqliteTransaction transaction(*p.store, bank.raw());
        die_at(Step::begun);
        bank.transfer(300);
        die_at(Step::written);
        transaction.finish(handed.finish_statement());
        die_at(Step::finished);
        transaction.commit();
      }
      die_at(Step::committed);
      static_cast<void>(handed.committed());
      die_at(Step::told);
      _exit(1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
};

TEST_P(SqliteOwnKilled, BothAreThereOrNeither) {
  attempt(GetParam());
  const bool committed = GetParam() >= Step::committed;
  EXPECT_EQ(cents(), committed ? "700,300" : "1000,0");
  Process next(path, 20s);
  const Bank bank(path);
  const Outcome outcome = next.engine->run("a", {}, [&](Context& context) {
    EXPECT_EQ(context.attempt(), 2U);
    HandedOut handed = context.hand_out("second");
    SqliteTransaction transaction(*next.store, bank.raw());
    bank.transfer(300);
    EXPECT_EQ(handed.commit(transaction).kind, Finish::Kind::recorded);
    return std::string("second");
  });
  EXPECT_EQ(outcome.value(), committed ? "from the grave" : "second");
  EXPECT_EQ(cents(), "700,300");
}

INSTANTIATE_TEST_SUITE_P(Steps, SqliteOwnKilled,
                         ::testing::Values(Step::before, Step::begun, Step::written, Step::finished, Step::committed,
                                           Step::told));

}  // namespace transaction_test
}  // namespace once::testing
