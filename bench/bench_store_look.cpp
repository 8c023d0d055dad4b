// What a look at a large store reads and how long it takes: the lists behind the gauges of docs/metrics.md ("Look at
// the store"), state by state, with the look's own limits.
//
//   cd build/release/bench
//   ../../../tests/real_servers/with-postgresql --set shared_buffers=16MB ./bench_store_look 10000000
//   ./bench_store_look RECORDS STORE ...     of sqlite, postgresql, dynamodb; ONCE_TEST_POSTGRESQL names the server,
//   and
//                                            without it PostgreSQL is left out. Default: 1000000, all of them
//
// Of 100,000 records, one is unknown, ten have failed and ten are in progress; the others are completed. SQL writes
// them. Cold: the kernel has none of the store's files in memory. What is read is exact:
//
//   SQLite      bytes that this process asks the kernel for, less its own cache
//   PostgreSQL  rows that indexes and scans fetched, and blocks of 8 KiB, from the server's memory or not
//   DynamoDB    requests and read units, of the fake in tests/fake_aws; at most 20,000 records, as it is in memory
#include <fcntl.h>
#include <libpq-fe.h>
#include <sqlite3.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <once/decide.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/stores/dynamodb_table.hpp>
#include <once/stores/postgresql.hpp>
#include <once/stores/postgresql_schema.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/records.hpp>

#include "fake_aws/fake_dynamodb.hpp"

namespace {

using namespace once;
using Steady = std::chrono::steady_clock;

// As src/operators/store_look.cpp.
constexpr std::size_t page_records = 500;
constexpr std::size_t most_pages = 200;
constexpr std::chrono::seconds most_time{30};

struct Listed {
  std::size_t records = 0;
  std::size_t requests = 0;
  bool whole = false;
  double seconds = 0;
};

Listed list_all(Store& store, State state) {
  Listed listed;
  ListQuery query;
  query.state = state;
  query.limit = page_records;
  const auto began = Steady::now();
  do {
    ListPage page = blocking::list(store, query);
    if (page.error) throw std::runtime_error(page.error->message);
    listed.records += page.records.size();
    listed.requests += 1;
    query.cursor = std::move(page.cursor);
    listed.whole = query.cursor.empty();
  } while (!listed.whole && listed.requests < most_pages && Steady::now() < began + most_time);
  listed.seconds = std::chrono::duration<double>(Steady::now() - began).count();
  return listed;
}

constexpr State states[] = {State::unknown, State::failed, State::in_progress};

void print(std::string_view store, State state, std::string_view how, const Listed& listed, const std::string& read) {
  std::printf("%-22.*s %-12.*s %-5.*s %8zu %9zu %10.3f s  %s%s\n", static_cast<int>(store.size()), store.data(),
              static_cast<int>(to_string(state).size()), to_string(state).data(), static_cast<int>(how.size()),
              how.data(), listed.records, listed.requests, listed.seconds, read.c_str(),
              listed.whole ? "" : ", incomplete");
  std::fflush(stdout);
}

void forget(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;  // A file that has gone since.
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

// --- SQLite

void run_sql(sqlite3* db, const std::string& sql) {
  char* problem = nullptr;
  if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &problem) != SQLITE_OK) {
    throw std::runtime_error(problem == nullptr ? "out of memory" : problem);
  }
}

std::uint64_t bytes_asked_for() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value) {
    if (name == "rchar:") return value;
  }
  throw std::runtime_error("/proc/self/io has no rchar");
}

// 0 in_progress, 1 completed, 2 failed, 3 unknown. `i` is a column of both databases.
constexpr const char* state_sql =
    "CASE WHEN i % 10000 = 1 THEN 0 WHEN i % 10000 = 2 THEN 2 WHEN i % 100000 = 3 THEN 3 "
    "ELSE 1 END";

void look_at_sqlite(std::uint64_t records) {
  const std::filesystem::path folder = std::filesystem::absolute("store_look." + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::shared_ptr<void> removed(nullptr, [&](void*) { std::filesystem::remove_all(folder); });
  const std::string file = folder / "once.db";
  stores::make_sqlite_store({.path = file}).reset();
  {
    sqlite3* db = nullptr;
    if (sqlite3_open(file.c_str(), &db) != SQLITE_OK) throw std::runtime_error("cannot open " + file);
    const std::unique_ptr<sqlite3, int (*)(sqlite3*)> closed(db, sqlite3_close);
    const std::string numbers =
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < " + std::to_string(records) + ") ";
    run_sql(db, "PRAGMA synchronous = OFF; PRAGMA cache_size = -200000; BEGIN");
    run_sql(db,
            "INSERT INTO records (id, hash, state, revision, attempt, token, lease_until_ms, expires_at_ms, "
            "sweep_at_ms, created_at_ms, finished_at_ms, owner, key, holder, result, content_type) " +
                numbers + "SELECT i, i, " + state_sql +
                ", 2097153, 1, 1700000000000 + i, CASE WHEN i % 10000 = 1 THEN 1700000000000 + i END, "
                "1700086400000 + i, 1700086400000 + i, 1700000000000 + i, 1700000001000 + i, zeroblob(16), "
                "'pay#' || hex(randomblob(16)), 'root@host:1 pay', '{\"charge\":\"ch_' || i || '\"}', "
                "'application/json' FROM n");
    run_sql(db, "INSERT INTO key_index (hash, id) SELECT id, id FROM records");
    run_sql(db, "UPDATE once_meta SET value = " + std::to_string(records) + " WHERE name = 'indexed_to'; COMMIT");
    run_sql(db, "PRAGMA wal_checkpoint(TRUNCATE)");
  }
  std::printf("SQLite: %s records, %s MiB\n", grouped(records).c_str(),
              grouped(std::filesystem::file_size(file) >> 20U).c_str());
  for (const State state : states) {
    for (const bool cold : {true, false}) {
      const auto store = stores::make_sqlite_store({.path = file});
      blocking::list(*store, {.state = State::completed, .limit = 1});  // So that a connection is open.
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (cold) forget(entry.path());
      }
      const std::uint64_t before = bytes_asked_for();
      const Listed listed = list_all(*store, state);
      const std::uint64_t bytes = bytes_asked_for() - before;
      print("sqlite", state, cold ? "cold" : "warm", listed, grouped(bytes / 1024) + " KiB");
    }
  }
}

// --- PostgreSQL

class Shell {
 public:
  explicit Shell(const std::string& url) : connection_(PQconnectdb(url.c_str()), PQfinish) {
    if (PQstatus(connection_.get()) != CONNECTION_OK) throw std::runtime_error(PQerrorMessage(connection_.get()));
  }
  // The first column of the first row.
  std::string run(const std::string& sql) {
    const std::unique_ptr<PGresult, void (*)(PGresult*)> result(PQexec(connection_.get(), sql.c_str()), PQclear);
    const ExecStatusType status = PQresultStatus(result.get());
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
      throw std::runtime_error(PQresultErrorMessage(result.get()));
    }
    return PQntuples(result.get()) > 0 ? PQgetvalue(result.get(), 0, 0) : "";
  }
  std::uint64_t number(const std::string& sql) { return std::stoull(run(sql)); }

 private:
  const std::unique_ptr<PGconn, void (*)(PGconn*)> connection_;
};

struct Fetched {
  std::uint64_t rows = 0;
  std::uint64_t blocks = 0;
};

// A session's counts are there once it has ended.
Fetched fetched(Shell& shell) {
  while (shell.number("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> "
                      "pg_backend_pid() AND datname = current_database()") > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  shell.run("SELECT pg_stat_clear_snapshot()");
  return {.rows = shell.number("SELECT coalesce(idx_tup_fetch, 0) + seq_tup_read FROM pg_stat_all_tables WHERE relid = "
                               "'look.records'::regclass"),
          .blocks = shell.number("SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit FROM "
                                 "pg_statio_all_tables WHERE relid = 'look.records'::regclass")};
}

void look_at_postgresql(std::uint64_t records) {
  const char* const url = std::getenv("ONCE_TEST_POSTGRESQL");  // NOLINT(concurrency-mt-unsafe)
  if (url == nullptr) throw std::runtime_error("ONCE_TEST_POSTGRESQL names no server: see the top of this file");
  const stores::PostgresqlOptions options{
      .url = url, .schema = "look", .operation_timeout = Millis{120'000}, .allow_unsafe = true};
  stores::create_postgresql_schema(options, {});
  Shell shell(url);
  const std::filesystem::path data = shell.run("SHOW data_directory");
  // Keys of clients are in no order, so the order of keys is not that of the table.
  shell.run(
      "SET maintenance_work_mem = '512MB'; SET synchronous_commit = off; ALTER TABLE look.records DROP CONSTRAINT "
      "records_pkey; INSERT INTO look.records (key, state, listed, attempt, revision, token, owner, lease_until_ms, "
      "expires_at_ms, sweep_at_ms, created_at_ms, finished_at_ms, holder, result, content_type) SELECT "
      "convert_to('pay#' || md5(i::text), 'UTF8'), state, CASE WHEN state >= 2 THEN state END, 1, 2097153, "
      "1700000000000 + i, decode(repeat('00', 16), 'hex'), CASE WHEN state = 0 THEN 1700000000000 + i END, "
      "1700086400000 + i, 1700086400000 + i, 1700000000000 + i, 1700000001000 + i, 'root@host:1 pay', "
      "convert_to('{\"charge\":\"ch_' || i || '\"}', 'UTF8'), 'application/json' FROM (SELECT i, (" +
      std::string(state_sql) + ")::smallint AS state FROM generate_series(1, " + std::to_string(records) +
      "::bigint) i) n; ALTER TABLE look.records ADD PRIMARY KEY (key)");
  shell.run("VACUUM (ANALYZE) look.records");
  shell.run("CHECKPOINT");
  std::printf("PostgreSQL: %s records, %s MiB, of which indexes have %s MiB\n", grouped(records).c_str(),
              grouped(shell.number("SELECT pg_total_relation_size('look.records') >> 20")).c_str(),
              grouped(shell.number("SELECT pg_indexes_size('look.records') >> 20")).c_str());
  const auto each_state = [&](std::string_view name, std::initializer_list<State> which) {
    for (const State state : which) {
      for (const bool cold : {true, false}) {
        if (cold) {
          for (const auto& entry : std::filesystem::recursive_directory_iterator(data / "base")) forget(entry.path());
        }
        const Fetched before = fetched(shell);
        auto store = stores::make_postgresql_store(options);
        const Listed listed = list_all(*store, state);
        store.reset();
        const Fetched after = fetched(shell);
        print(name, state, cold ? "cold" : "warm", listed,
              grouped(after.rows - before.rows) + " rows, " + grouped(after.blocks - before.blocks) + " blocks");
      }
    }
  };
  each_state("postgresql", {State::unknown, State::failed, State::in_progress});
  shell.run("CREATE INDEX records_running ON look.records (key) WHERE state = 0");
  each_state("postgresql, with index", {State::in_progress});
  delete_postgresql_schema(options);
}

// Claims and completions in a table of their own, so that no page is logged whole more than once or twice.
void write_postgresql() {
  const char* const url = std::getenv("ONCE_TEST_POSTGRESQL");  // NOLINT(concurrency-mt-unsafe)
  const stores::PostgresqlOptions options{.url = url, .schema = "written", .allow_unsafe = true};
  stores::create_postgresql_schema(options, {});
  Shell shell(url);
  const auto store = stores::make_postgresql_store(options);
  const auto cycles = [&](const std::string& name) {
    constexpr int many = 5'000;
    const std::string before = shell.run("SELECT pg_current_wal_insert_lsn()");
    for (int i = 0; i < many; ++i) {
      Record record = testing::plain_record("pay#" + std::to_string(i * 0x9E3779B97F4A7C15U) + name);
      const Seen seen = testing::seen_of(record);
      if (blocking::insert(*store, record).status != AnswerStatus::done) throw std::runtime_error("cannot insert");
      complete(record, Result::inlined("{\"charge\":\"ch_1\"}"), EffectivePolicy{}, Stamp(record.created_at, 1));
      if (blocking::replace(*store, record, seen).status != AnswerStatus::done) throw std::runtime_error("no replace");
    }
    const std::uint64_t bytes =
        shell.number("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '" + before + "')::bigint");
    std::printf("PostgreSQL: a claim and its completion write %s bytes of log%s\n", grouped(bytes / many).c_str(),
                name.c_str());
  };
  cycles(" (first)");
  cycles("");
  shell.run("CREATE INDEX records_running ON written.records (key) WHERE state = 0");
  cycles(", with the index records_running");
  delete_postgresql_schema(options);
}

// --- DynamoDB

void look_at_dynamodb(std::uint64_t records, bool with_index) {
  const auto fake = std::make_shared<testing::FakeDynamoDb>(system_clock());
  stores::DynamoDbOptions options;
  options.table = "once";
  options.transport = testing::make_fake_transport(fake);
  options.count_capacity = true;
  if (with_index) {
    stores::create_table(*options.transport, options, {}, [](std::string_view) { return true; });
  } else {
    fake->create_table("once", "id", "");
  }
  const auto store = stores::make_dynamodb_store(options);
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 1; i <= records; ++i) {
    Record record = testing::plain_record("pay#" + std::to_string(i * 0x9E3779B97F4A7C15U));
    record.holder = "root@host:1 pay";
    // Ten times as many as in SQL, as there are fewer records.
    record.state = i % 1000 == 1     ? State::in_progress
                   : i % 1000 == 2   ? State::failed
                   : i % 10'000 == 3 ? State::unknown
                                     : State::completed;
    if (record.state == State::completed)
      record.result = Result::inlined("{\"charge\":\"ch_" + std::to_string(i) + "\"}");
    if (blocking::insert(*store, record).status != AnswerStatus::done) throw std::runtime_error("cannot insert");
    bytes += record_bytes(record);
  }
  std::printf("DynamoDB (the fake), %s: %s records, about %s KiB\n", with_index ? "with the index" : "without it",
              grouped(records).c_str(), grouped(bytes / 1024).c_str());
  for (const State state : states) {
    const auto before = stores::dynamodb_status(*store).value();
    const Listed listed = list_all(*store, state);
    const auto after = stores::dynamodb_status(*store).value();
    char units[64];
    std::snprintf(units, sizeof units, "%.1f read units", after.capacity_units - before.capacity_units);
    print(with_index ? "dynamodb" : "dynamodb, no index", state, "", listed,
          std::to_string(after.calls - before.calls) + " requests, " + units);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::uint64_t records = arguments.empty() ? 1'000'000 : std::stoull(arguments[0]);
  std::vector<std::string> which(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (which.empty()) {
    which = {"sqlite", "dynamodb"};
    if (std::getenv("ONCE_TEST_POSTGRESQL") != nullptr)
      which.emplace_back("postgresql");  // NOLINT(concurrency-mt-unsafe)
  }
  std::printf("%-22s %-12s %-5s %8s %9s %12s  %s\n", "store", "state", "", "records", "requests", "time", "read");
  for (const std::string& store : which) {
    if (store == "sqlite") {
      look_at_sqlite(records);
    } else if (store == "postgresql") {
      write_postgresql();
      look_at_postgresql(records);
    } else if (store == "dynamodb") {
      for (const bool with_index : {true, false})
        look_at_dynamodb(std::min<std::uint64_t>(records, 20'000), with_index);
    } else {
      throw std::runtime_error("no store " + store);
    }
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_store_look: %s\n", error.what());
  return 1;
}
