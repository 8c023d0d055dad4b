#include "stores/postgresql/local.hpp"

#include <libpq-fe.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/stores/postgresql_transaction.hpp>

#include "stores/postgresql/failure.hpp"
#include "stores/postgresql/parameters.hpp"
#include "stores/postgresql/rows.hpp"
#include "stores/postgresql/schema_sql.hpp"
#include "stores/postgresql/target.hpp"
#include "text/hex.hpp"
#include "text/number.hpp"

namespace once::stores {

namespace {

constexpr const char* local_who = "a local transaction in PostgreSQL: ";

// The answer's first row as texts; empty: it has none. Throws Failure.
std::vector<std::optional<std::string>> row_of(PGconn* connection, const SqlStatement& statement) {
  const auto texts = postgresql_values(statement);
  std::vector<const char*> values;
  values.reserve(texts.size());
  for (const auto& text : texts) values.push_back(text ? text->c_str() : nullptr);
  const postgresql::ResultPtr result(PQexecParams(connection, statement.text.c_str(), static_cast<int>(values.size()),
                                                  nullptr, values.data(), nullptr, nullptr, 0));
  if (!postgresql::is_fine(result.get())) throw postgresql::Failure::of(result.get());
  std::vector<std::optional<std::string>> row;
  if (PQntuples(result.get()) == 0) return row;
  for (int column = 0; column < PQnfields(result.get()); ++column) {
    if (PQgetisnull(result.get(), 0, column) == 1) {
      row.emplace_back();
    } else {
      row.emplace_back(PQgetvalue(result.get(), 0, column));
    }
  }
  return row;
}

}  // namespace

PostgresqlLocalStatements::PostgresqlLocalStatements(const Store& store) : store_(store) {
  auto found = postgresql::local_schema(store);
  if (!found) throw Exception(ErrorKind::misuse, local_who + store.name() + " is not a PostgreSQL store");
  if (store.capabilities().seals) {
    throw Exception(ErrorKind::misuse, local_who + store.name() + " is sealed, and this would write in the clear");
  }
  schema_ = std::move(found->schema);
  allow_clear_ = found->allow_clear;
}

SqlStatement PostgresqlLocalStatements::write(const Record& record, const Seen* seen, Millis wait) const {
  postgresql::Parameters parameters = postgresql::write_parameters(
      seen == nullptr ? postgresql::Act::insert : postgresql::Act::replace, record, seen, allow_clear_);
  parameters.set_first(-std::max<std::int64_t>(wait.count(), 1));  // 0 would wait for ever.
  return {postgresql::local_write_call(schema_), parameters.values()};
}

Answer PostgresqlLocalStatements::answer(const std::vector<std::optional<std::string>>& row) {
  const auto now = row.size() == 4 && row[1] ? text::parse_whole<std::int64_t>(*row[1]) : std::nullopt;
  const auto there = row.size() == 4 && row[3] ? text::from_hex(*row[3]) : std::nullopt;
  if (!now || !row[0] || (row[3] && !there)) {
    throw Exception(ErrorKind::corrupt, local_who + store_.name() + ": the answer is malformed: run once table check");
  }
  Answer answer;
  answer.status = *row[0] == "t" ? AnswerStatus::done : AnswerStatus::refused;
  answer.time = StoreTime{.now = Time(Millis(*now)), .error = Millis{0}};
  if (there) answer.record = share(postgresql::read_row(*there, store_.name()));
  if (answer.status == AnswerStatus::done && row[2]) transaction_ = *row[2];
  return answer;
}

SqlStatement PostgresqlLocalStatements::finish(const Record& completion) const {
  SqlStatement statement = postgresql::finish_statement(completion, schema_);
  statement.text +=
      " WHERE pg_catalog.pg_current_xact_id_if_assigned() IS NOT DISTINCT FROM '" + transaction_ + "'::pg_catalog.xid8";
  return statement;
}

Error PostgresqlLocalStatements::error(const std::string& state, const std::string& message) {
  const postgresql::Failure failure{.state = state, .message = message};
  Error error = failure.error("of the store");
  // The claim that it does not find is its own: a statement of the work's has undone it.
  if (failure.is_refusal())
    error = {ErrorKind::misuse, "the work has undone the claim that its transaction had written"};
  error.message.insert(0, local_who);
  return error;
}

PostgresqlLocal::PostgresqlLocal(const Store& store, pg_conn* connection)
    : statements_(store), transaction_(connection, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE") {}

std::optional<Answer> PostgresqlLocal::write(const Record& record, const Seen* seen, Millis wait) {
  try {
    transaction_.refuse_ended();
    return statements_.answer(row_of(transaction_.connection_, statements_.write(record, seen, wait)));
  } catch (const postgresql::Failure& failure) {
    if (failure.state == "55P03") {
      rollback();
      return std::nullopt;
    }
    throw transaction_.ended_by(failure.state, failure.message);
  }
}

void PostgresqlLocal::finish(const Record& completion) {
  transaction_.refuse_ended();
  try {
    const auto row = row_of(transaction_.connection_, statements_.finish(completion));
    if (!row.empty() && row.front()) {
      transaction_.finished_ = *row.front();
      return;
    }
  } catch (const postgresql::Failure& failure) {
    throw transaction_.ended_by(failure.state, failure.message);
  }
  rollback();
  throw Exception(
      ErrorKind::misuse,
      std::string(local_who) + "the work has ended the transaction in which it was claimed, which it must not");
}

}  // namespace once::stores
