// The only encoder of records to columns and back, and the statements on rows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <once/record.hpp>
#include <once/store.hpp>
#include <once/stores/sql.hpp>

#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/key_index.hpp"
#include "stores/sqlite/schema.hpp"

namespace once::stores::sqlite {

// Parts of a record encoded on the caller's thread, because all callers wait for the writer.
struct Encoded {
  std::int64_t key_hash = 0;
  std::string steps;  // Netstrings.
  bool steps_are_text = false;
  bool key_is_text = false;
  bool holder_is_text = false;
  bool note_is_text = false;
  bool result_is_text = false;
  std::string history;  // history_text().
  bool history_is_text = false;
  bool input_is_text = false;
};
Encoded encode(const HashKey& hash_key, const Record& record);

// Stored as TEXT, which shells print, if it is UTF-8 without NUL; otherwise as BLOB.
bool is_clean_text(std::string_view bytes) noexcept;

struct Row {
  std::int64_t id = 0;
  Record record;
};

// Answer::place of a row: one number, never 0.
struct Place {
  std::int64_t id = 0;  // 0: not known.
  bool never_swept = false;

  static Place of(std::int64_t id, const Record& record) { return {id, record.expires_at == never}; }
  static Place from(std::uint64_t hint) { return {static_cast<std::int64_t>(hint >> 1U), (hint & 1U) != 0}; }
  [[nodiscard]] std::uint64_t hint() const { return (static_cast<std::uint64_t>(id) << 1U) | (never_swept ? 1U : 0U); }
};

// The columns of a record in the order that read_row expects, for SELECT.
extern const std::string_view row_columns;

// The current row of a statement on row_columns. Throws Exception(corrupt) naming the key if it is malformed.
Row read_row(const Statement& statement, const std::string& path);

// Store::finish_statement() for the row `id`. It also returns the row's id and its new revision.
SqlStatement finish_statement(const Record& record, std::int64_t id);

// Reads one row on one connection. Throws as Rows does.
class RowReader {
 public:
  explicit RowReader(Connection& connection);
  // Returns the candidate with this key.
  std::optional<Row> read(std::span<const std::int64_t> candidates, std::string_view key);

 private:
  const std::string& path_;
  Statement read_;
};

// The statements of the writer's connection. Each method throws SqlError, or Exception(corrupt) for a malformed row.
class Rows {
 public:
  Rows(Connection& connection, RecentKeys& recent, std::size_t most_recent);

  // Must be called in each transaction that looks for keys.
  [[nodiscard]] KeyIndexer& keys() noexcept { return keys_; }

  // Returns the row with its key if there is one, otherwise adds it.
  std::optional<Row> insert(const Record& record, const Encoded& encoded, std::int64_t& id);
  // False if no row has its key, this owner and this revision. `id`: the row's id when it was seen.
  bool replace(const Record& record, const Encoded& encoded, const Seen& seen, std::int64_t& id);
  bool remove(std::string_view key, std::int64_t key_hash, const Seen& seen);
  std::optional<Row> find(std::string_view key, std::int64_t key_hash);

  struct Swept {
    std::size_t removed = 0;
    std::size_t looked_at = 0;
    bool goes_on = false;  // Entries of removed rows are left in key_index, and are due.
  };
  // Reads at most `limit` rows whose sweep_at_ms has passed.
  Swept sweep(Time now, std::size_t limit);
  bool has_expired(Time now);

 private:
  bool update(Statement& statement, const Record& record, const Encoded& encoded, const Seen& seen, std::int64_t id);
  void bind_reserve(Statement& statement, const Record& record);

  Connection& connection_;
  KeyIndexer keys_;
  RowReader reader_;
  std::size_t reserve_ = 96;  // Bytes that recent results needed.
  Statement insert_;
  Statement finish_;  // Does not change sweep_at_ms, nor its index.
  Statement replace_;
  Statement remove_;
  Statement sweep_look_;
  Statement sweep_remove_;
  Statement sweep_later_;
  Statement has_expired_;
};

}  // namespace once::stores::sqlite
