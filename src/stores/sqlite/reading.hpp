// What is read on a connection of its own, beside the writer.
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
// for a malformed row; the connection is not to be used again then.
class Reading {
 public:
  Reading(const std::string& path, const std::string& vfs, Millis busy_timeout);

  struct Found {
    std::optional<Row> row;
    std::size_t looked_through = 0;  // Rows that are not in the table, nor surely covered by `recent`.
  };
  Found find(std::string_view key, const HashKey& hash_key, const RecentKeys& recent);

  // Throws Exception(misuse) too: a limit out of range, no cursor of ours.
  ListPage list(const ListQuery& query);

  // What is wrong with the file and with `recent`, a sentence or two each, up to about 100: whether each row is found,
  // it alone, as find() would. Malformed rows are among it and throw nothing.
  std::vector<std::string> check(const HashKey& hash_key, const RecentKeys& recent, SqliteCheck how);

 private:
  // Inside a transaction.
  bool is_right(const Known& known, const Ends& ends) noexcept {
    return ends.continue_from(known) && outside_.none_since(known.writes, connection_);
  }

  Connection connection_;
  KeyIndex keys_;
  RowReader row_;
  OutsideWatch outside_;
  Statement begin_;
  Statement end_;
};

}  // namespace once::stores::sqlite
