// The check at the end of each storm and fault test of the SQLite store: the file against itself, and what programs
// have in mind of it against the file.
#pragma once

#include <sqlite3.h>

#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/platform/blocking.hpp>
#include <once/stores/sqlite.hpp>

#include "scratch.hpp"

namespace once::testing {

// The keys of all rows, in the order of their ids.
inline std::vector<std::string> keys_in(const std::string& path) {
  const Shell shell(path);
  std::vector<std::string> keys;
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(shell.raw(), "SELECT key FROM records ORDER BY id", -1, &statement, nullptr) == SQLITE_OK) {
    while (sqlite3_step(statement) == SQLITE_ROW) {
      const auto* const bytes = static_cast<const char*>(sqlite3_column_blob(statement, 0));
      keys.emplace_back(bytes, static_cast<std::size_t>(sqlite3_column_bytes(statement, 0)));
    }
  }
  EXPECT_EQ(sqlite3_finalize(statement), SQLITE_OK);
  return keys;
}

// No key stands twice. Each of the stores, and one that opens the file now, finds each row, it alone, by what the table
// and its memory have.
inline void expect_sound(const std::string& path, const std::vector<const Store*>& stores = {}) {
  EXPECT_EQ(Shell(path).run("SELECT count(*) - count(DISTINCT CAST(key AS BLOB)) FROM records"), "0");
  EXPECT_EQ(Shell(path).run("SELECT count(*) FROM key_index WHERE id NOT IN (SELECT id FROM records) AND "
                            "(hash, id) NOT IN (SELECT hash, id FROM dropped_keys)"),
            "0");
  const std::unique_ptr<Store> fresh = stores::make_sqlite_store({.path = path});
  std::vector<const Store*> all = stores;
  all.push_back(fresh.get());
  for (const Store* store : all) {
    EXPECT_THAT(stores::check_sqlite(*store), ::testing::IsEmpty());
    EXPECT_THAT(stores::check_sqlite(*store, stores::SqliteCheck::newest), ::testing::IsEmpty());
  }
  // By the way that callers take, too.
  for (const std::string& key : keys_in(path)) {
    EXPECT_TRUE(blocking::get(*fresh, key).record) << key;
  }
}

// A directory whose store is checked when the test has closed it.
class SoundScratch : public Scratch {
 public:
  SoundScratch() = default;
  ~SoundScratch() {
    try {
      if (std::filesystem::exists(file())) expect_sound(file());
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  SoundScratch(const SoundScratch&) = delete;
  SoundScratch& operator=(const SoundScratch&) = delete;
};

}  // namespace once::testing
