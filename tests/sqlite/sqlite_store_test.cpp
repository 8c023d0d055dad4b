// What the SQLite store does beyond the conformance suite: its file, its time, its options, reading from outside.
#include <once/stores/sqlite.hpp>

#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "platform/completion_loop.hpp"
#include "scratch.hpp"
#include "sound.hpp"
#include "stores/sqlite/schema.hpp"

namespace once::testing {
namespace sqlite_store_test {

using stores::make_sqlite_store;
using stores::SqliteOptions;
using stores::stop_counting_sqlite_memory;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The exception of opening with these options; fails the test if there is none.
Error refusal(SqliteOptions options) {
  try {
    make_sqlite_store(std::move(options));
  } catch (const Exception& error) {
    return error.error();
  }
  ADD_FAILURE() << "the store was opened";
  return {};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(SqliteStore, OptionsOutOfRangeAreRefusedByName) {
  const Scratch scratch;
  const auto check = [&](SqliteOptions options, const char* what) {
    const Error error = refusal(std::move(options));
    EXPECT_EQ(error.kind, ErrorKind::misuse);
    EXPECT_THAT(error.message, HasSubstr(what));
  };
  check({}, "path is empty");
  check({.path = scratch.file(), .busy_timeout = Millis{-1}}, "busy_timeout");
  check({.path = scratch.file(), .busy_timeout = Millis{600'001}}, "busy_timeout");
  check({.path = scratch.file(), .checkpoint_pages = 99}, "checkpoint_pages");
  check({.path = scratch.file(), .checkpoint_pages = 1'000'001}, "checkpoint_pages");
  check({.path = scratch.file(), .cache_bytes = 1000}, "cache_bytes");
  check({.path = scratch.file(), .recent_keys = 0}, "recent_keys");
  check({.path = scratch.file(), .recent_keys = 1'000'001}, "recent_keys");
  check({.path = scratch.file(), .clock = nullptr}, "clock");
  check({.path = scratch.file(), .vfs = "no-such-vfs"}, "no-such-vfs");
  EXPECT_FALSE(std::filesystem::exists(scratch.file()));
}

TEST(SqliteStore, TheFileIsPrivateAndTheFilesBesideItFollowItsMode) {
  const SoundScratch scratch;
  const auto mode = [](const std::string& path) {
    struct stat found {};
    EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
    return found.st_mode & 0777U;
  };
  { const auto store = make_sqlite_store({.path = scratch.file()}); }
  for (const char* suffix : {"", "-wal", "-shm", "-lock"}) EXPECT_EQ(mode(scratch.file() + suffix), 0600U) << suffix;

  // An operator shares it with a group.
  for (const char* suffix : {"-wal", "-shm", "-lock"}) std::filesystem::remove(scratch.file() + suffix);
  ASSERT_EQ(chmod(scratch.file().c_str(), 0660), 0);
  { const auto store = make_sqlite_store({.path = scratch.file()}); }
  for (const char* suffix : {"", "-wal", "-shm", "-lock"}) EXPECT_EQ(mode(scratch.file() + suffix), 0660U) << suffix;
}

// In processes of their own: it is for the first use of SQLite in one.
TEST(SqliteMemory, IsNotCountedIfThatIsSaidBeforeSqliteIsUsed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto works = [] {
    if (!stop_counting_sqlite_memory()) return false;
    const Scratch scratch;
    const auto store = make_sqlite_store({.path = scratch.file()});
    return blocking::insert(*store, plain_record("k#1")).status == AnswerStatus::done && sqlite3_memory_used() == 0;
  };
  EXPECT_EXIT(std::_Exit(works() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(SqliteMemory, IsCountedOnIfThatIsSaidTooLate) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto works = [] {
    const Scratch scratch;
    const auto store = make_sqlite_store({.path = scratch.file()});
    return !stop_counting_sqlite_memory() && sqlite3_memory_used() > 0;
  };
  EXPECT_EXIT(std::_Exit(works() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(SqliteStore, AMissingDirectoryIsMadeOnlyIfAsked) {
  const Scratch scratch;
  const std::string path = scratch.file("a/b/once.db");
  const Error error = refusal({.path = path});
  EXPECT_EQ(error.kind, ErrorKind::unavailable);
  EXPECT_THAT(error.message, HasSubstr("a/b does not exist"));
  const auto store = make_sqlite_store({.path = path, .create_directories = true});
  struct stat found {};
  ASSERT_EQ(stat(scratch.file("a").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0700U);
}

TEST(SqliteStore, WhatIsNoFileIsRefused) {
  const Scratch scratch;
  EXPECT_EQ(refusal({.path = scratch.path()}).kind, ErrorKind::misuse);
  write_file(scratch.file("plain"), "x");
  const Error error = refusal({.path = scratch.file("plain/once.db")});
  EXPECT_EQ(error.kind, ErrorKind::unavailable);
  EXPECT_THAT(error.message, HasSubstr("is not a directory"));
}

TEST(SqliteStore, AnEmptyFileBecomesAStore) {  // A crash while it was made leaves one.
  const SoundScratch scratch;
  write_file(scratch.file(), "");
  const auto store = make_sqlite_store({.path = scratch.file(), .create = false});
  EXPECT_EQ(blocking::insert(*store, plain_record("k#1")).status, AnswerStatus::done);
}

TEST(SqliteStore, AForeignFileIsRefusedAndLeftAlone) {
  const Scratch scratch;
  Shell(scratch.file()).run("CREATE TABLE notes (text); INSERT INTO notes VALUES ('mine')");
  std::ifstream file(scratch.file(), std::ios::binary);
  const std::string before((std::istreambuf_iterator<char>(file)), {});
  const Error error = refusal({.path = scratch.file()});
  EXPECT_EQ(error.kind, ErrorKind::misuse);
  EXPECT_THAT(error.message, HasSubstr("another program's database"));
  std::ifstream again(scratch.file(), std::ios::binary);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(again)), {}), before);
}

TEST(SqliteStore, AFileOfALaterFormatIsRefused) {
  const Scratch scratch;
  { const auto store = make_sqlite_store({.path = scratch.file()}); }
  Shell(scratch.file()).run("PRAGMA user_version = 99");
  const Error error = refusal({.path = scratch.file()});
  EXPECT_EQ(error.kind, ErrorKind::misuse);
  EXPECT_THAT(error.message, HasSubstr("format 99"));
  EXPECT_THAT(error.message, HasSubstr("use a newer program"));
}

// --- Format 1 ---

TEST(SqliteFormat, AFileFromBeforeTheFirstFormatIsRefused) {
  const Scratch scratch;
  Shell(scratch.file())
      .run(
          "CREATE TABLE records (id INTEGER PRIMARY KEY); INSERT INTO records VALUES (1); PRAGMA user_version = 3; "
          "PRAGMA application_id = " +
          std::to_string(stores::sqlite::unreleased_application_id));
  const Error error = refusal({.path = scratch.file()});
  EXPECT_EQ(error.kind, ErrorKind::misuse);
  EXPECT_THAT(error.message, HasSubstr("before its first format"));
  EXPECT_THAT(error.message, HasSubstr("move this one away"));
  EXPECT_EQ(Shell(scratch.file()).run("SELECT count(*) FROM records"), "1") << "it is left as it was";
}

TEST(SqliteFormat, ManyOpenersAtOnceMakeOneStore) {
  const SoundScratch scratch;
  std::vector<std::thread> openers;
  std::atomic<int> done{0};
  for (int i = 0; i < 8; ++i) {
    openers.emplace_back([&, i] {
      const auto store = make_sqlite_store({.path = scratch.file()});
      if (blocking::insert(*store, plain_record("k#" + std::to_string(i))).status == AnswerStatus::done) ++done;
    });
  }
  for (std::thread& opener : openers) opener.join();
  EXPECT_EQ(done, 8);
  const auto store = make_sqlite_store({.path = scratch.file()});
  EXPECT_EQ(blocking::list(*store, {}).records.size(), 8U);
}

// --- What people see ---

TEST(SqliteStore, TheStockShellReadsTheFile) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  Record record = full_record("orders#17", State::completed);
  record.lease_until = Time{};
  record.created_at = Time{Millis{1'767'225'600'123}};
  record.expires_at = never;
  record.holder = "host:17";
  record.result = Result::inlined("{\"charged\": true}");
  record.steps = {{"charge", "ch_1"}, {"mail", "\xC3\xBC"}};
  ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  const std::string command = "sqlite3 -readonly '" + scratch.file() +
                              "' \"SELECT key, state, created_at, expires_at, owner, holder, steps, result FROM "
                              "records_readable\"";
  FILE* const shell = popen(command.c_str(), "r");
  ASSERT_NE(shell, nullptr);
  std::array<char, 1024> line{};
  ASSERT_NE(fgets(line.data(), line.size(), shell), nullptr);
  EXPECT_EQ(pclose(shell), 0);
  EXPECT_EQ(std::string(line.data()), "orders#17|completed|2026-01-01 00:00:00.123|never|" + record.owner.hex() +
                                          "|host:17|6:charge,4:ch_1,4:mail,2:\xC3\xBC,|{\"charged\": true}\n");
}

TEST(SqliteStore, TextIsTextAndBytesAreBlobs) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  const auto type_of = [&](const std::string& result) {
    const std::string key = "t#" + std::to_string(std::hash<std::string>{}(result));
    Record record = plain_record(key);
    record.result = Result::inlined(result);
    EXPECT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
    EXPECT_EQ(*blocking::get(*store, key).record, record);
    return Shell(scratch.file()).run("SELECT typeof(result) FROM records WHERE key = '" + key + "'");
  };
  EXPECT_EQ(type_of(""), "null");
  EXPECT_EQ(type_of("plain"), "text");
  EXPECT_EQ(type_of("0123456789abcdef\xE2\x82\xAC and more than sixteen"), "text");
  EXPECT_EQ(type_of("\xF0\x9F\x98\x80"), "text");
  for (const std::string& bytes :
       {std::string("nul\0inside the text", 19), std::string("\xFF"), std::string("12345678\x80"), std::string("\xC3"),
        std::string("\xC0\xAF"), std::string("\xED\xA0\x80"), std::string("\xE0\x80\x80"),
        std::string("\xF0\x80\x80\x80"), std::string("\xF4\x90\x80\x80"), std::string("\xF8\x88\x80\x80\x80"),
        std::string("01234567\0", 9), std::string("0123456\0", 8)}) {
    EXPECT_EQ(type_of(bytes), "blob") << quote(bytes);
  }
}

TEST(SqliteStore, ListByStateAndByExpiryUseIndexes) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  for (int i = 0; i < 50; ++i) {
    Record record = full_record("k#" + std::to_string(i), i % 10 == 0 ? State::unknown : State::completed);
    record.expires_at = Time{Millis{1000 + i % 7}};
    ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  }
  // INDEXED BY in the store's queries makes them fail where the index cannot serve.
  EXPECT_EQ(blocking::list(*store, {.state = State::unknown}).records.size(), 5U);
  // Pages by expiry, with equal moments across their borders.
  std::size_t found = 0;
  ListQuery query{.expired_at = Time{Millis{1003}}, .limit = 3};
  do {
    const ListPage page = blocking::list(*store, query);
    ASSERT_FALSE(page.error) << page.error->message;
    found += page.records.size();
    query.cursor = page.cursor;
  } while (!query.cursor.empty());
  EXPECT_EQ(found, 29U);  // Of 50 by i % 7: 8 with 0, 7 each with 1, 2 and 3.
}

TEST(SqliteStore, AMalformedCursorOrLimitIsMisuse) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  for (const char* cursor : {"x", "1", "1.", ".1", "1.2x", "1.2.3", "99999999999999999999.1"}) {
    const ListPage page = blocking::list(*store, {.cursor = cursor});
    ASSERT_TRUE(page.error) << cursor;
    EXPECT_EQ(page.error->kind, ErrorKind::misuse);
  }
  for (const std::size_t limit : {std::size_t{0}, std::size_t{10'001}}) {
    EXPECT_EQ(blocking::list(*store, {.limit = limit}).error.value().kind, ErrorKind::misuse);
  }
}

TEST(SqliteStore, ACompletionThatProlongsTheExpiryIsSweptAtItsOwnTime) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  Record record = plain_record("k#1");
  record.expires_at = Time{Millis{1000}};
  const Answer claim = blocking::insert(*store, record);
  Record next = record;
  next.state = State::completed;
  next.revision += 1;
  next.expires_at = Time{Millis{5000}};
  ASSERT_EQ(blocking::replace(*store, next, seen_of(record, claim.place)).status, AnswerStatus::done);
  EXPECT_EQ(Shell(scratch.file()).run("SELECT sweep_at_ms FROM records"), "1000");  // Lazily.
  EXPECT_THAT(blocking::list(*store, {.expired_at = Time{Millis{2000}}}).records, IsEmpty());
  EXPECT_EQ(blocking::sweep(*store, Time{Millis{2000}}, 10).removed, 0U);
  EXPECT_EQ(Shell(scratch.file()).run("SELECT sweep_at_ms FROM records"), "5000");
  EXPECT_EQ(blocking::list(*store, {.expired_at = Time{Millis{5000}}}).records.size(), 1U);

  // And one that shortens it at once.
  record = next;
  next.revision += 1;
  next.expires_at = Time{Millis{3000}};
  ASSERT_EQ(blocking::replace(*store, next, seen_of(record, claim.place)).status, AnswerStatus::done);
  EXPECT_EQ(blocking::sweep(*store, Time{Millis{3000}}, 10).removed, 1U);
}

// As of claims that are held for a decision when they lapse.
TEST(SqliteStore, ACompletionThatMakesARecordExpireIsSwept) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  for (const char* key : {"inserted#", "read#", "refused#", "unknown place#"}) {
    Record record = plain_record(key);
    record.expires_at = never;
    std::uint64_t place = blocking::insert(*store, record).place;
    if (record.key == "read#") place = blocking::get(*store, record.key).place;
    if (record.key == "refused#") place = blocking::insert(*store, record).place;
    if (record.key == "unknown place#") place = 0;
    Record next = record;
    next.revision += 1;
    const Answer renewed = blocking::replace(*store, next, seen_of(record, place));  // As a heartbeat does.
    ASSERT_EQ(renewed.status, AnswerStatus::done) << key;
    record = next;
    next.state = State::completed;
    next.revision += 1;
    next.expires_at = Time{Millis{1000}};
    ASSERT_EQ(blocking::replace(*store, next, seen_of(record, renewed.place)).status, AnswerStatus::done) << key;
  }
  EXPECT_EQ(Shell(scratch.file()).run("SELECT DISTINCT sweep_at_ms FROM records"), "1000");
  EXPECT_EQ(blocking::sweep(*store, Time{Millis{1000}}, 10).removed, 4U);
}

TEST(SqliteStore, ASweepOfThousandsLeavesTheRestAndTellsOfMore) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  std::atomic<int> pending{0};
  for (int i = 0; i < 3000; ++i) {
    Record record = plain_record("k#" + std::to_string(i));
    record.expires_at = Time{Millis{i < 2500 ? 10 : 1'000'000}};
    ++pending;
    store->insert(share(record), [&](const Answer&) { --pending; });
  }
  const SweepAnswer some = blocking::sweep(*store, Time{Millis{10}}, 2000);
  EXPECT_EQ(pending, 0);  // The sweep came after them in the queue.
  EXPECT_EQ(some.removed, 2000U);
  EXPECT_TRUE(some.more);
  const SweepAnswer rest = blocking::sweep(*store, Time{Millis{10}}, 2000);
  EXPECT_EQ(rest.removed, 500U);
  EXPECT_FALSE(rest.more);
  const SweepAnswer none = blocking::sweep(*store, Time{Millis{10}}, 0);
  EXPECT_EQ(none.removed, 0U);
  EXPECT_FALSE(none.more);
  EXPECT_EQ(blocking::list(*store, {.limit = 1000}).records.size(), 500U);
}

TEST(SqliteStore, WritersGetTheirTurnDuringASweep) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  for (int i = 0; i < 5000; ++i) {
    Record record = plain_record("k#" + std::to_string(i));
    record.expires_at = Time{Millis{10}};
    store->insert(share(record), [](const Answer&) {});
  }
  ASSERT_EQ(blocking::insert(*store, plain_record("w#0")).status, AnswerStatus::done);
  std::atomic<bool> swept{false};
  store->sweep(Time{Millis{10}}, 100'000, [&](const SweepAnswer& answer) {
    EXPECT_EQ(answer.removed, 5000U);
    swept = true;
    swept.notify_one();
  });
  int writes = 0;
  while (!swept) {
    ASSERT_EQ(blocking::insert(*store, plain_record("w#" + std::to_string(++writes))).status, AnswerStatus::done);
  }
  EXPECT_GE(writes, 5);  // 5000 rows are ten slices at least.
}

// --- Time ---

struct Host {
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::string boot = "boot-1";
};

std::unique_ptr<Store> open_on(const Host& host, const Scratch& scratch) {
  return make_sqlite_store({.path = scratch.file(), .clock = host.clock, .boot_id = host.boot});
}

TEST(SqliteTime, AJumpOfTheWallClockMovesNothing) {
  const SoundScratch scratch;
  const Host host;
  const auto store = open_on(host, scratch);
  EXPECT_EQ(store->time().value().now, manual_start);
  for (const Millis jump : {Millis{3'600'000}, Millis{-7'200'000}}) {
    host.clock->jump(jump);
    EXPECT_EQ(store->time().value().now, manual_start);
    EXPECT_EQ(open_on(host, scratch)->time().value().now, manual_start) << "another process reads the same";
  }
  EXPECT_EQ(stores::sqlite_status(*store).value().clock_ahead, Millis{3'600'000});
  EXPECT_EQ(stores::sqlite_status(*store).value().clock_set_at, manual_start);
  host.clock->advance(std::chrono::seconds(5));
  EXPECT_EQ(store->time().value().now, manual_start + Millis{5000});
  const Answer answer = blocking::get(*store, "k#1");
  EXPECT_EQ(answer.time.value().now, manual_start + Millis{5000});
  EXPECT_EQ(answer.time.value().error, Millis{0});
}

TEST(SqliteTime, ARebootTakesTheWallClockAnew) {
  const SoundScratch scratch;
  Host host;
  { const auto store = open_on(host, scratch); }
  host.clock->jump(Millis{60'000});
  EXPECT_EQ(open_on(host, scratch)->time().value().now, manual_start);
  Host next;
  next.boot = "boot-2";
  next.clock = std::make_shared<ManualClock>(manual_start + Millis{500'000}, std::chrono::seconds(3));
  EXPECT_EQ(open_on(next, scratch)->time().value().now, manual_start + Millis{500'000});
}

TEST(SqliteTime, ARebootDoesNotTakeItBackBehindWhatWasSeen) {
  const SoundScratch scratch;
  Host host;
  {
    const auto store = open_on(host, scratch);
    host.clock->advance(std::chrono::hours(2));
    ASSERT_EQ(blocking::insert(*store, plain_record("k#1")).status, AnswerStatus::done);  // Notes the time.
  }
  Host next;
  next.boot = "boot-2";
  next.clock = std::make_shared<ManualClock>(manual_start - std::chrono::hours(24), std::chrono::seconds(3));
  const auto store = open_on(next, scratch);
  EXPECT_EQ(store->time().value().now, manual_start + std::chrono::hours(2));
  next.clock->advance(std::chrono::seconds(1));
  EXPECT_EQ(store->time().value().now, manual_start + std::chrono::hours(2) + std::chrono::seconds(1));
  EXPECT_EQ(stores::sqlite_status(*store).value().clock_ahead, std::chrono::hours(26));
}

// The wall clock was corrected by an hour, so the claim below seems to have lapsed.
TEST(SqliteTime, AnotherBootIsRefusedWhileTheFileIsOpen) {
  const SoundScratch scratch;
  const Host host;
  Host other;
  other.boot = "boot-2";
  other.clock = std::make_shared<ManualClock>(manual_start + std::chrono::hours(1), std::chrono::seconds(3));
  const auto expect_refused = [&] {
    try {
      open_on(other, scratch);
      FAIL() << "opened beside a holder whose clock it cannot know";
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      for (const char* const said : {"boot-1", "boot-2", "another process has the file open", "nothing was done"}) {
        EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << said << " is not in " << error.what();
      }
    }
  };
  auto first = open_on(host, scratch);
  auto second = open_on(host, scratch);
  expect_refused();
  std::filesystem::remove(scratch.file("once.db-lock"));
  ASSERT_EQ(blocking::insert(*first, plain_record("k#1")).status, AnswerStatus::done);  // Makes it anew.
  expect_refused();
  first.reset();
  ASSERT_EQ(blocking::insert(*second, plain_record("k#2")).status, AnswerStatus::done);
  expect_refused();
  EXPECT_EQ(second->time().value().now, manual_start);
  second.reset();
  EXPECT_EQ(open_on(other, scratch)->time().value().now, manual_start + std::chrono::hours(1)) << "a reboot";
}

TEST(SqliteTime, TheTimeIsNotedEveryTenSecondsOfWriting) {
  const SoundScratch scratch;
  const Host host;
  const auto store = open_on(host, scratch);
  const auto noted = [&] {
    return Shell(scratch.file()).run("SELECT value FROM once_meta WHERE name = 'time_seen_ms'");
  };
  const auto write = [&](const char* key) {
    ASSERT_EQ(blocking::insert(*store, plain_record(key)).status, AnswerStatus::done);
  };
  write("k#1");
  const std::string first = noted();
  EXPECT_EQ(first, std::to_string(manual_start.time_since_epoch().count()));
  host.clock->advance(std::chrono::seconds(9));
  write("k#2");
  EXPECT_EQ(noted(), first);
  host.clock->advance(std::chrono::seconds(1));
  write("k#3");
  EXPECT_EQ(noted(), std::to_string(manual_start.time_since_epoch().count() + 10'000));
  // A refusal is no writing: neither a note nor anything else reaches the disk.
  host.clock->advance(std::chrono::seconds(10));
  const std::uint64_t log = stores::sqlite_status(*store).value().log_bytes;
  EXPECT_EQ(blocking::insert(*store, plain_record("k#3")).status, AnswerStatus::refused);
  EXPECT_EQ(noted(), std::to_string(manual_start.time_since_epoch().count() + 10'000));
  EXPECT_EQ(stores::sqlite_status(*store).value().log_bytes, log);
}

TEST(SqliteStore, RefusalsWriteNothingBesideTheFileEither) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  ASSERT_EQ(blocking::insert(*store, plain_record("k#1")).status, AnswerStatus::done);
  const std::string lock_file = scratch.file("once.db-lock");
  const auto long_ago = std::filesystem::last_write_time(lock_file) - std::chrono::hours(1);
  std::filesystem::last_write_time(lock_file, long_ago);
  EXPECT_EQ(blocking::insert(*store, plain_record("k#1")).status, AnswerStatus::refused);
  EXPECT_EQ(blocking::replace(*store, plain_record("k#1"), Seen{}).status, AnswerStatus::refused);
  EXPECT_EQ(blocking::remove(*store, "k#1", Seen{}).status, AnswerStatus::refused);
  EXPECT_TRUE(std::filesystem::last_write_time(lock_file) == long_ago);
}

TEST(SqliteStore, ALogIsCutOffOnCloseByTheLastStoreAtTheFileOnly) {
  const SoundScratch scratch;
  auto one = make_sqlite_store({.path = scratch.file()});
  auto two = make_sqlite_store({.path = scratch.file()});
  Record record = plain_record("k#1");
  record.result = Result::inlined(std::string(std::size_t{1} << 20U, 'x'));
  ASSERT_EQ(blocking::insert(*one, record).status, AnswerStatus::done);
  one.reset();
  EXPECT_GT(stores::sqlite_status(*two).value().log_bytes, std::size_t{1} << 20U);
  two.reset();
  EXPECT_EQ(std::filesystem::file_size(scratch.file("once.db-wal")), 0U);
}

TEST(SqliteTime, TheKernelsBootIdIsUsedByDefault) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  EXPECT_EQ(stores::sqlite_status(*store).value().boot_id, id);
  EXPECT_LT(stores::sqlite_status(*store).value().clock_ahead, Millis{60'000});
}

// --- Status and check ---

TEST(SqliteStatus, TellsWhatADoctorAsks) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  ASSERT_EQ(blocking::insert(*store, plain_record("k#1")).status, AnswerStatus::done);
  const auto status = stores::sqlite_status(*store).value();
  EXPECT_EQ(status.path, scratch.file());
  EXPECT_EQ(status.sqlite_version, sqlite3_libversion());
  EXPECT_EQ(status.schema_version, 1);
  EXPECT_GT(status.file_bytes + status.log_bytes, 4096U);
  EXPECT_EQ(status.checkpoint_error, "");
  EXPECT_FALSE(stores::sqlite_status(*stores::make_memory_store()));
}

TEST(SqliteCheck, FindsMalformedAndMisplacedRows) {
  const Scratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  for (const char* key : {"good#1", "bad#1", "moved#1"}) {
    ASSERT_EQ(blocking::insert(*store, plain_record(key)).status, AnswerStatus::done);
  }
  EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
  Shell(scratch.file())
      .run(
          "UPDATE records SET attempt = 'many' WHERE key = 'bad#1';"
          "UPDATE records SET key = 'moved#2' WHERE key = 'moved#1'");
  const auto problems = stores::check_sqlite(*store);
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_THAT(problems[0], HasSubstr("'bad#1' has a malformed attempt"));
  EXPECT_THAT(problems[1], HasSubstr("wrong hash"));
  EXPECT_THROW(stores::check_sqlite(*stores::make_memory_store()), Exception);
}

// The engine's last reference to the store may be the one that a completion holds.
TEST(SqliteStore, MayBeDestroyedFromItsOwnCompletion) {
  class OurClock final : public Clock {
   public:
    [[nodiscard]] Time now() const noexcept override { return system_clock()->now(); }
    [[nodiscard]] Uptime uptime() const noexcept override { return system_clock()->uptime(); }
  };
  const SoundScratch scratch;
  auto clock = std::make_shared<OurClock>();
  const std::weak_ptr<OurClock> held = clock;
  std::shared_ptr<Store> store = make_sqlite_store({.path = scratch.file(), .clock = std::move(clock)});
  Record record;
  record.key = "a#b";
  record.owner.bytes[0] = 1;
  record.token = record.attempt = 1;
  record.revision = next_revision(0, 0);
  std::atomic<bool> alone{false};  // No other object has the store now.
  store->insert(share(std::move(record)), [&alone, last = store](const Answer& answer) mutable {
    EXPECT_EQ(answer.status, AnswerStatus::done);
    while (!alone.load()) std::this_thread::yield();
    last.reset();
  });
  store.reset();
  alone.store(true);
  while (!held.expired()) std::this_thread::yield();  // It lets go of its clock when it has closed its file.
  const auto again = make_sqlite_store({.path = scratch.file()});
  EXPECT_TRUE(blocking::get(*again, "a#b").record);
}

// A thread that takes completions when it gets to it.
class Inbox final : public CompletionLoop {
 public:
  bool try_post(Callback<void()>& work) override {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    brought_.push_back(std::move(work));
    return true;
  }
  std::vector<Callback<void()>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(brought_, {});
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  std::mutex mutex_;
  std::vector<Callback<void()>> brought_;
  bool closed_ = false;
};

TEST(SqliteStore, CompletionsComeHomeInTheOrderOfTheirOperations) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  const auto inbox = std::make_shared<Inbox>();
  const CompletionLoopScope scope(inbox);
  constexpr std::size_t count = 100;
  std::vector<std::size_t> completed;  // No lock: by this thread only.
  for (std::size_t i = 0; i < count; ++i) {
    store->insert(share(plain_record("k#" + std::to_string(i))), [&completed, i](const Answer& answer) {
      EXPECT_EQ(answer.status, AnswerStatus::done);
      completed.push_back(i);
    });
  }
  // Begun last and not here: done when all others are written, and on another thread than theirs.
  EXPECT_EQ(blocking::insert(*store, plain_record("last#")).status, AnswerStatus::done);
  std::vector<std::size_t> order;
  while (completed.size() < count) {
    for (Callback<void()>& work : inbox->take()) work();
  }
  for (std::size_t i = 0; i < count; ++i) order.push_back(i);
  EXPECT_EQ(completed, order);
}

TEST(SqliteStore, CompletionsWhoseThreadHasEndedComeAllTheSame) {
  const SoundScratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  const auto inbox = std::make_shared<Inbox>();
  inbox->close();
  const CompletionLoopScope scope(inbox);
  std::atomic<bool> completed{false};
  store->insert(share(plain_record("k#1")), [&](const Answer& answer) {
    EXPECT_EQ(answer.status, AnswerStatus::done);
    completed = true;
  });
  while (!completed.load()) std::this_thread::yield();
}

std::vector<std::string> vfs_names() {
  std::vector<std::string> names;
  for (const sqlite3_vfs* at = sqlite3_vfs_find(nullptr); at != nullptr; at = at->pNext) names.emplace_back(at->zName);
  return names;
}

// A plugin with its own copy of this library is unloaded, and SQLite would call code that is gone.
TEST(SqliteStore, LeavesNoVfsBehind) {
  const SoundScratch scratch;
  const std::vector<std::string> before = vfs_names();
  {
    const auto store = make_sqlite_store({.path = scratch.file()});
    const auto other = make_sqlite_store({.path = scratch.file()});
    EXPECT_EQ(vfs_names().size(), before.size() + 2) << "each has a name of its own, and so has each copy";
    EXPECT_EQ(blocking::insert(*other, plain_record("k#1")).status, AnswerStatus::done);
  }
  EXPECT_EQ(vfs_names(), before);
}

// The threads of this process, and which signals each blocks: SigBlk of proc(5).
std::map<std::string, std::uint64_t> blocked_signals() {
  std::map<std::string, std::uint64_t> blocked;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      if (word == "SigBlk:") status >> std::hex >> blocked[task.path().filename()];
    }
  }
  return blocked;
}

// A daemon that reads SIGTERM from a signalfd blocks it in its own threads, after it has opened the store.
TEST(SqliteStore, ItsThreadsBlockSignals) {
  const SoundScratch scratch;
  const auto before = blocked_signals();
  const auto timers = make_system_timers(system_clock());
  timers->at(system_clock()->uptime() + std::chrono::hours(1), [] {});
  const auto store = make_sqlite_store({.path = scratch.file()});
  EXPECT_EQ(blocking::insert(*store, plain_record("k#1")).status, AnswerStatus::done);
  std::size_t ours = 0;
  for (const auto& [task, blocked] : blocked_signals()) {
    if (before.contains(task)) continue;
    ++ours;
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGALRM, SIGUSR1, SIGPROF}) {
      EXPECT_NE(blocked >> (signal - 1) & 1, 0U) << "thread " << task << ", signal " << signal;
    }
  }
  EXPECT_GE(ours, 2U) << "of the store and of the timers";
}

TEST(SqliteHash, IsSipHash13) {
  // Key 00 01 .. 0f, messages the first n bytes of 00 01 02 ..; by an independent implementation that gives the
  // published vector of SipHash-2-4 (a129ca6149be45e5 for n = 15).
  const stores::sqlite::HashKey key{0x0706050403020100U, 0x0F0E0D0C0B0A0908U};
  const auto hash_of_first = [&](int count) {
    std::string message;
    for (int i = 0; i < count; ++i) message += static_cast<char>(i);
    return static_cast<std::uint64_t>(hash_of(key, message));
  };
  EXPECT_EQ(hash_of_first(0), 0xABAC0158050FC4DCU);
  EXPECT_EQ(hash_of_first(1), 0xC9F49BF37D57CA93U);
  EXPECT_EQ(hash_of_first(7), 0xD3927D989BB11140U);
  EXPECT_EQ(hash_of_first(8), 0x369095118D299A8EU);
  EXPECT_EQ(hash_of_first(9), 0x25A48EB36C063DE4U);
  EXPECT_EQ(hash_of_first(15), 0xD320D86D2A519956U);
  EXPECT_EQ(hash_of_first(63), 0x9D199062B7BBB3A8U);
}

}  // namespace sqlite_store_test
}  // namespace once::testing
