// The gate of a store, and moving records from one to another: SQLite and PostgreSQL, in both directions.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/move.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/moving.hpp>
#include <once/stores/postgresql.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "../sqlite/scratch_directory.hpp"
#include "database.hpp"
#include "stores/postgresql/schema_sql.hpp"

namespace once {

void PrintTo(Gate gate, std::ostream* out) { *out << to_string(gate); }

namespace testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Kind = StoreGate::Changed::Kind;
using Status = AnswerStatus;

enum class Where { sqlite, postgresql };

// An empty store of its own, which can be opened more than once.
class Place {
 public:
  explicit Place(Where where) : where_(where) {
    if (where_ == Where::postgresql) Shell().run(stores::postgresql::create_sql(schema_));
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    if (where_ == Where::postgresql) Shell().run("DROP SCHEMA " + schema_ + " CASCADE");
  }

  [[nodiscard]] std::unique_ptr<Store> open(const std::shared_ptr<Clock>& clock = system_clock()) const {
    if (where_ == Where::sqlite)
      return stores::make_sqlite_store({.path = file(), .allow_clear = true, .clock = clock});
    return stores::make_postgresql_store(
        {.url = test_url(), .schema = schema_, .allow_unsafe = true, .allow_clear = true});
  }
  [[nodiscard]] std::string file() const { return scratch_.file(); }
  [[nodiscard]] const std::string& schema() const noexcept { return schema_; }

 private:
  const Where where_;
  const Scratch scratch_;
  const std::string schema_ = fresh_schema();
};

Time in(Millis time) { return system_clock()->now() + time; }

// A claim with a live lease.
Record claim(const std::string& key) {
  Record record = plain_record(key);
  record.created_at = in(0ms);
  record.lease_until = in(60s);
  record.expires_at = in(24h);
  return record;
}
Record lapsed(const std::string& key) {
  Record record = claim(key);
  record.lease_until = in(-1s);
  return record;
}
Record finished(Record record) {
  record.revision += revision_of(1);
  record.state = State::completed;
  record.lease_until = Time{};
  record.finished_at = in(0ms);
  record.result.bytes = "done by the holder";
  return record;
}
Record taken_over(Record record) {
  record.revision += revision_of(1);
  record.owner = owner_of(7);
  record.attempt += 1;
  record.token += 1;
  record.lease_until = in(60s);
  return record;
}

void put(Store& store, const Record& record) {
  ASSERT_EQ(blocking::insert(store, record).status, Status::done) << describe(record);
}
std::optional<Record> got(Store& store, const std::string& key) {
  const Answer answer = blocking::get(store, key);
  EXPECT_EQ(answer.status, Status::done) << describe(answer);
  return copy_of(answer.record);
}
bool is_done(const Answer& answer) { return answer.status == Status::done; }
// Nothing was written, and no policy takes the error for a store that is out of reach.
bool is_stopped(const Answer& answer, const char* because) {
  if (answer.status == Status::failed && answer.error.kind == ErrorKind::misuse && !answer.unfit &&
      answer.error.message.find(because) != std::string::npos) {
    return true;
  }
  ADD_FAILURE() << describe(answer);
  return false;
}

std::set<std::string> keys_in(Store& store) {
  std::set<std::string> keys;
  const auto error = operate::for_each(store, {}, in(0ms), [&](const Record& record) {
    keys.insert(record.key);
    return true;
  });
  EXPECT_FALSE(error.has_value()) << error->message;
  return keys;
}

const GateMark filling{.gate = Gate::filling, .move = std::string(32, 'a'), .other = "sqlite:/there's a 'name'.db"};
const GateMark draining{.gate = Gate::draining, .move = std::string(32, 'a'), .other = "postgresql://there/pay"};
const GateMark closed{.gate = Gate::closed, .move = std::string(32, 'a'), .other = "postgresql://there/pay"};
const GateMark filled{.gate = Gate::filled, .move = std::string(32, 'a'), .other = "sqlite:/there's a 'name'.db"};

// ---- The gate of one store

class GateTest : public ::testing::TestWithParam<Where> {
 protected:
  const Place place_{GetParam()};
  const std::unique_ptr<Store> before_ = place_.open();  // Open since before the gate was changed.
  const std::unique_ptr<Store> store_ = place_.open();
  StoreGate& gate_ = *store_->gate();

  void to(const GateMark& next, const GateMark& seen = {}) {
    ASSERT_EQ(gate_.change(seen, next, {}).kind, Kind::done) << to_string(next.gate);
    ASSERT_EQ(place_.open()->gate()->mark(), next);
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, GateTest, ::testing::Values(Where::sqlite, Where::postgresql),
                         [](const auto& test) { return test.param == Where::sqlite ? "sqlite" : "postgresql"; });

TEST_P(GateTest, ANewStoreIsOpenAndAChangeNamesWhatItSaw) {
  EXPECT_EQ(gate_.mark(), GateMark{});
  EXPECT_EQ(gate_.change(draining, closed, {}).kind, Kind::other);
  EXPECT_EQ(gate_.mark(), GateMark{});
  to(draining);
  GateMark of_another = draining;
  of_another.move = std::string(32, 'b');
  EXPECT_EQ(gate_.change(of_another, {}, {}).kind, Kind::other);
  EXPECT_EQ(gate_.mark(), draining);
  to({}, draining);
  EXPECT_TRUE(is_done(blocking::insert(*before_, claim("k"))));
}

TEST_P(GateTest, DrainingLetsHoldersFinishAndBeginsNothing) {
  for (const char* const key : {"runs", "over", "released", "removed"}) put(*before_, claim(key));
  put(*before_, lapsed("lapsed"));
  put(*before_, finished(claim("completed")));
  to(draining);
  for (Store* const store : {before_.get(), store_.get()}) {
    EXPECT_TRUE(is_stopped(blocking::insert(*store, claim("new")), "no operation can begin here. Nothing was run"));
    const Record there = lapsed("lapsed");
    EXPECT_TRUE(is_stopped(blocking::replace(*store, taken_over(there), seen_of(there)), "no operation can begin"));
    const Answer replay = blocking::insert(*store, claim("completed"));
    EXPECT_EQ(replay.status, Status::refused);
    ASSERT_NE(replay.record, nullptr);
    EXPECT_EQ(replay.record->result.bytes, "done by the holder");
    EXPECT_EQ(blocking::replace(*store, taken_over(there), Seen{.owner = owner_of(9), .revision = 1}).status,
              Status::refused);
  }
  Record runs = *got(*store_, "runs");
  const Seen seen = seen_of(runs);
  runs.revision += revision_of(1);
  runs.lease_until = in(120s);
  EXPECT_TRUE(is_done(blocking::replace(*before_, runs, seen)));
  EXPECT_TRUE(is_done(blocking::replace(*before_, finished(runs), seen_of(runs))));
  // An operator gives an operation up, in the name of a new owner, and decides another.
  Record released = *got(*store_, "released");
  const Seen held = seen_of(released);
  released.owner = owner_of(8);
  released.revision += revision_of(1);
  released.lease_until = Time{};
  EXPECT_TRUE(is_done(blocking::replace(*before_, released, held)));
  Record over = finished(*got(*store_, "over"));
  over.owner = owner_of(8);
  EXPECT_TRUE(is_done(blocking::replace(*before_, over, seen_of(*got(*store_, "over")))));
  EXPECT_TRUE(is_done(blocking::remove(*before_, "removed", seen_of(claim("removed")))));
  EXPECT_EQ(keys_in(*store_), (std::set<std::string>{"completed", "lapsed", "over", "released", "runs"}));
}

TEST_P(GateTest, ClosesOnlyWhenNoClaimIsLive) {
  const Record runs = claim("runs");
  put(*before_, runs);
  put(*before_, lapsed("lapsed"));
  put(*before_, finished(claim("completed")));
  Record old = finished(claim("old"));
  old.expires_at = Time{Millis{5}};  // PostgreSQL sweeps what its own clock says has expired.
  put(*before_, old);
  to(draining);
  auto changed = gate_.change(draining, closed, in(0ms));
  EXPECT_EQ(changed.kind, Kind::live);
  EXPECT_EQ(changed.live, 1U);
  EXPECT_EQ(gate_.mark(), draining);
  EXPECT_TRUE(is_done(blocking::replace(*before_, finished(runs), seen_of(runs))));
  EXPECT_EQ(gate_.change(draining, closed, in(0ms)).kind, Kind::done);

  const Record there = *got(*before_, "lapsed");
  const char* const moved = "has moved to postgresql://there/pay. Nothing was run or written";
  for (Store* const store : {before_.get(), store_.get()}) {
    EXPECT_TRUE(is_stopped(blocking::insert(*store, claim("new")), moved));
    EXPECT_TRUE(is_stopped(blocking::replace(*store, taken_over(there), seen_of(there)), moved));
    EXPECT_TRUE(is_stopped(blocking::replace(*store, finished(there), seen_of(there)), moved));
    EXPECT_TRUE(is_stopped(blocking::remove(*store, "lapsed", seen_of(there)), moved));
    const SweepAnswer swept = blocking::sweep(*store, in(48h), 100);
    ASSERT_TRUE(swept.error.has_value());
    EXPECT_EQ(swept.error->kind, ErrorKind::misuse);
    EXPECT_EQ(swept.removed, 0U);
    EXPECT_EQ(blocking::insert(*store, claim("completed")).status, Status::refused);
  }
  EXPECT_EQ(keys_in(*store_), (std::set<std::string>{"completed", "lapsed", "old", "runs"}));
}

TEST_P(GateTest, FillingTakesOnlyTheRecordsOfItsMove) {
  to(filling);
  const Record first = full_record("first");
  gate_.fill(filling, {share(first), share(lapsed("lapsed"))});
  gate_.fill(filling, {share(first), share(full_record("second", State::completed))});
  EXPECT_EQ(differences(first, got(*before_, "first")), "");
  EXPECT_EQ(keys_in(*before_), (std::set<std::string>{"first", "lapsed", "second"}));
  for (Store* const store : {before_.get(), store_.get()}) {
    EXPECT_TRUE(
        is_stopped(blocking::insert(*store, claim("new")), "waits for the records of sqlite:/there's a 'name'"));
    const Record there = *got(*store, "lapsed");
    EXPECT_TRUE(is_stopped(blocking::replace(*store, taken_over(there), seen_of(there)), "waits for the records"));
    EXPECT_TRUE(is_stopped(blocking::remove(*store, "lapsed", seen_of(there)), "waits for the records"));
    EXPECT_EQ(blocking::insert(*store, claim("second")).status, Status::refused);
  }
  GateMark of_another = filling;
  of_another.move = std::string(32, 'b');
  EXPECT_THROW(gate_.fill(of_another, {share(claim("new"))}), Exception);
  EXPECT_EQ(gate_.change(filling, of_another, {}).kind, Kind::occupied);
  to(filled, filling);
  EXPECT_THROW(gate_.fill(filling, {share(claim("late"))}), Exception);
  EXPECT_THROW(gate_.fill(filled, {share(claim("late"))}), Exception);
  EXPECT_TRUE(is_done(blocking::insert(*before_, claim("new"))));
  const Record there = *got(*store_, "lapsed");
  EXPECT_TRUE(is_done(blocking::replace(*before_, taken_over(there), seen_of(there))));
  EXPECT_EQ(keys_in(*store_), (std::set<std::string>{"first", "lapsed", "new", "second"}));
}

TEST_P(GateTest, OnlyAnEmptyStoreIsFilled) {
  put(*before_, claim("k"));
  EXPECT_EQ(gate_.change({}, filling, {}).kind, Kind::occupied);
  EXPECT_EQ(gate_.mark(), GateMark{});
  EXPECT_TRUE(is_done(blocking::insert(*before_, claim("other"))));
}

// Writes share transactions: those that the gate stops must not take the others with them.
TEST_P(GateTest, ManyWritesAtOnceAreToldApart) {
  constexpr int many = 300;
  for (int i = 0; i < many; ++i) put(*before_, claim("runs" + std::to_string(i)));
  to(draining);
  std::atomic<int> left{2 * many};
  std::atomic<int> wrong{0};
  for (int i = 0; i < many; ++i) {
    before_->insert(share(claim("new" + std::to_string(i))), [&](const Answer& answer) {
      if (answer.status != Status::failed || answer.error.kind != ErrorKind::misuse) ++wrong;
      --left;
    });
    const Record runs = claim("runs" + std::to_string(i));
    before_->replace(share(finished(runs)), seen_of(runs), [&](const Answer& answer) {
      if (!is_done(answer)) ++wrong;
      --left;
    });
  }
  const auto give_up = std::chrono::steady_clock::now() + 60s;
  while (left > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
    static_cast<void>(blocking::get(*before_, "runs0"));
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(gate_.change(draining, closed, in(0ms)).kind, Kind::done);
}

// ---- PostgreSQL: transactions of other programs

class PostgresqlGateTest : public GateTest {
 protected:
  const std::string table_ = place_.schema() + ".records";
};

INSTANTIATE_TEST_SUITE_P(Stores, PostgresqlGateTest, ::testing::Values(Where::postgresql),
                         [](const auto& /*test*/) { return "postgresql"; });

TEST_P(PostgresqlGateTest, AnOldSnapshotMeetsTheNewGate) {
  put(*before_, claim("k"));
  to(draining);
  Shell other;
  other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
  EXPECT_EQ(gate_.change(draining, closed, in(120s)).kind, Kind::done);
  EXPECT_THAT([&] { other.run("UPDATE " + table_ + " SET note = 'late'"); },
              ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("this store has moved to")));
  other.run("ROLLBACK");
}

// A finish in the caller's own transaction (docs/transactions.md).
TEST_P(PostgresqlGateTest, AHandedOutFinishCommitsWhileItDrainsAndNotAfterwards) {
  for (const char* const key : {"before", "after"}) put(*before_, claim(key));
  to(draining);
  Shell other;
  const auto finish = [&](const std::string& key) {
    return other.run("SELECT " + place_.schema() + ".finish_or_raise(encode('" + key + "', 'hex'), '" +
                     owner_of(1).hex() + "', 'paid'::bytea)");
  };
  finish("before");
  EXPECT_EQ(got(*store_, "before")->state, State::completed);
  EXPECT_EQ(gate_.change(draining, closed, in(120s)).kind, Kind::done);
  other.run("BEGIN");
  EXPECT_THAT([&] { finish("after"); }, ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("has moved to")));
  other.run("ROLLBACK");
}

TEST_P(PostgresqlGateTest, AChangeWaitsForWritesThatBeganBefore) {
  put(*before_, claim("k"));
  to(draining);
  Shell other;
  other.run("BEGIN; UPDATE " + table_ + " SET note = 'before'");
  std::atomic<bool> is_over{false};
  std::jthread closing([&] {
    EXPECT_EQ(gate_.change(draining, closed, in(120s)).kind, Kind::done);
    is_over = true;
  });
  Shell watching;
  const auto give_up = std::chrono::steady_clock::now() + 60s;
  while (watching.run("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '" + table_ + "'::regclass") ==
         "0") {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
  }
  EXPECT_FALSE(is_over);
  other.run("COMMIT");
  closing.join();
  EXPECT_EQ(got(*store_, "k")->note, "before");
}

// A dump reads for hours: the last step of a move, and an undo, must not wait for it.
TEST_P(PostgresqlGateTest, OpensUnderAReaderAndDropsTheTriggerOnceNobodyReads) {
  const auto triggers = [&](Shell& shell) {
    return shell.run("SELECT count(*) FROM pg_trigger WHERE tgname = 'gate' AND tgrelid = '" + table_ + "'::regclass");
  };
  Shell reader;
  Shell shell;
  reader.run("BEGIN");
  reader.run("SELECT count(*) FROM " + table_);
  to(filling);
  to(filled, filling);
  EXPECT_EQ(triggers(shell), "1");
  EXPECT_TRUE(is_done(blocking::insert(*before_, claim("under a reader"))));
  to(draining, filled);
  EXPECT_TRUE(is_stopped(blocking::insert(*before_, claim("new")), "no operation can begin here"));
  to({}, draining);
  EXPECT_EQ(triggers(shell), "1");
  EXPECT_TRUE(is_done(blocking::insert(*before_, claim("undone"))));
  reader.run("COMMIT");
  to(draining);
  to({}, draining);
  EXPECT_EQ(triggers(shell), "0");
  EXPECT_EQ(keys_in(*store_), (std::set<std::string>{"under a reader", "undone"}));
}

TEST_P(PostgresqlGateTest, ARoleThatDoesNotOwnTheSchemaReadsTheMarkAndChangesNothing) {
  const std::string role = place_.schema() + "_role";
  Shell shell;
  shell.run("CREATE ROLE " + role + " LOGIN");
  shell.run(stores::postgresql::grant_sql(place_.schema(), role));
  to(draining);
  const std::string url = server_url();
  const auto theirs =
      stores::make_postgresql_store({.url = url + (url.find('?') == std::string::npos ? "?" : "&") + "user=" + role,
                                     .schema = place_.schema(),
                                     .allow_unsafe = true});
  EXPECT_EQ(theirs->gate()->mark(), draining);
  EXPECT_THAT([&] { theirs->gate()->change(draining, {}, {}); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("connect as a role that may")));
  EXPECT_TRUE(is_stopped(blocking::insert(*theirs, claim("new")), "no operation can begin here"));
  EXPECT_EQ(gate_.mark(), draining);
  shell.run("DROP OWNED BY " + role + "; DROP ROLE " + role);
}

TEST_P(PostgresqlGateTest, TheSchemaCanBeDeletedWithItsGate) {
  to(draining);
  Shell shell;
  shell.run(stores::postgresql::drop_sql(place_.schema()));
  EXPECT_EQ(shell.run("SELECT count(*) FROM pg_namespace WHERE nspname = '" + place_.schema() + "'"), "0");
  shell.run(stores::postgresql::create_sql(place_.schema()));
}

// ---- A move

struct Pair {
  Where from;
  Where to;
};

std::string name_of(Where where) { return where == Where::sqlite ? "Sqlite" : "Postgresql"; }

void PrintTo(const Pair& pair, std::ostream* out) { *out << name_of(pair.from) << " to " << name_of(pair.to); }

class MoveTest : public ::testing::TestWithParam<Pair> {
 protected:
  const Place from_place_{GetParam().from};
  const Place to_place_{GetParam().to};
  std::unique_ptr<Store> from_ = from_place_.open();
  std::unique_ptr<Store> to_ = to_place_.open();
  SeededRandom random_{18};
  MoveOptions options_{.wait = 10s,
                       .pause = [](Millis) {},
                       .progress = {},
                       .clock = system_clock(),
                       .random = std::make_shared<SeededRandom>(18)};

  std::vector<Record> fill_source() {
    std::vector<Record> records;
    for (const State state : {State::completed, State::failed, State::unknown}) {
      for (const Placement placement :
           {Placement::inlined, Placement::offloaded, Placement::dropped, Placement::compressed, Placement::sealed}) {
        records.push_back(full_record(std::to_string(records.size()) + "scope#full", state, placement));
      }
    }
    records.push_back(lapsed("lapsed"));
    records.back().steps = {{"charge", "receipt 17"}, {std::string("nul\0", 4), std::string("\xFF\0", 2)}};
    records.push_back(lapsed("held"));
    records.back().on_lapse = OnLapse::hold;
    for (int i = 0; i < 700; ++i) {
      Record record = edge_record("edge" + std::to_string(i), random_, 256);
      if (record.state == State::in_progress && record.lease_until > in(0ms)) record.lease_until = in(-1h);
      records.push_back(std::move(record));
    }
    for (const Record& record : records) put(*from_, record);
    return records;
  }

  void expect_moved(const std::vector<Record>& records) {
    for (const Record& record : records) EXPECT_EQ(differences(record, got(*to_, record.key)), "");
    EXPECT_EQ(keys_in(*to_).size(), records.size());
    EXPECT_EQ(from_->gate()->mark().gate, Gate::closed);
    EXPECT_EQ(to_->gate()->mark().gate, Gate::filled);
    EXPECT_EQ(from_->gate()->mark().move, to_->gate()->mark().move);
    EXPECT_EQ(from_->gate()->mark().other, to_->name());
    EXPECT_EQ(to_->gate()->mark().other, from_->name());
  }

  // At most one of them lets a claim through.
  int taking_claims() const {
    return (takes_claims(from_->gate()->mark()) ? 1 : 0) + (takes_claims(to_->gate()->mark()) ? 1 : 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, MoveTest,
                         ::testing::Values(Pair{Where::sqlite, Where::postgresql},
                                           Pair{Where::postgresql, Where::sqlite}, Pair{Where::sqlite, Where::sqlite},
                                           Pair{Where::postgresql, Where::postgresql}),
                         [](const auto& test) { return name_of(test.param.from) + "To" + name_of(test.param.to); });

TEST_P(MoveTest, EveryRecordIsTheSame) {
  const std::vector<Record> records = fill_source();
  const MovePlan plan = plan_move(*from_, *to_, options_);
  EXPECT_EQ(plan.records, records.size());
  EXPECT_EQ(plan.live, 0U);
  EXPECT_EQ(from_->gate()->mark(), GateMark{});
  EXPECT_EQ(to_->gate()->mark(), GateMark{});
  const Moved moved = move_records(*from_, *to_, options_);
  EXPECT_EQ(moved.kind, Moved::Kind::moved);
  EXPECT_EQ(moved.records, records.size());
  EXPECT_EQ(moved.bytes, plan.bytes);
  expect_moved(records);
  // The holder that lapsed is too late in the one, and its successor is the only one in the other.
  const Record late = *got(*from_, "lapsed");
  EXPECT_TRUE(is_stopped(blocking::replace(*from_, finished(late), seen_of(late)), "has moved to"));
  EXPECT_TRUE(is_done(blocking::replace(*to_, taken_over(late), seen_of(late))));
  EXPECT_EQ(blocking::replace(*to_, finished(late), seen_of(late)).status, Status::refused);
  EXPECT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::was);
  EXPECT_EQ(plan_move(*from_, *to_, options_).to.gate, Gate::filled);
  EXPECT_THAT([&] { undo_move(*from_, *to_); }, ::testing::ThrowsMessage<Exception>(HasSubstr("the move is over")));
  EXPECT_EQ(from_->gate()->mark().gate, Gate::closed);
}

TEST_P(MoveTest, WaitsForHoldersAndCopiesTheirResults) {
  const Record runs = claim("runs");
  put(*from_, runs);
  int pauses = 0;
  options_.pause = [&](Millis) {
    if (++pauses != 3) return;
    EXPECT_TRUE(is_stopped(blocking::insert(*from_, claim("new")), "no operation can begin here"));
    EXPECT_TRUE(is_stopped(blocking::insert(*to_, claim("new")), "waits for the records of"));
    EXPECT_TRUE(is_done(blocking::replace(*from_, finished(runs), seen_of(runs))));
  };
  std::vector<std::uint64_t> live;
  options_.progress = [&](MoveStep step, std::uint64_t done) {
    if (step == MoveStep::draining) live.push_back(done);
  };
  EXPECT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::moved);
  EXPECT_EQ(live, (std::vector<std::uint64_t>{1, 1, 1}));
  EXPECT_EQ(got(*to_, "runs")->result.bytes, "done by the holder");
}

TEST_P(MoveTest, StopsWaitingAndIsUndoneOrGoesOn) {
  const Record runs = claim("runs");
  put(*from_, runs);
  options_.wait = 0ms;
  const Moved moved = move_records(*from_, *to_, options_);
  EXPECT_EQ(moved.kind, Moved::Kind::running);
  EXPECT_EQ(moved.live_count, 1U);
  ASSERT_EQ(moved.live.size(), 1U);
  EXPECT_EQ(moved.live.front().key, "runs");
  EXPECT_EQ(from_->gate()->mark().gate, Gate::draining);
  undo_move(*from_, *to_);
  EXPECT_TRUE(is_done(blocking::insert(*from_, claim("new"))));
  EXPECT_TRUE(is_stopped(blocking::insert(*to_, claim("new")), "waits for the records of"));
  EXPECT_EQ(move_records(*from_, *to_, options_).live_count, 2U);
  EXPECT_EQ(move_records(*from_, *to_, options_).live_count, 2U);
  for (const Record& record : {*got(*from_, "runs"), *got(*from_, "new")}) {
    EXPECT_TRUE(is_done(blocking::replace(*from_, finished(record), seen_of(record))));
  }
  EXPECT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::moved);
  EXPECT_EQ(keys_in(*to_), (std::set<std::string>{"new", "runs"}));
}

// The process dies at each place where it tells its progress, and is run again each time.
TEST_P(MoveTest, GoesOnAfterItDiedAnywhere) {
  const std::vector<Record> records = fill_source();
  struct Died {};
  int lives = 0;
  for (int last = 1;; ++last, ++lives) {
    int told = 0;
    options_.progress = [&](MoveStep step, std::uint64_t) {
      EXPECT_TRUE(step == MoveStep::counting || taking_claims() == 0);
      if (++told == last) throw Died();
    };
    try {
      EXPECT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::moved);
      break;
    } catch (const Died&) {
      EXPECT_FALSE(takes_claims(to_->gate()->mark()) && from_->gate()->mark().gate == Gate::closed);
    }
  }
  EXPECT_GE(lives, 5);
  expect_moved(records);
}

TEST_P(MoveTest, IsUndoneAfterTheSourceWasClosed) {
  const std::vector<Record> records = fill_source();
  struct Died {};
  options_.progress = [&](MoveStep step, std::uint64_t) {
    if (step == MoveStep::comparing) throw Died();
  };
  EXPECT_THROW(move_records(*from_, *to_, options_), Died);
  EXPECT_EQ(from_->gate()->mark().gate, Gate::closed);
  undo_move(*from_, *to_);
  EXPECT_EQ(from_->gate()->mark(), GateMark{});
  EXPECT_TRUE(is_done(blocking::insert(*from_, claim("new"))));
  // What was copied is old from now on: nobody may run by it.
  EXPECT_TRUE(is_stopped(blocking::insert(*to_, claim("new")), "use that store"));
  EXPECT_THAT([&] { move_records(*from_, *to_, options_); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("a new store")));
  EXPECT_THAT([&] { undo_move(*from_, *to_); }, ::testing::ThrowsMessage<Exception>(HasSubstr("in no move")));
  EXPECT_TRUE(takes_claims(from_->gate()->mark()));
}

TEST_P(MoveTest, AnUndoThatDiedHalfwayIsEndedAndNotGoneOnWith) {
  put(*from_, finished(claim("k")));
  struct Died {};
  options_.progress = [&](MoveStep step, std::uint64_t) {
    if (step == MoveStep::comparing) throw Died();
  };
  EXPECT_THROW(move_records(*from_, *to_, options_), Died);
  const GateMark was = to_->gate()->mark();
  ASSERT_EQ(to_->gate()->change(was, {Gate::closed, was.move, was.other}, {}).kind, Kind::done);
  options_.progress = {};
  EXPECT_THAT([&] { move_records(*from_, *to_, options_); }, ::testing::ThrowsMessage<Exception>(HasSubstr("--undo")));
  EXPECT_EQ(taking_claims(), 0);
  undo_move(*from_, *to_);
  EXPECT_TRUE(takes_claims(from_->gate()->mark()));
  EXPECT_FALSE(takes_claims(to_->gate()->mark()));
}

TEST_P(MoveTest, RefusesWhatIsNotItsTarget) {
  put(*from_, finished(claim("k")));
  put(*to_, finished(claim("theirs")));
  EXPECT_THAT([&] { move_records(*from_, *to_, options_); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("has records of its own")));
  EXPECT_EQ(from_->gate()->mark(), GateMark{});
  EXPECT_EQ(to_->gate()->mark(), GateMark{});
  EXPECT_THAT([&] { move_records(*from_, *from_, options_); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("both the source and the target")));
  const Place third_place(GetParam().to);
  const auto third = third_place.open();
  const Place fourth_place(GetParam().to);
  const auto fourth = fourth_place.open();
  put(*from_, claim("runs"));
  options_.wait = 0ms;
  EXPECT_EQ(move_records(*from_, *third, options_).kind, Moved::Kind::running);
  for (Store* const other : {fourth.get(), to_.get()}) {
    EXPECT_THAT([&] { move_records(*from_, *other, options_); },
                ::testing::ThrowsMessage<Exception>(HasSubstr("moves to another store")));
  }
  EXPECT_EQ(fourth->gate()->mark(), GateMark{});
  EXPECT_THAT([&] { move_records(*to_, *third, options_); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("waits for the records of another move")));
  EXPECT_THAT([&] { move_records(*third, *fourth, options_); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("itself")));
  undo_move(*from_, *fourth);  // While it drains, nothing can be open elsewhere.
  EXPECT_TRUE(takes_claims(from_->gate()->mark()));
}

TEST_P(MoveTest, TwoAtOnceMoveItOnce) {
  const std::vector<Record> records = fill_source();
  std::atomic<int> moved{0};
  const auto move = [&](std::uint64_t seed) {
    const auto from = from_place_.open();
    const auto to = to_place_.open();
    MoveOptions options = options_;
    options.random = std::make_shared<SeededRandom>(seed);
    try {
      if (move_records(*from, *to, options).kind == Moved::Kind::moved) ++moved;
    } catch (const Exception& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::unavailable || error.kind() == ErrorKind::misuse) << error.what();
    }
  };
  std::thread one([&] { move(1); });
  std::thread two([&] { move(2); });
  one.join();
  two.join();
  if (moved == 0) {  // Each has stopped the other, or did not get the file's lock.
    EXPECT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::moved);
  }
  expect_moved(records);
}

// ---- Programs that have both stores

class MovingTest : public MoveTest {
 protected:
  [[nodiscard]] std::unique_ptr<Store> both() const {
    return stores::make_moving_store(from_place_.open(), [this] { return to_place_.open(); });
  }
  // It looks at most ten times a second whether the move is over.
  static void insert_until_refused(Store& store, const std::string& because) {
    const std::string name = store.name();
    Answer answer;
    do {
      answer = blocking::insert(store, claim("new"));
      ASSERT_TRUE(is_stopped(answer, "has moved to"));
    } while (answer.error.message.find(because) == std::string::npos);
    EXPECT_EQ(store.name(), name);
  }
  static Answer insert_once_moved(Store& store, const Record& record) {
    for (;;) {
      Answer answer = blocking::insert(store, record);
      if (answer.status != Status::failed) return answer;
      EXPECT_TRUE(is_stopped(answer, "")) << describe(answer);
      if (HasFailure()) return answer;
      std::this_thread::sleep_for(5ms);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, MovingTest,
                         ::testing::Values(Pair{Where::sqlite, Where::postgresql},
                                           Pair{Where::postgresql, Where::sqlite}),
                         [](const auto& test) { return name_of(test.param.from) + "To" + name_of(test.param.to); });

TEST_P(MovingTest, UseTheSecondFromTheEndOfTheMoveOn) {
  const auto program = both();
  EXPECT_EQ(program->name(), from_->name());
  const Record late = lapsed("late");
  const Record runs = claim("runs");
  for (const Record& record : {late, runs}) put(*program, record);
  bool draining_seen = false;
  options_.pause = [&](Millis) {
    if (std::exchange(draining_seen, true)) return;
    EXPECT_TRUE(is_stopped(blocking::insert(*program, claim("new")), "no operation can begin here"));
    EXPECT_TRUE(is_done(blocking::replace(*program, finished(runs), seen_of(runs))));
  };
  bool copying_seen = false;
  options_.progress = [&](MoveStep step, std::uint64_t) {
    if (step != MoveStep::copying || std::exchange(copying_seen, true)) return;
    EXPECT_TRUE(is_stopped(blocking::insert(*program, claim("new")), "has moved to"));
    EXPECT_TRUE(is_stopped(blocking::replace(*program, taken_over(late), seen_of(late)), "has moved to"));
    while (blocking::insert(*program, claim("new")).error.message.find("its gate is filling") == std::string::npos) {
      ASSERT_EQ(program->name(), from_->name());
    }
    EXPECT_EQ(got(*program, "runs")->result.bytes, "done by the holder");
  };
  ASSERT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::moved);
  EXPECT_TRUE(draining_seen && copying_seen);

  EXPECT_TRUE(is_done(insert_once_moved(*program, claim("new"))));
  EXPECT_EQ(program->name(), to_->name());
  EXPECT_EQ(&innermost(*program), program->below());
  EXPECT_TRUE(got(*to_, "new").has_value());
  EXPECT_FALSE(got(*from_, "new").has_value());
  EXPECT_TRUE(is_done(blocking::replace(*program, taken_over(late), seen_of(late))));
  EXPECT_EQ(blocking::replace(*program, finished(late), seen_of(late)).status, Status::refused);
  EXPECT_EQ(keys_in(*program), (std::set<std::string>{"late", "new", "runs"}));
  EXPECT_TRUE(is_done(blocking::remove(*program, "new", seen_of(*got(*program, "new")))));
  EXPECT_FALSE(blocking::sweep(*program, in(0ms), 10).error.has_value());
  // One that is opened later, and one that only lists.
  EXPECT_EQ(both()->name(), to_->name());
}

TEST_P(MovingTest, OneThatOnlyReadsListsTheSecondToo) {
  const auto program = both();
  put(*from_, finished(claim("a")));
  put(*from_, finished(claim("b")));
  const ListPage first = blocking::list(*program, {.limit = 1});
  ASSERT_EQ(first.records.size(), 1U);
  ASSERT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::moved);
  put(*to_, claim("c"));
  // A list that was begun goes on where it was.
  const auto rest = [&](const ListPage& page, std::size_t limit) {
    std::set<std::string> keys;
    for (ListPage next = blocking::list(*program, {.cursor = page.cursor, .limit = limit});;
         next = blocking::list(*program, {.cursor = next.cursor, .limit = limit})) {
      EXPECT_FALSE(next.error.has_value());
      for (const Record& record : next.records) keys.insert(record.key);
      if (next.cursor.empty()) return keys;
    }
  };
  EXPECT_EQ(rest(first, 1).size(), 1U);
  std::set<std::string> keys;
  while (keys.size() < 3) keys = rest({}, 1);
  EXPECT_EQ(keys, (std::set<std::string>{"a", "b", "c"}));
  EXPECT_EQ(program->name(), to_->name());
}

// Each key is inserted by each program until one has it: the finished records are the effects.
TEST_P(MovingTest, NoKeyIsBegunInBoth) {
  constexpr int keys = 400;
  std::array<std::atomic<int>, keys> begun{};
  std::atomic<bool> moves{false};
  std::atomic<int> refused{0};
  std::vector<std::thread> programs;
  for (int program = 0; program < 3; ++program) {
    programs.emplace_back([&, program] {
      const auto store = both();
      for (int at = 0; at < keys; ++at) {
        while (at == keys / 2 && !moves) std::this_thread::yield();
        const int key = program == 0 ? at : (at * 7 + program) % keys;
        Record record = finished(claim("key" + std::to_string(key)));
        record.owner = owner_of(static_cast<std::uint8_t>(program + 1));
        if (is_done(insert_once_moved(*store, record))) {
          ++begun.at(static_cast<std::size_t>(key));
        } else {
          ++refused;
        }
      }
      EXPECT_EQ(store->name(), to_->name());
    });
  }
  options_.progress = [&](MoveStep, std::uint64_t) { moves = true; };
  const Moved moved = move_records(*from_, *to_, options_);
  for (std::thread& program : programs) program.join();
  EXPECT_EQ(moved.kind, Moved::Kind::moved);
  EXPECT_GT(moved.records, 0U);
  EXPECT_LT(moved.records, keys);
  for (const std::atomic<int>& times : begun) EXPECT_EQ(times, 1);
  EXPECT_EQ(refused, 2 * keys);
  EXPECT_EQ(keys_in(*to_).size(), keys);
}

TEST_P(MovingTest, ASecondThatIsNotWhereTheRecordsAreIsNotUsed) {
  const Place elsewhere(GetParam().to);
  const auto program = both();
  const auto target = elsewhere.open();
  ASSERT_EQ(move_records(*from_, *target, options_).kind, Moved::Kind::moved);
  insert_until_refused(*program, "is not where this move leads, or it is not over: its gate is open");
  // Nor after a move from another store.
  const Place another(GetParam().from);
  const auto source = another.open();
  ASSERT_EQ(move_records(*source, *to_, options_).kind, Moved::Kind::moved);
  insert_until_refused(*program, "its gate is filled");
  EXPECT_TRUE(is_stopped(blocking::insert(*both(), claim("new")), "its gate is filled"));
  EXPECT_FALSE(got(*to_, "new").has_value());
}

TEST_P(MovingTest, WhyTheSecondCannotBeUsedIsSaidAndItIsTriedAgain) {
  std::atomic<bool> is_there{false};
  const auto program = stores::make_moving_store(from_place_.open(), [&] {
    if (!is_there) throw Exception(ErrorKind::unavailable, "no route to host");
    return to_place_.open();
  });
  ASSERT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::moved);
  insert_until_refused(*program, "no route to host");
  is_there = true;
  EXPECT_TRUE(is_done(insert_once_moved(*program, claim("new"))));
}

// While its thread looks, a completion of the first store drops it, and must not wait for that thread.
TEST_P(MovingTest, ItMayBeDroppedInACompletion) {
  std::atomic<bool> is_looking{false};
  std::atomic<bool> is_dropped{false};
  auto program = stores::make_moving_store(from_place_.open(), [&]() -> std::unique_ptr<Store> {
    is_looking = true;
    while (!is_dropped) std::this_thread::yield();
    throw Exception(ErrorKind::unavailable, "dropped");
  });
  ASSERT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::moved);
  while (!is_looking) std::this_thread::yield();
  Store& store = *program;
  store.insert(std::make_shared<const Record>(claim("new")), [&](const Answer&) {
    program.reset();
    is_dropped = true;
  });
  while (!is_dropped) std::this_thread::yield();
}

TEST_P(MovingTest, ItIsDroppedWhileItsThreadLooks) {
  std::atomic<bool> is_looking{false};
  auto program = stores::make_moving_store(from_place_.open(), [&] {
    is_looking = true;
    return to_place_.open();
  });
  ASSERT_EQ(move_records(*from_, *to_, options_).kind, Moved::Kind::moved);
  while (!is_looking) std::this_thread::yield();
  program.reset();
}

// Operations that are under way count their leases by the first store's clock.
TEST(MovingStores, ARunningProgramDoesNotChangeOverToAnotherClock) {
  const Place from_place(Where::sqlite);
  const Place to_place(Where::sqlite);
  const auto from_clock = std::make_shared<ManualClock>();
  const auto to_clock = std::make_shared<ManualClock>();
  const auto from = from_place.open(from_clock);
  const auto to = to_place.open(to_clock);
  const auto both = [&] {
    return stores::make_moving_store(
        from_place.open(from_clock), [&] { return to_place.open(to_clock); }, 1ms);
  };
  const auto far = both();
  const MoveOptions options{.pause = [](Millis) {}, .progress = {}, .clock = from_clock, .random = system_random()};
  to_clock->advance(3s);
  ASSERT_EQ(move_records(*from, *to, options).kind, Moved::Kind::moved);
  std::string said;
  while (said.find("3000 ms apart") == std::string::npos) {
    said = blocking::insert(*far, plain_record("new")).error.message;
    ASSERT_EQ(far->name(), from->name());
  }
  EXPECT_EQ(both()->name(), to->name());
  from_clock->advance(2'400ms);
  while (far->name() == from->name()) std::this_thread::yield();
  EXPECT_EQ(far->time()->now, to->time()->now);
  EXPECT_EQ(far->time()->error, to->time()->error + 600ms);
}

// ---- What a move asks of its stores

TEST(MoveStores, OtherStoresCannotBeMoved) {
  const Place place(Where::sqlite);
  const auto file = place.open();
  const auto memory = stores::make_memory_store();
  const MoveOptions options{.pause = [](Millis) {}, .progress = {}, .clock = system_clock(), .random = system_random()};
  EXPECT_THAT([&] { move_records(*memory, *file, options); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("only stores in SQLite and PostgreSQL can")));
  EXPECT_THAT([&] { move_records(*file, *memory, options); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("Nothing was changed")));
}

TEST(MoveStores, ClocksMustAgreeAndATokenOfTheTargetIsGreater) {
  const Place from_place(Where::sqlite);
  const Place to_place(Where::sqlite);
  const auto from_clock = std::make_shared<ManualClock>();
  const auto to_clock = std::make_shared<ManualClock>();
  const auto from = from_place.open(from_clock);
  const auto to = to_place.open(to_clock);
  put(*from, plain_record("k"));
  int pauses = 0;
  const MoveOptions options{.pause =
                                [&](Millis time) {
                                  ++pauses;
                                  to_clock->advance(time);
                                },
                            .progress = {},
                            .clock = from_clock,
                            .random = system_random()};
  from_clock->advance(61s);
  EXPECT_THAT([&] { move_records(*from, *to, options); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("61 s behind that of")));
  EXPECT_EQ(from->gate()->mark(), GateMark{});
  to_clock->advance(11s);
  EXPECT_EQ(plan_move(*from, *to, options).clocks_apart, -50s);
  EXPECT_EQ(move_records(*from, *to, options).kind, Moved::Kind::moved);
  EXPECT_GE(pauses, 50);
  EXPECT_GT(to->time()->now, from->time()->now);
}

}  // namespace
}  // namespace testing
}  // namespace once
