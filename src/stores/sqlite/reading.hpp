// Reads on a separate connection, concurrently with the writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/store.hpp>
#include <once/stores/sqlite.hpp>
#include <once/time.hpp>

#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/key_index.hpp"
#include "stores/sqlite/outside_writes.hpp"
#include "stores/sqlite/rows.hpp"
#include "stores/sqlite/schema.hpp"

namespace once::stores::sqlite {

// A connection with its statements, used by one thread at a time. Each method throws SqlError, or Exception(corrupt)
// for a malformed row. After that, do not use the connection again.
class Reading {
 public:
  // `mode`: not Mode::write, unless a writer of this process has the file open.
  Reading(const std::string& path, const std::string& vfs, Millis busy_timeout, Connection::Mode mode);

  [[nodiscard]] Connection& connection() noexcept { return connection_; }

  struct Found {
    std::optional<Row> row;
    std::size_t looked_through = 0;  // Rows read because neither the table nor `recent` surely covers them.
  };
  Found find(std::string_view key, const HashKey& hash_key, const RecentKeys& recent);

  // Also throws Exception(misuse): a limit out of range, a foreign cursor.
  ListPage list(const ListQuery& query);

  // The faults of the file and of `recent`, a sentence or two each, up to about 100. Checks that find() would find each
  // row, and only it. Malformed rows are listed, not thrown.
  std::vector<std::string> check(const HashKey& hash_key, const RecentKeys& recent, SqliteCheck how);

 private:
  // Inside a transaction.
  bool is_right(const Known& known, const Ends& ends) noexcept {
    return known.writes != 0 && ends.continue_from(known) && outside_.none_since(known.writes, connection_);
  }

  Connection connection_;
  KeyIndex keys_;
  RowReader row_;
  OutsideWatch outside_;
  Statement begin_;
  Statement end_;
};

}  // namespace once::stores::sqlite
