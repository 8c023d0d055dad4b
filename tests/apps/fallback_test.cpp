// A store beside another program's table: what a row there means for a claim here, and what is looked at when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/error.hpp>
#include <once/key.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/conformance.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "import/fallback.hpp"
#include "import/fallback_store.hpp"
#include "import/importer.hpp"
#include "import/old_table.hpp"

namespace once::cli::importing {
namespace fallback_test {

using ::testing::HasSubstr;

const std::string name = "order-17";

// ---- The store, with a table that says what the test wants.

class Scripted final : public OldTable {
 public:
  void look(RecordPtr claim, Time /*now*/, Callback<void(OldRow)> done) override {
    ++looks;
    if (before) std::exchange(before, nullptr)();
    OldRow answer = row;
    answer.record.key = claim->key;
    answer.origin = "from old, source 1";
    done(std::move(answer));
  }

  OldRow row;
  int looks = 0;
  std::function<void()> before;  // Runs once, after the look has begun.
};

OldRow found(State state, std::string result = "7") {
  OldRow row;
  row.kind = OldRow::Kind::found;
  row.record.state = state;
  row.record.attempt = 1;
  row.record.holder = "worker-3";
  if (state == State::completed) row.record.result = Result::inlined(std::move(result), "application/json");
  if (state != State::completed) row.record.failure = {.code = "imported", .message = "card refused"};
  return row;
}

OldRow not_known(ErrorKind kind = ErrorKind::unavailable) {
  OldRow row;
  row.kind = OldRow::Kind::failed;
  row.error = {kind, "the old table is down"};
  return row;
}

class FallbackStoreTest : public ::testing::Test {
 protected:
  void use(std::shared_ptr<Store> inner) {
    auto scripted = std::make_unique<Scripted>();
    old = scripted.get();
    store = make_fallback_store(
        {.store = std::move(inner), .old = std::move(scripted), .counts = counts, .clock = clock, .random = random});
    engine.emplace(
        EngineOptions{.store = store, .disabled = false, .clock = clock, .random = random, .timers = timers});
  }
  void SetUp() override { use(ours); }

  Begin begin(Policy policy = {}, std::string payload = {}) {
    policy.on_conflict = OnConflict::fail;
    Request request{.key = key, .policy = policy, .label = name};
    if (!payload.empty()) request.fingerprint = Fingerprint::of(payload);
    return engine->begin(std::move(request));
  }
  // A claim whose holder died.
  void lapse(OnLapse on_lapse = OnLapse::takeover) {
    Record record = testing::plain_record(key.stored());
    record.lease_until = clock->now() - Millis{60'000};
    record.expires_at = never;
    record.on_lapse = on_lapse;
    ASSERT_EQ(blocking::insert(*ours, record).status, AnswerStatus::done);
  }
  RecordPtr stored() { return blocking::get(*ours, key.stored()).record; }

  const Key key{"pay", name};
  const std::shared_ptr<testing::ManualClock> clock = std::make_shared<testing::ManualClock>();
  const std::shared_ptr<testing::ManualTimers> timers = std::make_shared<testing::ManualTimers>(clock);
  const std::shared_ptr<testing::SeededRandom> random = std::make_shared<testing::SeededRandom>(1);
  const std::shared_ptr<Store> ours = stores::make_memory_store(clock);
  const std::shared_ptr<LookCounts> counts = std::make_shared<LookCounts>();
  Scripted* old = nullptr;
  std::shared_ptr<Store> store;
  std::optional<Engine> engine;
};

TEST_F(FallbackStoreTest, AbsentThereIsClaimedHere) {
  Begin begun = begin();
  ASSERT_EQ(begun.kind, Begin::Kind::claimed);
  EXPECT_EQ(begun.claim.complete(Result::inlined("new")).kind, Finish::Kind::recorded);
  EXPECT_EQ(begin().record->result.bytes, "new");
  EXPECT_EQ(old->looks, 1) << "Renewals, finishes and replays do not look";
  EXPECT_EQ(counts->of(LookCounts::End::absent), 1U);
}

TEST_F(FallbackStoreTest, CompletedThereIsReplayedAndKept) {
  old->row = found(State::completed);
  for (int times = 0; times < 2; ++times) {
    const Begin begun = begin();
    ASSERT_EQ(begun.kind, Begin::Kind::replayed);
    EXPECT_EQ(begun.record->result.bytes, "7");
  }
  EXPECT_EQ(old->looks, 1);
  EXPECT_EQ(stored()->label, name);
  EXPECT_EQ(stored()->history.entries.at(0).why, "from old, source 1");
  EXPECT_TRUE(is_revision(stored()->revision));
  EXPECT_EQ(counts->of(LookCounts::End::replayed), 1U);
  EXPECT_THAT(counts->text(), HasSubstr("once_fallback_looks_total{outcome=\"replayed\"} 1"));
}

TEST_F(FallbackStoreTest, TheLabelIsTheCallersChoice) {
  old->row = found(State::completed);
  old->row.record.label = "from the row";
  EXPECT_EQ(begin({.label = Label::none}).kind, Begin::Kind::replayed);
  EXPECT_EQ(stored()->label, "");
}

TEST_F(FallbackStoreTest, WithoutAResultNothingRuns) {
  old->row = found(State::completed);
  make_tombstone(old->row.record);
  const Begin begun = begin();
  EXPECT_NE(begun.kind, Begin::Kind::claimed);
  EXPECT_EQ(stored()->result.placement, Placement::dropped);
  EXPECT_EQ(counts->of(LookCounts::End::tombstone), 1U);
}

TEST_F(FallbackStoreTest, AResultTooLargeForTheStoreIsATombstone) {
  old->row = found(State::completed, std::string(ours->capabilities().max_record_bytes, 'x'));
  EXPECT_NE(begin().kind, Begin::Kind::claimed);
  EXPECT_EQ(stored()->result.placement, Placement::dropped);
}

TEST_F(FallbackStoreTest, FailedThereIsReplayed) {
  old->row = found(State::failed);
  const Begin begun = begin();
  ASSERT_EQ(begun.kind, Begin::Kind::stored_failure);
  EXPECT_EQ(begun.record->failure.message, "card refused");
}

TEST_F(FallbackStoreTest, FailedThereIsTriedAgainIfThePolicySaysSo) {
  old->row = found(State::failed);
  Begin begun = begin({.on_stored_failure = OnStoredFailure::execute});
  ASSERT_EQ(begun.kind, Begin::Kind::claimed);
  EXPECT_EQ(begun.verdict, Verdict::retry);
  begun.claim.fail({.code = "again", .message = "and again"});
  EXPECT_EQ(begin().record->failure.message, "and again") << "Our failure is the later one";
  EXPECT_EQ(begin({.on_stored_failure = OnStoredFailure::execute}).kind, Begin::Kind::claimed);
  EXPECT_EQ(stored()->attempt, 3U);
}

TEST_F(FallbackStoreTest, TriesAreCountedAlsoWhenTheHistoryIsFull) {
  old->row = found(State::failed);
  std::uint64_t attempt = 1;
  for (std::size_t at = 0; at < History::max_entries + 4; ++at) {
    Begin begun = begin({.on_stored_failure = OnStoredFailure::execute});
    ASSERT_EQ(begun.kind, Begin::Kind::claimed);
    const std::uint64_t now = stored()->attempt;
    EXPECT_GT(now, attempt);
    attempt = now;
    if (at == 0) {
      ASSERT_EQ(begun.claim.add_step("charged", "17").kind, Finish::Kind::recorded);
    }
    begun.claim.fail({.code = "again", .message = "and again"});
    ASSERT_EQ(stored()->steps.size(), 1U);
  }
}

TEST_F(FallbackStoreTest, InProgressThereIsAConflictUntilItEnds) {
  old->row = found(State::unknown);
  const Begin begun = begin();
  ASSERT_EQ(begun.kind, Begin::Kind::conflict);
  EXPECT_GT(begun.retry_after, Millis{0});
  EXPECT_LT(begun.retry_after, Millis{60'000});
  EXPECT_EQ(begun.record->holder, "the old program (worker-3)");
  EXPECT_EQ(stored(), nullptr);
  old->row = found(State::completed);
  EXPECT_EQ(begin().kind, Begin::Kind::replayed);
}

TEST_F(FallbackStoreTest, WaitingForTheOldProgramGetsItsResult) {
  old->row = found(State::unknown);
  std::promise<Begin> ended;
  engine->begin(Request{.key = key, .policy = Policy{.wait = Millis{30'000}, .on_conflict = OnConflict::wait}},
                [&](Begin&& begun) { ended.set_value(std::move(begun)); });
  timers->advance(std::chrono::seconds(2));
  EXPECT_GT(old->looks, 1);
  old->row = found(State::completed);
  timers->advance(std::chrono::seconds(2));
  EXPECT_EQ(ended.get_future().get().kind, Begin::Kind::replayed);
}

TEST_F(FallbackStoreTest, NotKnownIsRefused) {
  for (const ErrorKind kind : {ErrorKind::unavailable, ErrorKind::corrupt}) {
    old->row = not_known(kind);
    const Begin begun = begin();
    ASSERT_EQ(begun.kind, Begin::Kind::error);
    EXPECT_EQ(begun.error.kind, kind);
    EXPECT_EQ(begun.error.message, "the old table is down");
    EXPECT_EQ(stored(), nullptr);
  }
  EXPECT_EQ(counts->of(LookCounts::End::error), 2U);
}

TEST_F(FallbackStoreTest, AnotherPayloadIsAMismatchIfTheRowHasAFingerprint) {
  old->row = found(State::completed);
  EXPECT_EQ(begin({}, "other").kind, Begin::Kind::replayed) << "Without one there is nothing to compare";
  ASSERT_EQ(blocking::remove(*ours, key.stored(), testing::seen_of(*stored())).status, AnswerStatus::done);
  old->row.record.fingerprint = Fingerprint::of("this");
  EXPECT_EQ(begin({}, "other").kind, Begin::Kind::mismatch);
  EXPECT_EQ(begin({}, "this").kind, Begin::Kind::replayed);
  old->row.record.state = State::unknown;
  ASSERT_EQ(blocking::remove(*ours, key.stored(), testing::seen_of(*stored())).status, AnswerStatus::done);
  EXPECT_EQ(begin({}, "other").kind, Begin::Kind::mismatch);
  EXPECT_EQ(begin({}, "this").kind, Begin::Kind::conflict);
}

TEST_F(FallbackStoreTest, OurRecordComesFirst) {
  Begin held = begin();
  ASSERT_EQ(held.kind, Begin::Kind::claimed);
  old->row = not_known();
  EXPECT_EQ(begin().kind, Begin::Kind::conflict);
  held.claim.heartbeat();
  held.claim.complete(Result::inlined("new"));
  EXPECT_EQ(begin().kind, Begin::Kind::replayed);
  EXPECT_EQ(old->looks, 1);
}

TEST_F(FallbackStoreTest, AClaimThatAppearsDuringTheLookWins) {
  old->before = [&] {
    Record other = testing::plain_record(key.stored());
    other.lease_until = clock->now() + Millis{30'000};
    ASSERT_EQ(blocking::insert(*ours, other).status, AnswerStatus::done);
  };
  EXPECT_EQ(begin().kind, Begin::Kind::conflict);
}

TEST_F(FallbackStoreTest, TwoThatFindTheSameRowKeepItOnce) {
  old->row = found(State::completed);
  RecordPtr first;
  old->before = [&] {
    Begin other = begin();
    EXPECT_EQ(other.kind, Begin::Kind::replayed);
    first = stored();
  };
  engine.emplace(EngineOptions{.store = store, .disabled = false, .clock = clock, .random = random, .timers = timers});
  std::optional<Engine> another(
      std::in_place,
      EngineOptions{.store = store, .disabled = false, .clock = clock, .random = random, .timers = timers});
  EXPECT_EQ(another->begin(Request{.key = key}).kind, Begin::Kind::replayed);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(stored()->owner, first->owner);
  EXPECT_EQ(old->looks, 2);
}

TEST_F(FallbackStoreTest, ATakeoverLooksAgain) {
  lapse();
  Begin begun = begin();
  ASSERT_EQ(begun.kind, Begin::Kind::claimed);
  EXPECT_EQ(begun.verdict, Verdict::take_over);
  EXPECT_EQ(old->looks, 1);
}

// The row was gone when our claim began; then a late holder of the old program wrote it again.
TEST_F(FallbackStoreTest, ATakeoverOfWhatTheOldProgramFinishedIsAReplay) {
  lapse();
  const std::uint64_t token = stored()->token;
  old->row = found(State::completed);
  const Begin begun = begin();
  ASSERT_EQ(begun.kind, Begin::Kind::replayed);
  EXPECT_EQ(begun.record->result.bytes, "7");
  EXPECT_EQ(stored()->result.bytes, "7");
  EXPECT_GT(stored()->token, token);
  EXPECT_EQ(stored()->history.entries.size(), 2U) << "What happened before is kept";
}

TEST_F(FallbackStoreTest, ATakeoverThatCannotLookIsRefused) {
  lapse();
  const RecordPtr before = stored();
  old->row = not_known();
  EXPECT_EQ(begin().kind, Begin::Kind::error);
  old->row = found(State::unknown);
  EXPECT_EQ(begin().kind, Begin::Kind::conflict);
  EXPECT_EQ(*stored(), *before);
}

TEST_F(FallbackStoreTest, HoldNeedsNoLook) {
  lapse(OnLapse::hold);
  old->row = not_known();
  EXPECT_EQ(begin({.on_lapse = OnLapse::hold}).kind, Begin::Kind::unknown);
  EXPECT_EQ(old->looks, 0);
}

TEST_F(FallbackStoreTest, OverAnExpiredRecordItLooksAgain) {
  Begin begun = begin({.retention = Millis{1'000}});
  begun.claim.complete(Result::inlined("new"));
  clock->advance(std::chrono::hours(1));
  old->row = found(State::completed);
  EXPECT_EQ(begin().record->result.bytes, "7");
}

// What the store does to the write must never let the work run, nor lose the row's result.
TEST_F(FallbackStoreTest, FaultsOfOurStoreNeverRunWhatIsDoneThere) {
  using Kind = testing::Fault::Kind;
  for (const Kind kind : {Kind::unavailable, Kind::forbidden, Kind::lost_before, Kind::lost_after, Kind::resent}) {
    for (std::uint64_t faulty = 0; faulty < 4; ++faulty) {
      const std::shared_ptr<Store> fresh = stores::make_memory_store(clock);
      use(std::make_shared<testing::FaultyStore>(fresh, [=](const testing::StoreCall& call) {
        return testing::Fault{.kind = call.number == faulty ? kind : Kind::none};
      }));
      old->row = found(State::completed);
      for (int times = 0; times < 4; ++times) {  // Each makes one or two calls, so the last one meets no fault.
        std::promise<Begin> ended;
        engine->begin(Request{.key = key}, [&](Begin&& begun) { ended.set_value(std::move(begun)); });
        timers->advance(std::chrono::seconds(30));
        const Begin begun = ended.get_future().get();
        const auto good = begun.kind == Begin::Kind::replayed || (times < 3 && begun.kind == Begin::Kind::error);
        EXPECT_TRUE(good) << testing::to_string(kind) << " of call " << faulty << ", time " << times;
      }
    }
  }
}

// The answer to our own claim was lost: it is found again, and was looked for before it was written.
TEST_F(FallbackStoreTest, ALostAnswerToTheClaimResumesIt) {
  const std::shared_ptr<Store> fresh = stores::make_memory_store(clock);
  use(std::make_shared<testing::FaultyStore>(fresh, [=](const testing::StoreCall& call) {
    return testing::Fault{.kind = call.number == 1 ? testing::Fault::Kind::lost_after : testing::Fault::Kind::none};
  }));
  std::promise<Begin> ended;
  engine->begin(Request{.key = key}, [&](Begin&& begun) { ended.set_value(std::move(begun)); });
  timers->advance(std::chrono::seconds(5));
  EXPECT_EQ(ended.get_future().get().kind, Begin::Kind::claimed);
  EXPECT_EQ(old->looks, 1);
}

TEST_F(FallbackStoreTest, AnOperatorsReleaseIsNoClaim) {
  old->row = not_known();
  Record released = testing::plain_record(key.stored());
  ASSERT_EQ(blocking::insert(*ours, released).status, AnswerStatus::done);
  const Seen seen = testing::seen_of(released);
  released.lease_until = Time{};
  released.owner = testing::owner_of(5);
  released.revision = next_revision(released.revision, 3);
  EXPECT_EQ(blocking::replace(*store, released, seen).status, AnswerStatus::done);
}

// A message that was parked is no operation, and has its own scope.
TEST_F(FallbackStoreTest, OwnNotesAreNotLookedUp) {
  auto scripted = std::make_unique<Scripted>();
  old = scripted.get();
  old->row = not_known();
  store = make_fallback_store({.store = ours,
                               .old = std::move(scripted),
                               .own_prefix = scope_prefix("orders/parked"),
                               .clock = clock,
                               .random = random});
  const auto insert = [&](const std::string& scope) {
    return blocking::insert(*store, testing::plain_record(Key(scope, name).stored())).status;
  };
  EXPECT_EQ(insert("orders/parked"), AnswerStatus::done);
  EXPECT_EQ(insert("orders"), AnswerStatus::failed);
  EXPECT_EQ(insert("orders/parked/2"), AnswerStatus::failed);
}

// With a table that has no row, it is a store like any other.
class Empty final : public OldTable {
 public:
  void look(RecordPtr /*claim*/, Time /*now*/, Callback<void(OldRow)> done) override { done({}); }
};
class EmptyHarness final : public testing::StoreHarness {
 public:
  std::unique_ptr<Store> open() override {
    return make_fallback_store({.store = stores::make_memory_store(),
                                .old = std::make_unique<Empty>(),
                                .clock = system_clock(),
                                .random = system_random()});
  }
};
ONCE_CONFORMANCE(fallback, testing::StoreTraits{}, [] { return std::make_unique<EmptyHarness>(); });

// ---- The table: which row stands for a key.

// Shared by the finders of all threads of one table.
struct Held {
  std::mutex mutex;
  std::vector<std::string> some{R"({"id":"a","status":"COMPLETED","response":1})"};
  std::function<std::vector<Row>(const std::string&)> find;  // Empty: those of `some` with this id.
  int opened = 0;
  std::vector<std::string> asked;
};

class ScriptedFinder final : public Finder {
 public:
  explicit ScriptedFinder(std::shared_ptr<Held> rows) : rows_(std::move(rows)) {}
  std::vector<Row> find(const std::string& text) override {
    std::function<std::vector<Row>(const std::string&)> scripted;
    std::vector<Row> out;
    {
      const std::lock_guard lock(rows_->mutex);
      rows_->asked.push_back(text);
      scripted = rows_->find;
      for (const std::string& json : rows_->some) {
        if (json.find("\"id\":\"" + text + "\"") != std::string::npos)
          out.push_back({.json = json, .name = "row", .problem = {}});
      }
    }
    return scripted ? scripted(text) : out;
  }
  std::vector<Row> some() override {
    const std::lock_guard lock(rows_->mutex);
    std::vector<Row> out;
    for (const std::string& json : rows_->some) out.push_back({.json = json, .name = "row", .problem = {}});
    return out;
  }
  std::string name() const override { return "scripted:old"; }
  std::string source() const override { return "scripted:old at home"; }

 private:
  const std::shared_ptr<Held> rows_;
};

class OldTableTest : public ::testing::Test {
 protected:
  OldTableTest() {
    table.name = "old.toml";
    table.mapping.preset = "article";
    table.mapping.key = "id";
    table.mapping.scope = "pay";
    table.mapping.expired = "skip";
    table.finder = {.rows = {}, .column = "id", .timeout = Millis{5'000}};
  }

  void use() {
    old = make_old_table({.table = table,
                          .open = [rows = rows](const FinderOptions&) -> std::unique_ptr<Finder> {
                            const std::lock_guard lock(rows->mutex);
                            ++rows->opened;
                            return std::make_unique<ScriptedFinder>(rows);
                          },
                          .on_open =
                              [this](const Examined& examined) {
                                ++announced;
                                notice = examined.notice;
                              },
                          .max_threads = max_threads,
                          .clock = clock,
                          .timers = timers});
  }
  OldRow look(const std::string& key = "a", const std::string& scope = "pay", const std::string& label = {}) {
    if (!old) use();
    Record claim = testing::plain_record(Key(scope, key).stored());
    claim.label = label;
    std::promise<OldRow> ended;
    old->look(share(std::move(claim)), clock->now(), [&](OldRow row) { ended.set_value(std::move(row)); });
    return ended.get_future().get();
  }
  void expect_failed(const OldRow& row, ErrorKind kind, const std::string& text) {
    ASSERT_EQ(row.kind, OldRow::Kind::failed);
    EXPECT_EQ(row.error.kind, kind) << row.error.message;
    EXPECT_THAT(row.error.message, HasSubstr(text));
    EXPECT_THAT(row.error.message, HasSubstr("so it was not begun"));
  }

  const std::shared_ptr<testing::ManualClock> clock = std::make_shared<testing::ManualClock>();
  const std::shared_ptr<testing::ManualTimers> timers = std::make_shared<testing::ManualTimers>(clock);
  const std::shared_ptr<Held> rows = std::make_shared<Held>();
  OldTableOptions table;
  unsigned max_threads = 4;
  std::atomic<int> announced{0};
  std::string notice;  // Of the worker; read after its look has ended.
  std::unique_ptr<OldTable> old;
};

TEST_F(OldTableTest, FindsTheRowOfAKey) {
  const OldRow row = look();
  ASSERT_EQ(row.kind, OldRow::Kind::found) << row.error.message;
  EXPECT_EQ(row.record.key, Key("pay", "a").stored());
  EXPECT_EQ(row.record.result.bytes, "1");
  EXPECT_EQ(row.origin, origin_of("scripted:old", "scripted:old at home"));
  EXPECT_EQ(look("b").kind, OldRow::Kind::absent);
  EXPECT_EQ(announced, 1);
  EXPECT_EQ(timers->pending(), 0U);
}

TEST_F(OldTableTest, AnotherScopeOrSpellingIsRefused) {
  expect_failed(look("a", "refund"), ErrorKind::corrupt, "another scope or in another spelling");
  rows->find = [&](const std::string&) {
    return std::vector<Row>{{.json = rows->some.at(0), .name = "row", .problem = {}}};
  };
  expect_failed(look("A"), ErrorKind::corrupt, "another scope or in another spelling");
}

TEST_F(OldTableTest, ScopesOfRowsTellTenantsApart) {
  table.mapping.scope.clear();
  table.mapping.scope_from = "user";
  rows->some = {R"({"id":"a","status":"DONE","response":1,"user":"u1"})",
                R"({"id":"a","status":"DONE","response":2,"user":"u2"})"};
  EXPECT_EQ(look("a", "u1").record.result.bytes, "1");
  EXPECT_EQ(look("a", "u2").record.result.bytes, "2");
  expect_failed(look("a", "u3"), ErrorKind::corrupt, "another scope");
}

TEST_F(OldTableTest, WhatIsNotClearIsRefused) {
  max_threads = 1;  // All looks on one connection.
  rows->some.push_back(R"({"id":"b","status":"ARCHIVED"})");
  rows->some.push_back(R"({"id":"c","status":"DONE","response":1})");
  expect_failed(look("b"), ErrorKind::corrupt, "its state is \"ARCHIVED\"");
  rows->some.push_back(R"({"id":"c","status":"DONE","response":2})");  // Behind those that were examined.
  expect_failed(look("c"), ErrorKind::corrupt, "two rows for this key");
  expect_failed(look(std::string("\xFF", 1)), ErrorKind::corrupt, "not a text");
  expect_failed(look(std::string("a\0b", 3)), ErrorKind::corrupt, "not a text");
  EXPECT_EQ(rows->opened, 1) << "A row is no fault of the connection";
}

TEST_F(OldTableTest, ExpiryIsTheOldTablesRuleWithRoomForItsClock) {
  const auto row_until = [&](Millis from_now) {
    return R"({"id":"e","status":"DONE","response":1,"expiry":)" +
           std::to_string((clock->now() + from_now).time_since_epoch().count()) + "}";
  };
  rows->some.push_back(row_until(Millis{-59'000}));
  const OldRow row = look("e");
  ASSERT_EQ(row.kind, OldRow::Kind::found);
  EXPECT_FALSE(is_expired(row.record.expires_at, clock->now())) << "The engine must not see it as expired";
  rows->some.back() = row_until(Millis{-61'000});
  EXPECT_EQ(look("e").kind, OldRow::Kind::absent);
  rows->some.back() = R"({"id":"e","status":"PENDING","expiry":1600000000})";
  EXPECT_EQ(look("e").record.state, State::unknown) << "What runs has no expiry";
  table.mapping.expired = "keep";
  old.reset();
  rows->some.back() = row_until(Millis{-61'000});
  EXPECT_EQ(look("e").kind, OldRow::Kind::found);
}

TEST_F(OldTableTest, MayRunIsAbsent) {
  table.mapping.may_run = "FAILED";
  rows->some.push_back(R"({"id":"f","status":"FAILED"})");
  EXPECT_EQ(look("f").kind, OldRow::Kind::absent);
}

TEST_F(OldTableTest, APrefixIsPutBack) {
  table.mapping.key_prefix = "IDEMPOTENCY#";
  rows->some = {R"({"id":"IDEMPOTENCY#a","status":"DONE","response":3})"};
  EXPECT_EQ(look("a").record.result.bytes, "3");
  EXPECT_EQ(rows->asked.back(), "IDEMPOTENCY#a");
}

TEST_F(OldTableTest, ADigestIsFoundByItsLabel) {
  table.mapping.hash = "sha256";
  rows->some.push_back(R"({"id":17,"status":"DONE","response":4})");
  rows->find = [&](const std::string& text) {
    return std::vector<Row>{{.json = rows->some.at(text == "17" ? 1 : 0), .name = "row", .problem = {}}};
  };
  const keys::KeyDeriver deriver(keys::Recipe{.scope = "pay"});
  const std::string of_text(deriver.derive("\"a\"").key->name());
  const std::string of_number(deriver.derive("17").key->name());
  EXPECT_EQ(look(of_text, "pay", "a").record.result.bytes, "1");
  EXPECT_EQ(look(of_number, "pay", "17").record.result.bytes, "4");
  expect_failed(look(of_text, "pay"), ErrorKind::corrupt, "--label all");
  expect_failed(look(of_text, "pay", "b"), ErrorKind::corrupt, "--label all");
  const std::string of_list(deriver.derive(R"(["a","b"])").key->name());
  expect_failed(look(of_list, "pay", R"(["a","b"])"), ErrorKind::corrupt, "one text or number");
}

// A message has 17, and the column, of texts, has "17".
TEST_F(OldTableTest, ANumberStandsForItsTextInTheColumn) {
  table.mapping.hash = "sha256";
  rows->some.push_back(R"({"id":"17","status":"DONE","response":4})");
  const keys::KeyDeriver deriver(keys::Recipe{.scope = "pay"});
  const std::string of_number(deriver.derive("17").key->name());
  const OldRow row = look(of_number, "pay", "17");
  ASSERT_EQ(row.kind, OldRow::Kind::found) << row.error.message;
  EXPECT_EQ(row.record.key, Key("pay", of_number).stored());
  EXPECT_EQ(look(std::string(deriver.derive("\"17\"").key->name()), "pay", "17").record.result.bytes, "4");
  expect_failed(look(of_number, "refund", "17"), ErrorKind::corrupt, "another scope");
}

TEST_F(OldTableTest, AConnectionThatWasClosedIsOpenedAgain) {
  max_threads = 1;  // All looks on one connection.
  EXPECT_EQ(look().kind, OldRow::Kind::found);
  bool is_closed = true;
  rows->find = [&](const std::string&) -> std::vector<Row> {
    if (std::exchange(is_closed, false)) throw Exception(ErrorKind::unavailable, "closed");
    return {};
  };
  EXPECT_EQ(look().kind, OldRow::Kind::absent);
  EXPECT_EQ(rows->opened, 2);
  rows->find = [](const std::string&) -> std::vector<Row> { throw Exception(ErrorKind::unavailable, "down"); };
  expect_failed(look(), ErrorKind::unavailable, "down");
  rows->find = [](const std::string&) -> std::vector<Row> { throw Exception(ErrorKind::misuse, "no such column"); };
  expect_failed(look(), ErrorKind::unavailable, "no such column");
  rows->find = [](const std::string&) -> std::vector<Row> { throw std::runtime_error("bug"); };
  expect_failed(look(), ErrorKind::unavailable, "bug");
  rows->find = nullptr;
  EXPECT_EQ(look().kind, OldRow::Kind::found);
  EXPECT_EQ(announced, 1);
}

TEST_F(OldTableTest, ATableThatTheMappingDoesNotFitRefusesEveryCall) {
  rows->some = {R"({"id":"a","state":"7"})", R"({"other":1})"};
  expect_failed(look("new"), ErrorKind::unavailable, "none of its first 2 rows can be used");
  rows->some = {R"({"id":"a","status":"DONE"})"};
  rows->find = [](const std::string&) { return std::vector<Row>(); };
  expect_failed(look("new"), ErrorKind::unavailable, "rows are not found by the text in 'id'");
  rows->some = {};
  EXPECT_EQ(look("new").kind, OldRow::Kind::absent) << "A table whose rows have all gone";
}

TEST_F(OldTableTest, AColumnWithOneTextForSeveralRowsIsRefused) {
  rows->some = {R"({"id":"a","status":"DONE","n":1})", R"({"id":"a","status":"DONE","n":2})"};
  expect_failed(look("new"), ErrorKind::unavailable, "two of its first rows have one key in 'id'");
  table.mapping.scope.clear();
  table.mapping.scope_from = "to_string(n)";
  use();
  EXPECT_EQ(look("new").kind, OldRow::Kind::absent);
}

TEST_F(OldTableTest, EmptyTableIsSaidAndItsColumnTried) {
  rows->some = {};
  EXPECT_EQ(look("new").kind, OldRow::Kind::absent);
  EXPECT_EQ(notice, "it has no rows, so every key is new");
  rows->find = [](const std::string&) -> std::vector<Row> { throw Exception(ErrorKind::misuse, "no such column"); };
  use();
  expect_failed(look("new"), ErrorKind::unavailable, "no such column");
}

TEST_F(OldTableTest, KeysThatBeginAlikeAreSaid) {
  rows->some = {R"({"id":"create_order#17","status":"DONE"})", R"({"id":"create_order#18","status":"DONE"})"};
  EXPECT_EQ(look("new").kind, OldRow::Kind::absent);
  EXPECT_THAT(notice, HasSubstr("write key-prefix = \"create_order#\""));
  table.mapping.key_prefix = "create_order#";
  use();
  EXPECT_EQ(look("17").kind, OldRow::Kind::found);
  EXPECT_EQ(notice, "");
}

TEST_F(OldTableTest, ColumnsThatNoRowHasAreSaid) {
  table.mapping.expires = "expirs_at";
  table.mapping.result = "response";
  rows->some = {R"({"id":"a","status":"DONE","response":1,"expires_at":4000000000})"};
  EXPECT_EQ(look("new").kind, OldRow::Kind::absent);
  EXPECT_EQ(notice, "none of its first rows has expirs_at");
}

TEST_F(OldTableTest, LooksThatNobodyTakesUpAreNotKept) {
  constexpr int workers = 4;
  std::promise<void> answers;
  std::atomic<int> asked = 0;
  std::promise<void> all_asked;
  rows->find = [&, may = answers.get_future().share()](const std::string& text) -> std::vector<Row> {
    if (text != "slow") return {{.json = rows->some.at(0), .name = "row", .problem = {}}};
    if (++asked == workers) all_asked.set_value();
    may.wait();
    return {};
  };
  use();
  for (int at = 0; at < workers; ++at) {
    old->look(share(testing::plain_record(Key("pay", "slow").stored())), clock->now(), [](const OldRow&) {});
  }
  all_asked.get_future().wait();
  RecordPtr claim = share(testing::plain_record(Key("pay", "later").stored()));
  const std::weak_ptr<const Record> kept = claim;
  bool is_over = false;
  old->look(std::move(claim), clock->now(), [&](const OldRow&) { is_over = true; });
  timers->advance(Millis{5'000});
  EXPECT_TRUE(is_over);
  EXPECT_TRUE(kept.expired());
  answers.set_value();
}

TEST_F(OldTableTest, ALookEndsInTime) {
  std::promise<void> asked;
  std::promise<void> answers;
  rows->find = [&, may = answers.get_future().share()](const std::string& text) -> std::vector<Row> {
    if (text != "slow") return {{.json = rows->some.at(0), .name = "row", .problem = {}}};
    asked.set_value();
    may.wait();
    return {};
  };
  use();
  int ends = 0;
  OldRow ended;
  old->look(share(testing::plain_record(Key("pay", "slow").stored())), clock->now(), [&](OldRow row) {
    ++ends;
    ended = std::move(row);
  });
  asked.get_future().wait();
  timers->advance(Millis{4'999});
  EXPECT_EQ(ends, 0);
  timers->advance(Millis{1});
  expect_failed(ended, ErrorKind::unavailable, "no answer within 5s");
  EXPECT_EQ(look().kind, OldRow::Kind::found) << "Others go on meanwhile";
  answers.set_value();
  old.reset();
  EXPECT_EQ(ends, 1);
}

// A server that hangs keeps a thread for one timeout: what nobody waits for is not asked again.
TEST_F(OldTableTest, ALookThatHasEndedIsNotRetried) {
  max_threads = 1;  // All looks on one connection.
  EXPECT_EQ(look().kind, OldRow::Kind::found);
  std::promise<void> asked;
  std::promise<void> fails;
  rows->find = [&, may = fails.get_future().share()](const std::string& text) -> std::vector<Row> {
    if (text != "slow") return {};
    asked.set_value();
    may.wait();
    throw Exception(ErrorKind::unavailable, "no answer in time");
  };
  old->look(share(testing::plain_record(Key("pay", "slow").stored())), clock->now(), [](const OldRow&) {});
  asked.get_future().wait();
  timers->advance(Millis{5'000});
  fails.set_value();
  old.reset();
  while (rows.use_count() > 1) std::this_thread::yield();  // Until the thread has ended.
  EXPECT_EQ(std::ranges::count(rows->asked, "slow"), 1);
}

// ---- The file.

class OldTableFile : public ::testing::Test {
 protected:
  std::string error_of(const std::string& text) {
    std::ofstream(path) << text;
    try {
      read_old_table(path);
    } catch (const Exception& error) {
      return error.what();
    }
    return "accepted";
  }
  [[nodiscard]] std::string without(const std::string& setting) const {
    std::string text = good;
    const std::size_t at = text.find("\n" + setting + " = ") + 1;
    return text.erase(at, text.find('\n', at) - at + 1);
  }
  const std::string path = ::testing::TempDir() + "/old_table_file.toml";
  const std::string good =
      "mode = \"read\"\nfrom = \"sqlite:old.db\"\ntable = \"keys\"\npreset = \"article\"\nkey = \"id\"\n"
      "expired = \"skip\"\nkey-prefix = \"\"\n";
};

TEST_F(OldTableFile, IsReadWithTheNamesOfImport) {
  EXPECT_EQ(error_of(good), "accepted");
  EXPECT_EQ(error_of(without("key-prefix") +
                     "scope = \"pay\"\nkey-prefix = \"x#\"\nmay-run = \"FAILED\"\nutc = true\ntimeout = \"2s\"\n"),
            "accepted");
  const OldTableOptions read = read_old_table(path);
  EXPECT_EQ(read.mapping.scope, "pay");
  EXPECT_EQ(read.mapping.key_prefix, "x#");
  EXPECT_TRUE(read.mapping.utc);
  EXPECT_EQ(read.finder.timeout, Millis{2'000});
  EXPECT_EQ(read.finder.column, "id");
}

TEST_F(OldTableFile, RefusesWhatCouldSwitchALookOff) {
  EXPECT_THAT(error_of(without("mode")), HasSubstr("mode is missing"));
  EXPECT_THAT(error_of(without("mode") + "mode = \"claim\"\n"), HasSubstr("no mode in which both programs claim"));
  EXPECT_THAT(error_of(without("from")), HasSubstr("from is missing"));
  EXPECT_THAT(error_of(without("from") + "from = \"csv:old.csv\"\n"), HasSubstr("can be asked for one key"));
  EXPECT_THAT(error_of(without("table")), HasSubstr("write table = \"NAME\""));
  EXPECT_THAT(error_of(without("from") + "from = \"dynamodb://keys\"\n"), HasSubstr("the URL names the table"));
  EXPECT_THAT(error_of(without("key")), HasSubstr("key must name the column"));
  EXPECT_THAT(error_of(without("key") + "key = \"join('#', [id])\"\n"), HasSubstr("key must name the column"));
  EXPECT_THAT(error_of(without("key-prefix")), HasSubstr("write key-prefix = \"create_order#\""));
  EXPECT_THAT(error_of(without("key-prefix") + "key-prefix = \"x\\u0000\"\n"), HasSubstr("character 0"));
  EXPECT_THAT(error_of(good + "help = \"x\"\n"), HasSubstr("unknown setting 'help'"));
  EXPECT_THAT(error_of(without("expired")), HasSubstr("what becomes of rows that have expired"));
  EXPECT_THAT(error_of(good + "where = \"kind == 'x'\"\n"), HasSubstr("where is not for fallback="));
  EXPECT_THAT(error_of(good + "scop = \"pay\"\n"), HasSubstr("did you mean 'scope'?"));
  EXPECT_THAT(error_of(good + "scope = 7\n"), HasSubstr("must be a string"));
  EXPECT_THAT(error_of(good + "scope = \"\"\n"), HasSubstr("scope is empty"));
  EXPECT_THAT(error_of(good + "utc = \"true\"\n"), HasSubstr("utc must be true or false"));
  EXPECT_THAT(error_of(good + "timeout = \"1h\"\n"), HasSubstr("100ms to 1m"));
  EXPECT_THAT(error_of(good + "state = \"x[\"\n"), HasSubstr("--state"));
  EXPECT_THAT(error_of(without("preset") + "state = \"status\"\ncompleted = \"done\"\n"),
              HasSubstr("in-progress names no state"));
  EXPECT_THAT(error_of(without("preset") + "preset = \"powertools-python\"\n"), HasSubstr("Powertools"));
  EXPECT_THAT(error_of("mode = [\n"), HasSubstr(path));
  EXPECT_THAT([] { read_old_table("/nowhere.toml"); },
              ::testing::ThrowsMessage<Exception>(HasSubstr("cannot be read")));
}

TEST_F(OldTableFile, DigestsNeedAHashAndTextsNone) {
  error_of(good);
  EXPECT_THAT([&] { Fallback(path, true); }, ::testing::ThrowsMessage<Exception>(HasSubstr("hash = \"sha256\"")));
  error_of(good + "hash = \"sha256\"\n");
  EXPECT_THAT([&] { Fallback(path, false); }, ::testing::ThrowsMessage<Exception>(HasSubstr("leave it out")));
  Fallback(path, true);
}

}  // namespace fallback_test
}  // namespace once::cli::importing
