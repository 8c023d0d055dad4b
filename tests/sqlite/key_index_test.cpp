// How the SQLite store finds keys: in memory, in its table, on the way from one to the other, and in what other
// programs have written meanwhile.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/platform/blocking.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "../thread_sanitizer.hpp"
#include "faulty_vfs.hpp"
#include "scratch.hpp"
#include "sound.hpp"

namespace once::testing {
namespace key_index_test {

using stores::make_sqlite_store;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SqliteKeys : public ::testing::Test {
 protected:
  ~SqliteKeys() override { disk_faults().heal(); }
  void TearDown() override {
    disk_faults().heal();
    if (std::filesystem::exists(scratch_.file())) expect_sound(scratch_.file());
  }

  std::unique_ptr<Store> open(std::size_t recent_keys) const {
    return make_sqlite_store({.path = scratch_.file(), .recent_keys = recent_keys, .vfs = faulty_vfs()});
  }

  static std::string key(int n) { return "k#" + std::to_string(n); }

  static AnswerStatus insert(Store& store, const std::string& key) {
    const Answer answer = blocking::insert(store, plain_record(key));
    EXPECT_NE(answer.status, AnswerStatus::failed) << answer.error.message;
    return answer.status;
  }
  static void put(Store& store, const std::string& key) { ASSERT_EQ(insert(store, key), AnswerStatus::done) << key; }
  static void put(Store& store, int from, int to) {
    for (int n = from; n < to; ++n) put(store, key(n));
  }
  static void take_away(Store& store, const std::string& key) {
    const Answer answer = blocking::remove(store, key, seen_of(plain_record(key)));
    ASSERT_EQ(answer.status, AnswerStatus::done) << key << ": " << answer.error.message;
  }
  // By all of the stores in turn, many at once.
  static void put_expired(const std::vector<Store*>& stores, const std::string& prefix, int count) {
    std::latch over(count);
    std::atomic<int> failed{0};
    for (int n = 0; n < count; ++n) {
      Record expired = plain_record(prefix + std::to_string(n));
      expired.expires_at = manual_start;
      stores[static_cast<std::size_t>(n) % stores.size()]->insert(share(std::move(expired)), [&](const Answer& answer) {
        if (answer.status != AnswerStatus::done) ++failed;
        over.count_down();
      });
    }
    over.wait();
    EXPECT_EQ(failed, 0);
  }
  // Each is read, and cannot be claimed again.
  static void expect_there(Store& store, int from, int to) {
    for (int n = from; n < to; ++n) {
      ASSERT_TRUE(blocking::get(store, key(n)).record) << key(n);
      ASSERT_EQ(insert(store, key(n)), AnswerStatus::refused) << key(n);
    }
  }

  // When the log was written last, as whoever opens the file sees it.
  static constexpr std::chrono::hours just_now{1};  // Not over before the test is.
  static constexpr std::chrono::hours long_ago{-1};
  void written(std::chrono::hours when) const {
    std::error_code none;  // There may be no log yet.
    std::filesystem::last_write_time(scratch_.file("once.db-wal"), std::filesystem::file_time_type::clock::now() + when,
                                     none);
  }

  [[nodiscard]] int number(const std::string& sql) const { return std::stoi(Shell(scratch_.file()).run(sql)); }
  [[nodiscard]] int indexed() const { return number("SELECT count(*) FROM key_index"); }
  [[nodiscard]] int leading_nowhere() const {
    return number("SELECT count(*) FROM key_index WHERE id NOT IN (SELECT id FROM records)");
  }
  // Each entry without a row is noted.
  void expect_notes() const {
    EXPECT_EQ(number("SELECT count(*) FROM key_index WHERE id NOT IN (SELECT id FROM records) AND "
                     "(hash, id) NOT IN (SELECT hash, id FROM dropped_keys)"),
              0);
  }

  const Scratch scratch_;
};

// From a thousand of the lowest hashes, and what has none in the table yet.
TEST_F(SqliteKeys, EstimatesHowManyRecordsThereAre) {
  const auto store = open(64);
  const auto estimate = [&] { return static_cast<double>(stores::sqlite_status(*store)->about_records.value()); };
  EXPECT_EQ(estimate(), 0);
  put(*store, 0, 100);
  EXPECT_EQ(estimate(), 100);
  put(*store, 100, 4'000);
  // One in a thousand times a sample of 1024 is more than a tenth off.
  EXPECT_NEAR(estimate(), 4'000, 500);
}

TEST_F(SqliteKeys, AreFoundInMemoryOnTheWayAndInTheTable) {
  const auto store = open(300);
  for (int n = 0; n < 3000; n += 100) {
    put(*store, n, n + 100);
    expect_there(*store, std::max(0, n - 900), n + 100);
  }
  EXPECT_GE(indexed(), 2400);
  EXPECT_LE(indexed(), 2700);  // Those that came last are not there for themselves alone.
  expect_there(*store, 0, 3000);
  EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
}

TEST_F(SqliteKeys, FewStayInMemoryOnly) {
  const auto store = open(32'768);
  put(*store, 0, 200);
  EXPECT_EQ(indexed(), 0);
  expect_there(*store, 0, 200);
}

// What a program had in memory when it was killed: here it is another's that still lives.
TEST_F(SqliteKeys, AreFoundByWhoeverOpensTheFileLater) {
  const auto gone = open(10'000);
  put(*gone, 0, 600);
  written(just_now);
  const auto soon = open(10'000);
  EXPECT_EQ(indexed(), 0);
  expect_there(*soon, 0, 600);
  written(long_ago);
  const auto later = open(10'000);
  EXPECT_EQ(indexed(), 600);
  expect_there(*later, 0, 600);
  expect_there(*gone, 0, 600);
  put(*gone, 600, 700);
  written(just_now);
  const auto small = open(40);  // It would have to keep more than a program of this size does.
  EXPECT_EQ(indexed(), 700);
  expect_there(*later, 0, 700);
}

TEST_F(SqliteKeys, AreIndexedWhenTheirStoreIsClosed) {
  { put(*open(1000), 0, 60); }
  EXPECT_EQ(indexed(), 0);  // Not worth a sync.
  { put(*open(1000), 60, 200); }
  EXPECT_EQ(indexed(), 200);
  expect_there(*open(1000), 0, 200);
}

// However soon they come after it, and one after the other.
TEST_F(SqliteKeys, OfAKilledProgramAreIndexedByTheFirstThatIsAlone) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto store = open(32'768);
    put(*store, 0, 600);
    kill(getpid(), SIGKILL);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  written(just_now);
  ASSERT_EQ(indexed(), 0);
  const auto first = open(32'768);
  EXPECT_EQ(indexed(), 600);
  put(*first, 600, 700);
  written(just_now);
  const auto second = open(32'768);
  EXPECT_EQ(indexed(), 600);  // It would be in the first one's way.
  expect_there(*second, 0, 700);
}

// A fortieth of the rows, and at most eight times as many as of a small table.
TEST_F(SqliteKeys, AreMovedInLotsThatGrowWithTheTable) {
  const auto store = open(20);
  const auto not_indexed = [&] {
    return number("SELECT max(id) - (SELECT value FROM once_meta WHERE name = 'indexed_to') FROM records");
  };
  const auto most_between = [&](int from, int to) {
    int most = 0;
    for (int n = from; n < to; n += 10) {
      put(*store, n, n + 10);
      most = std::max(most, not_indexed());
    }
    return most;
  };
  EXPECT_LE(most_between(0, 800), 60);
  put(*store, 800, 4'000);
  const int later = most_between(4'000, 4'400);
  EXPECT_GE(later, 100);
  EXPECT_LE(later, 250);
  put(*store, 4'400, 10'000);
  const int most = most_between(10'000, 10'800);
  EXPECT_GE(most, 160);
  EXPECT_LE(most, 600);
}

TEST_F(SqliteKeys, OfManyShortProgramsAreIndexedNowAndThen) {
  for (int n = 0; n < 200; ++n) {
    written(just_now);
    put(*open(32'768), key(n));
    ASSERT_LE(n + 1 - indexed(), 64);
  }
  EXPECT_GT(indexed(), 0);
  // Not beside a busy one.
  const auto busy = open(32'768);
  put(*busy, 200, 1400);
  const int before = indexed();
  written(just_now);
  put(*open(32'768), key(1400));
  EXPECT_EQ(indexed(), before);
  expect_there(*busy, 0, 1401);
}

TEST_F(SqliteKeys, OfOtherProgramsAreFoundAtOnce) {
  const auto one = open(200);
  const auto reader = open(200);
  const auto writer = open(200);
  for (int n = 0; n < 1500; n += 3) {
    put(*one, n, n + 2);
    put(*writer, key(n + 2));
    ASSERT_TRUE(blocking::get(*reader, key(n)).record);
    ASSERT_TRUE(blocking::get(*reader, key(n + 2)).record);
    ASSERT_EQ(insert(*writer, key(n)), AnswerStatus::refused);
    ASSERT_EQ(insert(*one, key(n + 2)), AnswerStatus::refused);
  }
  expect_there(*reader, 0, 1500);
}

// However many write: each counts all rows, not only its own, or none would be done before the next lot is there.
TEST_F(SqliteKeys, OfManyProgramsDoNotPileUp) {
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < 5; ++i) stores.push_back(open(100));
  for (int n = 0; n < 3000; ++n) {
    put(*stores.at(static_cast<std::size_t>(n) % stores.size()), key(n));
    if (n % 50 == 49) {
      ASSERT_LE(n + 1 - number("SELECT value FROM once_meta WHERE name = 'indexed_to'"), 300) << n;
    }
  }
  expect_there(*stores[0], 0, 3000);
  EXPECT_THAT(stores::check_sqlite(*stores[0]), IsEmpty());
}

// A store that is told to learn and to end at the same time does both.
TEST_F(SqliteKeys, AReaderThatIsFarBehindDoesNotHoldUpItsEnd) {
  const auto writer = open(32'768);
  put(*writer, 0, 400);
  for (int n = 0; n < 200; ++n) {
    written(just_now);
    const auto reader = open(32'768);
    ASSERT_FALSE(blocking::get(*reader, "nobody's#1").record);
  }
}

// A program that only reads, and is far behind those that write.
TEST_F(SqliteKeys, AReaderFindsWhatIsFarBehind) {
  const auto reader = open(32'768);
  const auto writer = open(32'768);
  for (int n = 0; n < 2000; n += 200) {
    put(*writer, n, n + 200);
    ASSERT_TRUE(blocking::get(*reader, key(0)).record);
    ASSERT_TRUE(blocking::get(*reader, key(n)).record);
    ASSERT_TRUE(blocking::get(*reader, key(n + 199)).record);
    ASSERT_FALSE(blocking::get(*reader, key(n + 200)).record);
  }
  expect_there(*reader, 0, 2000);
}

// `other` has seen all ids up to the newest; if that were given to another key, it would not look at it.
TEST_F(SqliteKeys, AnIdIsNeverUsedAgain) {
  const auto other = open(100);
  for (int n = 0; n < 300; n += 2) {
    {
      const auto store = open(100);
      put(*store, key(n));
      ASSERT_EQ(insert(*other, key(n)), AnswerStatus::refused);
      take_away(*store, key(n));
    }
    const auto store = open(100);
    put(*store, key(n + 1));
    ASSERT_EQ(insert(*other, key(n + 1)), AnswerStatus::refused) << key(n + 1);
    ASSERT_FALSE(blocking::get(*other, key(n)).record);
  }
  EXPECT_EQ(number("SELECT count(*) FROM records"), 150);
  EXPECT_EQ(number("SELECT max(id) FROM records"), 300);
}

TEST_F(SqliteKeys, WhatIsDeletedLeavesFewEntries) {
  const auto one = open(64);
  const auto other = open(64);
  for (int n = 0; n < 600; n += 20) {
    put(*one, n, n + 20);
    for (int gone = n; gone < n + 10; ++gone) take_away(gone % 2 == 0 ? *one : *other, key(gone));
    Record expired = plain_record("expired#" + std::to_string(n));
    expired.expires_at = manual_start;
    ASSERT_EQ(blocking::insert(*one, expired).status, AnswerStatus::done);
    ASSERT_EQ(blocking::sweep(*other, manual_start + Millis{1}, 10).removed, 1U);
  }
  put(*one, 600, 900);  // So that all of them are moved.
  EXPECT_GE(indexed(), 400);
  expect_notes();
  EXPECT_LT(leading_nowhere(), 200);  // Of some 330.
  // By hand as well.
  Shell(scratch_.file()).run("DELETE FROM records WHERE id % 3 = 0");
  expect_notes();
  EXPECT_THAT(stores::check_sqlite(*one), IsEmpty());
}

TEST_F(SqliteKeys, OfSweptRowsGoInLots) {
  const auto store = open(64);
  constexpr int rows = 5'000;
  put_expired({store.get()}, "expired#", rows);
  EXPECT_GT(indexed(), rows / 2);  // The others are in memory, or on the way.
  // In small portions too, whose own rows are fewer than a lot.
  std::size_t removed = 0;
  while (removed < rows - 1'000) removed += blocking::sweep(*store, manual_start + Millis{1}, 100).removed;
  expect_notes();
  EXPECT_LT(leading_nowhere(), 1'000);
  const SweepAnswer last = blocking::sweep(*store, manual_start + Millis{1}, rows);
  EXPECT_EQ(removed + last.removed, std::size_t{rows});
  EXPECT_FALSE(last.more);
  expect_notes();
  // An eighth of the rows that there were is no lot yet.
  EXPECT_LE(leading_nowhere(), 700);
  EXPECT_LE(number("SELECT count(*) FROM dropped_keys"), 700);
  put(*store, 0, 100);
  expect_there(*store, 0, 100);
  EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
}

// What one program was about to remove, another has removed; and what was noted meanwhile is not forgotten.
TEST_F(SqliteKeys, OfSweptRowsAreRemovedByTwoPrograms) {
  const auto one = open(64);
  const auto other = open(64);
  for (int round = 0; round < 20; ++round) {
    put_expired({one.get(), other.get()}, std::to_string(round) + "#", 200);
    for (Store* const store : {one.get(), other.get(), one.get()}) {
      ASSERT_FALSE(blocking::sweep(*store, manual_start + Millis{1}, 70).error);
    }
    expect_notes();
  }
  while (blocking::sweep(*one, manual_start + Millis{1}, 100).more) {
  }
  expect_notes();
  EXPECT_LE(leading_nowhere(), 200);
  EXPECT_THAT(stores::check_sqlite(*other), IsEmpty());
}

TEST_F(SqliteKeys, AFileOfAnEarlierBuildGetsItsNotes) {
  put(*open(10), 0, 100);
  Shell(scratch_.file())
      .run(
          "DROP TABLE dropped_keys; DROP TRIGGER records_deleted; CREATE TRIGGER records_deleted AFTER DELETE ON "
          "records "
          "BEGIN DELETE FROM key_index WHERE hash = old.hash AND id = old.id; UPDATE once_meta SET value = old.id "
          "WHERE "
          "name = 'last_deleted' AND value < old.id; END");
  const auto store = open(10);
  take_away(*store, key(7));
  EXPECT_EQ(number("SELECT count(*) FROM dropped_keys"), 1);
  expect_there(*store, 8, 100);
  EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
}

TEST_F(SqliteKeys, TakenAwayMayBeClaimedAgain) {
  const auto one = open(10);
  const auto other = open(1);
  for (int n = 0; n < 200; ++n) {
    put(n % 3 == 0 ? *other : *one, "same#1");
    ASSERT_EQ(insert(n % 3 == 1 ? *other : *one, "same#1"), AnswerStatus::refused);
    put(*one, key(n));
    take_away(n % 2 == 0 ? *one : *other, "same#1");
    ASSERT_FALSE(blocking::get(*one, "same#1").record);
    ASSERT_FALSE(blocking::get(*other, "same#1").record);
  }
  EXPECT_THAT(stores::check_sqlite(*one), IsEmpty());
}

// Several programs that keep different numbers of keys in memory, sweeps, openers in between, a disk that is full or
// does not sync, and a shell that holds the file up, against a map.
TEST_F(SqliteKeys, RandomOperationsDoWhatAMapDoes) {
  for (int seed = 1; seed <= of_one_thread(10); ++seed) {
    SCOPED_TRACE(seed);
    const Scratch scratch;
    SeededRandom random(seed);
    constexpr std::array<std::size_t, 4> recent{1, 5, 40, 1000};
    const auto open_one = [&] {
      return make_sqlite_store({.path = scratch.file(),
                                .busy_timeout = Millis{10},
                                .recent_keys = recent.at(random.below(recent.size())),
                                .vfs = faulty_vfs()});
    };
    std::array<std::unique_ptr<Store>, 3> stores{open_one(), open_one(), open_one()};
    Shell shell(scratch.file());
    std::map<std::string, Record> expected;
    for (int step = 0; step < 1500; ++step) {
      SCOPED_TRACE(step);
      auto& store = stores.at(random.below(stores.size()));
      if (random.below(60) == 0) {
        store.reset();
        store = open_one();
      }
      const bool fresh = random.below(3) == 0;
      const std::string key = "k#" + std::to_string(fresh ? 1000 + step : static_cast<int>(random.below(40)));
      const auto known = expected.find(key);
      const auto what = random.below(14);
      const auto fault = random.below(40);  // Most often none.
      disk_faults().full = fault < 2;
      disk_faults().log_sync = fault == 2;
      if (fault == 3) shell.run("BEGIN IMMEDIATE");
      Answer answer = Answer::refuse(nullptr);
      if (what == 0) {
        const SweepAnswer swept = blocking::sweep(*store, manual_start + Millis{1}, 1000);
        answer.status = swept.error ? AnswerStatus::failed : AnswerStatus::done;
        if (swept.error) answer.error = *swept.error;
        if (!swept.error) {
          std::erase_if(expected, [](const auto& each) { return each.second.expires_at == manual_start; });
        }
      } else if (what < 8) {
        Record record = plain_record(key);
        if (random.below(4) == 0) record.expires_at = manual_start;
        answer = blocking::insert(*store, record);
        if (answer.status == AnswerStatus::done) {
          ASSERT_TRUE(known == expected.end()) << "claimed twice: " << key;
          expected[key] = record;
        } else if (answer.status == AnswerStatus::refused) {
          ASSERT_TRUE(known != expected.end()) << key;
        }
      } else if (known != expected.end() && what < 11) {
        Record next = known->second;
        next.revision += 1;
        next.note = "step " + std::to_string(step);
        answer = blocking::replace(*store, next, seen_of(known->second));
        ASSERT_NE(answer.status, AnswerStatus::refused) << key;
        if (answer.status == AnswerStatus::done) known->second = next;
      } else if (known != expected.end()) {
        answer = blocking::remove(*store, key, seen_of(known->second));
        ASSERT_NE(answer.status, AnswerStatus::refused) << key;
        if (answer.status == AnswerStatus::done) expected.erase(known);
      }
      if (fault == 3) shell.run("COMMIT");
      disk_faults().heal();
      if (answer.status == AnswerStatus::failed) {
        // On a loaded machine another store may keep the lock beyond the busy timeout: then nothing was written.
        const bool was_busy = answer.error.kind == ErrorKind::unavailable &&
                              answer.error.message.find("was held by another process") != std::string::npos;
        ASSERT_TRUE(fault <= 3U || was_busy) << answer.error.message;
        if (fault == 2) {  // In doubt: what is there now counts.
          expected.clear();
          for (Record& record : blocking::list(*stores[0], {.limit = 10'000}).records) {
            expected[record.key] = std::move(record);
          }
        }
      }
      const std::string other = "k#" + std::to_string(random.below(40));
      const auto there = expected.find(other);
      answer = blocking::get(*stores.at(random.below(stores.size())), other);
      ASSERT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
      ASSERT_EQ(answer.record != nullptr, there != expected.end()) << other;
      if (answer.record) {
        ASSERT_EQ(*answer.record, there->second);
      }
    }
    for (const auto& [key, record] : expected) {
      for (const auto& store : stores) {
        const Answer answer = blocking::get(*store, key);
        ASSERT_TRUE(answer.record) << key;
        ASSERT_EQ(*answer.record, record);
        ASSERT_EQ(insert(*store, key), AnswerStatus::refused) << key;
      }
    }
    for (const auto& store : stores) EXPECT_EQ(insert(*store, "last#1") == AnswerStatus::done, store == stores[0]);
    expect_sound(scratch.file(), {stores[0].get(), stores[1].get(), stores[2].get()});
  }
}

// All threads of all programs want all keys.
TEST_F(SqliteKeys, EachIsClaimedOnceHoweverManyWantIt) {
  constexpr int keys = 600;
  const std::array<std::unique_ptr<Store>, 3> stores{open(20), open(64), open(1000)};
  std::vector<std::atomic<int>> claims(keys);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      Store& store = *stores.at(thread % stores.size());
      for (int n = 0; n < keys; ++n) {
        const int at = (n + static_cast<int>(thread / 3) * 5) % keys;
        const Answer answer = blocking::insert(store, plain_record(key(at)));
        EXPECT_NE(answer.status, AnswerStatus::failed) << answer.error.message;
        if (answer.status == AnswerStatus::done) ++claims.at(static_cast<std::size_t>(at));
        EXPECT_TRUE(blocking::get(store, key(at)).record) << key(at);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int n = 0; n < keys; ++n) EXPECT_EQ(claims.at(static_cast<std::size_t>(n)), 1) << key(n);
  EXPECT_EQ(number("SELECT count(*) FROM records"), keys);
  expect_sound(scratch_.file(), {stores[0].get(), stores[1].get(), stores[2].get()});
}

TEST_F(SqliteKeys, AFullDiskDoesNotKeepAStoreFromOpening) {
  const auto gone = open(10'000);
  put(*gone, 0, 600);
  written(long_ago);
  disk_faults().full = true;
  const auto store = open(100);
  EXPECT_EQ(indexed(), 0);
  for (int n = 0; n < 600; ++n) ASSERT_TRUE(blocking::get(*store, key(n)).record) << key(n);
  disk_faults().heal();
  expect_there(*store, 0, 600);
  put(*store, 600, 1000);
  EXPECT_GE(indexed(), 600);
}

// What fails after a commit takes nothing of it back.
TEST_F(SqliteKeys, AFailureBetweenTwoClaimsForgetsNeither) {
  const auto store = open(100);
  Record expired = plain_record("expired#1");
  expired.expires_at = manual_start;
  ASSERT_EQ(blocking::insert(*store, expired).status, AnswerStatus::done);
  put(*store, key(0));
  disk_faults().full = true;
  EXPECT_TRUE(blocking::sweep(*store, manual_start + Millis{1}, 10).error);
  disk_faults().heal();
  expect_there(*store, 0, 1);
  put(*store, key(1));
  const auto impatient = make_sqlite_store({.path = scratch_.file(), .busy_timeout = Millis{10}, .recent_keys = 100});
  put(*impatient, key(2));
  {
    Shell shell(scratch_.file());
    shell.run("BEGIN IMMEDIATE");
    EXPECT_EQ(blocking::insert(*impatient, plain_record(key(3))).status, AnswerStatus::failed);
  }
  expect_there(*impatient, 0, 3);
  expect_there(*store, 0, 3);
}

// Nothing can come after them, which is said, and not tried again and again.
TEST_F(SqliteKeys, AfterTheHighestIdsThereAreNoneMore) {
  { put(*open(100), 0, 3); }
  Shell(scratch_.file()).run("UPDATE records SET id = 9223372036854775806 WHERE id = 3");
  written(long_ago);
  const auto store = open(1);
  const Answer answer = blocking::insert(*store, plain_record(key(3)));
  EXPECT_EQ(answer.status, AnswerStatus::failed);
  EXPECT_THAT(answer.error.message, HasSubstr("a row was given the id 9223372036854775806"));
  ASSERT_TRUE(blocking::get(*store, key(0)).record);
}

TEST_F(SqliteKeys, ARowThatTheTableHasLostIsReportedAndTheTableCanBeMadeAnew) {
  {
    const auto store = open(1);
    put(*store, 0, 300);
    Shell(scratch_.file()).run("DELETE FROM key_index WHERE id % 100 = 0");
    const auto problems = stores::check_sqlite(*store);
    ASSERT_EQ(problems.size(), 2U);  // The third is not in it yet.
    EXPECT_THAT(problems[0], HasSubstr("the row 100 is not in key_index"));
    EXPECT_THAT(problems[0],
                HasSubstr("DELETE FROM key_index; UPDATE once_meta SET value = 0 WHERE name = 'indexed_to'"));
  }
  Shell(scratch_.file()).run("DELETE FROM key_index; UPDATE once_meta SET value = 0 WHERE name = 'indexed_to'");
  const auto store = open(100);
  EXPECT_EQ(indexed(), 300);
  EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
  expect_there(*store, 0, 300);
}

}  // namespace key_index_test
}  // namespace once::testing
