#include <gtest/gtest.h>
#include <once/decide.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/sqlite.hpp>
namespace {
TEST(SqliteStore, Smoke) {
  auto s = once::stores::make_sqlite_store({.path = "smoke.db"});
  once::Record r;
  r.key = "a#b";
  r.revision = 1;
  r.attempt = 1;
  auto a = once::blocking::insert(*s, r);
  EXPECT_EQ(a.error.message, "");
  EXPECT_EQ(once::blocking::get(*s, "a#b").record, r);
}
}  // namespace
