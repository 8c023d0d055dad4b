// fork() with a store open: in a program of its own, because the thread sanitizer allows no thread in the child then.
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include <gtest/gtest.h>

#include <once/platform/blocking.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/records.hpp>

#include "scratch.hpp"

namespace once::testing {
namespace {

using stores::make_sqlite_store;

TEST(SqliteFork, TheChildIsToldAndTheParentGoesOn) {
  const Scratch scratch;
  auto store = make_sqlite_store({.path = scratch.file()});
  ASSERT_EQ(blocking::insert(*store, plain_record("k#1")).status, Answer::Status::done);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Answer written = blocking::insert(*store, plain_record("k#2"));
    const Answer read = blocking::get(*store, "k#1");
    const bool told = written.error.kind == ErrorKind::misuse && read.error.kind == ErrorKind::misuse &&
                      blocking::list(*store, {}).error.has_value() &&
                      blocking::sweep(*store, Time{}, 1).error.has_value();
    store.reset();
    const auto anew = make_sqlite_store({.path = scratch.file()});
    const bool works = blocking::insert(*anew, plain_record("k#3")).status == Answer::Status::done;
    _exit(told && works ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(blocking::get(*store, "k#3").record);
  EXPECT_EQ(blocking::insert(*store, plain_record("k#4")).status, Answer::Status::done);
}

}  // namespace
}  // namespace once::testing
