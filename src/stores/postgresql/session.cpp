#include "stores/postgresql/session.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <string_view>

#include <once/error.hpp>

#include "stores/postgresql/schema_sql.hpp"

namespace once::stores::postgresql {

Session::Session(const PostgresqlOptions& options)
    : options_(options), target_(options.url, options.schema), connection_(target_.connect()) {
  PQsetNoticeReceiver(
      connection_.get(), [](void* /*none*/, const PGresult* /*notice*/) {}, nullptr);
}

void Session::check(const PGresult* result) {
  if (is_fine(result)) return;
  if (PQstatus(connection_.get()) == CONNECTION_BAD) {
    throw Exception(ErrorKind::in_doubt, target_.name() + ": " + connect_problem(connection_.get()));
  }
  Failure failure = Failure::of(result);
  Error error = failure.error(options_.schema);
  if (failure.state == "42501") {
    // The server quotes the language's name.
    const bool language = failure.message.find("plpgsql") != std::string::npos;
    error.message = failure.message + " (SQLSTATE 42501): " +
                    (language ? "the role that makes the functions needs the right to their language: GRANT USAGE ON "
                                "LANGUAGE plpgsql TO it. Roles that only call them need none"
                              : "connect as a role that may, such as the schema's owner");
  }
  throw Exception(error.kind, target_.name() + ": " + error.message);
}

Cells Session::run(const std::string& sql) {
  const ResultPtr result(PQexec(connection_.get(), sql.c_str()));
  check(result.get());
  Cells cells;
  if (PQntuples(result.get()) == 0) return cells;
  for (int column = 0; column < PQnfields(result.get()); ++column) {
    if (PQgetisnull(result.get(), 0, column) == 1) {
      cells.emplace_back();
    } else {
      cells.emplace_back(PQgetvalue(result.get(), 0, column));
    }
  }
  return cells;
}

std::string Session::value(const std::string& sql) {
  const Cells cells = run(sql);
  return cells.empty() ? std::string() : cells.front().value_or("");
}

std::string Session::value_within(const std::string& sql, Millis most) {
  PGconn* const connection = connection_.get();
  const auto until = std::chrono::steady_clock::now() + most;
  if (PQsendQuery(connection, sql.c_str()) != 1) check(nullptr);
  while (PQconsumeInput(connection) == 1 && PQisBusy(connection) == 1) {
    const auto left = std::chrono::ceil<Millis>(until - std::chrono::steady_clock::now());
    pollfd ready{.fd = PQsocket(connection), .events = POLLIN, .revents = 0};
    if (left <= Millis{0} || (poll(&ready, 1, static_cast<int>(left.count())) < 0 && errno != EINTR)) {
      throw Exception(ErrorKind::unavailable,
                      target_.name() + " has not answered within " + std::to_string(most.count()) + " ms");
    }
  }
  const ResultPtr result(PQgetResult(connection));
  check(result.get());
  while (PGresult* const rest = PQgetResult(connection)) PQclear(rest);
  const bool has_value = PQntuples(result.get()) == 1 && PQgetisnull(result.get(), 0, 0) == 0;
  return has_value ? PQgetvalue(result.get(), 0, 0) : std::string();
}

std::vector<Session::Host> Session::hosts() const {
  const std::unique_ptr<PQconninfoOption, decltype(&PQconninfoFree)> in_effect(PQconninfo(connection_.get()),
                                                                               &PQconninfoFree);
  std::map<std::string, std::vector<std::string>> lists;
  for (const PQconninfoOption* option = in_effect.get(); option != nullptr && option->keyword != nullptr; ++option) {
    if (option->val != nullptr) lists[option->keyword] = split(option->val);
  }
  // Each list has one entry for each host, or one for all of them.
  const auto at = [&](const char* keyword, std::size_t host) {
    const auto& list = lists[keyword];
    return list.empty() ? std::string() : list.size() == 1 ? list.front() : list.at(std::min(host, list.size() - 1));
  };
  std::vector<Host> hosts(std::max(lists["host"].size(), lists["hostaddr"].size()));
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    std::vector<const char*> keywords;
    std::vector<std::string> values;
    for (const PQconninfoOption* option = in_effect.get(); option->keyword != nullptr; ++option) {
      const std::string_view keyword = option->keyword;
      if (option->val == nullptr || keyword == "service") continue;
      const bool is_list = keyword == "host" || keyword == "hostaddr" || keyword == "port";
      keywords.push_back(option->keyword);
      values.push_back(keyword == "target_session_attrs" ? "any" : is_list ? at(option->keyword, host) : option->val);
    }
    std::vector<const char*> texts;
    texts.reserve(values.size() + 1);
    for (const std::string& value : values) texts.push_back(value.c_str());
    keywords.push_back(nullptr);
    texts.push_back(nullptr);
    const std::string name = at("host", host).empty() ? at("hostaddr", host) : at("host", host);
    hosts[host].name = name + (at("port", host).empty() ? "" : ":" + at("port", host));
    const ConnectionPtr connection(PQconnectdbParams(keywords.data(), texts.data(), 0));
    if (connection == nullptr || PQstatus(connection.get()) != CONNECTION_OK) {
      hosts[host].problem = connect_problem(connection.get());
      continue;
    }
    const ResultPtr result(PQexec(
        connection.get(),
        "SELECT (pg_catalog.pg_control_system()).system_identifier, CASE WHEN NOT pg_catalog.pg_is_in_recovery() "
        "THEN extract(epoch FROM pg_catalog.pg_postmaster_start_time()) END"));
    if (!is_fine(result.get()) || PQntuples(result.get()) != 1) continue;
    hosts[host].cluster = PQgetvalue(result.get(), 0, 0);
    hosts[host].primary = PQgetvalue(result.get(), 0, 1);
  }
  return hosts;
}

void Session::run_all(const std::string& sql, const std::vector<Parameters>& each) {
  if (each.empty()) return;
  PGconn* const connection = connection_.get();
  const auto send = [&](bool sent) {
    if (!sent) throw Exception(ErrorKind::in_doubt, target_.name() + ": " + connect_problem(connection));
  };
  send(PQenterPipelineMode(connection) == 1);
  Parameters::View view(each.front());
  send(PQsendPrepare(connection, "", sql.c_str(), view.count(), view.types()) == 1);
  for (const Parameters& parameters : each) {
    view.show(parameters);
    send(PQsendQueryPrepared(connection, "", view.count(), view.values(), view.lengths(), view.formats(),
                             binary_format) == 1);
  }
  send(PQpipelineSync(connection) == 1);
  ResultPtr failed;
  for (bool synced = false; !synced;) {
    ResultPtr result(PQgetResult(connection));
    if (PQstatus(connection) == CONNECTION_BAD) send(false);
    if (result == nullptr) continue;  // Between two statements.
    const ExecStatusType status = PQresultStatus(result.get());
    synced = status == PGRES_PIPELINE_SYNC;
    if (status == PGRES_FATAL_ERROR && failed == nullptr) failed = std::move(result);
  }
  send(PQexitPipelineMode(connection) == 1);
  if (failed != nullptr) check(failed.get());
}

Change::Change(Session& session) : session_(session) {
  session_.run("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
  session_.run("SET LOCAL client_min_messages = warning");
  session_.run("SET LOCAL synchronous_commit = on");
  session_.run(lock_sql());
}

Change::~Change() {
  if (committed_) return;
  try {
    session_.run("ROLLBACK");
  } catch (const Exception&) {  // The connection is gone, and so is the transaction.
  }
}

void Change::commit() {
  session_.run("COMMIT");
  committed_ = true;
}

}  // namespace once::stores::postgresql
