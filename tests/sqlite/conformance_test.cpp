// The SQLite store against the conformance suite: as it is, under a log that is copied all the time, and
// with keys that are moved to their table all the time.
#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include <once/record.hpp>
#include <once/stores/sqlite.hpp>
#include <once/stores/sqlite_transaction.hpp>
#include <once/testing/conformance.hpp>

#include "faulty_vfs.hpp"
#include "own_transaction.hpp"
#include "scratch.hpp"
#include "sound.hpp"

namespace once::testing {
namespace {

std::string blob(const std::string& bytes) { return "x'" + to_hex(bytes) + "'"; }

class SqliteHarness final : public StoreHarness {
 public:
  explicit SqliteHarness(std::uint32_t checkpoint_pages = 4'000, std::size_t recent_keys = 32'768, bool by_work = false)
      : checkpoint_pages_(checkpoint_pages), recent_keys_(recent_keys), by_work_(by_work) {}

  ~SqliteHarness() override {
    disk_faults().heal();
    if (!planted_ && std::filesystem::exists(scratch_.file())) expect_sound(scratch_.file());
  }
  SqliteHarness(const SqliteHarness&) = delete;
  SqliteHarness& operator=(const SqliteHarness&) = delete;

  // Each store is a connection of its own to one file.
  std::unique_ptr<Store> open() override {
    return stores::make_sqlite_store({.path = scratch_.file(),
                                      .allow_clear = true,  // The suite replaces sealed records by clear ones.
                                      .busy_timeout = Millis{busy_timeout_ms_},
                                      .checkpoint_pages = checkpoint_pages_,
                                      .recent_keys = recent_keys_,
                                      .vfs = faulty_vfs()});
  }

  // A row that was edited by hand. The store computes the key's hash, so it writes the row first.
  void plant(std::size_t which, const std::string& key) override {
    static constexpr const char* spoils[] = {"state = 9",           "owner = x'00'",        "revision = 'two'",
                                             "steps = '5:abc,'",    "token = 'x'",          "expires_at_ms = 'soon'",
                                             "created_at_ms = 1.5", "attempt = 4294967296", "result_sha256 = x'0102'",
                                             "placement = 'away'"};
    planted_ = true;
    Record record;
    record.key = key;
    record.attempt = 1;
    record.revision = next_revision(0, 0);
    const auto writer = open();
    AnswerStatus status = AnswerStatus::failed;
    std::atomic<bool> answered{false};
    writer->insert(share(record), [&](const Answer& answer) {
      status = answer.status;
      answered = true;
      answered.notify_one();
    });
    answered.wait(false);
    if (status != AnswerStatus::done) throw std::runtime_error("cannot plant");
    Shell shell(scratch_.file());
    shell.run("UPDATE records SET " + std::string(spoils[which]) + " WHERE CAST(key AS BLOB) = " + blob(key));
  }

  std::shared_ptr<const Companion> companion(bool declined) override {
    make_counter();
    const std::string sql = std::string("UPDATE counter SET n = n + 1 WHERE n < ") + (declined ? "0" : "1000000");
    if (!by_work_) {
      auto statements = std::make_shared<stores::SqlStatements>();
      statements->add(sql, {}, stores::SqlRows::exactly(1));
      return statements;
    }
    return std::make_shared<stores::SqliteWork>([sql](sqlite3* db) {
      if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
        throw std::runtime_error(sqlite3_errmsg(db));
      }
      if (sqlite3_changes(db) != 1) throw std::runtime_error("the counter is not below that");
    });
  }

  std::size_t companions_written() override {
    make_counter();
    return std::stoul(Shell(scratch_.file()).run("SELECT n FROM counter"));
  }

  std::unique_ptr<OwnTransaction> begin_transaction(Store& store) override {
    make_counter();
    return std::make_unique<SqliteOwnTransaction>(store, scratch_.file());
  }

  std::shared_ptr<void> begin_outage(const std::string& name) override {
    const std::string path = scratch_.file();
    if (name == "disk_full") {
      disk_faults().full = true;
      return {this, [](void*) { disk_faults().heal(); }};
    }
    if (name == "disk_fails") {
      disk_faults().log_write_io = disk_faults().read = true;
      return {this, [](void*) { disk_faults().heal(); }};
    }
    if (name == "moved_away") {
      std::filesystem::rename(path, path + ".away");
      return {this, [path](void*) { std::filesystem::rename(path + ".away", path); }};
    }
    throw std::runtime_error("no outage " + name);
  }

 private:
  void make_counter() {
    std::call_once(has_counter_, [this] {
      Shell(scratch_.file()).run("CREATE TABLE counter (n INTEGER NOT NULL); INSERT INTO counter VALUES (0)");
    });
  }

  const Scratch scratch_;
  const std::uint32_t checkpoint_pages_;
  const std::size_t recent_keys_;
  const int busy_timeout_ms_ = 10'000;
  const bool by_work_;
  std::once_flag has_counter_;
  bool planted_ = false;
};

const StoreTraits traits{.shared = true,
                         .durable = true,
                         .foreign_records = 10,
                         .outages = {"disk_full", "disk_fails", "moved_away"},
                         .companions = true,
                         .hands_out = true};

ONCE_CONFORMANCE(sqlite, traits, [] { return std::make_unique<SqliteHarness>(); });
ONCE_CONFORMANCE(sqlite_busy_log, traits, [] { return std::make_unique<SqliteHarness>(100); });
ONCE_CONFORMANCE(sqlite_few_recent_keys, traits, [] { return std::make_unique<SqliteHarness>(4'000, 3, true); });

}  // namespace
}  // namespace once::testing
