#include <once/stores/postgresql_transaction.hpp>

#include <libpq-fe.h>

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "stores/postgresql/failure.hpp"
#include "stores/postgresql/parameters.hpp"
#include "stores/postgresql/schema_sql.hpp"
#include "stores/postgresql/target.hpp"
#include "text/hex.hpp"

namespace once::stores {

namespace {

using postgresql::connect_problem;
using postgresql::Failure;
using postgresql::is_fine;
using postgresql::ResultPtr;

constexpr const char* who = "a transaction in PostgreSQL: ";

[[noreturn]] void misuse_of_transaction(const char* what) {
  throw Exception(ErrorKind::misuse, std::string(who) + what);
}

// Reads the answers of what was sent in pipeline mode, and ends that mode. False: that cannot be done.
bool leave_pipeline(PGconn* connection) {
  if (PQpipelineStatus(connection) == PQ_PIPELINE_OFF || PQexitPipelineMode(connection) == 1) return true;
  if (PQpipelineSync(connection) != 1) return false;
  // One null stands between the answers of two statements, and more after the last.
  for (int nulls = 0; nulls < 2 && PQstatus(connection) == CONNECTION_OK;) {
    const ResultPtr result(PQgetResult(connection));
    nulls = result == nullptr ? nulls + 1 : 0;
  }
  return PQexitPipelineMode(connection) == 1;
}

// The error of a statement before the commit.
Exception failure_of(PGconn* connection, const PGresult* result) {
  if (PQstatus(connection) != CONNECTION_OK) {
    return {ErrorKind::unavailable, who + connect_problem(connection) + ". Nothing was committed"};
  }
  const Error error = Failure::of(result).error("of the store");
  return {error.kind, who + error.message};
}

}  // namespace

std::vector<std::optional<std::string>> postgresql_values(const SqlStatement& statement) {
  struct Text {
    std::optional<std::string> operator()(std::monostate) const { return std::nullopt; }
    std::optional<std::string> operator()(std::int64_t number) const { return std::to_string(number); }
    std::optional<std::string> operator()(double number) const {
      std::array<char, 32> text{};  // The shortest that reads back as this number.
      const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
      return std::string(text.data(), end.ptr);
    }
    std::optional<std::string> operator()(const std::string& text) const { return text; }
    std::optional<std::string> operator()(const SqlValue::Bytes& bytes) const { return "\\x" + to_hex(bytes.bytes); }
  };
  std::vector<std::optional<std::string>> texts;
  texts.reserve(statement.values.size());
  for (const SqlValue& value : statement.values) texts.push_back(std::visit(Text(), value.value()));
  return texts;
}

PostgresqlWork::PostgresqlWork(Work work) : work_(std::move(work)) {
  if (!work_) throw Exception(ErrorKind::misuse, "PostgresqlWork: the function is empty");
}

PostgresqlTransaction::PostgresqlTransaction(pg_conn* connection) : PostgresqlTransaction(connection, "BEGIN") {}

PostgresqlTransaction::PostgresqlTransaction(pg_conn* connection, const char* begin) : connection_(connection) {
  if (connection == nullptr || PQstatus(connection) != CONNECTION_OK) {
    throw Exception(ErrorKind::unavailable, who + connect_problem(connection) + ". Nothing was begun");
  }
  if (PQpipelineStatus(connection) != PQ_PIPELINE_OFF) misuse_of_transaction("the connection is in pipeline mode");
  if (PQtransactionStatus(connection) != PQTRANS_IDLE) {
    misuse_of_transaction("the connection is in a transaction already: end it, or execute the finish in it yourself");
  }
  const ResultPtr begun(PQexec(connection, begin));
  if (!is_fine(begun.get())) throw failure_of(connection, begun.get());
}

PostgresqlTransaction::~PostgresqlTransaction() { rollback(); }

void PostgresqlTransaction::rollback() noexcept {
  PGconn* const connection = std::exchange(connection_, nullptr);
  if (connection == nullptr || !leave_pipeline(connection)) return;
  if (PQtransactionStatus(connection) != PQTRANS_IDLE) PQclear(PQexec(connection, "ROLLBACK"));
}

// Of a statement of ours, which has failed.
Exception PostgresqlTransaction::ended_by(const std::string& state, const std::string& message) {
  const bool lost = PQstatus(connection_) != CONNECTION_OK;
  const std::string problem = lost ? connect_problem(connection_) : std::string();
  rollback();
  if (lost) return {ErrorKind::unavailable, who + problem + ". Nothing was committed"};
  return Exception(PostgresqlLocalStatements::error(state, message));
}

void PostgresqlTransaction::refuse_ended() {
  if (connection_ == nullptr) misuse_of_transaction("it has ended already");
  refuse_pipeline();
  if (PQtransactionStatus(connection_) != PQTRANS_IDLE) return;
  connection_ = nullptr;
  if (!finished_.empty()) {
    throw Exception(ErrorKind::in_doubt,
                    std::string(who) +
                        "a statement of your own has ended it after the finish: whether both are "
                        "committed depends on that statement (COMMIT, ROLLBACK, PREPARE TRANSACTION)");
  }
  misuse_of_transaction("a statement of your own has ended it, so its writes and the finish do not commit together");
}

// A COMMIT would wait there for a Sync that nobody sends.
void PostgresqlTransaction::refuse_pipeline() {
  if (PQpipelineStatus(connection_) == PQ_PIPELINE_OFF) return;
  rollback();
  misuse_of_transaction(
      "the connection was left in pipeline mode, so it was rolled back: read all answers and call PQexitPipelineMode() "
      "before the finish");
}

void PostgresqlTransaction::finish(const SqlStatement& statement) {
  if (connection_ == nullptr) misuse_of_transaction("it has ended already");
  refuse_pipeline();
  if (!finished_.empty()) {
    rollback();
    misuse_of_transaction("it has finished a claim already: one for each transaction");
  }
  const auto texts = postgresql_values(statement);
  std::vector<const char*> values;
  values.reserve(texts.size());
  for (const auto& text : texts) values.push_back(text ? text->c_str() : nullptr);
  const ResultPtr result(PQexecParams(connection_, statement.text.c_str(), static_cast<int>(values.size()), nullptr,
                                      values.data(), nullptr, nullptr, 0));
  if (!is_fine(result.get())) {
    const bool refused = Failure::of(result.get()).is_refusal();
    const Exception error = failure_of(connection_, result.get());
    rollback();
    if (refused) throw FinishRefused(ErrorKind::unavailable, error.what());
    throw error;
  }
  if (PQntuples(result.get()) != 1 || PQgetisnull(result.get(), 0, 0) == 1) {
    rollback();
    misuse_of_transaction("this is not the finish of a claim of a PostgreSQL store");
  }
  finished_ = PQgetvalue(result.get(), 0, 0);
}

void PostgresqlTransaction::commit() {
  refuse_ended();
  std::string sql = "COMMIT";
  if (!finished_.empty()) {
    sql = postgresql::commit_sql("pg_catalog.current_setting('once.finished', true) IS DISTINCT FROM '" + finished_ +
                                 "'");
  }
  const ResultPtr result(PQexec(connection_, sql.c_str()));
  PGconn* const connection = std::exchange(connection_, nullptr);
  if (is_fine(result.get())) {
    // The server answers ROLLBACK if a statement had failed before.
    if (std::string_view(PQcmdStatus(result.get())) == "COMMIT") return;
    throw Exception(ErrorKind::unavailable, std::string(who) + "a statement had failed, so it was rolled back");
  }
  if (PQstatus(connection) != CONNECTION_OK) {
    throw Exception(ErrorKind::in_doubt,
                    who + connect_problem(connection) + ", while it committed: it may have been committed");
  }
  PQclear(PQexec(connection, "ROLLBACK"));
  const Failure failure = Failure::of(result.get());
  if (failure.is_other_transaction()) {
    misuse_of_transaction("a statement of your own has ended it and begun another one, so nothing was committed");
  }
  // A deferred constraint, or a serialization failure: the server has rolled it back.
  throw Exception(ErrorKind::unavailable,
                  who + failure.message + " (SQLSTATE " + failure.state + "). Nothing was committed");
}

}  // namespace once::stores
