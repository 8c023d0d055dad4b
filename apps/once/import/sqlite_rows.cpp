// Rows of a SQLite database that is not a store of once. It is opened only to be read.
#include <sqlite3.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include <once/error.hpp>

#include "import/rows.hpp"
#include "output/text.hpp"
#include "text/base64.hpp"
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

class SqliteRows final : public Rows {
 public:
  SqliteRows(const std::string& path, const RowsOptions& options)
      : name_("sqlite:" + path),
        source_("sqlite:" + std::filesystem::absolute(path).lexically_normal().string() + statement_name(options)) {
    sqlite3* database = nullptr;
    const int opened = sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READONLY, nullptr);
    database_.reset(database);
    if (opened != SQLITE_OK) fail("cannot open it");
    sqlite3_busy_timeout(database, busy_ms);
    const std::string sql = options.query.empty() ? "SELECT * FROM " + table(options.table) : options.query;
    sqlite3_stmt* statement = nullptr;
    const char* tail = nullptr;
    const int prepared = sqlite3_prepare_v2(database, sql.c_str(), static_cast<int>(sql.size()), &statement, &tail);
    statement_.reset(statement);
    if (prepared != SQLITE_OK) fail("cannot run the query");
    if (statement == nullptr || sqlite3_column_count(statement) == 0) misuse("--query selects no rows");
    if (sqlite3_stmt_readonly(statement) == 0) misuse("--query must only read");
    // Behind it may be blanks, semicolons and comments, which prepare to nothing.
    while (*tail != '\0') {
      sqlite3_stmt* more = nullptr;
      const int read = sqlite3_prepare_v2(database, tail, -1, &more, &tail);
      const std::unique_ptr<sqlite3_stmt, CloseSqlite> closed(more);
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
        rows.push_back(row());
        bytes += rows.back().json.size();
      } else if (stepped == SQLITE_DONE) {
        over_ = true;
      } else {
        fail("cannot read the rows");
      }
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    const int code = sqlite3_errcode(database_.get());
    const ErrorKind kind = code == SQLITE_ERROR || code == SQLITE_NOTADB ? ErrorKind::misuse : ErrorKind::unavailable;
    throw Exception(kind, name_ + ": " + what + ": " + sqlite3_errmsg(database_.get()));
  }

  static std::string table(const std::string& name) {
    const auto dot = name.find('.');
    if (dot == std::string::npos) return quoted_name(name);
    return quoted_name(name.substr(0, dot)) + "." + quoted_name(name.substr(dot + 1));
  }

  Row row() {
    Row row{.json = "{", .name = "row " + std::to_string(++count_), .problem = {}};
    sqlite3_stmt* const at = statement_.get();
    for (int column = 0; column < sqlite3_column_count(at); ++column) {
      if (column > 0) row.json += ',';
      text::json::append_quoted(row.json, sqlite3_column_name(at, column));
      row.json += ':';
      append(row, column);
    }
    row.json += '}';
    if (!row.problem.empty()) row.json.clear();
    return row;
  }

  void append(Row& row, int column) {
    sqlite3_stmt* const at = statement_.get();
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

  const std::string name_;
  const std::string source_;
  std::unique_ptr<sqlite3, CloseSqlite> database_;
  std::unique_ptr<sqlite3_stmt, CloseSqlite> statement_;
  std::uint64_t count_ = 0;
  bool over_ = false;
};

}  // namespace

std::unique_ptr<Rows> open_sqlite_rows(const std::string& path, const RowsOptions& options) {
  return std::make_unique<SqliteRows>(path, options);
}

}  // namespace once::cli::importing
