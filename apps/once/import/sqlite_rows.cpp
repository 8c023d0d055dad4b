// Rows of a SQLite database that is not a store of once. It is opened only to be read.
#include <sqlite3.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory_resource>
#include <utility>

#include <once/error.hpp>

#include "import/rows.hpp"
#include "output/text.hpp"
#include "text/base64.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/number.hpp"
#include "text/utf8.hpp"

namespace once::cli::importing {

namespace {

constexpr int busy_ms = 10'000;

struct CloseSqlite {
  void operator()(sqlite3* database) const noexcept { sqlite3_close(database); }
  void operator()(sqlite3_stmt* statement) const noexcept { sqlite3_finalize(statement); }
};

// "a" as "\"a\"": a name in a statement.
std::string quoted_name(std::string_view name) {
  std::string out = "\"";
  for (const char c : name) out.append(c == '"' ? 2 : 1, c);
  return out + "\"";
}

using Database = std::unique_ptr<sqlite3, CloseSqlite>;
using Statement = std::unique_ptr<sqlite3_stmt, CloseSqlite>;

[[noreturn]] void fail(sqlite3* database, const std::string& name, const std::string& what) {
  const int code = sqlite3_errcode(database);
  const ErrorKind kind = code == SQLITE_ERROR || code == SQLITE_NOTADB ? ErrorKind::misuse : ErrorKind::unavailable;
  throw Exception(kind, name + ": " + what + ": " + sqlite3_errmsg(database));
}

// Only to be read. `name`: for people.
Database open_database(const std::string& path, const std::string& name, int wait_ms) {
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READONLY, nullptr);
  Database database(opened);
  if (code != SQLITE_OK) fail(opened, name, "cannot open it");
  sqlite3_busy_timeout(opened, wait_ms);
  return database;
}

std::string source_name(const std::string& path, const RowsOptions& options) {
  return "sqlite:" + std::filesystem::absolute(path).lexically_normal().string() + statement_name(options);
}

bool is_number(const std::string& text) {
  std::pmr::monotonic_buffer_resource arena;
  text::json::Value value;
  return text::json::try_parse(text, {.exact_numbers = false}, arena, value) &&
         value.kind() == text::json::Kind::number;
}

std::string table_name(const std::string& name) {
  const auto dot = name.find('.');
  if (dot == std::string::npos) return quoted_name(name);
  return quoted_name(name.substr(0, dot)) + "." + quoted_name(name.substr(dot + 1));
}

void append_column(Row& row, sqlite3_stmt* at, int column) {
  const auto bytes = [&](const void* begin) {
    return std::string_view(static_cast<const char*>(begin),
                            static_cast<std::size_t>(sqlite3_column_bytes(at, column)));
  };
  switch (sqlite3_column_type(at, column)) {
    case SQLITE_INTEGER:
      row.json += std::to_string(sqlite3_column_int64(at, column));
      return;
    case SQLITE_FLOAT: {
      const double value = sqlite3_column_double(at, column);
      if (!std::isfinite(value)) {
        row.problem = "'" + escaped(sqlite3_column_name(at, column)) + "' is not a finite number";
      } else {
        text::append_ecmascript(value, row.json);
      }
      return;
    }
    case SQLITE_TEXT: {
      const std::string_view text = bytes(sqlite3_column_text(at, column));
      if (!text::valid_utf8(text)) {
        row.problem = "'" + escaped(sqlite3_column_name(at, column)) + "' is not UTF-8";
      } else {
        text::json::append_quoted(row.json, text);
      }
      return;
    }
    case SQLITE_BLOB:
      row.binary.emplace_back(sqlite3_column_name(at, column));
      row.json += '"';
      text::append_base64(row.json, bytes(sqlite3_column_blob(at, column)));
      row.json += '"';
      return;
    default:
      row.json += "null";
      return;
  }
}

// The row that the statement stands at.
Row row_of(sqlite3_stmt* at, std::uint64_t number) {
  Row row{.json = "{", .name = "row " + std::to_string(number), .problem = {}};
  for (int column = 0; column < sqlite3_column_count(at); ++column) {
    if (column > 0) row.json += ',';
    text::json::append_quoted(row.json, sqlite3_column_name(at, column));
    row.json += ':';
    append_column(row, at, column);
  }
  row.json += '}';
  if (!row.problem.empty()) row.json.clear();
  return row;
}

// Ends the statements of a database that are still running at the deadline, as those of a table without an index.
class Deadline {
 public:
  Deadline(sqlite3* database, Millis timeout) : database_(database), end_(Steady::now() + timeout) {
    constexpr int instructions = 10'000;  // Between two looks at the clock: far less than a millisecond.
    sqlite3_progress_handler(
        database, instructions,
        [](void* deadline) { return Steady::now() < static_cast<const Deadline*>(deadline)->end_ ? 0 : 1; }, this);
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline() { sqlite3_progress_handler(database_, 0, nullptr, nullptr); }

 private:
  using Steady = std::chrono::steady_clock;
  sqlite3* const database_;
  const Steady::time_point end_;
};

class SqliteRows final : public Rows {
 public:
  SqliteRows(const std::string& path, const RowsOptions& options)
      : name_("sqlite:" + path), source_(source_name(path, options)), database_(open_database(path, name_, busy_ms)) {
    const std::string sql = options.query.empty() ? "SELECT * FROM " + table_name(options.table) : options.query;
    sqlite3_stmt* statement = nullptr;
    const char* tail = nullptr;
    const int prepared =
        sqlite3_prepare_v2(database_.get(), sql.c_str(), static_cast<int>(sql.size()), &statement, &tail);
    statement_.reset(statement);
    if (prepared != SQLITE_OK) fail(database_.get(), name_, "cannot run the query");
    if (statement == nullptr || sqlite3_column_count(statement) == 0) misuse("--query selects no rows");
    if (sqlite3_stmt_readonly(statement) == 0) misuse("--query must only read");
    // Behind it may be blanks, semicolons and comments, which prepare to nothing.
    while (*tail != '\0') {
      sqlite3_stmt* more = nullptr;
      const int read = sqlite3_prepare_v2(database_.get(), tail, -1, &more, &tail);
      const Statement closed(more);
      if (read != SQLITE_OK || more != nullptr)
        misuse("--query has more than one statement, and only one would be read");
    }
  }

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string source() const override { return source_; }

 private:
  void read(std::vector<Row>& rows) override {
    std::size_t bytes = 0;
    while (rows.size() < rows_at_once && bytes < bytes_at_once && !over_) {
      const int stepped = sqlite3_step(statement_.get());
      if (stepped == SQLITE_ROW) {
        rows.push_back(row_of(statement_.get(), ++count_));
        bytes += rows.back().json.size();
      } else if (stepped == SQLITE_DONE) {
        over_ = true;
      } else {
        fail(database_.get(), name_, "cannot read the rows");
      }
    }
  }

  const std::string name_;
  const std::string source_;
  const Database database_;
  Statement statement_;
  std::uint64_t count_ = 0;
  bool over_ = false;
};

// Opens the file for each question: a file that was put in its place meanwhile is the table then.
class SqliteFinder final : public Finder {
 public:
  explicit SqliteFinder(const FinderOptions& options)
      : name_(options.rows.from),
        path_(name_.substr(name_.find(':') + 1)),
        source_(source_name(path_, options.rows)),
        timeout_(options.timeout),
        rows_("SELECT * FROM " + table_name(options.rows.table) + " AS once_row"),
        // With the table's name before it, a column that is not there is an error. Without, SQLite would take it for
        // a text. Keys that were kept as bytes or as numbers are found too, so that they are refused, not missed.
        key_("once_row." + quoted_name(options.column)) {}

  std::vector<Row> find(const std::string& text) override {
    return ask(rows_ + " WHERE " + key_ + " = ?1 OR " + key_ + " = ?2 OR " + key_ + " = ?3", text);
  }
  std::vector<Row> some() override { return ask(rows_ + " LIMIT " + std::to_string(some_rows), {}); }
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string source() const override { return source_; }

 private:
  std::vector<Row> ask(const std::string& sql, const std::string& key) const {
    const Database database = open_database(path_, name_, static_cast<int>(timeout_.count()));
    Deadline deadline(database.get(), timeout_);  // Not const: SQLite has its address.
    sqlite3_stmt* prepared = nullptr;
    const int code = sqlite3_prepare_v2(database.get(), sql.c_str(), -1, &prepared, nullptr);
    const Statement statement(prepared);
    if (code != SQLITE_OK) fail(database.get(), name_, "cannot ask the table");
    bind(prepared, key);
    std::vector<Row> rows;
    for (;;) {
      const int stepped = sqlite3_step(prepared);
      if (stepped == SQLITE_DONE) return rows;
      if (stepped != SQLITE_ROW) fail(database.get(), name_, "cannot read the rows");
      if (rows.size() == max_rows) refuse_many(name_);
      rows.push_back(row_of(prepared, rows.size() + 1));
    }
  }

  // As many parameters as the statement has: none, or the key as a text, as bytes and as a number.
  static void bind(sqlite3_stmt* at, const std::string& key) {
    if (sqlite3_bind_parameter_count(at) == 0) return;
    const auto size = static_cast<sqlite3_uint64>(key.size());
    bool is_bound = sqlite3_bind_text64(at, 1, key.data(), size, SQLITE_TRANSIENT, SQLITE_UTF8) == SQLITE_OK &&
                    sqlite3_bind_blob64(at, 2, key.data(), size, SQLITE_TRANSIENT) == SQLITE_OK;
    if (const auto whole = text::parse_whole<std::int64_t>(key)) {
      is_bound = is_bound && sqlite3_bind_int64(at, 3, *whole) == SQLITE_OK;
    } else if (is_number(key)) {
      is_bound = is_bound && sqlite3_bind_double(at, 3, text::to_double(key)) == SQLITE_OK;
    }  // Otherwise it stays NULL, which equals nothing.
    if (!is_bound) throw Exception(ErrorKind::unavailable, "SQLite could not take the key: out of memory");
  }

  const std::string name_;  // "sqlite:" and the path.
  const std::string path_;
  const std::string source_;
  const Millis timeout_;
  const std::string rows_;
  const std::string key_;
};

}  // namespace

std::unique_ptr<Rows> open_sqlite_rows(const std::string& path, const RowsOptions& options) {
  return std::make_unique<SqliteRows>(path, options);
}

std::unique_ptr<Finder> open_sqlite_finder(const FinderOptions& options) {
  return std::make_unique<SqliteFinder>(options);
}

}  // namespace once::cli::importing
