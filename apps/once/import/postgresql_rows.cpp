// Rows of a PostgreSQL database, of one snapshot, in a transaction that only reads.
#include <libpq-fe.h>

#include <algorithm>
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

class PostgresqlRows final : public Rows {
 public:
  explicit PostgresqlRows(const RowsOptions& options) {
    // libpq's message about a URL that it cannot read may quote the password.
    const std::unique_ptr<PQconninfoOption, FinishLibpq> readable(PQconninfoParse(options.from.c_str(), nullptr));
    if (readable == nullptr) misuse("FROM is not a URL that libpq accepts, as in postgresql://user@host:5432/database");
    connection_.reset(PQconnectdb(options.from.c_str()));
    if (PQstatus(connection_.get()) != CONNECTION_OK) fail("cannot connect");
    PQsetNoticeProcessor(
        connection_.get(), [](void*, const char*) {}, nullptr);
    name_ = std::string("postgresql:") + PQdb(connection_.get());
    source_ = name_ + " at " + PQhost(connection_.get()) + ":" + PQport(connection_.get()) + statement_name(options);
    if (PQsetClientEncoding(connection_.get(), "UTF8") != 0) fail("cannot read UTF-8");
    run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    run("SET LOCAL TIME ZONE 'UTC'");
    // Rows that a policy hides would be left out in silence; with this the server refuses the query.
    run("SET LOCAL row_security = off");
    const FetchedRows standby = run("SELECT pg_is_in_recovery()");
    if (std::string_view(PQgetvalue(standby.get(), 0, 0)) == "t") {
      misuse(name_ + " is a standby, which may lack the last rows: read from the primary");
    }
    const std::string query = rows(options);
    const FetchedRows columns = run("SELECT * FROM (" + query + "\n) AS once_row LIMIT 0");
    for (int at = 0; at < PQnfields(columns.get()); ++at) {
      constexpr Oid bytea = 17;
      if (PQftype(columns.get(), at) == bytea) binary_.emplace_back(PQfname(columns.get(), at));
    }
    run("DECLARE once_import NO SCROLL CURSOR FOR SELECT row_to_json(once_row)::text FROM (" + query +
        "\n) AS once_row");
  }

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string source() const override { return source_; }

 private:
  void read(std::vector<Row>& rows) override {
    const FetchedRows fetched = run("FETCH " + std::to_string(fetch_) + " FROM once_import");
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

  [[noreturn]] void fail(const std::string& what) const {
    const bool is_lost = PQstatus(connection_.get()) != CONNECTION_OK;
    throw Exception(is_lost ? ErrorKind::unavailable : ErrorKind::misuse,
                    name_ + ": " + what + ": " + std::string(text::trim(PQerrorMessage(connection_.get()), " \n")));
  }

  // One statement: with parameters, though none, the server refuses "SELECT 1; SELECT 2".
  FetchedRows run(const std::string& sql) const {
    FetchedRows result(PQexecParams(connection_.get(), sql.c_str(), 0, nullptr, nullptr, nullptr, nullptr, 0));
    const ExecStatusType status = PQresultStatus(result.get());
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) fail("cannot read the rows");
    return result;
  }

  // The statement whose rows are read.
  [[nodiscard]] std::string rows(const RowsOptions& options) const {
    if (!options.query.empty()) return std::string(text::trim(options.query, " \t\r\n;"));
    std::string name;
    for (const std::string& part : split(options.table, '.')) {
      char* const quoted = PQescapeIdentifier(connection_.get(), part.c_str(), part.size());
      if (quoted == nullptr) fail("cannot name the table");
      name += (name.empty() ? "" : ".") + std::string(quoted);
      PQfreemem(quoted);
    }
    return "SELECT * FROM " + name;
  }

  std::string name_ = "postgresql";
  std::unique_ptr<PGconn, FinishLibpq> connection_;
  std::string source_;
  std::vector<std::string> binary_;
  std::size_t fetch_ = 16;  // Rows.
  std::uint64_t count_ = 0;
};

}  // namespace

std::unique_ptr<Rows> open_postgresql_rows(const RowsOptions& options) {
  return std::make_unique<PostgresqlRows>(options);
}

}  // namespace once::cli::importing
