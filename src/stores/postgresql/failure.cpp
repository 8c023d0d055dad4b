#include "stores/postgresql/failure.hpp"

#include <string_view>

namespace once::stores::postgresql {

namespace {

std::string field(const PGresult* result, int code) {
  const char* const text = PQresultErrorField(result, code);
  return text == nullptr ? std::string() : std::string(text);
}

}  // namespace

Failure Failure::of(const PGresult* result) {
  Failure failure{.state = field(result, PG_DIAG_SQLSTATE), .message = field(result, PG_DIAG_MESSAGE_PRIMARY)};
  const std::string severity = field(result, PG_DIAG_SEVERITY_NONLOCALIZED);
  failure.fatal = severity == "FATAL" || severity == "PANIC";
  if (failure.message.empty()) failure.message = PQresultErrorMessage(result);
  while (failure.message.ends_with('\n')) failure.message.pop_back();
  return failure;
}

Error Failure::error(const std::string& schema) const {
  const std::string_view group = std::string_view(state).substr(0, 2);
  const std::string said = message + " (SQLSTATE " + (state.empty() ? "none" : state) + ")";
  if (state == "3F000" || state == "42883" || state == "42P01") {
    return {ErrorKind::misuse, said + ": the schema " + schema +
                                   " has no tables and functions of once that this program knows. Run once table "
                                   "check to see why, and once table create or once table upgrade to make them"};
  }
  if (state == "42501") {
    return {ErrorKind::misuse, said + ": the role needs USAGE on the schema " + schema +
                                   " and EXECUTE on its functions: once table create --role NAME grants them"};
  }
  if (state == "55P03") {
    return {ErrorKind::unavailable, said +
                                        ": another transaction holds the lock on this record (if no session does, a "
                                        "prepared one: see pg_prepared_xacts). Nothing was written"};
  }
  if (state == "ON007") return {ErrorKind::misuse, said};
  if (state == "ON002") {
    return {ErrorKind::misuse, said + ": the transaction did not take it. Nothing was written"};
  }
  if (state == "ON005") {
    return {ErrorKind::misuse, said +
                                   ": this program has no key to seal with. Give it the key, as seal=FILE in the "
                                   "store's URL, or allow it with write_clear=1 (PostgresqlOptions::allow_clear). "
                                   "Nothing was written"};
  }
  if (state == "ON006") return {ErrorKind::misuse, message};  // The gate, which says what to do.
  if (state == "ON008") {
    return {ErrorKind::misuse, said + ": a trigger, a rule or a row security policy of the table " + schema +
                                   ".records swallows or changes what is written. Nothing was written. Remove it: once "
                                   "table check lists them"};
  }
  if (group == "XX" && state != "XX000") {
    return {ErrorKind::corrupt, said + ": the server found damaged data"};
  }
  if (group == "22" || group == "23" || group == "42" || group == "0A" || group == "28" || group == "54") {
    return {ErrorKind::misuse, said + ". Nothing was written"};
  }
  return {ErrorKind::unavailable, said + ". Nothing was written"};
}

std::optional<std::string> unfit_server(const PGresult* about, const std::string& schema, bool allow_unsafe) {
  if (PQntuples(about) != 1 || PQgetisnull(about, 0, 0) == 1) {
    return "the schema " + schema + " has lost its version: run once table check to see what it lacks";
  }
  const std::string unsafe = PQgetvalue(about, 0, 1);
  if (unsafe.empty() || allow_unsafe) return std::nullopt;
  if (unsafe != "fsync") {
    return "the tables of the schema " + schema +
           " are UNLOGGED, so a crash of the server empties them. Run ALTER TABLE " + schema +
           ".records SET LOGGED, and the same with meta, or add allow_unsafe=1 to the URL if that is meant";
  }
  return "the server runs with " + unsafe +
         " off, so a crash of its host loses acknowledged claims and results. Turn it on, or add allow_unsafe=1 to the "
         "URL if that is meant";
}

bool is_unsure_commit(const PGresult* notice) {
  const std::string severity = field(notice, PG_DIAG_SEVERITY_NONLOCALIZED);
  if (severity != "WARNING") return false;
  // A cancelled wait for a synchronous standby: WARNING 01000 from SyncRepWaitForLSN (src/backend/replication/
  // syncrep.c), in the server's language. The functions of the store warn of nothing, so any such warning counts.
  return field(notice, PG_DIAG_SOURCE_FUNCTION) == "SyncRepWaitForLSN" || field(notice, PG_DIAG_SQLSTATE) == "01000";
}

}  // namespace once::stores::postgresql
