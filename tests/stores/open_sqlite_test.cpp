// Every option of the SQLite store has a parameter of its URL.
#include "stores/open_sqlite.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

namespace once::stores {
namespace open_sqlite_test {

// Every member, so that a new one does not compile until it is named here: with a parameter below, or for tests.
auto members(const SqliteOptions& options) {
  const auto& [path, allow_hard_links, create, create_directories, read_only, allow_shared_file_system, allow_clear,
               busy_timeout, work_timeout, checkpoint_pages, cache_bytes, recent_keys, clock, boot_id, vfs] = options;
  static_cast<void>(clock);  // These three are for tests, which make the store without a URL.
  static_cast<void>(boot_id);
  static_cast<void>(vfs);
  return std::tie(path, allow_hard_links, create, create_directories, read_only, allow_shared_file_system, allow_clear,
                  busy_timeout, work_timeout, checkpoint_pages, cache_bytes, recent_keys);
}

constexpr std::size_t count = std::tuple_size_v<decltype(members(std::declval<const SqliteOptions&>()))>;

// One for each member, in their order. None gives the default.
const std::string urls[] = {"sqlite:other.db",
                            "sqlite:a.db?allow_hard_links=1",
                            "sqlite:a.db?create=0",
                            "sqlite:a.db?create_directories=1",
                            "sqlite:a.db?read_only=1",
                            "sqlite:a.db?allow_shared_file_system=1",
                            "sqlite:a.db?write_clear=1",
                            "sqlite:a.db?busy_timeout=250ms",
                            "sqlite:a.db?work_timeout=2s",
                            "sqlite:a.db?checkpoint_pages=101",
                            "sqlite:a.db?cache_bytes=1048576",
                            "sqlite:a.db?recent_keys=102"};
static_assert(std::size(urls) == count, "an option has no parameter");

SqliteOptions options_of(const std::string& text) {
  Url url(text);
  return sqlite_options(url);
}

TEST(OpenSqlite, EachParameterSetsItsOptionAndNoOther) {
  const SqliteOptions usual = options_of("sqlite:a.db");
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto same = [&]<std::size_t M>(const SqliteOptions& options) {
      return std::get<M>(members(options)) == std::get<M>(members(usual));
    };
    for (std::size_t url = 0; url < count; ++url) {
      const SqliteOptions options = options_of(urls[url]);
      const bool kept[] = {same.template operator()<I>(options)...};
      for (std::size_t member = 0; member < count; ++member) {
        EXPECT_EQ(kept[member], member != url) << urls[url] << ", member " << member;
      }
    }
  }(std::make_index_sequence<count>{});
  EXPECT_EQ(options_of(urls[7]).busy_timeout, Millis{250});
  EXPECT_EQ(options_of(urls[8]).work_timeout, Millis{2'000});
  EXPECT_EQ(options_of(urls[9]).checkpoint_pages, 101U);
  EXPECT_EQ(options_of(urls[10]).cache_bytes, 1'048'576U);
  EXPECT_EQ(options_of(urls[11]).recent_keys, 102U);
}

TEST(OpenSqlite, WhatIsNotGivenIsTheDefault) {
  SqliteOptions usual;
  usual.path = "a.db";
  EXPECT_EQ(members(options_of("sqlite:a.db")), members(usual));
}

}  // namespace open_sqlite_test
}  // namespace once::stores
