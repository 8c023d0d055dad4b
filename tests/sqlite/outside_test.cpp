// What others do to the file under programs that have it open: a shell that puts an older copy back, deletes, vacuums.
// Whatever it was, a key whose row is there is found, and is not claimed again.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/platform/blocking.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "../thread_sanitizer.hpp"
#include "scratch.hpp"
#include "sound.hpp"
#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/file_lock.hpp"
#include "stores/sqlite/outside_writes.hpp"

namespace once::testing {
namespace outside_test {

using stores::make_sqlite_store;
using ::testing::HasSubstr;

class SqliteOutside : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open(std::size_t recent_keys = 32'768) const {
    return make_sqlite_store({.path = scratch_.file(), .recent_keys = recent_keys});
  }

  // The stock shell.
  void shell(const std::string& command) const {
    FILE* const program = popen(("sqlite3 '" + scratch_.file() + "' \"" + command + "\" 2>&1").c_str(), "r");
    ASSERT_NE(program, nullptr);
    std::array<char, 4096> text{};
    const std::size_t size = fread(text.data(), 1, text.size(), program);
    EXPECT_EQ(pclose(program), 0) << std::string(text.data(), size);
  }

  // How many of the keys could be claimed.
  static int claim(Store& store, const std::string& name, int from, int to) {
    int claimed = 0;
    for (int n = from; n < to; ++n) {
      const Answer answer = blocking::insert(store, plain_record(name + std::to_string(n)));
      EXPECT_NE(answer.status, AnswerStatus::failed) << answer.error.message;
      if (answer.status == AnswerStatus::done) ++claimed;
    }
    return claimed;
  }
  static int found(Store& store, const std::string& name, int from, int to) {
    int count = 0;
    for (int n = from; n < to; ++n) count += blocking::get(store, name + std::to_string(n)).record ? 1 : 0;
    return count;
  }

  const Scratch scratch_;
};

// 1. A copy is made. 2. A program claims keys. 3. The copy is restored: ids are used again. 4. Another program claims
// as many other keys. 5. The first still has the same ids in memory, of its own keys.
TEST_F(SqliteOutside, AnOlderCopyPutBackIsNoticed) {
  const auto first = open();
  const auto second = open();
  ASSERT_EQ(claim(*first, "before#", 0, 10), 10);
  shell(".backup " + scratch_.file("older.db"));
  ASSERT_EQ(claim(*first, "first#", 0, 50), 50);
  shell(".restore " + scratch_.file("older.db"));
  ASSERT_EQ(claim(*second, "second#", 0, 50), 50);
  EXPECT_EQ(found(*first, "before#", 0, 10) + found(*first, "second#", 0, 50), 60);
  EXPECT_EQ(claim(*first, "before#", 0, 10) + claim(*first, "second#", 0, 50), 0) << "claimed twice";
  expect_sound(scratch_.file(), {first.get(), second.get()});
}

// What the copy has is found before anybody has written, and however many rows came since.
TEST_F(SqliteOutside, AnOlderCopyPutBackIsNoticedByWhoeverComesNext) {
  for (const int others : {0, 1, 40, 60, 70}) {
    SCOPED_TRACE(others);
    const std::string name = std::to_string(others) + "#";
    const auto one = open();
    const auto small = open(10);
    const auto other = open();
    ASSERT_EQ(claim(*one, name, 0, 10), 10);
    ASSERT_EQ(found(*small, name, 0, 10), 10);
    shell(".backup " + scratch_.file("older.db"));
    ASSERT_EQ(claim(*small, name, 10, 70), 60);
    ASSERT_EQ(found(*one, name, 0, 70), 70);
    shell(".restore " + scratch_.file("older.db"));
    ASSERT_EQ(claim(*other, "o" + name, 0, others), others);
    for (Store* const store : {one.get(), small.get()}) {
      EXPECT_EQ(found(*store, name, 0, 70), 10);
      EXPECT_EQ(found(*store, "o" + name, 0, others), others);
      EXPECT_EQ(claim(*store, name, 0, 10) + claim(*store, "o" + name, 0, others), 0) << "claimed twice";
    }
    EXPECT_EQ(claim(*one, name, 0, 70), 60);
    EXPECT_EQ(claim(*small, name, 0, 70), 0);
    expect_sound(scratch_.file(), {one.get(), small.get(), other.get()});
  }
}

// The rows' ends are as they were, so that nothing but who has written tells of it.
TEST_F(SqliteOutside, RowsThatComeBackAreFound) {
  const auto reader = open();
  const auto other = open();
  ASSERT_EQ(claim(*other, "k#", 0, 20), 20);
  shell(".backup " + scratch_.file("older.db"));
  ASSERT_EQ(blocking::remove(*other, "k#5", seen_of(plain_record("k#5"))).status, AnswerStatus::done);
  ASSERT_EQ(claim(*reader, "k#", 0, 5), 0);
  ASSERT_FALSE(blocking::get(*reader, "k#5").record);
  shell(".restore " + scratch_.file("older.db"));
  ASSERT_EQ(blocking::remove(*other, "k#6", seen_of(plain_record("k#6"))).status, AnswerStatus::done);
  EXPECT_TRUE(blocking::get(*reader, "k#5").record);
  EXPECT_EQ(claim(*reader, "k#", 5, 6), 0) << "claimed twice";
  expect_sound(scratch_.file(), {reader.get(), other.get()});
}

// Its keys have other hashes.
TEST_F(SqliteOutside, AnotherStoresCopyIsRefused) {
  { claim(*make_sqlite_store({.path = scratch_.file("other.db")}), "o#", 0, 10); }
  const auto store = open();
  ASSERT_EQ(claim(*store, "k#", 0, 10), 10);
  shell(".restore " + scratch_.file("other.db"));
  for (int i = 0; i < 2; ++i) {
    const Answer claimed = blocking::insert(*store, plain_record("k#0"));
    EXPECT_EQ(claimed.status, AnswerStatus::failed);
    EXPECT_EQ(claimed.error.kind, ErrorKind::unavailable);
    EXPECT_THAT(claimed.error.message, HasSubstr("replaced by another store's while it was open"));
    const Answer read = blocking::get(*store, "o#0");
    EXPECT_EQ(read.status, AnswerStatus::failed);
    EXPECT_THAT(read.error.message, HasSubstr("restart the programs"));
  }
  EXPECT_EQ(claim(*open(), "o#", 0, 10), 0);
  expect_sound(scratch_.file());
}

TEST_F(SqliteOutside, VacuumAndDeletionsByAShellChangeNothingElse) {
  const auto one = open(16);
  const auto other = open();
  ASSERT_EQ(claim(*one, "k#", 0, 100), 100);
  shell("DELETE FROM records WHERE id % 3 = 0 OR id > 90; VACUUM; REINDEX; PRAGMA wal_checkpoint(TRUNCATE)");
  for (Store* const store : {one.get(), other.get()}) {
    EXPECT_EQ(found(*store, "k#", 0, 100), store == one.get() ? 60 : 90);
    EXPECT_EQ(claim(*store, "k#", 0, 90), store == one.get() ? 30 : 0);
  }
  expect_sound(scratch_.file(), {one.get(), other.get()});
}

// A program that was killed after its commit, before it could note it: the others read the rows again, once.
TEST_F(SqliteOutside, SpoiledNotesCostTimeOnly) {
  const auto one = open();
  const auto other = open();
  for (int n = 0; n < 40; n += 4) {
    ASSERT_EQ(claim(*one, "k#", n, n + 2), 2);
    std::filesystem::resize_file(scratch_.file("once.db-lock"), 64);
    ASSERT_EQ(claim(*other, "k#", n, n + 4), 2);
    if (n % 8 == 0) std::filesystem::remove(scratch_.file("once.db-lock"));
    ASSERT_EQ(found(*one, "k#", 0, n + 4), n + 4);
  }
  EXPECT_EQ(claim(*one, "k#", 0, 40), 0);
  expect_sound(scratch_.file(), {one.get(), other.get()});
}

// Whoever reads follows to the lock file that the writer has made in its place.
TEST_F(SqliteOutside, ReadersFollowALockFileThatIsMadeAnew) {
  const auto store = open();
  const std::string lock_file = scratch_.file("once.db-lock");
  stores::sqlite::FileLock lock(lock_file, scratch_.file());
  stores::sqlite::Connection writer(scratch_.file(), "", Millis{1000});
  stores::sqlite::Connection reader(scratch_.file(), "", Millis{1000});
  stores::sqlite::OutsideWrites outside;
  stores::sqlite::OutsideWatch watch(lock_file);
  for (int round = 0; round < 3; ++round) {
    lock.acquire(Millis{1000});
    writer.run("BEGIN IMMEDIATE");
    const std::uint64_t writes = outside.begin(writer, lock);
    writer.run(("PRAGMA user_version = " + std::to_string(round)).c_str());
    writer.run("COMMIT");
    outside.committed(writer, lock, 1, true);
    lock.release();
    reader.run("BEGIN; SELECT count(*) FROM records");
    EXPECT_TRUE(watch.none_since(writes, reader)) << round;
    reader.run("COMMIT; BEGIN");
    std::filesystem::remove(lock_file);
    reader.run("COMMIT");
  }
  writer.run("PRAGMA user_version = 1");
}

// As a backup is restored by a user who does not know that programs have the file open.
TEST_F(SqliteOutside, AFileThatIsOverwrittenInPlaceIsRefused) {
  const std::string path = scratch_.file();
  const std::string copy = scratch_.file("copy.db");
  { claim(*make_sqlite_store({.path = scratch_.file("other.db")}), "o#", 0, 10); }
  const auto system = [](const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; };
  for (const std::string how : {"older", "of another store", "empty", "cut off"}) {
    SCOPED_TRACE(how);
    for (const char* suffix : {"", "-wal", "-shm", "-lock"}) std::filesystem::remove(path + suffix);
    const auto one = open();
    const auto two = open();
    ASSERT_EQ(claim(*one, "k#", 0, 10), 10);
    shell(".backup " + copy);
    ASSERT_EQ(claim(*two, "k#", 10, 300), 290);
    shell("PRAGMA wal_checkpoint");
    ASSERT_EQ(claim(*two, "k#", 300, 310), 10);
    ASSERT_EQ(claim(*one, "k#", 310, 320), 10);
    if (how == "older") system("cp " + copy + " " + path);
    if (how == "of another store") system("cp " + scratch_.file("other.db") + " " + path);
    if (how == "empty") system(": > " + path);
    if (how == "cut off") system("head -c 50 " + copy + " > " + path);
    for (Store* const store : {one.get(), two.get(), one.get()}) {
      const Answer answer = blocking::insert(*store, plain_record("k#400"));
      EXPECT_EQ(answer.status, AnswerStatus::failed);
      EXPECT_EQ(answer.error.kind, ErrorKind::unavailable);
      EXPECT_THAT(answer.error.message, HasSubstr("was overwritten while it was open"));
    }
  }
}

// Several programs with different numbers of keys in mind, and a shell that does what shells do, one after the other:
// a claim is refused exactly if the key is in the file.
TEST_F(SqliteOutside, RandomActsOfAShellNeverLetAKeyBeClaimedTwice) {
  for (int seed = 1; seed <= of_one_thread(12); ++seed) {
    SCOPED_TRACE(seed);
    const Scratch scratch;
    SeededRandom random(seed);
    constexpr std::array<std::size_t, 4> recent{1, 5, 40, 1000};
    const auto open_one = [&] {
      return make_sqlite_store({.path = scratch.file(), .recent_keys = recent.at(random.below(recent.size()))});
    };
    std::array<std::unique_ptr<Store>, 3> stores{open_one(), open_one(), open_one()};
    Shell shell(scratch.file());
    shell.save(scratch.file("copy0"));
    shell.save(scratch.file("copy1"));
    for (int step = 0; step < 1000; ++step) {
      SCOPED_TRACE(step);
      auto& store = stores.at(random.below(stores.size()));
      const std::string key = "k#" + std::to_string(random.below(80));
      const std::string copy = scratch.file("copy" + std::to_string(random.below(2)));
      const bool there = shell.run("SELECT count(*) FROM records WHERE key = '" + key + "'") == "1";
      const auto what = random.below(40);
      if (what == 0) {
        shell.save(copy);
      } else if (what <= 2) {
        shell.put_back(copy);
      } else if (what == 3) {
        shell.run("DELETE FROM records WHERE id % 4 = " + std::to_string(random.below(4)));
      } else if (what == 4) {
        shell.run("VACUUM");
      } else if (what == 5) {
        shell.run("PRAGMA wal_checkpoint(TRUNCATE)");
      } else if (what == 6) {
        store.reset();
        store = open_one();
      } else if (what == 7) {
        shell.run("DELETE FROM key_index; UPDATE once_meta SET value = 0 WHERE name = 'indexed_to'");
      } else if (what == 8) {
        shell.run("UPDATE records SET expires_at_ms = 1, sweep_at_ms = 1 WHERE id % 3 = 0");
        EXPECT_FALSE(blocking::sweep(*store, Time(Millis(2)), 1 + random.below(60)).error);
      } else if (what < 14) {
        const Answer answer = blocking::remove(*store, key, seen_of(plain_record(key)));
        ASSERT_EQ(answer.status, there ? AnswerStatus::done : AnswerStatus::refused) << answer.error.message;
      } else if (what < 28) {
        const Answer answer = blocking::insert(*store, plain_record(key));
        ASSERT_EQ(answer.status, there ? AnswerStatus::refused : AnswerStatus::done) << answer.error.message;
      } else {
        const Answer answer = blocking::get(*store, key);
        ASSERT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
        ASSERT_EQ(answer.record != nullptr, there) << key;
      }
      if (step % 100 == 99) expect_sound(scratch.file(), {stores[0].get(), stores[1].get(), stores[2].get()});
    }
  }
}

// The store found that in the middle of a transaction, which must not keep others from mending it.
TEST_F(SqliteOutside, ALostHashKeyCanBePutBack) {
  const auto store = open();
  ASSERT_EQ(claim(*store, "k#", 0, 10), 10);
  Shell shell(scratch_.file());
  shell.run("CREATE TABLE kept AS SELECT * FROM once_meta WHERE name = 'hash_key'");
  shell.run("DELETE FROM once_meta WHERE name = 'hash_key'");
  const Answer refused = blocking::insert(*store, plain_record("k#10"));
  EXPECT_EQ(refused.error.kind, ErrorKind::corrupt) << refused.error.message;
  EXPECT_THAT(refused.error.message, HasSubstr("once_meta has lost its hash_key"));
  shell.run("INSERT INTO once_meta SELECT * FROM kept; DROP TABLE kept");
  EXPECT_EQ(claim(*store, "k#", 0, 20), 10);
  expect_sound(scratch_.file(), {store.get()});
}

TEST_F(SqliteOutside, AKeyThatStandsTwiceIsReported) {
  const auto store = open(10);
  ASSERT_EQ(claim(*store, "k#", 0, 30), 30);
  Shell shell(scratch_.file());
  shell.run(
      "CREATE TEMP TABLE twin AS SELECT * FROM records WHERE id IN (3, 28);"
      "UPDATE twin SET id = id + 100; INSERT INTO records SELECT * FROM twin");
  for (const auto how : {stores::SqliteCheck::whole, stores::SqliteCheck::newest}) {
    const auto problems = stores::check_sqlite(*store, how);
    ASSERT_EQ(problems.size(), 2U);
    EXPECT_THAT(problems[0], HasSubstr("the key 'k#2' is stored twice, in the rows 3, 103:"));
    EXPECT_THAT(problems[1], HasSubstr("the key 'k#27' is stored twice, in the rows 28, 128:"));
    EXPECT_THAT(problems[1], HasSubstr("SELECT * FROM records_readable WHERE id IN (28, 128)"));
  }
}

}  // namespace outside_test
}  // namespace once::testing
