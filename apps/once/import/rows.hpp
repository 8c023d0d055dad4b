// Rows of a table or a file that another program wrote, each as one JSON object: what `once import` reads.
//
//   a DynamoDB item    attributes by name; sets are arrays, binary values are Base64 text
//   a row of SQL       columns by name; a BLOB of SQLite is Base64 text, PostgreSQL's types are as row_to_json has them
//   a record of CSV    fields by the names of the first record, all texts; an empty field without quotes is null
//   a line of JSON     the object itself
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <once/time.hpp>

#include "text/json.hpp"

namespace once::cli::importing {

struct Row {
  std::string json;                      // An object, as UTF-8.
  std::string name;                      // For people: "row 17", "line 12".
  std::string problem;                   // Not empty: the row cannot be read, and this is why. `json` is empty then.
  std::vector<std::string> binary = {};  // Columns whose text stands for bytes.
};

struct RowsOptions {
  std::string from;   // A URL: see open_rows().
  std::string table;  // SQL: the table that is read whole, "idempotency_keys" or "billing.idempotency_keys".
  std::string query;  // SQL: a statement that selects the rows.
};

// Rows::source()'s part for SQL.
std::string statement_name(const RowsOptions& options);

class Rows {
 public:
  Rows() = default;
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  virtual ~Rows() = default;

  // The next rows, at least one; empty at the end. Blocks. Throws Exception if no row could be read before the fault;
  // otherwise the next call throws it.
  std::vector<Row> next();

  // For people: "dynamodb:orders". Never a password.
  [[nodiscard]] virtual std::string name() const = 0;

  // What tells this source from others: the place, the table, the query. Never a password. Empty: it cannot be told.
  [[nodiscard]] virtual std::string source() const = 0;

 protected:
  static constexpr std::size_t rows_at_once = 500;                            // Of one call of read() …
  static constexpr std::size_t bytes_at_once = std::size_t{4} * 1024 * 1024;  // … and about so many bytes.

  // Appends the next rows; none at the end. May append some, and throw.
  virtual void read(std::vector<Row>& rows) = 0;

 private:
  std::exception_ptr fault_;
};

// dynamodb://TABLE (with region=, endpoint=, profile= and ca_file=), postgresql://USER@HOST/DATABASE, sqlite:FILE,
// csv:FILE, jsonl:FILE, dynamodb-export:FILE (lines as AWS exports a table to S3, decompressed); "-" is standard input.
// Throws Exception: misuse for a URL or options that make no sense, unavailable if the source cannot be read.
std::unique_ptr<Rows> open_rows(const RowsOptions& options);

// Finds rows by one column, as often as asked, each time as they are then. For one thread at a time.
class Finder {
 public:
  Finder() = default;
  Finder(const Finder&) = delete;
  Finder& operator=(const Finder&) = delete;
  virtual ~Finder() = default;

  static constexpr std::size_t max_rows = 100;  // Of find(): more are refused as corrupt.

  // The rows whose column has this text, as the table compares it: a column that ignores case finds other spellings
  // too. `text`: UTF-8 without NUL. Blocks, for about FinderOptions::timeout. Throws Exception: misuse for a table that
  // cannot be asked in this way, corrupt if only this text cannot be looked up, unavailable otherwise.
  virtual std::vector<Row> find(const std::string& text) = 0;

  // A few rows, any ones. Empty: the table has none. Otherwise like find().
  virtual std::vector<Row> some() = 0;

  // As those of Rows.
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string source() const = 0;

 protected:
  static constexpr std::size_t some_rows = 20;  // Of some().
  [[noreturn]] static void refuse_many(const std::string& name);
};

struct FinderOptions {
  RowsOptions rows;       // With a table, if it is SQL; without a query.
  std::string column;     // DynamoDB: the partition key.
  Millis timeout{5'000};  // For connecting, and for each question.
};

// For dynamodb:, postgresql: and sqlite: URLs, as open_rows() takes them. Throws as that does.
std::unique_ptr<Finder> open_finder(const FinderOptions& options);

// Opens nothing. Throws Exception(misuse) for a kind of source that cannot be asked for one key, and for a table that
// is missing or too much.
void check_finder(const FinderOptions& options);

// Its parts, one for each kind of source. `path`: a file, or "-".
enum class FileForm : std::uint8_t { csv, json_lines, dynamodb_export };
std::unique_ptr<Rows> open_file_rows(FileForm form, const std::string& path);
std::unique_ptr<Rows> open_sqlite_rows(const std::string& path, const RowsOptions& options);
std::unique_ptr<Finder> open_sqlite_finder(const FinderOptions& options);
#if ONCE_POSTGRESQL
std::unique_ptr<Rows> open_postgresql_rows(const RowsOptions& options);
std::unique_ptr<Finder> open_postgresql_finder(const FinderOptions& options);
#endif
#if ONCE_AWS
std::unique_ptr<Rows> open_dynamodb_rows(const RowsOptions& options);
std::unique_ptr<Finder> open_dynamodb_finder(const FinderOptions& options);
#endif

// A DynamoDB item, {"id":{"S":"17"}}, as a plain object, {"id":"17"}. Throws Exception(misuse) if it is not an item.
std::string plain_item(const text::json::Value& item);

// Its attributes that are binary.
std::vector<std::string> binary_attributes(const text::json::Value& item);

}  // namespace once::cli::importing
