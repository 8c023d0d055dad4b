// The PostgreSQL store against the conformance suite.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>

#include <once/platform/blocking.hpp>
#include <once/record.hpp>
#include <once/stores/postgresql.hpp>
#include <once/stores/postgresql_transaction.hpp>
#include <once/testing/conformance.hpp>

#include "database.hpp"
#include "stores/postgresql/schema_sql.hpp"

namespace once::testing {
namespace {

using stores::postgresql::create_sql;

// Adds to the table `counter`, which has one row.
class PostgresqlOwnTransaction final : public OwnTransaction {
 public:
  explicit PostgresqlOwnTransaction(std::string schema) : schema_(std::move(schema)), transaction_(shell_.raw()) {}

  void add() override { shell_.run("UPDATE " + schema_ + ".counter SET n = n + 1"); }
  void finish(const stores::SqlStatement& statement) override { transaction_.finish(statement); }
  void commit() override { transaction_.commit(); }

 private:
  const std::string schema_;
  Shell shell_{test_url()};
  stores::PostgresqlTransaction transaction_;
};

class PostgresqlHarness final : public StoreHarness {
 public:
  explicit PostgresqlHarness(stores::PostgresqlOptions options = {}) : options_(std::move(options)) {
    options_.url = test_url();
    options_.schema = schema_;
    options_.operation_timeout = Millis{3'000};
    options_.allow_unsafe = true;
    options_.allow_clear = true;  // The suite replaces sealed records by clear ones.
    shell_.run(create_sql(schema_));
    shell_.run("CREATE TABLE " + schema_ + ".counter (n int NOT NULL); INSERT INTO " + schema_ + ".counter VALUES (0)");
  }
  ~PostgresqlHarness() override { shell_.run("DROP SCHEMA " + schema_ + " CASCADE"); }
  PostgresqlHarness(const PostgresqlHarness&) = delete;
  PostgresqlHarness& operator=(const PostgresqlHarness&) = delete;

  std::unique_ptr<Store> open() override { return stores::make_postgresql_store(options_); }

  // A row that was edited by hand.
  void plant(std::size_t which, const std::string& key) override {
    static constexpr const char* spoils[] = {"state = 9",
                                             "owner = '\\x00'",
                                             "revision = 2",
                                             "steps = '5:abc,'",
                                             "token = -1",
                                             "attempt = 4294967296",
                                             "result_sha256 = '\\x0102'",
                                             "placement = 77",
                                             "history = 'ancient'",
                                             "fingerprint = decode(repeat('00', 200), 'hex')",
                                             "on_lapse = 5",
                                             "input_bytes = -7"};
    Record record;
    record.key = key;
    record.attempt = 1;
    record.revision = next_revision(0, 0);
    if (blocking::insert(*open(), record).status != AnswerStatus::done) throw std::runtime_error("cannot plant");
    shell_.run("UPDATE " + schema_ + ".records SET " + spoils[which] + " WHERE key = '\\x" + to_hex(key) + "'");
  }

  // In turn statements and a function.
  std::shared_ptr<const Companion> companion(bool declined) override {
    const std::string add = "UPDATE " + schema_ + ".counter SET n = n + 1";
    if (++companions_ % 2 == 0) {
      return std::make_shared<stores::PostgresqlWork>([add, declined](PGconn* db) {
        PQclear(PQexec(db, add.c_str()));
        if (declined) throw std::runtime_error("the condition does not hold");
      });
    }
    auto statements = std::make_shared<stores::SqlStatements>();
    statements->add(add, {}, stores::SqlRows::exactly(declined ? 2 : 1));
    return statements;
  }

  std::size_t companions_written() override { return std::stoul(shell_.run("SELECT n FROM " + schema_ + ".counter")); }

  std::unique_ptr<OwnTransaction> begin_transaction(Store& /*store*/) override {
    return std::make_unique<PostgresqlOwnTransaction>(schema_);
  }

  std::shared_ptr<void> begin_outage(const std::string& name) override {
    const std::string table = schema_ + ".records";
    if (name == "refused") {  // Every write meets a disk that is full.
      shell_.run("CREATE FUNCTION " + schema_ +
                 ".full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100'; END $$;"
                 "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE OR DELETE ON " +
                 table + " FOR EACH ROW EXECUTE FUNCTION " + schema_ + ".full()");
      return {this, [this, table](void*) { shell_.run("DROP TRIGGER full_disk ON " + table); }};
    }
    if (name == "locked") {  // Somebody has locked the table.
      shell_.run("BEGIN; LOCK TABLE " + table + " IN ACCESS EXCLUSIVE MODE");
      return {this, [this](void*) { shell_.run("ROLLBACK"); }};
    }
    throw std::runtime_error("no outage " + name);
  }

 private:
  const std::string schema_ = fresh_schema();
  stores::PostgresqlOptions options_;
  std::atomic<unsigned> companions_{0};
  Shell shell_;
};

const StoreTraits traits{.shared = true,
                         .durable = true,
                         .foreign_records = 12,
                         .outages = {"refused", "locked"},
                         .companions = true,
                         .hands_out = true};

ONCE_CONFORMANCE(postgresql, traits, [] { return std::make_unique<PostgresqlHarness>(); });
ONCE_CONFORMANCE(postgresql_lanes, traits,
                 [] { return std::make_unique<PostgresqlHarness>(stores::PostgresqlOptions{.write_connections = 3}); });

}  // namespace
}  // namespace once::testing
