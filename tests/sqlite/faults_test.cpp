// What the SQLite store does when things go wrong: each with the right kind of error, a message that says what to do,
// nothing acknowledged lost, and work going on afterwards.
#include <once/stores/sqlite.hpp>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/gate.hpp>
#include <once/platform/blocking.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "faulty_vfs.hpp"
#include "one_group.hpp"
#include "scratch.hpp"
#include "sound.hpp"
#include "stores/sqlite/file_system.hpp"

namespace once::testing {
namespace faults_test {

// Called with the name of each directory that is made under a new name, before the caller gets it.
std::function<void(const std::string& made)> directory_made;

}  // namespace faults_test
}  // namespace once::testing

// Stands before the C library's.
extern "C" __attribute__((visibility("default"))) char* mkdtemp(char* name) noexcept {
  static auto* const real = reinterpret_cast<char* (*)(char*)>(dlsym(RTLD_NEXT, "mkdtemp"));
  char* const made = real(name);
  if (made != nullptr && once::testing::faults_test::directory_made) once::testing::faults_test::directory_made(made);
  return made;
}

namespace once::testing {
namespace faults_test {

using stores::make_sqlite_store;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Millis short_wait{200};

class SqliteFaults : public ::testing::Test {
 protected:
  ~SqliteFaults() override { disk_faults().heal(); }
  void TearDown() override {
    disk_faults().heal();
    if (!damaged_ && std::filesystem::exists(scratch_.file())) expect_sound(scratch_.file());
  }

  std::unique_ptr<Store> open(std::uint32_t checkpoint_pages = 4000) const {
    return make_sqlite_store({.path = scratch_.file(),
                              .busy_timeout = short_wait,
                              .checkpoint_pages = checkpoint_pages,
                              .vfs = faulty_vfs()});
  }

  static void put(Store& store, const std::string& key) {
    const Answer answer = blocking::insert(store, plain_record(key));
    ASSERT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
  }

  static void expect_failed(const Answer& answer, ErrorKind kind, const std::string& what) {
    EXPECT_EQ(answer.status, AnswerStatus::failed) << what;
    EXPECT_EQ(answer.error.kind, kind) << answer.error.message;
    EXPECT_THAT(answer.error.message, HasSubstr(what));
  }

  // The log is to be copied at 16 MiB: this is much less, and enough for the file.
  static constexpr std::int64_t little_room = std::int64_t{256} * 1024;
  static void fill_log(Store& store) {
    for (int i = 0; i < 500; ++i) {
      const Record record = plain_record("k#" + std::to_string(i));
      Answer answer = blocking::insert(store, record);
      ASSERT_EQ(answer.status, AnswerStatus::done) << i << ": " << answer.error.message;
      answer = blocking::remove(store, record.key, seen_of(record, answer.place));
      ASSERT_EQ(answer.status, AnswerStatus::done) << i << ": " << answer.error.message;
    }
  }

  const Scratch scratch_;
  bool damaged_ = false;  // By the test, for good.
};

TEST_F(SqliteFaults, AFullDiskRefusesWritesAndLosesNothing) {
  const auto store = open();
  put(*store, "before#1");
  disk_faults().full = true;
  expect_failed(blocking::insert(*store, plain_record("during#1")), ErrorKind::unavailable, "no space left");
  EXPECT_TRUE(blocking::get(*store, "before#1").record);
  EXPECT_FALSE(blocking::get(*store, "during#1").record);
  disk_faults().full = false;
  put(*store, "during#1");
  const auto again = open();
  EXPECT_TRUE(blocking::get(*again, "before#1").record);
  EXPECT_TRUE(blocking::get(*again, "during#1").record);
  EXPECT_THAT(stores::check_sqlite(*again), IsEmpty());
}

// Of a quota and of the limit on the size of files, which SQLite takes for a broken disk: then a claim may be stored.
TEST_F(SqliteFaults, AQuotaIsAFullDisk) {
  for (const int number : {EDQUOT, EFBIG}) {
    const auto store = open();
    const std::string key = "during#" + std::to_string(number);
    disk_faults().write_errno = number;
    expect_failed(blocking::insert(*store, plain_record(key)), ErrorKind::unavailable, "no space left");
    EXPECT_FALSE(blocking::get(*store, key).record);
    disk_faults().write_errno = 0;
    put(*store, key);
    EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
  }
}

TEST_F(SqliteFaults, ALogThatCannotGrowIsCopiedAndUsedAnew) {
  const auto store = open();
  disk_faults().room_bytes = little_room;
  fill_log(*store);
  put(*store, "last#1");
  EXPECT_TRUE(blocking::get(*open(), "last#1").record);
  EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
}

TEST_F(SqliteFaults, ALogThatSomebodyElseHasLeftIsUsedAnewToo) {
  const auto other = open();
  fill_log(*other);
  disk_faults().room_bytes = little_room;
  {
    const auto store = open();
    put(*store, "first#1");
  }
  disk_faults().room_bytes = -1;
  fill_log(*other);
  disk_faults().room_bytes = little_room;
  const auto store = open();
  const SweepAnswer swept = blocking::sweep(*store, Time(Millis(std::int64_t{1} << 50U)), 100);
  EXPECT_FALSE(swept.error) << swept.error->message;
  EXPECT_EQ(swept.removed, 1U);
}

TEST_F(SqliteFaults, ASweepOnADiskThatStaysFullEnds) {
  const auto store = open();
  put(*store, "a#1");
  disk_faults().full = true;
  const SweepAnswer swept = blocking::sweep(*store, Time(Millis(std::int64_t{1} << 50U)), 100);
  ASSERT_TRUE(swept.error);
  EXPECT_THAT(swept.error->message, HasSubstr("no space left"));
}

// A real limit of the kernel on the size of files, in another process.
TEST_F(SqliteFaults, AFileSizeLimitRefusesWritesAndLosesNothing) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto store = make_sqlite_store({.path = scratch_.file()});
    constexpr rlimit limit{256 * 1024, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    int acknowledged = 0;
    Answer answer;
    for (; acknowledged < 1000; ++acknowledged) {
      Record record = plain_record("k#" + std::to_string(acknowledged));
      record.result = Result::inlined(std::string(10'000, 'x'));
      answer = blocking::insert(*store, record);
      if (answer.status != AnswerStatus::done) break;
    }
    const bool refused = answer.status == AnswerStatus::failed && answer.error.kind == ErrorKind::unavailable;
    constexpr rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) _exit(2);
    bool all = true;
    for (int i = 0; i < acknowledged; ++i) {
      all = all && blocking::get(*store, "k#" + std::to_string(i)).record != nullptr;
    }
    const bool again = blocking::insert(*store, plain_record("after#1")).status == AnswerStatus::done;
    _exit(refused && acknowledged > 5 && all && again ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(stores::check_sqlite(*open()), IsEmpty());
}

TEST_F(SqliteFaults, ACheckpointThatFailsDoesNotFailWritesAndIsTriedAgain) {
  const auto store = open(100);
  const auto write_much = [&](const std::string& name) {
    for (int i = 0; i < 60; ++i) {
      Record record = plain_record(name + "#" + std::to_string(i));
      record.result = Result::inlined(std::string(10'000, 'x'));
      const Answer answer = blocking::insert(*store, record);
      ASSERT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
    }
  };
  disk_faults().file_sync = true;
  write_much("a");
  EXPECT_NE(stores::sqlite_status(*store).value().checkpoint_error, "");
  disk_faults().file_sync = false;
  write_much("b");
  EXPECT_EQ(stores::sqlite_status(*store).value().checkpoint_error, "");
  EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
  EXPECT_EQ(blocking::list(*store, {.limit = 1000}).records.size(), 120U);
}

// To touch a page of it would raise SIGBUS.
TEST_F(SqliteFaults, CutIndexOfTheLogIsAnError) {
  const auto store = open();
  put(*store, "a#1");
  std::filesystem::resize_file(scratch_.file() + "-shm", 0);
  for (const Answer& answer : {blocking::insert(*store, plain_record("b#1")), blocking::get(*store, "a#1")}) {
    ASSERT_EQ(answer.status, AnswerStatus::failed);
    EXPECT_EQ(answer.error.kind, ErrorKind::unavailable);
    EXPECT_THAT(answer.error.message, HasSubstr("-shm file was cut"));
  }
}

TEST_F(SqliteFaults, ClaimWithoutRoomForItsFinishIsRefused) {
  const auto store = open();
  put(*store, "a#1");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 64 * 1024;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Answer claim = blocking::insert(*store, plain_record("b#1"));
  const Answer replay = blocking::insert(*store, plain_record("a#1"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(claim.status, AnswerStatus::failed);
  EXPECT_THAT(claim.error.message, AllOf(HasSubstr("no room is left"), HasSubstr("65536 bytes: RLIMIT_FSIZE")));
  EXPECT_EQ(replay.status, AnswerStatus::refused) << replay.error.message;
}

// Whoever is first at the store, root too, does not lock out those whose directory or database it is.
class SqliteOwners : public SqliteFaults {
 protected:
  SqliteOwners() : umask_(umask(0777)) {}
  ~SqliteOwners() override { umask(umask_); }

  // Root can look as another user would. Others have only themselves.
  static constexpr uid_t owner_for_root = 51'234;
  static uid_t owner() { return geteuid() == 0 ? owner_for_root : geteuid(); }
  static void give(const std::filesystem::path& path, mode_t mode) {
    ASSERT_EQ(chown(path.c_str(), owner(), static_cast<gid_t>(-1)), 0);
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
  }
  static void expect_owners(const std::filesystem::path& path, mode_t mode) {
    struct stat found {};
    ASSERT_EQ(stat(path.c_str(), &found), 0) << path;
    EXPECT_EQ(found.st_uid, owner()) << path;
    EXPECT_EQ(found.st_mode & 07777, mode) << path;
  }

 private:
  const mode_t umask_;
};

TEST_F(SqliteOwners, NewFilesAndDirectoriesBelongToTheDirectorysOwner) {
  const std::filesystem::path home = std::filesystem::path(scratch_.file()).parent_path();
  give(home, 0700);
  const std::string file = home / "state" / "once" / "new.db";
  const auto store = make_sqlite_store({.path = file, .create_directories = true});
  put(*store, "k#1");
  for (const char* made : {"state", "state/once"}) expect_owners(home / made, 0700);
  for (const char* end : {"", "-lock", "-wal", "-shm"}) expect_owners(file + end, 0600);
}

// Between the system call that makes a directory and the one that gives it away, a user who may write there can put
// another one in its place.
class SqliteDirectoryRace : public SqliteOwners {
 protected:
  SqliteDirectoryRace() {
    give(home_, 0700);
    std::filesystem::create_directory(victim_);
    EXPECT_EQ(chmod(victim_.c_str(), 0755), 0);
    std::ofstream(victim_ / "secret") << "x";
  }
  ~SqliteDirectoryRace() override { directory_made = nullptr; }

  // How opening ends if this happens to the first directory that is made.
  std::string open_while(std::function<void(const std::string& made)> happens) {
    directory_made = [happens = std::move(happens)](const std::string& made) {
      const auto once_only = std::exchange(directory_made, nullptr);
      happens(made);
    };
    try {
      put(*make_sqlite_store({.path = file_, .create_directories = true}), "k#1");
      return "opened";
    } catch (const Exception& error) {
      return error.what();
    }
  }
  void expect_untouched() const {
    struct stat found {};
    ASSERT_EQ(stat(victim_.c_str(), &found), 0);
    EXPECT_EQ(found.st_uid, geteuid());
    EXPECT_EQ(found.st_mode & 07777, 0755U);
  }

  const std::filesystem::path home_ = std::filesystem::path(scratch_.file()).parent_path();
  const std::filesystem::path victim_ = home_ / "victim";
  const std::string file_ = home_ / "state" / "once" / "new.db";
};

TEST_F(SqliteDirectoryRace, ALinkIsNotFollowed) {
  const std::string end = open_while([&](const std::string& made) {
    std::filesystem::remove(made);
    std::filesystem::create_directory_symlink(victim_, made);
  });
  EXPECT_THAT(end, HasSubstr("cannot create the directory " + (home_ / "state").string()));
  expect_untouched();
}

TEST_F(SqliteDirectoryRace, AnotherDirectoryIsNotGivenAway) {
  std::string moved;
  const std::string end = open_while([&](const std::string& made) {
    std::filesystem::remove(made);
    std::filesystem::rename(victim_, moved = made);
  });
  EXPECT_THAT(end, HasSubstr("Directory not empty"));
  std::filesystem::rename(moved, victim_);
  expect_untouched();
  if (geteuid() == 0) {  // Only root can give one away.
    EXPECT_THAT(open_while([](const std::string& made) { give(made, 0700); }), HasSubstr("Operation not permitted"));
  }
}

TEST_F(SqliteDirectoryRace, ADirectoryOfAnotherProcessIsUsed) {
  EXPECT_EQ(open_while([&](const std::string&) {
              EXPECT_FALSE(std::filesystem::exists(home_ / "state")) << "others would find it closed";
              std::filesystem::create_directory(home_ / "state");
              give(home_ / "state", 0700);
              std::ofstream(home_ / "state" / "not empty") << "x";
            }),
            "opened");
  expect_owners(home_ / "state", 0700);
  for (const auto& entry : std::filesystem::directory_iterator(home_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("once-new"))) << "what was not needed is gone";
  }
}

// As after a restore, which brings only the database.
TEST_F(SqliteOwners, SideFilesBelongToTheDatabasesOwner) {
  const std::string file = scratch_.file();
  put(*open(), "k#1");
  Shell(file, Shell::Close::tidy).run("SELECT count(*) FROM records");
  for (const char* end : {"-lock", "-wal", "-shm"}) std::filesystem::remove(file + end);
  give(file, 0640);
  const auto store = open();
  put(*store, "k#2");
  for (const char* end : {"", "-lock", "-wal", "-shm"}) expect_owners(file + end, 0640);
}

// 9p and tmpfs differ in one digit.
TEST(SqliteFileSystems, SharedOnesAreKnownAndLocalOnesAreNot) {
  for (const std::uint32_t shared :
       {0x65735546U, 0x6969U, 0x517BU, 0xFF534D42U, 0xFE534D42U, 0x01021997U, 0x00C36400U, 0x0BD00BD0U, 0x19830326U,
        0x47504653U, 0x01161970U, 0x7461636FU, 0xAAD7AAEAU, 0xBEEFDEADU, 0x61636673U, 0x013111A8U, 0x564CU}) {
    EXPECT_FALSE(stores::sqlite::shared_file_system(shared).empty()) << std::hex << shared;
  }
  // ext4, XFS, Btrfs, tmpfs, F2FS, ZFS, bcachefs, and overlay, on which containers live.
  for (const std::uint32_t local :
       {0xEF53U, 0x58465342U, 0x9123683EU, 0x01021994U, 0xF2F52010U, 0x2FC12FC1U, 0xCA451A4EU, 0x794C7630U}) {
    EXPECT_TRUE(stores::sqlite::shared_file_system(local).empty()) << std::hex << local;
  }
}

// RLIMIT_FSIZE of this process, until it is destroyed.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

enum class Reader { none, never_ends, begins_before_each_claim };

// Claims and finishes one operation after another below this limit. Returns how many claims were made: each of them
// must have been finished.
int claims_below(rlim_t limit, Reader reader) {
  constexpr int calls = 40;
  const Scratch scratch;
  const auto store = make_sqlite_store({.path = scratch.file()});
  EXPECT_EQ(blocking::insert(*store, plain_record("first#1")).status, AnswerStatus::done);
  Shell shell(scratch.file());
  const auto begin_reading = [&] { shell.run("BEGIN; SELECT count(*) FROM records"); };
  if (reader == Reader::never_ends) begin_reading();
  const FileSizeLimit small(limit);
  int claims = 0;
  for (int i = 0; i < calls; ++i) {
    if (reader == Reader::begins_before_each_claim) begin_reading();
    Record record = plain_record("k#" + std::to_string(i));
    const Answer claim = blocking::insert(*store, record);
    if (claim.status == AnswerStatus::done) {
      ++claims;
      const Seen seen = seen_of(record, claim.place);
      record.state = State::completed;
      record.revision = revision_of(2);
      record.result = Result::inlined(std::string(1000, 'x'));
      const Answer finish = blocking::replace(*store, record, seen);
      EXPECT_EQ(finish.status, AnswerStatus::done) << limit << ", call " << i << ": " << finish.error.message;
    } else {
      EXPECT_EQ(claim.error.kind, ErrorKind::unavailable) << limit << ": " << claim.error.message;
      EXPECT_THAT(claim.error.message, HasSubstr("RLIMIT_FSIZE")) << limit;
    }
    if (reader == Reader::begins_before_each_claim) shell.run("COMMIT");
  }
  return claims;
}

TEST_F(SqliteFaults, ClaimsBelowAFileSizeLimitAreFinished) {
  constexpr rlim_t kib = 1024;
  for (rlim_t limit = 64 * kib; limit <= 256 * kib; limit += 8 * kib) {
    const int claims = claims_below(limit, Reader::none);
    if (limit >= 224 * kib) {
      EXPECT_EQ(claims, 40) << limit << ": the log is copied, and used anew";
    }
    claims_below(limit, Reader::never_ends);
    claims_below(limit, Reader::begins_before_each_claim);
  }
}

TEST_F(SqliteFaults, ReaderNeedsNoLockFileAndChangesNothing) {
  put(*open(), "a#1");
  std::filesystem::remove(scratch_.file() + "-lock");
  const auto reader = make_sqlite_store({.path = scratch_.file(), .read_only = true});
  EXPECT_NE(blocking::get(*reader, "a#1").record, nullptr);
  EXPECT_EQ(blocking::list(*reader, {}).records.size(), 1U);
  EXPECT_THAT(stores::check_sqlite(*reader), IsEmpty());
  EXPECT_EQ(reader->gate()->mark(), GateMark());
  const Answer write = blocking::insert(*reader, plain_record("b#1"));
  EXPECT_EQ(write.error.kind, ErrorKind::misuse);
  EXPECT_THAT(write.error.message, HasSubstr("read_only=1"));
  EXPECT_FALSE(std::filesystem::exists(scratch_.file() + "-lock"));
  put(*open(), "b#1");  // By another store, which the reader sees.
  EXPECT_NE(blocking::get(*reader, "b#1").record, nullptr);
}

TEST_F(SqliteFaults, ReaderMakesNoFile) {
  EXPECT_THROW(make_sqlite_store({.path = scratch_.file(), .read_only = true}), Exception);
  EXPECT_FALSE(std::filesystem::exists(scratch_.file()));
}

TEST_F(SqliteFaults, ASyncThatFailsLeavesTheWriteInDoubt) {
  const auto store = open();
  put(*store, "before#1");
  disk_faults().log_sync = true;
  expect_failed(blocking::insert(*store, plain_record("k#1")), ErrorKind::in_doubt, "may have been written");
  disk_faults().heal();
  // As the protocol says: write again or read.
  const Answer again = blocking::insert(*store, plain_record("k#1"));
  EXPECT_NE(again.status, AnswerStatus::failed) << again.error.message;
  EXPECT_TRUE(blocking::get(*store, "k#1").record);
  EXPECT_TRUE(blocking::get(*store, "before#1").record);
  EXPECT_THAT(stores::check_sqlite(*open()), IsEmpty());
}

// Its bytes may be in the log: whoever opens the file after a crash then finds a whole commit.
TEST_F(SqliteFaults, AWriteThatFailsIsInDoubtAndMayBeThereAfterACrash) {
  const auto store = open();
  put(*store, "before#1");
  disk_faults().log_write_io = true;
  expect_failed(blocking::insert(*store, plain_record("k#1")), ErrorKind::in_doubt, "may have been written");
  disk_faults().heal();
  for (const char* end : {"", "-wal"}) {
    std::filesystem::copy_file(scratch_.file() + end, scratch_.file("crashed.db") + end);
  }
  EXPECT_TRUE(blocking::get(*make_sqlite_store({.path = scratch_.file("crashed.db")}), "k#1").record);
  EXPECT_FALSE(blocking::get(*store, "k#1").record);
  put(*store, "k#1");
}

// What the full disk did not take may be in the log from before.
TEST_F(SqliteFaults, AFullDiskUnderFramesThatOverwriteOthersIsInDoubt) {
  const auto store = open(100);
  fill_log(*store);  // It begins anew after each hundred pages.
  disk_faults().full = true;
  expect_failed(blocking::insert(*store, plain_record("k#1")), ErrorKind::in_doubt, "may have been written");
  disk_faults().heal();
  put(*store, "k#1");
}

TEST_F(SqliteFaults, AReadThatFailsIsUnavailableAndTheNextOneWorks) {
  {
    const auto store = open();
    put(*store, "k#1");
  }
  const auto store = open();
  disk_faults().read = true;
  expect_failed(blocking::get(*store, "k#1"), ErrorKind::unavailable, "input or output failed");
  disk_faults().heal();
  EXPECT_TRUE(blocking::get(*store, "k#1").record);
}

TEST_F(SqliteFaults, OneSyncServesAGroupAndOneWriteItsLog) {
  const auto store = open();
  put(*store, "first#1");
  Together group(*store);
  for (int i = 0; i < 40; ++i) group.insert(plain_record("k#" + std::to_string(i)));
  disk_faults().log_syncs = 0;
  disk_faults().log_writes = 0;
  for (const Answer& answer : group.finish()) EXPECT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
  EXPECT_EQ(disk_faults().log_syncs, 1U);
  EXPECT_EQ(disk_faults().log_writes, 1U);
}

TEST_F(SqliteFaults, OneBadRecordDoesNotFailItsGroup) {
  damaged_ = true;
  const auto store = open();
  put(*store, "bad#1");
  Shell(scratch_.file()).run("UPDATE records SET state = 17 WHERE key = 'bad#1'");
  Together group(*store);
  group.insert(plain_record("good#1"));
  group.insert(plain_record("bad#1"));
  group.insert(plain_record("good#2"));
  const std::vector<Answer> answers = group.finish();
  EXPECT_EQ(answers[0].status, AnswerStatus::done);
  expect_failed(answers[1], ErrorKind::corrupt, "'bad#1' has a malformed state");
  EXPECT_EQ(answers[2].status, AnswerStatus::done);
}

// Between two small records one for which the disk has no room: the group fails, and each is tried alone.
void insert_with_too_large_one(Together& group) {
  group.insert(plain_record("small#1"));
  Record large = plain_record("large#1");
  large.result = Result::inlined(std::string(8 * 1024 * 1024, 'x'));
  group.insert(large);
  group.insert(plain_record("small#2"));
  disk_faults().room_bytes = 1024 * 1024;
}

TEST_F(SqliteFaults, OneRecordTooLargeForTheDiskDoesNotFailItsGroup) {
  const auto store = open();
  put(*store, "first#1");
  Together group(*store);
  insert_with_too_large_one(group);
  const std::vector<Answer> answers = group.finish();
  disk_faults().heal();
  EXPECT_EQ(answers[0].status, AnswerStatus::done) << answers[0].error.message;
  expect_failed(answers[1], ErrorKind::unavailable, "no space left");
  EXPECT_EQ(answers[2].status, AnswerStatus::done) << answers[2].error.message;
  EXPECT_FALSE(blocking::get(*store, "large#1").record);
}

// What fails for each of them is not for the sake of one: others wait for the file meanwhile.
TEST_F(SqliteFaults, AGroupIsNotTriedOneByOneToItsEndWhenEachFails) {
  std::vector<std::pair<Record, Seen>> all;
  {
    const auto filled = open(100);
    for (int i = 0; i < 300; ++i) {
      Record record = plain_record("k#" + std::to_string(i));
      record.result = Result::inlined(std::string(1'000, 'x'));
      const Answer answer = blocking::insert(*filled, record);
      ASSERT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
      const Seen seen = seen_of(record, answer.place);
      record.revision = next_revision(record.revision, 7);
      all.emplace_back(std::move(record), seen);
    }
  }
  const auto store = open();
  Together together(*store);
  for (int i = 100; i < 120; ++i) together.replace(all[i].first, all[i].second);
  disk_faults().unread_from = std::int64_t{64} * 1024;  // The schema can be read, the rows can't.
  const std::vector<Answer> answers = together.finish();
  for (const Answer& answer : answers) EXPECT_EQ(answer.status, AnswerStatus::failed);
  expect_failed(answers.front(), ErrorKind::unavailable, "input or output failed");
  expect_failed(answers.back(), ErrorKind::unavailable, "not tried, because earlier writes failed");
  disk_faults().heal();
  for (int i = 100; i < 120; ++i) {
    EXPECT_EQ(blocking::replace(*store, all[i].first, all[i].second).status, AnswerStatus::done) << i;
  }
}

TEST_F(SqliteFaults, AGroupWhoseCommitFailsIsInDoubt) {
  const auto store = open();
  put(*store, "before#1");
  Together together(*store);
  for (int i = 0; i < 20; ++i) together.insert(plain_record("k#" + std::to_string(i)));
  disk_faults().log_write_io = true;
  for (const Answer& answer : together.finish()) expect_failed(answer, ErrorKind::in_doubt, "may have been written");
  disk_faults().heal();
  for (int i = 0; i < 20; ++i) put(*store, "k#" + std::to_string(i));
}

TEST_F(SqliteFaults, AFileThatGoesWhileAGroupIsTriedOneByOneKeepsTheAnswersBefore) {
  const auto store = open();
  put(*store, "first#1");
  Together group(*store);
  insert_with_too_large_one(group);
  disk_faults().file_sync = true;  // No room can be made by a copy of the log …
  int syncs = 0;
  disk_faults().at_log_sync =
      [&] {  // … which begins with a sync. After the next, the first record's, the file is gone.
        if (++syncs == 2) std::filesystem::rename(scratch_.file(), scratch_.file("kept.db"));
      };
  const std::vector<Answer> answers = group.finish();
  disk_faults().heal();
  EXPECT_EQ(syncs, 2);
  EXPECT_EQ(answers[0].status, AnswerStatus::done) << "what is written is not told as not written";
  expect_failed(answers[1], ErrorKind::unavailable, "");
  expect_failed(answers[2], ErrorKind::unavailable, "");
}

TEST_F(SqliteFaults, ARecordOverTheLimitIsMisuse) {
  const auto store = open();
  Record record = plain_record("k#1");
  record.result = Result::inlined(std::string(64 * 1024 * 1024, 'x'));
  expect_failed(blocking::insert(*store, record), ErrorKind::misuse, "over the sqlite store's limit");
}

// --- The file and those beside it ---

TEST_F(SqliteFaults, AFileReplacedOrDeletedUnderneathIsNoticed) {
  const auto store = open();
  put(*store, "k#1");
  std::filesystem::rename(scratch_.file(), scratch_.file("kept.db"));
  expect_failed(blocking::insert(*store, plain_record("k#2")), ErrorKind::unavailable, "was deleted");
  expect_failed(blocking::get(*store, "k#1"), ErrorKind::unavailable, "was deleted");
  EXPECT_EQ(blocking::list(*store, {}).error.value().kind, ErrorKind::unavailable);
  EXPECT_EQ(blocking::sweep(*store, Time{}, 1).error.value().kind, ErrorKind::unavailable);
  std::filesystem::copy(scratch_.file("kept.db"), scratch_.file());
  expect_failed(blocking::insert(*store, plain_record("k#2")), ErrorKind::unavailable, "was replaced");
  expect_failed(blocking::get(*store, "k#1"), ErrorKind::unavailable, "was replaced");
  std::filesystem::rename(scratch_.file("kept.db"), scratch_.file());
  EXPECT_TRUE(blocking::get(*store, "k#1").record);
  put(*store, "k#2");
}

TEST_F(SqliteFaults, ALogOrIndexDeletedUnderneathIsNoticed) {
  for (const char* suffix : {"-wal", "-shm"}) {
    const Scratch scratch;
    const auto store = make_sqlite_store({.path = scratch.file()});
    put(*store, "k#1");
    std::filesystem::remove(scratch.file() + suffix);
    expect_failed(blocking::insert(*store, plain_record("k#2")), ErrorKind::unavailable, "-wal or -shm");
  }
}

TEST_F(SqliteFaults, ALockFileDeletedUnderneathIsMadeAnew) {
  const auto store = open();
  put(*store, "k#1");
  std::filesystem::remove(scratch_.file() + "-lock");
  put(*store, "k#2");
  EXPECT_TRUE(std::filesystem::exists(scratch_.file() + "-lock"));
  const auto other = open();
  put(*other, "k#3");
  put(*store, "k#4");
}

// As "> once.db-lock" does, by a user who has read that it holds no data.
TEST_F(SqliteFaults, ALockFileThatIsEmptiedStopsNobody) {
  constexpr int writes = 200;
  const auto open_patient = [&] { return make_sqlite_store({.path = scratch_.file()}); };
  const std::array<std::unique_ptr<Store>, 2> stores{open_patient(), open_patient()};
  std::atomic<int> busy{4};
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      for (int n = 0; n < writes; ++n) {
        const Record record = plain_record("t" + std::to_string(i) + "#" + std::to_string(n));
        const Answer answer = blocking::insert(*stores.at(i % 2), record);
        EXPECT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
      }
      --busy;
    });
  }
  for (int n = 0; busy > 0; ++n) {
    std::filesystem::resize_file(scratch_.file() + "-lock", 0);
    put(*stores[0], "between#" + std::to_string(n));
  }
  for (std::thread& client : clients) client.join();
  EXPECT_THAT(stores::check_sqlite(*stores[0]), IsEmpty());
}

// A write that failed has ended the connection; somebody replaces the log before there is a new one, which would take
// the foreign log for ours.
TEST_F(SqliteFaults, ALogThatIsReplacedBeforeAReconnectIsNoticedAndLeftAlone) {
  const auto store = open();
  put(*store, "k#1");
  {
    const auto other = make_sqlite_store({.path = scratch_.file("other.db")});
    for (int i = 0; i < 20; ++i) put(*other, "o#" + std::to_string(i));
  }
  disk_faults().log_write_io = true;
  expect_failed(blocking::insert(*store, plain_record("k#2")), ErrorKind::in_doubt, "input or output failed");
  disk_faults().heal();
  std::filesystem::rename(scratch_.file("once.db-wal"), scratch_.file("kept-wal"));
  std::filesystem::rename(scratch_.file("other.db-wal"), scratch_.file("once.db-wal"));
  const auto bytes = [&] {
    std::ifstream log(scratch_.file("once.db-wal"), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(log)), {});
  };
  const std::string before = bytes();
  for (int i = 0; i < 2; ++i) {
    expect_failed(blocking::insert(*store, plain_record("k#2")), ErrorKind::unavailable, "-wal or -shm");
  }
  EXPECT_EQ(bytes(), before);
  std::filesystem::rename(scratch_.file("kept-wal"), scratch_.file("once.db-wal"));
  put(*store, "k#2");
}

// root may write anywhere, so permissions are tested as somebody else, in a process of its own.
TEST_F(SqliteFaults, AFileOrDirectoryWithoutPermissionIsUnavailable) {
  damaged_ = true;
  {
    const auto store = open();
    put(*store, "k#1");
  }
  const auto as_nobody = [&](const char* what) {
    const pid_t child = fork();
    if (child == 0) {
      if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(3);
      try {
        const auto store = make_sqlite_store({.path = scratch_.file(), .busy_timeout = short_wait});
        const Answer answer = blocking::insert(*store, plain_record("k#2"));
        if (answer.error.kind == ErrorKind::unavailable && answer.status == AnswerStatus::failed) _exit(0);
        std::fprintf(stderr, "status %d: %s\n", static_cast<int>(answer.status), answer.error.message.c_str());
        _exit(1);
      } catch (const Exception& error) {
        const std::string text = error.what();
        if (error.kind() == ErrorKind::unavailable && text.find("ermission") != std::string::npos) _exit(0);
        std::fprintf(stderr, "%s\n", error.what());
        _exit(1);
      }
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << what;
  };
  ASSERT_EQ(chmod(scratch_.path().c_str(), 0555), 0);
  for (const char* suffix : {"", "-wal", "-shm", "-lock"}) chmod((scratch_.file() + suffix).c_str(), 0444);
  as_nobody("read-only file in a read-only directory");
  chmod((scratch_.file() + "-lock").c_str(), 0666);
  as_nobody("read-only file, lock writable");
  for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(scratch_.file() + suffix);
  chmod(scratch_.file().c_str(), 0666);
  as_nobody("read-only directory without log");
  ASSERT_EQ(chmod(scratch_.path().c_str(), 0700), 0);
  chmod(scratch_.file().c_str(), 0600);
  if (geteuid() == 0) as_nobody("directory closed");
}

TEST_F(SqliteFaults, WhatIsNoDatabaseIsCorrupt) {
  damaged_ = true;
  std::ofstream(scratch_.file()) << std::string(8192, 'n');
  try {
    open();
    FAIL() << "opened";
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("not a SQLite database"), HasSubstr(scratch_.file())));
  }
}

// Fills a file, then has `damage` done to it while it is closed.
template <class Damage>
void damaged(const std::string& path, int records, Damage&& damage) {
  {
    const auto store = make_sqlite_store({.path = path, .checkpoint_pages = 100});
    for (int i = 0; i < records; ++i) {
      Record record = plain_record("k#" + std::to_string(i));
      record.result = Result::inlined(std::string(3000, 'x'));
      ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
    }
  }
  {
    Shell shell(path);
    shell.run("PRAGMA wal_checkpoint(TRUNCATE)");
  }
  std::forward<Damage>(damage)();
}

// Reads everything; the number of records found. Every failure must be of kind corrupt, and there must be one.
int expect_corrupt_but_alive(const std::string& path, int records) {
  std::unique_ptr<Store> store;
  try {
    store = make_sqlite_store({.path = path});
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt) << error.what();
    return 0;
  }
  int found = 0;
  int failed = 0;
  for (int i = 0; i < records; ++i) {
    const Answer answer = blocking::get(*store, "k#" + std::to_string(i));
    if (answer.status == AnswerStatus::failed) {
      EXPECT_EQ(answer.error.kind, ErrorKind::corrupt) << answer.error.message;
      ++failed;
    } else {
      ++found;
    }
  }
  const Answer answer = blocking::insert(*store, plain_record("new#1"));
  if (answer.status == AnswerStatus::failed) {
    EXPECT_EQ(answer.error.kind, ErrorKind::corrupt) << answer.error.message;
    ++failed;
  }
  bool problems = false;
  try {
    problems = !stores::check_sqlite(*store).empty();
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt) << error.what();
    problems = true;
  }
  EXPECT_TRUE(problems || failed > 0);
  return found;
}

TEST_F(SqliteFaults, ATruncatedFileIsCorrupt) {
  damaged_ = true;
  damaged(scratch_.file(), 100, [&] {
    std::filesystem::resize_file(scratch_.file(), std::filesystem::file_size(scratch_.file()) / 2 / 4096 * 4096);
  });
  EXPECT_LT(expect_corrupt_but_alive(scratch_.file(), 100), 100);
}

TEST_F(SqliteFaults, OverwrittenPagesAreCorruptAndOthersStayReadable) {
  damaged_ = true;
  damaged(scratch_.file(), 100, [&] {
    std::fstream file(scratch_.file(), std::ios::in | std::ios::out | std::ios::binary);
    const auto pages = static_cast<std::streamoff>(std::filesystem::file_size(scratch_.file()) / 4096);
    for (std::streamoff page = pages - 20; page < pages; ++page) {
      file.seekp(page * 4096);
      file << std::string(4096, '\xA5');
    }
  });
  EXPECT_GT(expect_corrupt_but_alive(scratch_.file(), 100), 0);
}

TEST_F(SqliteFaults, FlippedBitsNeverCrashOrHang) {
  SeededRandom random(20260101);
  for (int round = 0; round < 20; ++round) {
    const Scratch scratch;
    damaged(scratch.file(), 20, [&] {
      std::fstream file(scratch.file(), std::ios::in | std::ios::out | std::ios::binary);
      const std::uint64_t size = std::filesystem::file_size(scratch.file());
      for (int flip = 0; flip < 200; ++flip) {
        const auto at = static_cast<std::streamoff>(random.below(size));
        file.seekg(at);
        const int byte = file.get();
        file.seekp(at);
        file.put(static_cast<char>(byte ^ (1 << random.below(8))));
      }
    });
    std::unique_ptr<Store> store;
    try {
      store = make_sqlite_store({.path = scratch.file()});
    } catch (const Exception&) {
      continue;  // The kind depends on which bits; that it is one of ours is what is asked.
    }
    for (int i = 0; i < 20; ++i) {
      const Answer got = blocking::get(*store, "k#" + std::to_string(i));
      if (got.status == AnswerStatus::failed) {
        EXPECT_THAT(got.error.message, HasSubstr("sqlite store"));
      }
      blocking::insert(*store, plain_record("n#" + std::to_string(i)));
    }
    blocking::sweep(*store, manual_start, 100);
  }
}

// --- Others at the file ---

TEST_F(SqliteFaults, AShellInsideATransactionIsWaitedForAndThenReported) {
  const auto store = open();
  Shell shell(scratch_.file());
  shell.run("BEGIN IMMEDIATE");
  expect_failed(blocking::insert(*store, plain_record("k#1")), ErrorKind::unavailable, "sqlite3 shell");
  EXPECT_EQ(blocking::get(*store, "k#1").status, AnswerStatus::done);
  shell.run("COMMIT");
  put(*store, "k#1");
}

TEST_F(SqliteFaults, AReaderThatNeverEndsOnlyMakesTheLogGrow) {
  const auto store = open(100);
  put(*store, "first#1");
  Shell shell(scratch_.file());
  EXPECT_EQ(shell.run("BEGIN; SELECT count(*) FROM records"), "1");
  for (int i = 0; i < 100; ++i) {
    Record record = plain_record("k#" + std::to_string(i));
    record.result = Result::inlined(std::string(10'000, 'x'));
    ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  }
  EXPECT_GT(stores::sqlite_status(*store).value().log_bytes, 900'000U);
  EXPECT_EQ(shell.run("SELECT count(*) FROM records; COMMIT"), "1");
  EXPECT_EQ(stores::sqlite_status(*store).value().checkpoint_error, "");
  // Copied after a write that makes it due, begun anew with the next one, and cut off then.
  for (int i = 0; i < 40; ++i) put(*store, "after#" + std::to_string(i));
  EXPECT_LT(stores::sqlite_status(*store).value().log_bytes, 850'000U) << "twice what checkpoint_pages allows";
}

// A child process that takes the lock and then stops.
TEST_F(SqliteFaults, AStoppedProcessThatHoldsTheLockIsReportedAndItsDeathEndsTheWait) {
  const auto store = open();
  put(*store, "k#1");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int fd = ::open((scratch_.file() + "-lock").c_str(), O_RDWR);
    flock(fd, LOCK_EX);
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const auto begin = std::chrono::steady_clock::now();
  expect_failed(blocking::insert(*store, plain_record("k#2")), ErrorKind::unavailable, "was held by another process");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, short_wait);
  EXPECT_TRUE(blocking::get(*store, "k#1").record) << "reads need no lock";
  EXPECT_THROW(open(), Exception);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  put(*store, "k#2");
}

TEST_F(SqliteFaults, TwoBusyStoresGetEqualShares) {
  const auto one = open();
  const auto two = open();
  std::atomic<bool> stop{false};
  std::array<std::atomic<int>, 2> counts{};
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      Store& store = i % 2 == 0 ? *one : *two;
      for (int n = 0; !stop; ++n) {
        const Answer answer = blocking::insert(store, plain_record("s" + std::to_string(i) + "#" + std::to_string(n)));
        if (answer.status == AnswerStatus::done && ++counts.at(i % 2) >= 1500) stop = true;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(std::min(counts[0], counts[1]), 500) << counts[0] << " and " << counts[1];
}

// --- Sudden death ---

// One worker process: claims and completes keys of its own, and reports each acknowledgement through the pipe.
[[noreturn]] void work_until_killed(const std::string& path, int report, int worker, int round) {
  const auto store = make_sqlite_store({.path = path, .checkpoint_pages = 200, .recent_keys = 50});
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int n = 0;; ++n) {
        const std::string key = "w" + std::to_string(worker) + "." + std::to_string(round) + "." +
                                std::to_string(client) + "#" + std::to_string(n);
        Record record = plain_record(key);
        record.holder = "round " + std::to_string(round);
        const Answer claim = blocking::insert(*store, record);
        if (claim.status != AnswerStatus::done) _exit(1);
        const auto say = [&](char what, const std::string& of) {
          const std::string line = what + of + "\n";  // Short: one write, never torn (pipe(7), PIPE_BUF).
          if (::write(report, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(1);
        };
        say('i', key);
        // One that the others want too.
        const std::string wanted =
            "round." + std::to_string(round) + "." + std::to_string(client) + "#" + std::to_string(n);
        const Answer shared = blocking::insert(*store, plain_record(wanted));
        if (shared.status == AnswerStatus::failed) _exit(1);
        if (shared.status == AnswerStatus::done) say('s', wanted);
        Record next = record;
        next.state = State::completed;
        next.revision += 1;
        next.result = Result::inlined(key + std::string(500, '.'));
        if (blocking::replace(*store, next, seen_of(record, claim.place)).status != AnswerStatus::done) _exit(1);
        say('c', key);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  _exit(1);
}

TEST_F(SqliteFaults, KillingProcessesAtRandomMomentsLosesNothingAcknowledged) {
  constexpr int rounds = 20;
  constexpr int workers = 3;
  SeededRandom random(4711);
  std::map<std::string, char> acknowledged;  // Key: 'i' claimed, 'c' completed, 's' claimed by one of many.
  for (int round = 0; round < rounds; ++round) {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe(ends.data()), 0);
    std::array<pid_t, workers> children{};
    for (int worker = 0; worker < workers; ++worker) {
      children.at(static_cast<std::size_t>(worker)) = fork();
      ASSERT_GE(children.at(static_cast<std::size_t>(worker)), 0);
      if (children.at(static_cast<std::size_t>(worker)) == 0) {
        ::close(ends[0]);
        work_until_killed(scratch_.file(), ends[1], worker, round);
      }
    }
    ::close(ends[1]);
    // Each worker dies after a random number of acknowledgements, the later ones while the others are gone already.
    std::uint64_t left = 1 + random.below(120);
    std::size_t next = 0;
    std::string text;
    std::array<char, 65536> buffer{};
    for (ssize_t got = 0; (got = read(ends[0], buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
      std::size_t end = 0;
      for (; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
        char& state = acknowledged[text.substr(1, end - 1)];
        EXPECT_FALSE(state == 's' && text[0] == 's') << text.substr(1, end - 1) << " was claimed twice";
        if (state != 'c') state = text[0];
        if (next < children.size() && --left == 0) {
          kill(children.at(next++), SIGKILL);
          left = 1 + random.below(120);
        }
      }
    }
    ::close(ends[0]);
    EXPECT_EQ(text, "");
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSIGNALED(status)) << "a worker ended by itself with " << status << " in round " << round;
    }
    if (round % 5 == 4) {
      const auto store = make_sqlite_store({.path = scratch_.file(), .recent_keys = 50});
      for (const auto& [key, state] : acknowledged) {
        const Answer answer = blocking::get(*store, key);
        ASSERT_EQ(answer.status, AnswerStatus::done) << answer.error.message;
        ASSERT_TRUE(answer.record) << "lost " << key << " in round " << round;
        if (state == 'c') {
          ASSERT_EQ(answer.record->state, State::completed) << key;
          ASSERT_EQ(answer.record->result.bytes, key + std::string(500, '.'));
        }
        ASSERT_EQ(blocking::insert(*store, plain_record(key)).status, AnswerStatus::refused) << key;
      }
      EXPECT_THAT(stores::check_sqlite(*store), IsEmpty());
    }
  }
  EXPECT_GT(acknowledged.size(), 500U);
}

}  // namespace faults_test
}  // namespace once::testing
