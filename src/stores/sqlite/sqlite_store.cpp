#include <once/gate.hpp>
#include <once/stores/sqlite.hpp>

#include <pthread.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "platform/completion_loop.hpp"
#include "platform/thread.hpp"
#include "platform/wait.hpp"
#include "stores/sqlite/companions.hpp"
#include "stores/sqlite/driven.hpp"
#include "stores/sqlite/file_names.hpp"
#include "stores/sqlite/file_system.hpp"
#include "stores/sqlite/fork_guard.hpp"
#include "stores/sqlite/key_index.hpp"
#include "stores/sqlite/operation.hpp"
#include "stores/sqlite/readers.hpp"
#include "stores/sqlite/rows.hpp"
#include "stores/sqlite/schema.hpp"
#include "stores/sqlite/store_file.hpp"
#include "stores/sqlite/writer.hpp"

namespace once::stores {

namespace sqlite {
namespace {

constexpr std::size_t max_bytes = std::size_t{64} * 1024 * 1024;
constexpr std::size_t most_unknown_keys = 256;  // The most keys of other processes that each read scans.

void check(const SqliteOptions& options) {
  const auto refuse = [](const std::string& what) { throw Exception(ErrorKind::misuse, "sqlite store: " + what); };
  if (options.path.empty()) refuse("the path is empty");
  if (options.path.find('\0') != std::string::npos) refuse("the path contains a NUL byte");
  if (options.busy_timeout < Millis{0} || options.busy_timeout > Millis{600'000}) {
    refuse("busy_timeout must be 0 to 10 minutes");
  }
  if (options.work_timeout < Millis{1} || options.work_timeout > Millis{60'000}) {
    refuse("work_timeout must be 1 ms to 1 minute");
  }
  if (options.checkpoint_pages < 100 || options.checkpoint_pages > 1'000'000) {
    refuse("checkpoint_pages must be 100 to 1000000");
  }
  if (options.cache_bytes < (std::size_t{1} << 20U) || options.cache_bytes > (std::size_t{1} << 32U)) {
    refuse("cache_bytes must be 1 MiB to 4 GiB");
  }
  if (options.recent_keys < 1 || options.recent_keys > 1'000'000) refuse("recent_keys must be 1 to 1000000");
  if (!options.clock) refuse("there is no clock");
}

// Turns an exception of `work` into an answer.
template <class Work>
Answer answered(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const Exception& error) {
    return Answer::fail(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return Answer::fail(ErrorKind::unavailable, "sqlite store: out of memory");
  }
}

class SqliteStore final : public Store, public StoreGate {
 public:
  // Without a thread somebody calls turn() instead.
  SqliteStore(SqliteOptions options, bool has_thread) : file_(std::move(options)), readers_(file_, recent_keys_) {
    if (file_.options().read_only) {
      readers_.once([this](Connection& connection) { file_.learn(connection, true); });
      return;
    }
    writer_.emplace(file_, recent_keys_);
    if (!has_thread) return;
    thread_ = start_thread_of(name(), [this] {
      writer_->run();
      if (!orphaned_ || file_.is_forked()) return;
      thread_.detach();
      delete this;
    });
    pthread_setname_np(thread_.native_handle(), "once-sqlite");  // For top and gdb; failing does not matter.
  }

  // Ends the store. In a completion, the writer's thread does it later, because it cannot wait for itself. In the child
  // of a fork the store is leaked: its thread does not exist, open files are the parent's, and the parent completes
  // queued operations.
  static void end(std::unique_ptr<SqliteStore> store) noexcept {
    if (store->file_.is_forked()) {
      static std::atomic<SqliteStore*> left{nullptr};  // So that leak checkers find them.
      SqliteStore* const ours = store.release();
      ours->left_before_ = left.exchange(ours);
      return;
    }
    if (store->thread_.get_id() != std::this_thread::get_id()) return;
    store->orphaned_ = true;
    store->writer_->stop();
    static_cast<void>(store.release());
  }

  SqliteStore(const SqliteStore&) = delete;
  SqliteStore& operator=(const SqliteStore&) = delete;

  ~SqliteStore() override {
    if (!writer_) return;
    writer_->stop();
    if (thread_.joinable()) {
      thread_.join();
    } else {
      writer_->run();  // What is left, of a store without a thread.
    }
  }

  bool turn() { return writer_ && writer_->turn(); }

  void insert(RecordPtr record, Done done) override {
    write(Operation::Kind::insert, std::move(record), {}, std::move(done));
  }

  void replace(RecordPtr record, Seen seen, Done done) override {
    write(Operation::Kind::replace, std::move(record), seen, std::move(done));
  }

  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    if (!Companions::knows(*companion)) {
      return done(Answer::decline(ErrorKind::misuse,
                                  name() + ": the writes to commit with the record are not for this store: it takes "
                                           "once::stores::SqlStatements and once::stores::SqliteWork"));
    }
    write(Operation::Kind::replace, std::move(record), seen, std::move(done), std::move(companion));
  }

  SqlStatement finish_statement(const Record& record, std::uint64_t place) override {
    if (file_.is_forked()) throw Exception(ErrorKind::misuse, forked().error.message);
    if (record_bytes(record) > max_bytes) throw Exception(ErrorKind::misuse, too_large(record));
    std::int64_t id = Place::from(place).id;
    if (id == 0) {
      const Reading::Found found = readers_.find(record.key);
      if (found.row) id = found.row->id;
    }
    return sqlite::finish_statement(record, id);
  }

  void remove(std::string key, Seen seen, Done done) override {
    Record record;
    record.key = std::move(key);
    write(Operation::Kind::remove, share(std::move(record)), seen, std::move(done));
  }

  void get(std::string key, Done done) override {
    Answer answer;
    if (file_.is_forked()) {
      answer = forked();
    } else {
      answer = answered([&] { return read(key); });
    }
    answer.time = time();
    done(std::move(answer));
  }

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    ListPage page;
    if (file_.is_forked()) {
      page.error = forked().error;
    } else {
      const Answer answer = answered([&] {
        page = readers_.list(query);
        return Answer::ok();
      });
      if (answer.status == AnswerStatus::failed) page.error = answer.error;
    }
    done(std::move(page));
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    if (const auto error = unfit_here()) return done({.removed = 0, .more = false, .error = error});
    auto operation = std::make_unique<Operation>();
    operation->kind = Operation::Kind::sweep;
    operation->now = now;
    operation->limit = limit;
    operation->swept = std::move(done);
    writer_->push(std::move(operation));
  }

  void cut_log(Callback<void(SweepAnswer)> done) {
    if (const auto error = unfit_here()) return done({.removed = 0, .more = false, .error = error});
    auto operation = std::make_unique<Operation>();
    operation->kind = Operation::Kind::cut_log;
    operation->swept = std::move(done);
    writer_->push(std::move(operation));
  }

  // --- The gate

  [[nodiscard]] StoreGate* gate() noexcept override { return this; }

  GateMark mark() override {
    if (file_.is_forked()) throw Exception(ErrorKind::misuse, forked().error.message);
    GateMark mark;
    // Not by the writer: neither its queue nor another program's lock holds it up.
    readers_.once([&](Connection& connection) { mark = read_gate(connection); });
    return mark;
  }

  Changed change(const GateMark& seen, const GateMark& next, Time live_after) override {
    Changed changed;
    act([&](WritableFile& writing) {
      Connection& connection = writing.connection();
      changed = {};
      const auto end = [&](Changed::Kind kind) { changed.kind = kind; };
      if (!(read_gate(connection) == seen)) return end(Changed::Kind::other);
      if (next.gate == Gate::filling && connection.number("SELECT 1 FROM records LIMIT 1") != 0) {
        return end(Changed::Kind::occupied);
      }
      if (seen.gate == Gate::draining && next.gate == Gate::closed) {
        changed.live = static_cast<std::size_t>(connection.number(
            ("SELECT count(*) FROM records WHERE state = 0 AND lease_until_ms > " + std::to_string(unix_ms(live_after)))
                .c_str()));
        if (changed.live > 0) return end(Changed::Kind::live);
      }
      set_gate(connection, next);
    });
    return changed;
  }

  void fill(const GateMark& filling, const std::vector<RecordPtr>& records) override {
    bool is_filling = true;
    act([&](WritableFile& writing) {
      is_filling = read_gate(writing.connection()) == filling && filling.gate == Gate::filling;
      if (!is_filling) return;
      let_fill(writing.connection(), true);
      for (const RecordPtr& record : records) {
        const Encoded encoded = encode(file_.hash_key(), *record);
        std::int64_t id = 0;
        if (is_sealed(*record)) writing.seal();
        writing.rows().insert(*record, encoded, id);
      }
      let_fill(writing.connection(), false);
    });
    if (!is_filling) throw Exception(ErrorKind::misuse, name() + fill_refusal);
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return file_.time(); }

  [[nodiscard]] Capabilities capabilities() const noexcept override {
    return {.max_record_bytes = max_bytes,
            .durable = true,
            .shared = true,
            .tells_time = true,
            .default_skew = Millis{0},
            .keeps_compressed = true,
            .hands_out = true};
  }

  [[nodiscard]] std::string name() const override { return "sqlite:" + file_.path(); }

  [[nodiscard]] SqliteStatus status() const {
    SqliteStatus status;
    status.path = file_.path();
    status.asked_path = file_.asked_path();
    if (const auto names = names_of(file_.path())) {
      status.hard_links = names->links;
      status.mounts_known = names->are_mounts_known;
    }
    status.sqlite_version = sqlite3_libversion();
    status.schema_version = static_cast<int>(format_version);
    status.file_bytes = size_of(file_.path());
    status.log_bytes = size_of(file_.path() + "-wal");
    try {
      if (!file_.is_forked())
        readers_.once([&](Connection& connection) { status.about_records = estimate_rows(connection); });
    } catch (const Exception&) {
      // What is wrong with the file is what reads and writes report.
    }
    status.boot_id = file_.clock().boot.id;
    status.boot_in_file = file_.clock().boot_in_file;
    status.uptime_ahead = file_.clock().boot.clock_ahead;
    status.clock_set_at = file_.clock().set_at;
    status.clock_ahead = file_.time().now - file_.options().clock->now();
    status.shared_file_system = shared_file_system_of(file_.path());
    if (writer_) status.checkpoint_error = writer_->checkpoint_error();
    return status;
  }

  [[nodiscard]] const StoreFile& file() const noexcept { return file_; }

  [[nodiscard]] std::vector<std::string> check_file(SqliteCheck how) const { return readers_.check(how); }

 private:
  [[nodiscard]] Answer forked() const {
    const Error error = ForkGuard::error(file_.path());
    return Answer::fail(error.kind, error.message);
  }

  static std::string too_large(const Record& record) {
    return "a record of " + std::to_string(record_bytes(record)) + " bytes is over the sqlite store's limit of " +
           std::to_string(max_bytes);
  }

  // Runs it on the writer's thread, in a transaction. Blocks. Throws Exception.
  template <class Act>
  void act(Act what) {
    if (const auto error = unfit_here()) throw Exception(*error);
    const SweepAnswer answer = wait_for<SweepAnswer>([&](Callback<void(SweepAnswer)> done) {
      auto operation = std::make_unique<Operation>();
      operation->kind = Operation::Kind::act;
      operation->act = [&](WritableFile& writing) {
        try {
          what(writing);
        } catch (const SqlError&) {
          throw;
        } catch (const Exception& error) {  // A malformed row. Of this type, so that the transaction ends.
          throw SqlError(error.kind(), error.what(), SQLITE_CORRUPT);
        }
      };
      operation->swept = std::move(done);
      writer_->push(std::move(operation));
    });
    if (answer.error) throw Exception(*answer.error);
  }

  // Why nothing can be written from here.
  [[nodiscard]] std::optional<Error> unfit_here() const {
    if (file_.is_forked()) return forked().error;
    if (!writer_) {
      return Error{ErrorKind::misuse, name() +
                                          ": it was opened only to be read (SqliteOptions::read_only, read_only=1 in "
                                          "its URL). Nothing was written"};
    }
    if (!Companions::is_running_here()) return std::nullopt;
    return Error{ErrorKind::misuse, name() +
                                        ": a SqliteWork writes to a store of this kind, for whose writer it would wait "
                                        "for ever: it may only use its connection. Nothing was written"};
  }

  void write(Operation::Kind kind, RecordPtr record, Seen seen, Done done,
             std::shared_ptr<const Companion> companion = nullptr) {
    if (const auto error = unfit_here()) return done(Answer::fail(error->kind, error->message));
    if (record_bytes(*record) > max_bytes) {
      return done(Answer::cannot_keep(too_large(*record)));
    }
    if (record->key.empty()) return done(Answer::fail(ErrorKind::misuse, "sqlite store: the key is empty"));
    auto operation = std::make_unique<Operation>();
    operation->kind = kind;
    operation->record = std::move(record);
    operation->encoded = encode(file_.hash_key(), *operation->record);
    operation->seen = seen;
    operation->companion = std::move(companion);
    operation->done = std::move(done);
    operation->completes_on = completion_loop();
    writer_->push(std::move(operation));
  }

  Answer read(const std::string& key) {
    Reading::Found found = readers_.find(key);
    if (found.looked_through > most_unknown_keys && writer_) writer_->learn_keys();
    Answer answer = Answer::ok();
    if (found.row) {
      answer.place = Place::of(found.row->id, found.row->record).hint();
      answer.record = share(std::move(found.row->record));
    }
    return answer;
  }

  StoreFile file_;
  RecentKeys recent_keys_;
  Readers readers_;
  std::optional<Writer> writer_;        // Empty: read_only.
  bool orphaned_ = false;               // Ended from a completion: the thread deletes the store.
  SqliteStore* left_before_ = nullptr;  // For the child of a fork.
  std::thread thread_;                  // The writer's. Last: it uses the others.
};

// The callers' object. The engine's last reference may be dropped in a completion, on the thread that the store would
// wait for.
class SqliteHandle final : public Store {
 public:
  explicit SqliteHandle(SqliteOptions options, bool has_thread = true)
      : store_(std::make_unique<SqliteStore>(std::move(options), has_thread)) {}
  SqliteHandle(const SqliteHandle&) = delete;
  SqliteHandle& operator=(const SqliteHandle&) = delete;
  ~SqliteHandle() override { SqliteStore::end(std::move(store_)); }

  void insert(RecordPtr record, Done done) override { store_->insert(std::move(record), std::move(done)); }
  void replace(RecordPtr record, Seen seen, Done done) override {
    store_->replace(std::move(record), seen, std::move(done));
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    store_->replace_with(std::move(record), seen, std::move(companion), std::move(done));
  }
  SqlStatement finish_statement(const Record& record, std::uint64_t place) override {
    return store_->finish_statement(record, place);
  }
  void remove(std::string key, Seen seen, Done done) override { store_->remove(std::move(key), seen, std::move(done)); }
  void get(std::string key, Done done) override { store_->get(std::move(key), std::move(done)); }
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    store_->list(std::move(query), std::move(done));
  }
  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    store_->sweep(now, limit, std::move(done));
  }
  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return store_->time(); }
  [[nodiscard]] Capabilities capabilities() const noexcept override { return store_->capabilities(); }
  [[nodiscard]] std::string name() const override { return store_->name(); }
  [[nodiscard]] StoreGate* gate() noexcept override { return store_->gate(); }

  [[nodiscard]] const SqliteStore& inside() const noexcept { return *store_; }
  [[nodiscard]] SqliteStore& inside() noexcept { return *store_; }

 private:
  std::unique_ptr<SqliteStore> store_;
};

}  // namespace

const StoreFile* file_of(const Store& store) noexcept {
  const auto* const ours = dynamic_cast<const SqliteHandle*>(&innermost(store));
  return ours == nullptr ? nullptr : &ours->inside().file();
}

DrivenStore make_driven_store(SqliteOptions options) {
  check(options);
  auto store = std::make_unique<SqliteHandle>(std::move(options), false);
  SqliteStore& inside = store->inside();
  return {std::move(store), [&inside] { return inside.turn(); }};
}

}  // namespace sqlite

std::unique_ptr<Store> make_sqlite_store(SqliteOptions options) {
  sqlite::check(options);
  // Resolved against the present working directory. "link/.." is not the directory of the link.
  std::error_code failed;
  const auto absolute = std::filesystem::absolute(options.path, failed);
  if (failed) throw Exception(ErrorKind::unavailable, "sqlite store: no working directory: " + failed.message());
  options.path = absolute.string();
  return std::make_unique<sqlite::SqliteHandle>(std::move(options));
}

bool stop_counting_sqlite_memory() noexcept { return sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0) == SQLITE_OK; }

std::optional<SqliteStatus> sqlite_status(const Store& store) {
  const auto* const ours = dynamic_cast<const sqlite::SqliteHandle*>(&innermost(store));
  return ours == nullptr ? std::nullopt : std::optional(ours->inside().status());
}

std::optional<Error> cut_sqlite_log(Store& store) {
  auto* const ours = dynamic_cast<sqlite::SqliteHandle*>(&innermost(store));
  if (ours == nullptr) return std::nullopt;
  return wait_for<SweepAnswer>([&](Callback<void(SweepAnswer)> done) { ours->inside().cut_log(std::move(done)); })
      .error;
}

std::vector<std::string> check_sqlite(const Store& store, SqliteCheck how) {
  const auto* const ours = dynamic_cast<const sqlite::SqliteHandle*>(&innermost(store));
  if (ours == nullptr) throw Exception(ErrorKind::misuse, store.name() + " is not a sqlite store");
  return ours->inside().check_file(how);
}

}  // namespace once::stores
