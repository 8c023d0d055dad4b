// What is of PostgreSQL alone: locks of strangers, lost connections, settings of administrators, HOT updates.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/snapshot.hpp>
#include <once/stores/postgresql.hpp>
#include <once/stores/postgresql_schema.hpp>
#include <once/testing/records.hpp>

#include "database.hpp"
#include "stores/postgresql/schema_sql.hpp"

namespace once::testing {
namespace postgresql_store_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Status = AnswerStatus;

class Pending {
 public:
  Done done() {
    return [state = state_](Answer answer) {
      const std::lock_guard lock(state->mutex);
      state->answer = std::move(answer);
      state->there.notify_all();
    };
  }
  Answer wait() {
    std::unique_lock lock(state_->mutex);
    if (!state_->there.wait_for(lock, std::chrono::seconds(60), [&] { return state_->answer.has_value(); })) {
      throw std::runtime_error("no answer within a minute");
    }
    return *state_->answer;
  }
  [[nodiscard]] bool is_there() const {
    const std::lock_guard lock(state_->mutex);
    return state_->answer.has_value();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable there;
    std::optional<Answer> answer;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class PostgresqlStoreTest : public ::testing::Test {
 protected:
  PostgresqlStoreTest() {
    shell_.run(stores::postgresql::create_sql(schema_));
    options_.url = test_url();
    options_.schema = schema_;
    options_.allow_unsafe = true;
  }
  ~PostgresqlStoreTest() override {
    store_.reset();
    shell_.run("DROP SCHEMA " + schema_ + " CASCADE");
  }

  Store& store() {
    if (!store_) store_ = stores::make_postgresql_store(options_);
    return *store_;
  }
  Record put(const std::string& key) {
    Record record = plain_record(key);
    EXPECT_EQ(blocking::insert(store(), record).status, Status::done) << key;
    return record;
  }
  static Record sealed_record(const std::string& key) {
    Record record = plain_record(key);
    record.result.placement = Placement::sealed;
    record.result.bytes = "2:k1,";
    return record;
  }
  static Record next_of(Record record) {
    record.revision += 1;
    record.note = "next";
    return record;
  }
  // A trigger that runs `body` for each written record whose key begins with "marked".
  void trigger(const std::string& body) {
    shell_.run("CREATE FUNCTION " + schema_ +
               ".meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
               "IF convert_from(substr(NEW.key, 1, 6), 'UTF8') = 'marked' THEN " +
               body + " END IF; RETURN NEW; END $$; CREATE TRIGGER meddle BEFORE INSERT OR UPDATE ON " + table_ +
               " FOR EACH ROW EXECUTE FUNCTION " + schema_ + ".meddle()");
  }
  // The store's connections that wait for this.
  std::string waiting(const std::string& event) {
    return shell_.run("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = '" +
                      event + "' AND pid <> pg_backend_pid()");
  }

  const std::string schema_ = fresh_schema();
  const std::string table_ = schema_ + ".records";
  Shell shell_;
  stores::PostgresqlOptions options_;
  std::unique_ptr<Store> store_;
};

TEST_F(PostgresqlStoreTest, AStrangersLockHoldsUpNobodyElse) {
  const Record locked = put("locked");
  const Record free = put("free");
  shell_.run("BEGIN; UPDATE " + table_ + " SET note = note WHERE key = 'locked'");
  Pending renewal;
  Pending other;
  store().replace(share(next_of(locked)), {locked.owner, locked.revision}, renewal.done());
  store().replace(share(next_of(free)), {free.owner, free.revision}, other.done());
  EXPECT_EQ(other.wait().status, Status::done);
  // The next ones do not even meet it: the key is known to be locked.
  for (int i = 0; i < 20; ++i) put("after " + std::to_string(i));
  EXPECT_FALSE(renewal.is_there());
  // Reads and refusals wait for no lock.
  EXPECT_EQ(blocking::get(store(), "locked").record->revision, locked.revision);
  EXPECT_EQ(blocking::insert(store(), plain_record("locked")).status, Status::refused);
  shell_.run("COMMIT");
  EXPECT_EQ(renewal.wait().status, Status::done);
}

TEST_F(PostgresqlStoreTest, ALockThatIsKeptIsUnavailable) {
  options_.operation_timeout = Millis{1'500};
  const Record locked = put("locked");
  shell_.run("BEGIN; UPDATE " + table_ + " SET note = note WHERE key = 'locked'");
  const Answer answer = blocking::replace(store(), next_of(locked), {locked.owner, locked.revision});
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable) << answer.error.message;
  EXPECT_THAT(answer.error.message, HasSubstr("another transaction holds the lock on this record"));
  shell_.run("COMMIT");
  EXPECT_EQ(blocking::get(store(), "locked").record->revision, locked.revision);
  EXPECT_EQ(blocking::replace(store(), next_of(locked), {locked.owner, locked.revision}).status, Status::done);
}

TEST_F(PostgresqlStoreTest, OneBadMemberOfAGroupHarmsNoOther) {
  // Without a state of the class "bad" in the key the group would be a plain one.
  trigger("RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = 'not this one';");
  for (int round = 0; round < 5; ++round) {
    std::vector<std::pair<std::string, Pending>> calls;
    for (int i = 0; i < 50; ++i) {
      const std::string key = (i % 10 == 3 ? "marked " : "good ") + std::to_string(round) + "." + std::to_string(i);
      calls.emplace_back(key, Pending());
      store().insert(share(plain_record(key)), calls.back().second.done());
    }
    for (auto& [key, call] : calls) {
      const Answer answer = call.wait();
      if (key.starts_with("good")) {
        EXPECT_EQ(answer.status, Status::done) << key << ": " << answer.error.message;
      } else {
        EXPECT_EQ(answer.error.kind, ErrorKind::misuse) << key;
        EXPECT_THAT(answer.error.message, HasSubstr("not this one"));
      }
      EXPECT_EQ(blocking::get(store(), key).record != nullptr, key.starts_with("good")) << key;
    }
  }
}

// Through a pooler (the test is run so too) a name would stay in a session that others get.
TEST_F(PostgresqlStoreTest, TheServerParsesAStatementOnceForAConnectionAndAPoolerKeepsNone) {
  shell_.run("CREATE TABLE " + schema_ + ".seen (names bigint, times bigint)");
  trigger("INSERT INTO " + schema_ +
          ".seen SELECT count(*), sum(generic_plans + custom_plans) FROM pg_prepared_statements;");
  for (int i = 0; i < 5; ++i) put("marked " + std::to_string(i));
  const bool straight = test_url() == server_url();
  EXPECT_EQ(shell_.run("SELECT string_agg(names || ' ' || coalesce(times::text, '-'), ', ') FROM " + schema_ + ".seen"),
            straight ? "1 1, 1 2, 1 3, 1 4, 1 5" : "0 -, 0 -, 0 -, 0 -, 0 -");
}

// As if another program's session stood behind the connection.
TEST_F(PostgresqlStoreTest, AStatementThatTheServerHasForgottenIsSentAgain) {
  trigger("DEALLOCATE ALL;");
  put("marked");
  std::vector<Pending> calls(20);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    store().insert(share(plain_record("after " + std::to_string(i))), calls[i].done());
  }
  for (Pending& call : calls) {
    const Answer answer = call.wait();
    EXPECT_EQ(answer.status, Status::done) << answer.error.message;
  }
  put("marked again");
  put("last");
}

// 16 callers, each with one write after another. Caller 0 is alone at first; the others come while a write of his is
// under way. Were theirs sent before he is told, so that his next write comes too late for them, there would be two
// groups in turns for ever. All of it happens in completions: a caller of this thread could be held up for longer than
// the others take.
TEST_F(PostgresqlStoreTest, CallersWhoAreToldTogetherWriteTogether) {
  constexpr int callers = 16;
  constexpr int each = 20;
  std::atomic<int> failed{0};
  std::atomic<int> others{callers - 1};
  std::latch over(1);
  std::function<void(int, int)> write = [&](int caller, int number) {
    if (caller == 0 && others == 0) return over.count_down();
    if (caller != 0 && number == each) {
      --others;
      return;
    }
    const std::string key = std::to_string(caller) + "." + std::to_string(number);
    store().insert(share(plain_record(key)), [&, caller, number](const Answer& answer) {
      if (answer.status != Status::done) ++failed;
      if (caller == 0 && number == 2) {
        store().get("nothing", [&](const Answer&) {
          for (int other = 1; other < callers; ++other) write(other, 0);
        });
      }
      write(caller, number + 1);
    });
  };
  write(0, 0);
  over.wait();
  EXPECT_EQ(failed, 0);
  const std::string groups = shell_.run("SELECT count(DISTINCT xmin::text) FROM " + schema_ +
                                        ".records WHERE xmin::text::bigint >= (SELECT min(xmin::text::bigint) FROM " +
                                        schema_ + ".records WHERE key LIKE '1.%')");
  EXPECT_LT(std::stoi(groups), each + each / 2);  // Two groups in turns: 2 * each.
}

TEST_F(PostgresqlStoreTest, WritesGoByAsManyConnectionsAsAreWanted) {
  const auto sessions = [&](std::uint32_t wanted) {
    store_.reset();
    options_.write_connections = wanted;
    std::vector<Pending> writes(64);
    for (std::size_t i = 0; i < writes.size(); ++i) {
      store().insert(share(plain_record(std::to_string(wanted) + "." + std::to_string(i))), writes[i].done());
    }
    for (Pending& write : writes) EXPECT_EQ(write.wait().status, Status::done);
    return shell_.run(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'once' AND "
        "datname = current_database() AND query LIKE '%write_1%'");
  };
  EXPECT_EQ(sessions(1), "1");
  EXPECT_EQ(sessions(4), "4");
}

// Each key has a connection, and so an order: a replace that follows an insert finds it.
TEST_F(PostgresqlStoreTest, WritesOfOneKeyKeepTheirOrder) {
  options_.write_connections = 4;
  std::vector<Pending> answers(100);
  for (std::size_t i = 0; i < answers.size(); i += 2) {
    const Record record = plain_record("k" + std::to_string(i));
    store().insert(share(record), answers[i].done());
    store().replace(share(next_of(record)), {record.owner, record.revision}, answers[i + 1].done());
  }
  for (Pending& answer : answers) EXPECT_EQ(answer.wait().status, Status::done);
}

TEST_F(PostgresqlStoreTest, DeadlocksAndSerializationFailuresAreTriedAgain) {
  shell_.run("CREATE SEQUENCE " + schema_ + ".tries");  // A rollback does not turn it back.
  for (const char* const state : {"40P01", "40001", "57014"}) {
    shell_.run("ALTER SEQUENCE " + schema_ + ".tries RESTART");
    trigger("IF nextval('" + schema_ + ".tries') < 4 THEN RAISE EXCEPTION USING ERRCODE = '" + state + "'; END IF;");
    put(std::string("marked ") + state);
    EXPECT_EQ(shell_.run("SELECT last_value FROM " + schema_ + ".tries"), "4") << state;
    shell_.run("DROP TRIGGER meddle ON " + table_ + "; DROP FUNCTION " + schema_ + ".meddle()");
  }
  // But not for ever.
  trigger("RAISE EXCEPTION USING ERRCODE = '40P01';");
  const Answer answer = blocking::insert(store(), plain_record("marked 1"));
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable) << answer.error.message;
  EXPECT_EQ(blocking::get(store(), "marked 1").record, nullptr);
}

// Two programs that write the same records in opposite orders, each in one group:
//   1. Each has a write under way that meets our lock, so that its next three queue up.
//   2. In the order of the calls, one program's group locks "a", the other's "b", and each meets a lock of ours on its
//      second member. When we let go, each waits for the other: a deadlock. In the order of the keys, the second
//      program waits for "a", and has locked nothing.
TEST_F(PostgresqlStoreTest, TwoProgramsGroupsDoNotDeadlock) {
  options_.lock_timeout = Millis{10'000};  // Longer than the server's deadlock_timeout: a deadlock would be counted.
  // Of this database. Sessions report what they counted before they are gone, so only so many others may be left.
  const auto deadlocks = [&](const std::string& sessions) {
    eventually([&] {
      return shell_.run(
                 "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
                 "AND datname = current_database() AND pid <> pg_backend_pid()") == sessions;
    });
    return shell_.run("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()");
  };
  const std::string before = deadlocks("0");
  auto other = stores::make_postgresql_store(options_);
  std::map<std::string, Record> records;
  for (const char* const key : {"a", "b", "first of one", "first of two", "last of one", "last of two"}) {
    records[key] = put(key);
  }
  const auto lock_rows = [&](Shell& shell, const std::string& pattern) {
    shell.run("BEGIN; SELECT FROM " + table_ + " WHERE convert_from(key, 'UTF8') LIKE '" + pattern + "' FOR UPDATE");
  };
  const auto two_wait = [&] {
    return shell_.run(
               "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'once' "
               "AND datname = current_database() AND wait_event_type = 'Lock'") == "2";
  };
  Shell first;
  Shell last;
  lock_rows(first, "first of %");
  lock_rows(last, "last of %");
  std::map<std::string, Pending> ours;
  std::map<std::string, Pending> theirs;
  const auto write = [&](Store& store, std::map<std::string, Pending>& calls, const std::string& key) {
    const Record& record = records[key];
    store.replace(share(next_of(record)), {record.owner, record.revision}, calls[key].done());
  };
  write(store(), ours, "first of one");
  write(*other, theirs, "first of two");
  eventually(two_wait);
  for (const char* const key : {"a", "last of one", "b"}) write(store(), ours, key);
  for (const char* const key : {"b", "last of two", "a"}) write(*other, theirs, key);
  // A later call was taken up, so those before it have queued.
  blocking::get(store(), "a");
  blocking::get(*other, "a");
  first.run("COMMIT");
  ours["first of one"].wait();
  theirs["first of two"].wait();
  eventually(two_wait);
  last.run("COMMIT");
  for (const char* const key : {"a", "b"}) {
    const Status mine = ours[key].wait().status;
    const Status yours = theirs[key].wait().status;
    EXPECT_TRUE((mine == Status::done) != (yours == Status::done)) << "one winner, key " << key;
  }
  EXPECT_EQ(ours["last of one"].wait().status, Status::done);
  EXPECT_EQ(theirs["last of two"].wait().status, Status::done);
  store_.reset();
  other.reset();
  EXPECT_EQ(deadlocks("2"), before) << "first and last are still connected";
}

TEST_F(PostgresqlStoreTest, AConnectionThatEndedWhileItWasIdleIsNoDoubt) {
  put("first");
  const std::string ours = "FROM pg_stat_activity WHERE application_name = 'once' AND datname = current_database()";
  shell_.run("SELECT pg_terminate_backend(pid) " + ours);
  eventually([&] { return shell_.run("SELECT count(*) " + ours) == "0"; });
  put("second");
  EXPECT_NE(blocking::get(store(), "first").record, nullptr);
}

TEST_F(PostgresqlStoreTest, AConnectionThatEndsBeforeTheCommitLeavesDoubtAndTheTruthIsFound) {
  put("before");
  shell_.run("SELECT pg_advisory_lock(7)");
  trigger("PERFORM pg_advisory_xact_lock(7);");
  Pending stuck;
  options_.operation_timeout = Millis{30'000};
  store().insert(share(plain_record("marked")), stuck.done());
  const auto stuck_pid = [&] {
    return shell_.run(
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()");
  };
  // The group's lock_timeout ends it first; on its connection aside it waits on.
  eventually([&] {
    const std::string pid = stuck_pid();
    if (pid.empty()) return false;
    shell_.run("SELECT pg_terminate_backend(" + pid + ")");
    return true;
  });
  const Answer answer = stuck.wait();
  EXPECT_EQ(answer.error.kind, ErrorKind::in_doubt) << answer.error.message;
  shell_.run("SELECT pg_advisory_unlock(7)");
  EXPECT_EQ(blocking::get(store(), "marked").record, nullptr);
  EXPECT_EQ(blocking::insert(store(), plain_record("marked")).status, Status::done);
}

// A commit that waits for a synchronous standby, and is cancelled: the server says COMMIT and a warning.
TEST_F(PostgresqlStoreTest, ACancelledWaitForAStandbyIsInDoubt) {
  put("before");
  // The wait begins with a server that waits for standbys; this one has none. Everybody's commits wait now.
  shell_.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
  shell_.run("SET synchronous_commit = local");
  shell_.run("SELECT pg_reload_conf()");
  // The server's checkpointer reads the setting, some time after this. The commits until then do not wait.
  std::optional<Pending> stuck;
  std::string key;
  eventually([&] {
    if (!stuck || stuck->is_there()) {
      key += "stuck ";
      store().insert(share(plain_record(key)), stuck.emplace().done());
    }
    return waiting("SyncRep") == "1";
  });
  EXPECT_FALSE(stuck->is_there());  // Not before the commit is durable.
  EXPECT_EQ(blocking::get(store(), key).record, nullptr);
  shell_.run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
  const Answer answer = stuck->wait();
  EXPECT_EQ(answer.error.kind, ErrorKind::in_doubt) << "status " << static_cast<int>(answer.status);
  EXPECT_THAT(answer.error.message, HasSubstr("synchronous standby was cancelled"));
  shell_.run("ALTER SYSTEM RESET synchronous_standby_names");
  shell_.run("SELECT pg_reload_conf()");
  eventually([&] { return shell_.run("SHOW synchronous_standby_names").empty(); });
  EXPECT_NE(blocking::get(store(), key).record, nullptr);
  put("after");
}

// Nobody waits for ever for a standby that is gone, and nothing is cancelled.
TEST_F(PostgresqlStoreTest, AStandbyThatIsGoneIsInDoubtAtTheDeadline) {
  options_.operation_timeout = Millis{1'000};
  put("before");
  shell_.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
  shell_.run("SET synchronous_commit = local");
  shell_.run("SELECT pg_reload_conf()");
  Answer answer;
  std::string key;
  eventually([&] {  // As above.
    key += "stuck ";
    answer = blocking::insert(store(), plain_record(key));
    return answer.status != Status::done;
  });
  EXPECT_EQ(answer.error.kind, ErrorKind::in_doubt) << answer.error.message;
  shell_.run("ALTER SYSTEM RESET synchronous_standby_names");
  shell_.run("SELECT pg_reload_conf()");
  eventually([&] { return waiting("SyncRep") == "0"; });
  EXPECT_NE(blocking::get(store(), key).record, nullptr);
}

TEST_F(PostgresqlStoreTest, AnAdministratorsSettingsWeakenNothing) {
  const std::string database = shell_.run("SELECT quote_ident(current_database())");
  const auto set = [&](const std::string& setting) { shell_.run("ALTER DATABASE " + database + " SET " + setting); };
  set("default_transaction_isolation = 'serializable'");
  set("synchronous_commit = 'off'");
  set("statement_timeout = '20s'");
  set("idle_in_transaction_session_timeout = '10s'");
  set("bytea_output = 'escape'");
  // The commit of each written record says how it was made.
  shell_.run("CREATE TABLE " + schema_ + ".seen (isolation text, how text); CREATE FUNCTION " + schema_ +
             ".note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO " + schema_ +
             ".seen VALUES (current_setting('transaction_isolation'), current_setting('synchronous_commit')); "
             "RETURN NULL; END $$; CREATE CONSTRAINT TRIGGER note AFTER INSERT ON " +
             table_ + " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION " + schema_ + ".note()");
  const Record record = put("one");
  put("two");
  EXPECT_EQ(blocking::insert(store(), plain_record("one")).status, Status::refused);
  EXPECT_EQ(blocking::replace(store(), next_of(record), {record.owner, record.revision}).status, Status::done);
  EXPECT_EQ(blocking::sweep(store(), Time{Millis{1}}, 10).error, std::nullopt);
  EXPECT_EQ(blocking::list(store(), {}).records.size(), 2U);
  EXPECT_EQ(shell_.run("SELECT string_agg(DISTINCT isolation || '/' || how, ' ') FROM " + schema_ + ".seen"),
            "read committed/on");
  // A failed member, where each transaction has a BEGIN of its own.
  trigger("RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = 'not this one';");
  std::vector<Pending> calls(20);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    store().insert(share(plain_record((i % 5 == 0 ? "marked " : "good ") + std::to_string(i))), calls[i].done());
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].wait().status, i % 5 == 0 ? Status::failed : Status::done) << i;
  }
  for (const char* const name : {"default_transaction_isolation", "synchronous_commit", "statement_timeout",
                                 "idle_in_transaction_session_timeout", "bytea_output"}) {
    shell_.run("ALTER DATABASE " + database + " RESET " + name);
  }
}

TEST_F(PostgresqlStoreTest, EveryCompletionIsHot) {
  constexpr int operations = 2'000;
  std::vector<Record> records;
  const auto all = [&](const auto& start) {
    std::vector<Pending> calls(operations);
    for (int i = 0; i < operations; ++i) start(i, calls[static_cast<std::size_t>(i)]);
    for (Pending& call : calls) EXPECT_EQ(call.wait().status, Status::done);
  };
  for (int i = 0; i < operations; ++i) {
    Record record = full_record("orders/charge#" + std::to_string(i * 7919 % operations), State::in_progress);
    record.history = {};
    record.steps.clear();
    record.input.clear();
    records.push_back(std::move(record));
  }
  all([&](int i, Pending& call) { store().insert(share(records[static_cast<std::size_t>(i)]), call.done()); });
  all([&](int i, Pending& call) {
    const Record& claim = records[static_cast<std::size_t>(i)];
    Record finished = claim;
    finished.revision += 1;
    finished.state = State::completed;
    finished.lease_until = Time{};
    finished.expires_at = claim.expires_at + std::chrono::hours(1);
    finished.result.bytes = std::string(300, 'r');
    store().replace(share(finished), {claim.owner, claim.revision}, call.done());
  });
  store_.reset();  // Its sessions hand in what they counted.
  const std::string of_table = " FROM pg_stat_user_tables WHERE relid = '" + table_ + "'::regclass";
  eventually([&] { return shell_.run("SELECT n_tup_upd" + of_table) == std::to_string(operations); });
  EXPECT_EQ(shell_.run("SELECT n_tup_hot_upd" + of_table), std::to_string(operations));
}

TEST_F(PostgresqlStoreTest, AnIndexOfTheOperatorsFindsWhatIsInProgress) {
  for (int i = 0; i < 200; ++i) {
    Record record = plain_record("k " + std::to_string(i * 7919 % 200));
    if (i % 40 != 0) record.state = State::completed;
    ASSERT_EQ(blocking::insert(store(), record).status, Status::done);
  }
  const auto running = [&](const std::string& prefix) {
    std::vector<std::string> keys;
    ListQuery query{.state = State::in_progress, .key_prefix = prefix, .cursor = {}, .limit = 2};
    do {
      const ListPage page = blocking::list(store(), query);
      EXPECT_FALSE(page.error) << page.error->message;
      for (const Record& record : page.records) keys.push_back(record.key);
      query.cursor = page.cursor;
    } while (!query.cursor.empty());
    return keys;
  };
  const auto read = [&] {  // How many rows it has looked at in all: its sessions hand in what they counted.
    store_.reset();
    eventually([&] {
      return shell_.run(
                 "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = "
                 "'client backend' AND pid <> pg_backend_pid()") == "0";
    });
    shell_.run("SELECT pg_stat_clear_snapshot()");
    return std::stoi(shell_.run("SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relid = '" +
                                table_ + "'::regclass"));
  };
  const std::vector<std::string> all = running("");
  EXPECT_EQ(all.size(), 5U);
  const std::vector<std::string> some = running("k 1");
  EXPECT_LT(some.size(), all.size());
  EXPECT_FALSE(some.empty());
  // One that another table has, or that is not valid, is not taken for it.
  shell_.run("CREATE TABLE " + schema_ + ".other (key bytea); CREATE INDEX records_running ON " + schema_ +
             ".other (key)");
  int before = read();
  EXPECT_EQ(running(""), all);
  int after = read();
  EXPECT_GE(after - before, 200) << "the whole table";
  shell_.run("DROP INDEX " + schema_ + ".records_running; CREATE INDEX records_running ON " + table_ +
             " (key) WHERE state = 0; ANALYZE " + table_);
  // Little more than it found. Not at the first look if the session that made the index hands in what it counted
  // between the two readings: it may wait a second with that (PGSTAT_MIN_INTERVAL).
  eventually([&] {
    before = read();
    EXPECT_EQ(running(""), all);
    EXPECT_EQ(running("k 1"), some);
    return read() - before <= 30;
  });
}

TEST_F(PostgresqlStoreTest, AnOperatorMayOnlyCallFunctions) {
  const std::string role = schema_ + "_worker";
  shell_.run("CREATE ROLE " + role + " LOGIN; " + stores::postgresql::grant_sql(schema_, role));
  stores::PostgresqlOptions options = options_;
  // Whatever user the URL names: the parameter counts.
  options.url += (options.url.find('?') == std::string::npos ? "?user=" : "&user=") + role;
  {
    const auto store = stores::make_postgresql_store(options);
    const Record record = plain_record("of a worker");
    EXPECT_EQ(blocking::insert(*store, record).status, Status::done);
    EXPECT_EQ(blocking::replace(*store, next_of(record), {record.owner, record.revision}).status, Status::done);
    EXPECT_EQ(*blocking::get(*store, record.key).record, next_of(record));
    EXPECT_EQ(blocking::list(*store, {}).records.size(), 1U);
    EXPECT_EQ(blocking::sweep(*store, Time{Millis{1}}, 10).error, std::nullopt);
  }
  const auto denied = [&](const std::string& sql) {
    try {
      shell_.run("SET ROLE " + role + "; " + sql);
    } catch (const std::runtime_error& error) {
      shell_.run("RESET ROLE");
      return std::string(error.what());
    }
    shell_.run("RESET ROLE");
    return std::string();
  };
  EXPECT_THAT(denied("UPDATE " + table_ + " SET state = 1"), HasSubstr("permission denied"));
  EXPECT_THAT(denied("SELECT * FROM " + table_), HasSubstr("permission denied"));
  EXPECT_THAT(denied("DELETE FROM " + schema_ + ".meta"), HasSubstr("permission denied"));
  shell_.run("DROP OWNED BY " + role + "; DROP ROLE " + role);
}

TEST_F(PostgresqlStoreTest, SaysWhatTheOwnerNeedsToMakeTables) {
  const std::string role = schema_ + "_owner";
  shell_.run("CREATE ROLE " + role + " LOGIN; CREATE SCHEMA " + role + " AUTHORIZATION " + role +
             "; REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC");
  stores::PostgresqlOptions options = options_;
  options.url += (options.url.find('?') == std::string::npos ? "?user=" : "&user=") + role;
  options.schema = role;
  try {
    stores::create_postgresql_schema(options, {});
    ADD_FAILURE() << "made without the right to the language";
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_THAT(error.what(), HasSubstr("GRANT USAGE ON LANGUAGE plpgsql TO"));
  }
  shell_.run("GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC; DROP OWNED BY " + role + "; DROP ROLE " + role);
}

TEST_F(PostgresqlStoreTest, SaysWhatToDoWithoutTables) {
  options_.schema = schema_ + "_none";
  const auto begun = std::chrono::steady_clock::now();
  const Answer answer = blocking::insert(store(), plain_record("x"));
  EXPECT_EQ(answer.error.kind, ErrorKind::misuse);
  EXPECT_THAT(answer.error.message, HasSubstr("once table create"));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(9)) << "it waited for its deadline";
}

TEST_F(PostgresqlStoreTest, RefusesAServerThatForgets) {
  options_.allow_unsafe = false;
  const Answer answer = blocking::insert(store(), plain_record("x"));
  if (shell_.run("SHOW fsync") == "on") {
    EXPECT_EQ(answer.status, Status::done);
  } else {
    EXPECT_EQ(answer.error.kind, ErrorKind::misuse);
    EXPECT_THAT(answer.error.message, HasSubstr("fsync off"));
    EXPECT_EQ(shell_.run("SELECT count(*) FROM " + table_), "0");
  }
}

TEST_F(PostgresqlStoreTest, WaitsForAServerAndThenGivesUp) {
  options_.url = "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1";
  options_.operation_timeout = Millis{1'000};
  const Answer answer = blocking::insert(store(), plain_record("x"));
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable);
  EXPECT_THAT(answer.error.message, HasSubstr("Connection refused"));
}

// --- Sealed records, and programs that were not told of the keys

TEST_F(PostgresqlStoreTest, AfterTheFirstSealedRecordNobodyClaimsInTheClear) {
  Record before = put("before");
  const Record released = put("released");
  ASSERT_EQ(blocking::insert(store(), sealed_record("sealed")).status, Status::done);
  for (int i = 0; i < 2; ++i) {  // A program that had the schema open before, and one that opens it now.
    const Answer answer = blocking::insert(store(), plain_record("new"));
    EXPECT_EQ(answer.error.kind, ErrorKind::misuse) << answer.error.message;
    EXPECT_FALSE(answer.unfit) << "an operator can mend it";
    EXPECT_THAT(answer.error.message, AllOf(HasSubstr("holds, or held, sealed records"), HasSubstr("seal=FILE"),
                                            HasSubstr("write_clear=1"), HasSubstr("Nothing was written")));
    EXPECT_EQ(blocking::get(store(), "new").record, nullptr);
    EXPECT_EQ(blocking::insert(store(), plain_record("sealed")).status, Status::refused) << "it learns what is there";
    Record taken = next_of(released);
    taken.owner = owner_of(77);
    EXPECT_EQ(blocking::replace(store(), taken, {released.owner, released.revision}).error.kind, ErrorKind::misuse);
    EXPECT_EQ(blocking::get(store(), "released").record->owner, released.owner);
    EXPECT_EQ(blocking::replace(store(), taken, {owner_of(78), released.revision}).status, Status::refused);
    store_.reset();
  }
  const Record renewed = next_of(before);
  EXPECT_EQ(blocking::replace(store(), renewed, {before.owner, before.revision}).status, Status::done)
      << "a claim from before goes on, or its result would be lost";
  EXPECT_EQ(blocking::insert(store(), sealed_record("another")).status, Status::done);
  store_.reset();
  options_.allow_clear = true;
  put("allowed");
}

TEST_F(PostgresqlStoreTest, TheMarkOutlivesTheSealedRecordAndNotItsRollback) {
  trigger("RAISE EXCEPTION USING ERRCODE = '23514';");
  ASSERT_EQ(blocking::insert(store(), sealed_record("marked, and rolled back")).error.kind, ErrorKind::misuse);
  put("still in the clear");
  const Record sealed = sealed_record("sealed");
  ASSERT_EQ(blocking::insert(store(), sealed).status, Status::done);
  ASSERT_EQ(blocking::remove(store(), sealed.key, {sealed.owner, sealed.revision}).status, Status::done);
  EXPECT_EQ(blocking::insert(store(), plain_record("new")).error.kind, ErrorKind::misuse);
}

TEST_F(PostgresqlStoreTest, ARefusedClaimInTheClearHarmsNoOtherOfItsGroup) {
  constexpr int many = 40;
  std::vector<Pending> calls(many);
  for (int i = 0; i < many; ++i) {  // The first ones race to set the mark.
    store().insert(share(sealed_record("sealed " + std::to_string(i))), calls[static_cast<std::size_t>(i)].done());
  }
  for (Pending& call : calls) EXPECT_EQ(call.wait().status, Status::done);
  std::vector<Pending> mixed(many);
  for (int i = 0; i < many; ++i) {
    const std::string key = "mixed " + std::to_string(i);
    store().insert(share(i % 2 == 0 ? sealed_record(key) : plain_record(key)),
                   mixed[static_cast<std::size_t>(i)].done());
  }
  for (std::size_t i = 0; i < many; ++i) {
    const Answer answer = mixed[i].wait();
    EXPECT_EQ(answer.status, i % 2 == 0 ? Status::done : Status::failed) << i << ": " << answer.error.message;
  }
}

TEST_F(PostgresqlStoreTest, TellsTheServersTime) {
  EXPECT_EQ(store().time(), std::nullopt);
  blocking::get(store(), "nothing");
  const auto told = store().time();
  ASSERT_TRUE(told.has_value());
  const Time server{
      Millis{std::stoll(shell_.run("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"))}};
  const auto later = store().time();
  EXPECT_LE(told->now - told->error, server);
  EXPECT_GE(later->now + later->error, server);
}

// Copies of a process must not share a connection, and its clock may have stood still.
TEST_F(PostgresqlStoreTest, SnapshotAndRestoreRenewConnectionsAndTime) {
  const auto pids = [&] {
    return shell_.run(
        "SELECT string_agg(pid::text, ',' ORDER BY pid) FROM pg_stat_activity WHERE application_name = 'once' AND "
        "datname = current_database()");
  };
  put("first");
  for (const auto& happens : {&before_snapshot, &after_restore}) {
    ASSERT_TRUE(store().time().has_value());
    const std::string old = pids();
    ASSERT_NE(old, "");
    happens();
    EXPECT_EQ(store().time(), std::nullopt);
    EXPECT_NE(blocking::get(store(), "first").record, nullptr);
    EXPECT_TRUE(store().time().has_value());
    put(happens == &before_snapshot ? "second" : "third");  // Reads and writes may have a connection of their own.
    eventually([&] { return shell_.run("SELECT count(*) FROM pg_stat_activity WHERE pid IN (" + old + ")") == "0"; });
    EXPECT_NE(pids(), "");
  }
}

TEST_F(PostgresqlStoreTest, SweepsManyAndPassesByWhatIsLocked) {
  for (int i = 0; i < 1'200; ++i) {
    Record record = plain_record("old " + std::to_string(i));
    record.expires_at = Time{Millis{5}};
    store().insert(share(record), [](const Answer&) {});
  }
  eventually([&] { return shell_.run("SELECT count(*) FROM " + table_) == "1200"; });
  shell_.run("BEGIN; SELECT FROM " + table_ + " WHERE key = 'old 7' FOR UPDATE");
  const SweepAnswer swept = blocking::sweep(store(), Time{Millis{5}}, 5'000);
  EXPECT_EQ(swept.error, std::nullopt);
  EXPECT_EQ(swept.removed, 1'199U);
  shell_.run("COMMIT");
  EXPECT_EQ(blocking::sweep(store(), Time{Millis{5}}, 5'000).removed, 1U);
}

// --- Who may only EXECUTE, and what stands between the functions and the table

TEST_F(PostgresqlStoreTest, AFutureSweepRemovesNothingValid) {
  put("live");
  Record old = plain_record("old");
  old.expires_at = Time{Millis{5}};
  EXPECT_EQ(blocking::insert(store(), old).status, Status::done);
  const std::string sweep = "SELECT removed FROM " + schema_ + ".sweep_1(";
  const std::string server_now = schema_ + ".now_1()";
  shell_.run("UPDATE " + table_ + " SET expires_at_ms = " + server_now +
             " + 3600000, sweep_at_ms = 5 WHERE key = 'live'");
  for (const std::string& call :
       {sweep + "9223372036854775807, 1000000)", sweep + "NULL, NULL)", sweep + server_now + " + 7200000, 10)"}) {
    shell_.run(call);
    EXPECT_NE(blocking::get(store(), "live").record, nullptr) << call;
    EXPECT_EQ(blocking::get(store(), "old").record, nullptr) << call << ": what has expired goes";
  }
  EXPECT_EQ(blocking::sweep(store(), never - Millis{1}, 10).removed, 0U);
}

// However many the caller asks for: it would hold their locks, and the server's memory, for as long.
TEST_F(PostgresqlStoreTest, ASweepRemovesAtMostTenThousand) {
  shell_.run("INSERT INTO " + table_ +
             " (key, state, attempt, revision, token, owner, expires_at_ms, sweep_at_ms, created_at_ms) "
             "SELECT ('k' || n)::bytea, 1, 1, 1048576, 1, '\\x00', 5, 5, 1 FROM generate_series(1, 10001) n");
  shell_.run("SELECT removed FROM " + schema_ + ".sweep_1(9223372036854775807, 1000000)");
  EXPECT_EQ(shell_.run("SELECT count(*) FROM " + table_), "1");
}

TEST_F(PostgresqlStoreTest, AFinishedRevisionHasTwentyRandomBits) {
  const Record record = put("mine");
  const std::string call = "SELECT " + schema_ + ".finish_1('mine', '\\x" + record.owner.hex() + "', -1, " +
                           std::to_string(unix_ms(record.expires_at)) + ", 1, 'x', NULL, NULL, NULL, NULL, NULL)";
  shell_.run(call);
  EXPECT_EQ(blocking::get(store(), "mine").record->revision,
            ((revision_count(record.revision) + 1) << revision_random_bits) + (1U << revision_random_bits) - 1);
}

// A table whose writes are swallowed or changed: by what, and which of them.
struct Meddler {
  const char* name;
  const char* sql;
  bool inserts;
  bool replaces;
  bool removes;
};

void PrintTo(const Meddler& meddler, std::ostream* out) { *out << meddler.name; }

class MeddlerTest : public PostgresqlStoreTest, public ::testing::WithParamInterface<Meddler> {};

constexpr Meddler meddlers[] = {
    {"insert_skipped", "CREATE TRIGGER meddle BEFORE INSERT ON records FOR EACH ROW EXECUTE FUNCTION skip()", true,
     false, false},
    {"update_skipped", "CREATE TRIGGER meddle BEFORE UPDATE ON records FOR EACH ROW EXECUTE FUNCTION skip()", false,
     true, false},
    {"delete_skipped", "CREATE TRIGGER meddle BEFORE DELETE ON records FOR EACH ROW EXECUTE FUNCTION skip()", false,
     false, true},
    {"row_changed", "CREATE TRIGGER meddle BEFORE INSERT OR UPDATE ON records FOR EACH ROW EXECUTE FUNCTION change()",
     true, true, false},
    {"result_changed", "CREATE TRIGGER meddle BEFORE UPDATE ON records FOR EACH ROW EXECUTE FUNCTION answer()", false,
     true, false},
    {"insert_rule", "CREATE RULE meddle AS ON INSERT TO records DO INSTEAD NOTHING", true, false, false},
    {"update_rule", "CREATE RULE meddle AS ON UPDATE TO records DO INSTEAD NOTHING", true, true, false},
    {"delete_rule", "CREATE RULE meddle AS ON DELETE TO records DO INSTEAD NOTHING", false, false, true},
};

TEST_P(MeddlerTest, IsReportedAndNothingIsWritten) {
  const Meddler& meddler = GetParam();
  const Record there = put("there");
  const Record gone = put("gone");
  Record old = plain_record("old");
  old.expires_at = Time{Millis{5}};
  ASSERT_EQ(blocking::insert(store(), old).status, Status::done);
  shell_.run("SET search_path = " + schema_ +
             "; CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
             "CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS "
             "'BEGIN NEW.lease_until_ms := 7; RETURN NEW; END'; "
             "CREATE FUNCTION answer() RETURNS trigger LANGUAGE plpgsql AS "
             "'BEGIN NEW.result := NEW.key; RETURN NEW; END'; " +
             meddler.sql + "; RESET search_path");
  const auto check = [&](const Answer& answer, bool meddled, const char* what) {
    if (!meddled) {
      EXPECT_EQ(answer.status, Status::done) << what << ": " << answer.error.message;
      return;
    }
    EXPECT_EQ(answer.error.kind, ErrorKind::misuse) << what << ": " << answer.error.message;
    // A rule has no row to return, which the server says itself.
    EXPECT_THAT(answer.error.message, ::testing::AnyOf(HasSubstr("ON008"), HasSubstr("0A000"))) << what;
  };
  check(blocking::insert(store(), plain_record("new")), meddler.inserts, "insert");
  EXPECT_EQ(blocking::get(store(), "new").record != nullptr, !meddler.inserts);
  check(blocking::replace(store(), next_of(there), seen_of(there)), meddler.replaces, "replace");
  EXPECT_EQ(*blocking::get(store(), "there").record, meddler.replaces ? there : next_of(there));
  check(blocking::remove(store(), "gone", seen_of(gone)), meddler.removes, "remove");
  EXPECT_EQ(blocking::get(store(), "gone").record != nullptr, meddler.removes);
  const SweepAnswer swept = blocking::sweep(store(), Time{Millis{6}}, 1'000);
  EXPECT_EQ(swept.error.has_value(), meddler.removes) << "or it is tried for ever";
  if (meddler.replaces) {
    try {
      shell_.run("SELECT " + schema_ + ".finish_1('there', '\\x" + there.owner.hex() +
                 "', 1, NULL, 1, 'x', NULL, NULL, NULL, NULL, NULL)");
      // The changed field is none that a finish sets to anything but NULL.
      EXPECT_STREQ(meddler.name, "row_changed");
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), ::testing::AnyOf(HasSubstr("as it was"), HasSubstr("RETURNING"))) << meddler.name;
    }
  }
  const stores::SchemaReport report = stores::check_postgresql_schema(options_);
  EXPECT_FALSE(report.fits());
  EXPECT_THAT(report.findings, ::testing::Contains(::testing::Field(&stores::TableFinding::text,
                                                                    AllOf(HasSubstr("meddle"), HasSubstr("ON008")))));
}

INSTANTIATE_TEST_SUITE_P(All, MeddlerTest, ::testing::ValuesIn(meddlers),
                         [](const auto& test) { return std::string(test.param.name); });

// The owner itself sees what the policy shows.
TEST_F(PostgresqlStoreTest, AHiddenRecordIsNotWrittenOver) {
  const std::string owner = schema_ + "_owner";
  put("hidden");
  shell_.run("CREATE ROLE " + owner + " LOGIN; GRANT USAGE ON SCHEMA " + schema_ + " TO " + owner + "; ALTER TABLE " +
             table_ + " OWNER TO " + owner + "; ALTER TABLE " + schema_ + ".meta OWNER TO " + owner);
  shell_.run("DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = '" + schema_ +
             "'::regnamespace LOOP EXECUTE 'ALTER FUNCTION ' || f || ' OWNER TO " + owner + "'; END LOOP; END $$");
  shell_.run("ALTER TABLE " + table_ + " ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY blind ON " +
             table_ + " FOR SELECT USING (false); CREATE POLICY writes ON " + table_ + " FOR INSERT WITH CHECK (true)");
  const Answer answer = blocking::insert(store(), plain_record("hidden"));
  EXPECT_EQ(answer.error.kind, ErrorKind::misuse) << answer.error.message;
  EXPECT_EQ(shell_.run("SELECT count(*) FROM " + table_), "1");
  EXPECT_THAT(stores::check_postgresql_schema(options_).findings,
              ::testing::Contains(::testing::Field(&stores::TableFinding::text, HasSubstr("row security"))));
  shell_.run("REASSIGN OWNED BY " + owner + " TO CURRENT_USER; DROP OWNED BY " + owner + "; DROP ROLE " + owner);
}

TEST_F(PostgresqlStoreTest, UnloggedTablesAreRefused) {
  shell_.run("ALTER TABLE " + table_ + " SET UNLOGGED");
  EXPECT_THAT(stores::check_postgresql_schema(options_).findings,
              ::testing::Contains(::testing::Field(&stores::TableFinding::text, HasSubstr("UNLOGGED: records"))));
  put("allowed");  // By allow_unsafe.
  store_.reset();
  options_.allow_unsafe = false;
  EXPECT_FALSE(stores::check_postgresql_schema(options_).fits());
  if (shell_.run("SHOW fsync") == "on") {
    EXPECT_THAT(blocking::insert(store(), plain_record("x")).error.message, HasSubstr("are UNLOGGED"));
  } else {
    EXPECT_EQ(blocking::insert(store(), plain_record("x")).error.kind, ErrorKind::misuse);
  }
}

// Version 1 had a sweep that believed the caller's time.
TEST_F(PostgresqlStoreTest, AnUpgradeReplacesTheFunctionsAndKeepsTheRights) {
  const std::string role = schema_ + "_worker";
  shell_.run("CREATE ROLE " + role + " LOGIN; " + stores::postgresql::grant_sql(schema_, role));
  put("live");
  shell_.run("UPDATE " + table_ + " SET expires_at_ms = " + schema_ + ".now_1() + 3600000");
  shell_.run("UPDATE " + schema_ + ".meta SET value = '1' WHERE name = 'version'; CREATE OR REPLACE FUNCTION " +
             schema_ +
             ".sweep_1(at_ms bigint, most integer, OUT removed integer, OUT more boolean, OUT now_ms bigint) LANGUAGE "
             "plpgsql SECURITY DEFINER AS $$ BEGIN DELETE FROM " +
             table_ + " WHERE sweep_at_ms <= at_ms; END $$");
  EXPECT_FALSE(stores::check_postgresql_schema(options_).fits());
  EXPECT_EQ(stores::create_postgresql_schema(options_, {}), stores::SchemaChange::was_there);
  EXPECT_EQ(stores::upgrade_postgresql_schema(options_), stores::SchemaChange::upgraded);
  EXPECT_EQ(stores::upgrade_postgresql_schema(options_), stores::SchemaChange::was_there);
  shell_.run("SET ROLE " + role + "; SELECT " + schema_ + ".sweep_1(9223372036854775807, 1000000); RESET ROLE");
  EXPECT_NE(blocking::get(store(), "live").record, nullptr);
  EXPECT_EQ(stores::check_postgresql_schema(options_).version, stores::postgresql_schema_version());
  shell_.run("DROP OWNED BY " + role + "; DROP ROLE " + role);
}

// A large result needs new pages, and a small one does not.
TEST_F(PostgresqlStoreTest, OnAFullDiskAResultGivesWayToItsOutcome) {
  shell_.run("CREATE FUNCTION " + schema_ +
             ".full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF octet_length(NEW.result) > 1000 THEN RAISE "
             "EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file'; END IF; RETURN NEW; END $$; CREATE "
             "TRIGGER full_disk BEFORE UPDATE ON " +
             table_ + " FOR EACH ROW EXECUTE FUNCTION " + schema_ + ".full()");
  const std::shared_ptr<Store> shared = stores::make_postgresql_store(options_);
  Engine engine({.store = shared, .observer = [](const Event&) {}});
  std::string noise(4'000, ' ');  // Does not become shorter when it is compressed.
  std::minstd_rand random;
  for (char& c : noise) c = static_cast<char>(random());
  EXPECT_EQ(engine.run("a", {}, [&] { return noise; }).kind, Outcome::Kind::executed);
  const Outcome again = engine.run("a", {}, [&]() -> std::string { throw std::runtime_error("it runs again"); });
  EXPECT_EQ(again.kind, Outcome::Kind::replayed) << again.error.message;
  EXPECT_EQ(again.result.placement, Placement::dropped);
}

// --- The commit itself fails: after each write was fine

TEST_F(PostgresqlStoreTest, AWriteWhoseCommitFailsIsNotAcknowledged) {
  shell_.run("CREATE FUNCTION " + schema_ +
             ".late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF convert_from(substr(NEW.key, 1, 4), 'UTF8') = "
             "'late' THEN RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = 'too late'; END IF; RETURN NULL; END $$; "
             "CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON " +
             table_ + " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION " + schema_ + ".late()");
  const Answer alone = blocking::insert(store(), plain_record("late alone"));
  EXPECT_EQ(alone.status, Status::failed);
  EXPECT_THAT(alone.error.message, AllOf(HasSubstr("too late"), HasSubstr("at the commit")));
  // One holds up the lane, so that the others go out as a group.
  for (int round = 0; round < 5; ++round) {
    std::vector<std::pair<std::string, Pending>> calls;
    for (int i = 0; i < 20; ++i) {
      const std::string key = (i % 10 == 3 ? "late " : "good ") + std::to_string(round) + "." + std::to_string(i);
      calls.emplace_back(key, Pending());
      store().insert(share(plain_record(key)), calls.back().second.done());
    }
    for (auto& [key, call] : calls) {
      const Answer answer = call.wait();
      const bool is_there = blocking::get(store(), key).record != nullptr;
      EXPECT_FALSE(key.starts_with("late") && is_there) << key;
      // Acknowledged, and it is not there: that must not be.
      EXPECT_EQ(answer.status == Status::done, is_there) << key << ": " << answer.error.message;
      EXPECT_TRUE(is_there || answer.error.kind == ErrorKind::in_doubt) << answer.error.message;
    }
  }
  // A finish, too: the claim stands as it was.
  shell_.run("ALTER TABLE " + table_ + " DISABLE TRIGGER late");
  const Record claim = put("late claim");
  shell_.run("ALTER TABLE " + table_ + " ENABLE TRIGGER late");
  EXPECT_NE(blocking::replace(store(), next_of(claim), seen_of(claim)).status, Status::done);
  EXPECT_EQ(*blocking::get(store(), "late claim").record, claim);
}

}  // namespace postgresql_store_test
}  // namespace once::testing
