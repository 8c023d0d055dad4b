// One file, opened by more than one name.
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/records.hpp>

#include "scratch.hpp"

namespace once::testing {
namespace names_test {

namespace fs = std::filesystem;
using stores::make_sqlite_store;
using stores::SqliteOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SqliteNames : public ::testing::Test {
 protected:
  static void expect_refused(SqliteOptions options, ErrorKind kind, const auto& matcher) {
    try {
      make_sqlite_store(std::move(options));
      ADD_FAILURE() << "the store was opened";
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_THAT(error.what(), matcher);
    }
  }

  static Answer put(Store& store, const std::string& key) { return blocking::insert(store, plain_record(key)); }

  // Both stores see what the other one claims, have one lock, and notice when the log is deleted.
  void expect_one_file(const std::string& other_name) const {
    const auto by_name = make_sqlite_store({.path = scratch_.file()});
    const auto by_other = make_sqlite_store({.path = other_name});
    EXPECT_EQ(put(*by_name, "k#1").status, AnswerStatus::done);
    EXPECT_EQ(put(*by_other, "k#1").status, AnswerStatus::refused);
    EXPECT_EQ(put(*by_other, "k#2").status, AnswerStatus::done);
    EXPECT_EQ(put(*by_name, "k#2").status, AnswerStatus::refused);
    EXPECT_EQ(stores::sqlite_status(*by_other).value().path, scratch_.file());
    EXPECT_FALSE(fs::is_regular_file(other_name + "-lock") && !fs::equivalent(other_name + "-lock", lock_));
    fs::remove(scratch_.file() + "-wal");
    const Answer answer = put(*by_other, "k#3");
    EXPECT_EQ(answer.status, AnswerStatus::failed);
    EXPECT_THAT(answer.error.message, HasSubstr("-wal or -shm"));
  }

  const Scratch scratch_;
  const std::string lock_ = scratch_.file() + "-lock";
};

TEST_F(SqliteNames, AHardLinkIsRefusedByEitherName) {
  { make_sqlite_store({.path = scratch_.file()}); }
  fs::create_hard_link(scratch_.file(), scratch_.file("backup.db"));
  const auto told = AllOf(HasSubstr("has 2 names"), HasSubstr("-samefile"), HasSubstr("allow_hard_links=1"));
  expect_refused({.path = scratch_.file()}, ErrorKind::misuse, told);
  expect_refused({.path = scratch_.file("backup.db")}, ErrorKind::misuse, told);
  EXPECT_FALSE(fs::exists(scratch_.file("backup.db-lock")));
  {
    const auto store = make_sqlite_store({.path = scratch_.file(), .allow_hard_links = true});
    EXPECT_EQ(put(*store, "k#1").status, AnswerStatus::done);
    EXPECT_EQ(stores::sqlite_status(*store).value().hard_links, 2U);
  }
  fs::remove(scratch_.file("backup.db"));
  EXPECT_EQ(put(*make_sqlite_store({.path = scratch_.file()}), "k#1").status, AnswerStatus::refused);
}

TEST_F(SqliteNames, AHardLinkToAFileBesideItIsRefused) {
  for (const char* suffix : {"-wal", "-shm", "-lock"}) {
    const Scratch scratch;
    { make_sqlite_store({.path = scratch.file()}); }
    fs::create_hard_link(scratch.file() + suffix, scratch.file("kept"));
    expect_refused({.path = scratch.file()}, ErrorKind::misuse,
                   AllOf(HasSubstr(std::string(suffix) + " has 2 names"), HasSubstr("allow_hard_links=1")));
    make_sqlite_store({.path = scratch.file(), .allow_hard_links = true});
  }
}

// A backup may be made of links at any time: that alone harms nobody, as the other name cannot be opened.
TEST_F(SqliteNames, AHardLinkMadeWhileItIsOpenCannotBeOpened) {
  const auto store = make_sqlite_store({.path = scratch_.file()});
  fs::create_hard_link(scratch_.file(), scratch_.file("backup.db"));
  EXPECT_EQ(put(*store, "k#1").status, AnswerStatus::done);
  EXPECT_EQ(stores::sqlite_status(*store).value().hard_links, 2U);
  expect_refused({.path = scratch_.file("backup.db")}, ErrorKind::misuse, HasSubstr("has 2 names"));
  // Nor does the store go on by a name that the file has no more.
  fs::remove(scratch_.file());
  const Answer answer = put(*store, "k#2");
  EXPECT_EQ(answer.status, AnswerStatus::failed);
  EXPECT_THAT(answer.error.message, HasSubstr("was deleted"));
}

TEST_F(SqliteNames, ASymbolicLinkIsTheFileItLeadsTo) {
  fs::create_directory(scratch_.file("d"));
  fs::create_symlink("../once.db", scratch_.file("d/link.db"));
  expect_one_file(scratch_.file("d/link.db"));
}

TEST_F(SqliteNames, ADirectoryMayBeALink) {
  const Scratch elsewhere;
  fs::create_directory_symlink(scratch_.path(), elsewhere.file("d"));
  expect_one_file(elsewhere.file("d/once.db"));
}

TEST_F(SqliteNames, ALinkBehindWhichTwoPointsStandIsFollowedFirst) {
  const Scratch elsewhere;
  fs::create_directory(scratch_.file("sub"));
  fs::create_directory_symlink(scratch_.file("sub"), elsewhere.file("d"));
  expect_one_file(elsewhere.file("d/../once.db"));
}

TEST_F(SqliteNames, ALinkToAFileThatIsNotThereYetMakesThatOne) {
  fs::create_directory(scratch_.file("data"));
  fs::create_symlink("data/real.db", scratch_.file("one.db"));
  fs::create_symlink("one.db", scratch_.file("two.db"));
  expect_refused({.path = scratch_.file("two.db"), .create = false}, ErrorKind::unavailable, HasSubstr("real.db"));
  const auto store = make_sqlite_store({.path = scratch_.file("two.db")});
  EXPECT_EQ(put(*store, "k#1").status, AnswerStatus::done);
  EXPECT_TRUE(fs::is_regular_file(scratch_.file("data/real.db")));
  EXPECT_TRUE(fs::is_regular_file(scratch_.file("data/real.db-lock")));
  EXPECT_FALSE(fs::exists(scratch_.file("two.db-lock")));
}

TEST_F(SqliteNames, ALoopOfLinksIsRefused) {
  fs::create_symlink("b.db", scratch_.file("a.db"));
  fs::create_symlink("a.db", scratch_.file("b.db"));
  expect_refused({.path = scratch_.file("a.db")}, ErrorKind::unavailable, HasSubstr("points back to itself"));
}

TEST_F(SqliteNames, ALinkThatLeadsElsewhereWhileItIsOpenIsNoticed) {
  fs::create_symlink("once.db", scratch_.file("link.db"));
  const auto store = make_sqlite_store({.path = scratch_.file("link.db")});
  EXPECT_EQ(put(*store, "k#1").status, AnswerStatus::done);
  { make_sqlite_store({.path = scratch_.file("new.db")}); }
  fs::remove(scratch_.file("link.db"));
  fs::create_symlink("new.db", scratch_.file("link.db"));
  for (const Answer& answer : {put(*store, "k#2"), blocking::get(*store, "k#1")}) {
    EXPECT_EQ(answer.status, AnswerStatus::failed);
    EXPECT_THAT(answer.error.message, AllOf(HasSubstr("link.db"), HasSubstr("was replaced")));
  }
}

TEST_F(SqliteNames, ALinkInThePlaceOfALogOrALockIsRefused) {
  { make_sqlite_store({.path = scratch_.file()}); }
  for (const char* suffix : {"-wal", "-shm", "-lock"}) {
    const std::string file = scratch_.file() + suffix;
    fs::rename(file, scratch_.file("kept"));
    fs::create_symlink("kept", file);
    expect_refused({.path = scratch_.file()}, ErrorKind::misuse, HasSubstr("is a symbolic link"));
    fs::rename(scratch_.file("kept"), file);
  }
}

}  // namespace names_test
}  // namespace once::testing
