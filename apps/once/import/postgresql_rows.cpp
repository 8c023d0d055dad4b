// Rows of a PostgreSQL database, of one snapshot, in a transaction that only reads.
#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include <once/error.hpp>

#include "import/rows.hpp"
#include "output/text.hpp"
#include "text/ascii.hpp"

namespace once::cli::importing {

namespace {

struct FinishLibpq {
  void operator()(PGconn* connection) const noexcept { PQfinish(connection); }
  void operator()(PGresult* result) const noexcept { PQclear(result); }
  void operator()(PQconninfoOption* options) const noexcept { PQconninfoFree(options); }
};
using FetchedRows = std::unique_ptr<PGresult, FinishLibpq>;

// A connection on which statements only read.
class Connection {
 public:
  // `timeout`: for connecting to each of the URL's hosts, unless the URL says otherwise, and as within(). Empty:
  // libpq's, and none.
  explicit Connection(const RowsOptions& options, std::optional<Millis> timeout = std::nullopt) {
    // libpq's message about a URL that it cannot read may quote the password.
    const std::unique_ptr<PQconninfoOption, FinishLibpq> readable(PQconninfoParse(options.from.c_str(), nullptr));
    if (readable == nullptr) misuse("FROM is not a URL that libpq accepts, as in postgresql://user@host:5432/database");
    const std::string seconds =
        timeout ? std::to_string(std::chrono::ceil<std::chrono::seconds>(*timeout).count()) : std::string();
    // The URL is expanded in "dbname": its parameters come later than the first one, so they count. Empty: not set.
    constexpr std::array names{"connect_timeout", "dbname", "client_encoding", static_cast<const char*>(nullptr)};
    const std::array values{seconds.c_str(), options.from.c_str(), "UTF8", static_cast<const char*>(nullptr)};
    constexpr int expands = 1;
    connection_.reset(PQconnectdbParams(names.data(), values.data(), expands));
    if (PQstatus(connection_.get()) != CONNECTION_OK) fail("cannot connect");
    PQsetNoticeProcessor(
        connection_.get(), [](void*, const char*) {}, nullptr);
    name_ = std::string("postgresql:") + PQdb(connection_.get());
    source_ = name_ + " at " + PQhost(connection_.get()) + ":" + PQport(connection_.get()) + statement_name(options);
    const char* const encoding = PQparameterStatus(connection_.get(), "client_encoding");
    if (encoding == nullptr || std::string_view(encoding) != "UTF8") fail("cannot read UTF-8");
    within(timeout);
  }

  // The time for the statements that follow, together. It ends also if the server, or a pooler, is silent: then the
  // connection cannot be used again. Empty: none.
  void within(std::optional<Millis> timeout) {
    deadline_ = timeout ? std::optional(Steady::now() + *timeout) : std::nullopt;
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& source() const noexcept { return source_; }

  // Begins a transaction that only reads. `isolation`: of SQL.
  void begin(const std::string& isolation) const {
    run("BEGIN ISOLATION LEVEL " + isolation + " READ ONLY");
    run("SET LOCAL TIME ZONE 'UTC'");
    // Rows that a policy hides would be left out in silence; with this the server refuses the query.
    run("SET LOCAL row_security = off");
    const FetchedRows standby = run("SELECT pg_is_in_recovery()");
    if (std::string_view(PQgetvalue(standby.get(), 0, 0)) == "t") {
      misuse(name_ + " is a standby, which may lack the last rows: read from the primary");
    }
  }

  // One statement: with parameters, though none, the server refuses "SELECT 1; SELECT 2".
  FetchedRows run(const std::string& sql, const char* parameter = nullptr) const {
    if (PQsendQueryParams(connection_.get(), sql.c_str(), parameter == nullptr ? 0 : 1, nullptr, &parameter, nullptr,
                          nullptr, 0) == 0) {
      fail("cannot ask the server");
    }
    FetchedRows result;
    for (FetchedRows next = fetch(); next != nullptr; next = fetch()) result = std::move(next);
    const ExecStatusType status = PQresultStatus(result.get());
    const char* const code = PQresultErrorField(result.get(), PG_DIAG_SQLSTATE);
    if (parameter != nullptr && code != nullptr && std::string_view(code).starts_with(data_exception)) {
      throw Exception(ErrorKind::corrupt, name_ + ": the column's type has no such value: " + message());
    }
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) fail("cannot read the rows", code);
    return result;
  }

  // "billing.keys" as "\"billing\".\"keys\"".
  [[nodiscard]] std::string quoted(const std::string& dotted) const {
    std::string name;
    for (const std::string& part : split(dotted, '.')) name += (name.empty() ? "" : ".") + quoted_part(part);
    return name;
  }
  [[nodiscard]] std::string quoted_part(const std::string& part) const {
    char* const quoted = PQescapeIdentifier(connection_.get(), part.c_str(), part.size());
    if (quoted == nullptr) fail("cannot name the table");
    std::string out = quoted;
    PQfreemem(quoted);
    return out;
  }

  // Those of `rows`, a statement or a table, that are bytes.
  [[nodiscard]] std::vector<std::string> binary_columns(const std::string& rows) const {
    std::vector<std::string> binary;
    const FetchedRows columns = run("SELECT * FROM (" + rows + "\n) AS once_row LIMIT 0");
    for (int at = 0; at < PQnfields(columns.get()); ++at) {
      constexpr Oid bytea = 17;
      if (PQftype(columns.get(), at) == bytea) binary.emplace_back(PQfname(columns.get(), at));
    }
    return binary;
  }

 private:
  using Steady = std::chrono::steady_clock;
  static constexpr std::string_view data_exception = "22";  // A class of SQLSTATE: here of the parameter.

  // The next result of the statement that was sent. Empty: it has no more.
  [[nodiscard]] FetchedRows fetch() const {
    while (PQisBusy(connection_.get()) != 0) {
      pollfd readable{.fd = PQsocket(connection_.get()), .events = POLLIN, .revents = 0};
      const auto left = deadline_ ? std::chrono::ceil<Millis>(*deadline_ - Steady::now()) : Millis{-1};
      if (deadline_ && left <= Millis{0}) throw Exception(ErrorKind::unavailable, name_ + ": no answer in time");
      const int ready = poll(&readable, 1, static_cast<int>(left.count()));
      if (ready > 0 && PQconsumeInput(connection_.get()) == 0) fail("cannot read the rows");
    }
    return FetchedRows(PQgetResult(connection_.get()));
  }

  [[nodiscard]] std::string message() const {
    return std::string(text::trim(PQerrorMessage(connection_.get()), " \n"));
  }
  // `code`: an SQLSTATE. Null: there is none.
  [[noreturn]] void fail(const std::string& what, const char* code = nullptr) const {
    // Rolled back, out of resources, locked, canceled, a fault of the system.
    constexpr std::array<std::string_view, 5> passing{"40", "53", "55", "57", "58"};
    const bool may_pass =
        PQstatus(connection_.get()) != CONNECTION_OK ||
        (code != nullptr && std::ranges::find(passing, std::string_view(code).substr(0, 2)) != passing.end());
    throw Exception(may_pass ? ErrorKind::unavailable : ErrorKind::misuse, name_ + ": " + what + ": " + message());
  }

  std::string name_ = "postgresql";
  std::optional<Steady::time_point> deadline_;
  std::unique_ptr<PGconn, FinishLibpq> connection_;
  std::string source_;
};

class PostgresqlRows final : public Rows {
 public:
  explicit PostgresqlRows(const RowsOptions& options) : connection_(options) {
    connection_.begin("REPEATABLE READ");
    const std::string query = options.query.empty() ? "SELECT * FROM " + connection_.quoted(options.table)
                                                    : std::string(text::trim(options.query, " \t\r\n;"));
    binary_ = connection_.binary_columns(query);
    connection_.run("DECLARE once_import NO SCROLL CURSOR FOR SELECT row_to_json(once_row)::text FROM (" + query +
                    "\n) AS once_row");
  }

  [[nodiscard]] std::string name() const override { return connection_.name(); }
  [[nodiscard]] std::string source() const override { return connection_.source(); }

 private:
  void read(std::vector<Row>& rows) override {
    const FetchedRows fetched = connection_.run("FETCH " + std::to_string(fetch_) + " FROM once_import");
    std::size_t bytes = 0;
    for (int at = 0; at < PQntuples(fetched.get()); ++at) {
      rows.push_back({.json = PQgetvalue(fetched.get(), at, 0),
                      .name = "row " + std::to_string(++count_),
                      .problem = {},
                      .binary = binary_});
      bytes += rows.back().json.size();
    }
    // A fetch is held in memory: as many rows as are likely to fit.
    const std::size_t each = bytes / std::max<std::size_t>(rows.size(), 1) + 1;
    fetch_ = std::clamp<std::size_t>(bytes_at_once / each, 1, std::min(2 * fetch_, rows_at_once));
  }

  const Connection connection_;
  std::vector<std::string> binary_;
  std::size_t fetch_ = 16;  // Rows.
  std::uint64_t count_ = 0;
};

// Each question in a transaction of its own, which ends before the answer counts: it sees what was committed before.
class PostgresqlFinder final : public Finder {
 public:
  explicit PostgresqlFinder(const FinderOptions& options)
      : connection_(options.rows, options.timeout),
        timeout_(options.timeout),
        rows_("SELECT row_to_json(once_row)::text FROM " + connection_.quoted(options.rows.table) + " AS once_row"),
        // Compared as the column's own type does: another spelling that it takes for the same is found, and refused.
        where_(" WHERE once_row." + connection_.quoted_part(options.column) + " = $1"),
        binary_(connection_.binary_columns("SELECT * FROM " + connection_.quoted(options.rows.table))) {}

  std::vector<Row> find(const std::string& text) override {
    return ask(rows_ + where_ + " LIMIT " + std::to_string(max_rows + 1), text.c_str());
  }
  std::vector<Row> some() override { return ask(rows_ + " LIMIT " + std::to_string(some_rows), nullptr); }
  [[nodiscard]] std::string name() const override { return connection_.name(); }
  [[nodiscard]] std::string source() const override { return connection_.source(); }

 private:
  std::vector<Row> ask(const std::string& sql, const char* parameter) {
    connection_.within(timeout_);
    connection_.begin("READ COMMITTED");
    connection_.run("SET LOCAL statement_timeout = " + std::to_string(timeout_.count()));
    const FetchedRows found = connection_.run(sql, parameter);
    const auto count = static_cast<std::size_t>(PQntuples(found.get()));
    if (count > max_rows) refuse_many(name());
    std::vector<Row> rows;
    for (std::size_t at = 0; at < count; ++at) {
      rows.push_back({.json = PQgetvalue(found.get(), static_cast<int>(at), 0),
                      .name = "row " + std::to_string(at + 1),
                      .problem = {},
                      .binary = binary_});
    }
    connection_.run("COMMIT");
    return rows;
  }

  Connection connection_;
  const Millis timeout_;
  const std::string rows_;
  const std::string where_;
  const std::vector<std::string> binary_;
};

}  // namespace

std::unique_ptr<Rows> open_postgresql_rows(const RowsOptions& options) {
  return std::make_unique<PostgresqlRows>(options);
}

std::unique_ptr<Finder> open_postgresql_finder(const FinderOptions& options) {
  return std::make_unique<PostgresqlFinder>(options);
}

}  // namespace once::cli::importing
