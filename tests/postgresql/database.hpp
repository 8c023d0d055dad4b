// The test server, and a schema of its own for each test.
#pragma once

#include <libpq-fe.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include <unistd.h>

namespace once::testing {

inline std::string url_in(const char* variable) {
  const char* const url = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  if (url == nullptr || *url == '\0') {
    throw std::runtime_error(std::string(variable) +
                             " names no server: run this by tests/real_servers/with-postgresql");
  }
  return url;
}
// A database that may be filled and broken: as programs use it, perhaps through a pooler, and straight.
inline std::string test_url() { return url_in("ONCE_TEST_POSTGRESQL"); }
inline std::string server_url() { return url_in("ONCE_TEST_POSTGRESQL_SERVER"); }

// The first column of the first row, or nothing. Throws if a statement fails.
inline std::string exec(PGconn* connection, const std::string& sql) {
  PGresult* const result = PQexec(connection, sql.c_str());
  const ExecStatusType status = PQresultStatus(result);
  std::string value;
  if (status == PGRES_TUPLES_OK && PQntuples(result) > 0 && PQnfields(result) > 0) value = PQgetvalue(result, 0, 0);
  const bool fine = status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK || status == PGRES_EMPTY_QUERY;
  const std::string problem = fine ? std::string() : PQresultErrorMessage(result);
  PQclear(result);
  if (!fine) throw std::runtime_error(problem + " in " + sql.substr(0, 200));
  return value;
}

// Waits for what the server shows, without a time of its own in the test's verdict.
inline void eventually(const std::function<bool()>& holds) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > give_up) throw std::runtime_error("it never came true");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// A plain connection, as somebody else would have it.
class Shell {
 public:
  explicit Shell(const std::string& url = server_url()) : connection_(PQconnectdb(url.c_str())) {
    if (PQstatus(connection_) != CONNECTION_OK) {
      const std::string problem = PQerrorMessage(connection_);
      PQfinish(connection_);
      throw std::runtime_error("no connection: " + problem);
    }
    PQsetNoticeReceiver(
        connection_, [](void*, const PGresult*) {}, nullptr);
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;
  ~Shell() { PQfinish(connection_); }

  [[nodiscard]] PGconn* raw() const noexcept { return connection_; }

  std::string run(const std::string& sql) { return exec(connection_, sql); }

 private:
  PGconn* connection_;
};

inline std::string fresh_schema() {
  static std::atomic<int> number{0};
  return "test_" + std::to_string(getpid()) + "_" + std::to_string(++number);
}

}  // namespace once::testing
