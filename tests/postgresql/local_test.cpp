// run_local(): claim, work and result in one transaction of the user's own, by libpq and by libpqxx. Each kind of
// record that may stand in the way, others with the same key at the same time, and what a death or a lost connection
// leaves.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/engine/local.hpp>
#include <once/gate.hpp>
#include <once/platform/blocking.hpp>
#include <once/seal.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/postgresql.hpp>
#include <once/stores/postgresql_transaction.hpp>
#include <once/stores/pqxx_transaction.hpp>
#include <once/testing/records.hpp>

#include "bank_test.hpp"

namespace once::testing {
namespace {

using namespace std::chrono_literals;
using stores::PostgresqlLocal;
using stores::PqxxLocal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ByLibpq {
 public:
  void run(const std::string& sql) { shell_.run(sql); }
  Outcome run_local(Engine& engine, Request request, const std::function<std::string()>& work) {
    PostgresqlLocal local(*engine.options().store, shell_.raw());
    return once::run_local(engine, std::move(request), local, work);
  }

 private:
  Shell shell_{test_url()};
};

class ByLibpqxx {
 public:
  void run(const std::string& sql) { work_->exec(sql); }
  Outcome run_local(Engine& engine, Request request, const std::function<std::string()>& work) {
    work_.reset();
    work_.emplace(connection_);
    PqxxLocal local(*engine.options().store, *work_);
    return once::run_local(engine, std::move(request), local, work);
  }

 private:
  pqxx::connection connection_{test_url()};
  std::optional<pqxx::work> work_;
};

// A program: a store, an engine, and what that told.
struct Program {
  explicit Program(const std::string& schema, Millis operation_timeout = 30s, std::string scope = "bank") {
    store = stores::make_postgresql_store(
        {.url = test_url(), .schema = schema, .operation_timeout = operation_timeout, .allow_unsafe = true});
    engine.emplace(EngineOptions{.store = store,
                                 .policy = {.lease = 20s, .wait = 60s, .skew = 0ms},
                                 .scope = std::move(scope),
                                 .observer = [told = told](const Event& event) {
                                   const std::lock_guard lock(told->first);
                                   told->second.emplace_back(to_string(event.kind));
                                 }});
  }
  std::vector<std::string> events() const {
    const std::lock_guard lock(told->first);
    return told->second;
  }

  std::shared_ptr<std::pair<std::mutex, std::vector<std::string>>> told =
      std::make_shared<std::pair<std::mutex, std::vector<std::string>>>();
  std::shared_ptr<Store> store;
  std::optional<Engine> engine;
};

class LocalTest : public BankTest {
 protected:
  // Sessions that wait for a lock in this schema.
  [[nodiscard]] std::string waiting() {
    return shell_.run("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%" +
                      schema_ + "%' AND pid <> pg_backend_pid()");
  }
  [[nodiscard]] std::string records() { return shell_.run("SELECT count(*) FROM records"); }
  static RecordPtr stored(Program& p, const std::string& key = "a") {
    return blocking::get(*p.store, p.engine->request(key, {}).key.stored()).record;
  }
  static Request request(Program& p, const std::string& payload = "100", Policy policy = {}) {
    Request made = p.engine->request("a", payload);
    made.policy = policy;
    return made;
  }
};

template <class Library>
class Local : public LocalTest {
 protected:
  // Moves 300 cents, and counts.
  std::function<std::string()> moves(Library& own) {
    return [this, &own] {
      ++runs_;
      own.run(transfer(300));
      return std::string("receipt");
    };
  }
  // A local transaction that has claimed "a" and goes on until told.
  struct Open {
    Open(Program& p, const std::string& sql, Policy policy = {}) {
      thread = std::thread([this, &p, sql, policy] {
        Library own;
        try {
          kind = own.run_local(*p.engine, request(p, "100", policy),
                               [&] {
                                 own.run(sql);
                                 begun = true;
                                 while (!end) std::this_thread::sleep_for(1ms);
                                 if (fails) throw std::runtime_error("no");
                                 return std::string("of the first");
                               })
                     .kind;
        } catch (const std::runtime_error&) {  // The work's.
        }
      });
      eventually([&] { return begun.load(); });
    }
    ~Open() { finish(); }
    void finish() {
      end = true;
      if (thread.joinable()) thread.join();
    }
    std::atomic<bool> begun{false}, end{false}, fails{false};
    std::optional<Outcome::Kind> kind;
    std::thread thread;
  };

  int runs_ = 0;
};
using Libraries = ::testing::Types<ByLibpq, ByLibpqxx>;
TYPED_TEST_SUITE(Local, Libraries);

TYPED_TEST(Local, TheClaimTheRowsAndTheResultAreCommittedTogether) {
  Program p(this->schema_);
  Program other(this->schema_);
  TypeParam own;
  const auto work = [&] {
    own.run(this->transfer(300));
    EXPECT_EQ(this->cents(), "1000,0") << "seen before the commit";
    EXPECT_EQ(this->records(), "0") << "seen before the commit";
    return std::string("receipt");
  };
  Request first = p.engine->request("a", "100");
  first.policy = Policy{.retention = 2h};
  const Outcome outcome = own.run_local(*p.engine, first, work);
  EXPECT_EQ(outcome.kind, Outcome::Kind::executed);
  EXPECT_EQ(outcome.value(), "receipt");
  EXPECT_EQ(this->cents(), "700,300");
  const RecordPtr record = this->stored(p);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(*record, *outcome.record) << "what is stored is what was told";
  EXPECT_EQ(record->state, State::completed);
  EXPECT_EQ(record->attempt, 1U);
  EXPECT_EQ(revision_count(record->revision), 2U);
  EXPECT_EQ(record->lease_until, Time{});
  EXPECT_EQ(record->expires_at - record->finished_at, 2h);
  EXPECT_EQ(own.run_local(*other.engine, other.engine->request("a", "100"), this->moves(own)).value(), "receipt");
  EXPECT_EQ(own.run_local(*other.engine, other.engine->request("a", "200"), this->moves(own)).kind,
            Outcome::Kind::mismatch);
  EXPECT_EQ(other.engine->run("a", "100", this->moves(own)).value(), "receipt") << "an ordinary call";
  EXPECT_EQ(other.engine->run("a", "200", this->moves(own)).kind, Outcome::Kind::mismatch);
  EXPECT_EQ(this->runs_, 0);
  EXPECT_EQ(this->cents(), "700,300");
  EXPECT_THAT(p.events(), ElementsAre("claimed", "work_done", "completed"));
  EXPECT_THAT(other.events(), ElementsAre("replayed", "mismatch", "replayed", "mismatch"));
}

TYPED_TEST(Local, WhatAnOrdinaryCallHasStoredIsReplayed) {
  Program p(this->schema_);
  TypeParam own;
  const std::string large(5'000, 'x');
  EXPECT_EQ(p.engine->run("a", "100", [&] { return large; }).kind, Outcome::Kind::executed);
  EXPECT_EQ(own.run_local(*p.engine, this->request(p), this->moves(own)).value(), large) << "it is compressed";
  Begin begun = p.engine->begin("b");
  ASSERT_EQ(begun.claim.fail({.code = "gone", .message = "sold out"}).kind, Finish::Kind::recorded);
  const auto failure = own.run_local(*p.engine, p.engine->request("b", {}), this->moves(own));
  EXPECT_EQ(failure.kind, Outcome::Kind::stored_failure);
  Request again = p.engine->request("b", {});
  again.policy = Policy{.on_stored_failure = OnStoredFailure::execute};
  const Outcome retried = own.run_local(*p.engine, again, this->moves(own));
  EXPECT_EQ(retried.kind, Outcome::Kind::executed);
  EXPECT_EQ(retried.record->attempt, 2U);
  EXPECT_EQ(this->runs_, 1);
}

TYPED_TEST(Local, ADuplicateWaitsAndThenReplays) {
  Program p(this->schema_);
  Program other(this->schema_);
  typename TestFixture::Open open(p, this->transfer(300));
  std::optional<Outcome> second;
  std::thread duplicate([&] {
    TypeParam own;
    second = own.run_local(*other.engine, this->request(other), this->moves(own));
  });
  eventually([&] { return this->waiting() == "1"; });
  open.finish();
  duplicate.join();
  EXPECT_EQ(open.kind, Outcome::Kind::executed);
  EXPECT_EQ(second->kind, Outcome::Kind::replayed);
  EXPECT_EQ(second->value(), "of the first");
  EXPECT_EQ(this->runs_, 0);
  EXPECT_EQ(this->cents(), "700,300");
}

TYPED_TEST(Local, ADuplicateOfWorkThatIsRolledBackRuns) {
  Program p(this->schema_);
  typename TestFixture::Open open(p, this->transfer(300));
  std::optional<Outcome> second;
  std::thread duplicate([&] {
    TypeParam own;
    second = own.run_local(*p.engine, this->request(p), this->moves(own));
  });
  eventually([&] { return this->waiting() == "1"; });
  open.fails = true;
  open.finish();
  duplicate.join();
  EXPECT_EQ(open.kind, std::nullopt) << "it threw";
  EXPECT_EQ(second->kind, Outcome::Kind::executed);
  EXPECT_EQ(this->runs_, 1);
  EXPECT_EQ(this->cents(), "700,300");
}

TYPED_TEST(Local, WhoDoesNotWaitGetsAConflict) {
  Program p(this->schema_);
  TypeParam own;
  typename TestFixture::Open open(p, this->transfer(300));
  for (const Policy& policy : {Policy{.on_conflict = OnConflict::fail}, Policy{.wait = 50ms}}) {
    const Outcome outcome = own.run_local(*p.engine, this->request(p, "100", policy), this->moves(own));
    EXPECT_EQ(outcome.kind, Outcome::Kind::conflict);
    EXPECT_GT(outcome.retry_after, 0ms);
    EXPECT_THROW(static_cast<void>(outcome.value()), Conflict);
  }
  EXPECT_EQ(this->runs_, 0);
  open.finish();
  EXPECT_EQ(open.kind, Outcome::Kind::executed);
}

TYPED_TEST(Local, AHolderThatIsKilledFreesItAtOnce) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Program p(this->schema_);
    TypeParam own;
    static_cast<void>(own.run_local(*p.engine, this->request(p), [&] {
      own.run(this->transfer(300));
      const char byte = 'x';
      if (write(pipe[1], &byte, 1) != 1) _exit(2);
      for (;;) pause();
      return std::string();
    }));
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(pipe[0], &byte, 1), 1);
  Program p(this->schema_);
  TypeParam own;
  const Policy at_once{.on_conflict = OnConflict::fail};
  EXPECT_EQ(own.run_local(*p.engine, this->request(p, "100", at_once), this->moves(own)).kind, Outcome::Kind::conflict);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  const Outcome outcome = own.run_local(*p.engine, this->request(p), this->moves(own));
  EXPECT_EQ(outcome.kind, Outcome::Kind::executed) << "without waiting for a lease of 20 s";
  EXPECT_EQ(outcome.record->attempt, 1U) << "nothing remembers the other";
  EXPECT_EQ(this->cents(), "700,300");
  close(pipe[0]);
  close(pipe[1]);
}

TYPED_TEST(Local, AnExpiredRecordIsWrittenOver) {
  Program p(this->schema_);
  TypeParam own;
  EXPECT_EQ(p.engine->run("a", "another", [] { return std::string("old"); }).kind, Outcome::Kind::executed);
  const std::uint64_t token = this->stored(p)->token;
  this->shell_.run("UPDATE records SET expires_at_ms = 1");
  EXPECT_EQ(own.run_local(*p.engine, this->request(p), this->moves(own)).kind, Outcome::Kind::executed);
  EXPECT_EQ(this->stored(p)->result.bytes, "receipt");
  EXPECT_GT(this->stored(p)->token, token);
  EXPECT_EQ(this->records(), "1");
}

TYPED_TEST(Local, AnUnknownOutcomeIsNotRun) {
  Program p(this->schema_);
  TypeParam own;
  Begin begun = p.engine->begin("a", "100");
  ASSERT_EQ(begun.claim.hold("the line broke").kind, Finish::Kind::recorded);
  EXPECT_EQ(own.run_local(*p.engine, this->request(p), this->moves(own)).kind, Outcome::Kind::unknown);
  EXPECT_EQ(this->runs_, 0);
}

// The mark is committed, as an ordinary call does it.
TYPED_TEST(Local, ALapsedClaimUnderHoldBecomesUnknown) {
  Program p(this->schema_);
  TypeParam own;
  Begin begun = p.engine->begin(this->request(p, "100", {.on_lapse = OnLapse::hold}));
  this->shell_.run("UPDATE records SET lease_until_ms = 1");
  EXPECT_EQ(own.run_local(*p.engine, this->request(p), this->moves(own)).kind, Outcome::Kind::unknown);
  EXPECT_EQ(this->stored(p)->state, State::unknown);
  EXPECT_EQ(this->runs_, 0);
  EXPECT_EQ(begun.claim.complete(Result::inlined("late")).kind, Finish::Kind::lost);
}

TYPED_TEST(Local, AnOrdinaryClaimThatIsLiveIsAConflict) {
  Program p(this->schema_);
  Program other(this->schema_);
  TypeParam own;
  Begin begun = p.engine->begin("a", "100");
  for (Program* each : {&p, &other}) {
    const Outcome outcome = own.run_local(*each->engine, this->request(*each), this->moves(own));
    EXPECT_EQ(outcome.kind, Outcome::Kind::conflict);
    EXPECT_GT(outcome.retry_after, 1s) << "what is left of the lease";
    EXPECT_EQ(outcome.record->owner, begun.claim.owner());
  }
  EXPECT_EQ(own.run_local(*p.engine, this->request(p, "200"), this->moves(own)).kind, Outcome::Kind::mismatch);
  EXPECT_EQ(begun.claim.complete(Result::inlined("in time")).kind, Finish::Kind::recorded);
  EXPECT_EQ(own.run_local(*p.engine, this->request(p), this->moves(own)).value(), "in time");
  EXPECT_EQ(this->runs_, 0);
}

TYPED_TEST(Local, ALapsedClaimIsTakenOverAndKeepsWhatItHad) {
  Program p(this->schema_);
  Program late(this->schema_);
  TypeParam own;
  Begin begun = late.engine->begin("a", "100");
  ASSERT_EQ(begun.claim.add_step("reserve", "r1").kind, Finish::Kind::recorded);
  this->shell_.run("UPDATE records SET lease_until_ms = 1");
  const Outcome outcome = own.run_local(*p.engine, this->request(p), this->moves(own));
  EXPECT_EQ(outcome.kind, Outcome::Kind::executed);
  EXPECT_EQ(outcome.record->attempt, 2U);
  EXPECT_EQ(*this->stored(p), *outcome.record);
  const Finish finish = begun.claim.complete(Result::inlined("late"));
  EXPECT_EQ(finish.kind, Finish::Kind::superseded);
  EXPECT_EQ(finish.record->result.bytes, "receipt");
}

// If it is rolled back instead, the holder of the lapsed claim has lost nothing.
TYPED_TEST(Local, ATakeoverThatIsRolledBackTakesNothing) {
  Program p(this->schema_);
  Program late(this->schema_);
  TypeParam own;
  Begin begun = late.engine->begin("a", "100");
  this->shell_.run("UPDATE records SET lease_until_ms = 1");
  EXPECT_THROW(static_cast<void>(own.run_local(*p.engine, this->request(p),
                                               [&]() -> std::string { throw std::runtime_error("no"); })),
               std::runtime_error);
  EXPECT_EQ(begun.claim.complete(Result::inlined("late")).kind, Finish::Kind::recorded);
}

TYPED_TEST(Local, AnOrdinaryCallWaitsForItAndThenReplays) {
  Program p(this->schema_);
  Program other(this->schema_);
  typename TestFixture::Open open(p, this->transfer(300));
  std::optional<Outcome> second;
  std::thread ordinary(
      [&] { second = other.engine->run("a", "100", [&] { return ++this->runs_, std::string("ordinary"); }); });
  eventually([&] { return this->waiting() != "0"; });
  EXPECT_EQ(other.engine->run("b", {}, [] { return std::string("b"); }).kind, Outcome::Kind::executed)
      << "other keys go on";
  open.finish();
  ordinary.join();
  EXPECT_EQ(second->kind, Outcome::Kind::replayed);
  EXPECT_EQ(second->value(), "of the first");
  EXPECT_EQ(this->runs_, 0);
}

TYPED_TEST(Local, AnOrdinaryCallDoesNotWaitForEver) {
  Program p(this->schema_);
  Program other(this->schema_, 1s);
  typename TestFixture::Open open(p, this->transfer(300));
  const Outcome outcome = other.engine->run("a", "100", [&] { return ++this->runs_, std::string("ordinary"); });
  EXPECT_EQ(outcome.kind, Outcome::Kind::error);
  EXPECT_EQ(outcome.error.kind, ErrorKind::unavailable) << outcome.error.message;
  EXPECT_EQ(this->runs_, 0);
  open.finish();
  EXPECT_EQ(open.kind, Outcome::Kind::executed);
  EXPECT_EQ(other.engine->run("a", "100", [] { return std::string(); }).value(), "of the first");
}

TYPED_TEST(Local, WorkThatThrowsLeavesNothing) {
  Program p(this->schema_);
  TypeParam own;
  EXPECT_THROW(static_cast<void>(own.run_local(*p.engine, this->request(p),
                                               [&]() -> std::string {
                                                 own.run(this->transfer(300));
                                                 throw std::runtime_error("no");
                                               })),
               std::runtime_error);
  EXPECT_EQ(this->records(), "0");
  EXPECT_EQ(this->cents(), "1000,0");
  EXPECT_ANY_THROW(static_cast<void>(own.run_local(*p.engine, this->request(p), [&] {
    own.run(this->transfer(5000));  // There is not so much.
    return std::string();
  })));
  EXPECT_EQ(this->records(), "0");
  EXPECT_THAT(p.events(), ElementsAre("claimed", "released", "claimed", "released"));
  EXPECT_EQ(own.run_local(*p.engine, this->request(p), this->moves(own)).kind, Outcome::Kind::executed);
}

TYPED_TEST(Local, WhatFailsAtTheCommitIsDeclinedAndLeavesNothing) {
  Program p(this->schema_);
  TypeParam own;
  try {
    static_cast<void>(own.run_local(*p.engine, this->request(p), [&] {
      own.run(this->transfer(300) + "; INSERT INTO " + this->schema_ + ".log VALUES ('carol')");
      return std::string("x");
    }));
    ADD_FAILURE() << "committed";
  } catch (const Declined& declined) {
    EXPECT_THAT(declined.what(), HasSubstr("foreign key constraint"));
  }
  EXPECT_EQ(this->records(), "0");
  EXPECT_EQ(this->cents(), "1000,0");
}

TYPED_TEST(Local, AConnectionLostWhileItCommitsIsToldAndTheNextCallSettlesIt) {
  Program p(this->schema_);
  {
    TypeParam own;
    EXPECT_THROW(static_cast<void>(own.run_local(*p.engine, this->request(p),
                                                 [&] {
                                                   own.run(this->transfer(300) + "; INSERT INTO " + this->schema_ +
                                                           ".trap VALUES (1)");
                                                   return std::string("x");
                                                 })),
                 Unrecorded);
  }
  TypeParam own;
  EXPECT_EQ(own.run_local(*p.engine, this->request(p), this->moves(own)).kind, Outcome::Kind::executed);
  EXPECT_EQ(this->cents(), "700,300");
}

TYPED_TEST(Local, WorkThatEndsTheTransactionIsFoundOut) {
  for (const std::string sql : {"COMMIT", "COMMIT; BEGIN", "ROLLBACK; BEGIN"}) {
    Program p(this->schema_, 30s, sql);
    TypeParam own;
    EXPECT_THROW(static_cast<void>(own.run_local(*p.engine, this->request(p),
                                                 [&] {
                                                   own.run(sql);
                                                   return std::string("x");
                                                 })),
                 Declined)
        << sql;
    // What was committed lapses, as if its process had died.
    const RecordPtr record = this->stored(p);
    EXPECT_EQ(record == nullptr, sql.starts_with("ROLLBACK")) << sql;
    if (record != nullptr) {
      EXPECT_EQ(record->state, State::in_progress) << sql;
    }
  }
}

TYPED_TEST(Local, SavepointsOfTheWorkAndItsLockTimeoutStayAsTheyAre) {
  Program p(this->schema_);
  TypeParam own;
  const auto outcome = own.run_local(*p.engine, this->request(p), [&] {
    own.run("SAVEPOINT s; " + this->transfer(100) + "; ROLLBACK TO s; " + this->transfer(300) + "; RELEASE s");
    own.run("INSERT INTO " + this->schema_ + ".log SELECT 'alice' WHERE current_setting('lock_timeout') = '0'");
    return std::string("x");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::executed);
  EXPECT_EQ(this->cents(), "700,300");
  EXPECT_EQ(this->shell_.run("SELECT count(*) FROM log"), "1");
}

TYPED_TEST(Local, TheScopeKeepsOperationsApart) {
  Program charge(this->schema_, 30s, "charge");
  Program refund(this->schema_, 30s, "refund");
  TypeParam own;
  for (Program* p : {&charge, &refund}) {
    EXPECT_EQ(own.run_local(*p->engine, this->request(*p), this->moves(own)).kind, Outcome::Kind::executed);
  }
  EXPECT_EQ(this->runs_, 2);
}

TYPED_TEST(Local, AGateIsRespected) {
  Program p(this->schema_);
  TypeParam own;
  EXPECT_EQ(p.engine->run("done", {}, [] { return std::string("before"); }).kind, Outcome::Kind::executed);
  const GateMark open{};
  const GateMark draining{.gate = Gate::draining, .move = std::string(32, 'a'), .other = "sqlite:new.db"};
  GateMark closed = draining;
  closed.gate = Gate::closed;
  ASSERT_EQ(p.store->gate()->change(open, draining, Time{}).kind, StoreGate::Changed::Kind::done);
  for (const bool is_closed : {false, true}) {
    if (is_closed) {
      ASSERT_EQ(p.store->gate()->change(draining, closed, Time{}).kind, StoreGate::Changed::Kind::done);
    }
    const Outcome outcome = own.run_local(*p.engine, this->request(p), this->moves(own));
    EXPECT_EQ(outcome.kind, Outcome::Kind::error);
    EXPECT_EQ(outcome.error.kind, ErrorKind::misuse);
    EXPECT_THAT(outcome.error.message, HasSubstr("sqlite:new.db"));
    EXPECT_EQ(own.run_local(*p.engine, p.engine->request("done", {}), this->moves(own)).value(), "before");
  }
  EXPECT_EQ(this->runs_, 0);
  EXPECT_EQ(this->records(), "1");
}

TYPED_TEST(Local, NothingIsWrittenInTheClearBesideSealedRecords) {
  Program p(this->schema_);
  TypeParam own;
  this->shell_.run("INSERT INTO meta VALUES ('sealed', '1')");
  const Outcome outcome = own.run_local(*p.engine, this->request(p), this->moves(own));
  EXPECT_EQ(outcome.kind, Outcome::Kind::error);
  EXPECT_THAT(outcome.error.message, HasSubstr("no key to seal with"));
  EXPECT_EQ(this->runs_, 0);
}

TYPED_TEST(Local, TheSameKeyInItsOwnWorkFailsAtOnce) {
  Program p(this->schema_);
  TypeParam own;
  TypeParam inner;
  EXPECT_THROW(static_cast<void>(own.run_local(*p.engine, this->request(p),
                                               [&] {
                                                 static_cast<void>(
                                                     inner.run_local(*p.engine, this->request(p), this->moves(inner)));
                                                 return std::string();
                                               })),
               Exception);
  EXPECT_THROW(
      static_cast<void>(own.run_local(*p.engine, this->request(p),
                                      [&] { return p.engine->run("a", "100", [] { return std::string(); }).value(); })),
      Exception);
  EXPECT_EQ(this->records(), "0");
}

// Local and ordinary calls for the same keys, and some that fail: each key moves once.
TYPED_TEST(Local, ManyAtOnceMoveEachOnce) {
  constexpr int keys = 12;
  constexpr int threads = 6;
  Program p(this->schema_);
  Program other(this->schema_);
  std::atomic<int> executed{0};
  std::vector<std::thread> all;
  for (int thread = 0; thread < threads; ++thread) {
    all.emplace_back([&, thread] {
      TypeParam own;
      for (int n = 0; n < keys; ++n) {
        Program& mine = thread % 2 == 0 ? p : other;
        const std::string key = "k" + std::to_string((n + thread) % keys);
        int tries = 0;
        for (;;) {
          try {
            Outcome outcome;
            if (thread % 3 == 2) {
              outcome = mine.engine->run(key, {}, [&](Context& context) {
                auto rows = std::make_shared<stores::SqlStatements>();
                rows->add("UPDATE " + this->schema_ + ".accounts SET cents = cents - 1 WHERE id = 'alice'");
                rows->add("UPDATE " + this->schema_ + ".accounts SET cents = cents + 1 WHERE id = 'bob'");
                context.commit_with(rows);
                return std::string("ordinary");
              });
            } else {
              outcome = own.run_local(*mine.engine, mine.engine->request(key, {}), [&] {
                own.run(this->transfer(1));
                if (++tries == 1 && (n + thread) % 4 == 0) throw std::runtime_error("once more");
                return std::string("local");
              });
            }
            if (outcome.kind == Outcome::Kind::executed) ++executed;
            if (outcome.has_result()) break;
          } catch (const std::runtime_error&) {  // Its own, or a refusal that says to try again.
          }
        }
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  EXPECT_EQ(executed, keys);
  EXPECT_EQ(this->cents(), std::to_string(1000 - keys) + "," + std::to_string(keys));
  EXPECT_EQ(this->records(), std::to_string(keys));
}

class LocalByLibpq : public LocalTest {
 protected:
  void expect_misuse(Engine& engine, const Store& store, Request request, const std::string& why) {
    Shell shell(test_url());
    try {
      PostgresqlLocal local(store, shell.raw());
      static_cast<void>(run_local(engine, std::move(request), local, [] { return std::string(); }));
      ADD_FAILURE() << "it ran: " << why;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
    EXPECT_EQ(PQtransactionStatus(shell.raw()), PQTRANS_IDLE);
    EXPECT_EQ(records(), "0");
  }
};

TEST_F(LocalByLibpq, WhatCannotBeKeptIsRefused) {
  Program p(schema_);
  Program other(schema_);
  Engine& engine = *p.engine;
  expect_misuse(engine, *p.store, request(p, {}, {.on_throw = OnThrow::store}), "on_throw");
  expect_misuse(engine, *p.store, request(p, {}, {.on_throw = OnThrow::hold}), "on_throw");
  expect_misuse(engine, *other.store, request(p), "not one of the engine's store");
  const std::shared_ptr<Store> memory = stores::make_memory_store();
  Engine elsewhere({.store = memory});
  expect_misuse(elsewhere, *memory, elsewhere.request("a", {}), "not a PostgreSQL store");
  const std::shared_ptr<Store> sealed =
      seal(stores::make_postgresql_store({.url = test_url(), .schema = schema_, .allow_unsafe = true}),
           {SealKey{.id = "k", .bytes = {1}}});
  Engine seals({.store = sealed});
  expect_misuse(seals, *sealed, seals.request("a", {}), "sealed");
}

TEST_F(LocalByLibpq, AResultThatIsTooLargeIsDeclined) {
  Program p(schema_);
  Shell shell(test_url());
  PostgresqlLocal local(*p.store, shell.raw());
  std::string noise;
  for (unsigned n = 0, value = 1; n < 300'000; ++n)
    noise += static_cast<char>((value = value * 1664525U + 1013904223U) >> 24U);
  EXPECT_THROW(static_cast<void>(run_local(*p.engine, request(p), local, [&] { return Result::inlined(noise); })),
               Declined);
  EXPECT_EQ(records(), "0");
}

TEST_F(LocalByLibpq, VoidAndNumbersAreResultsToo) {
  Program p(schema_);
  Shell shell(test_url());
  {
    PostgresqlLocal local(*p.store, shell.raw());
    EXPECT_EQ(run_local(*p.engine, request(p), local, [] {}).kind, Outcome::Kind::executed);
  }
  EXPECT_EQ(stored(p)->state, State::completed);
}

}  // namespace
}  // namespace once::testing
