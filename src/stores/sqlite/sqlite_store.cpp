#include <once/stores/sqlite.hpp>

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "platform/forks.hpp"
#include "platform/home.hpp"
#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/file_lock.hpp"
#include "stores/sqlite/file_names.hpp"
#include "stores/sqlite/fork_guard.hpp"
#include "stores/sqlite/group_queue.hpp"
#include "stores/sqlite/identity.hpp"
#include "stores/sqlite/key_index.hpp"
#include "stores/sqlite/log_state.hpp"
#include "stores/sqlite/outside_writes.hpp"
#include "stores/sqlite/presence.hpp"
#include "stores/sqlite/reading.hpp"
#include "stores/sqlite/rows.hpp"
#include "stores/sqlite/schema.hpp"
#include "stores/sqlite/wal_vfs.hpp"

namespace once::stores {

namespace sqlite {
namespace {

constexpr std::size_t max_bytes = std::size_t{64} * 1024 * 1024;
constexpr std::size_t max_group = 1024;                                 // Operations in one transaction …
constexpr std::size_t max_group_bytes = std::size_t{16} * 1024 * 1024;  // … and about how much of records.
constexpr int most_dropped = 8;                      // Failures of a group's operations in a row, each for itself.
constexpr std::size_t sweep_slice = 250;             // Rows a sweep looks at before writers get their turn.
constexpr std::size_t idle_sweep_slice = 500;        // The same while nobody waits.
constexpr std::size_t kept_readers = 16;             // Connections for reading that are kept open.
constexpr std::size_t leave_log_bytes = 512 * 1024;  // A log up to this size is left to the next opener on close.
constexpr std::size_t few_keys = 64;                 // To index fewer is not worth a sync …
constexpr std::size_t many_keys = 1024;              // … and to index more takes some milliseconds.
constexpr std::chrono::seconds quiet_time{1};        // Busy programs write more often.
constexpr std::size_t most_unknown_keys = 256;       // Of other processes, that a read looks through each time.
constexpr Millis note_time_every{10'000};

std::uint64_t size_of(const std::string& path) noexcept {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 ? static_cast<std::uint64_t>(found.st_size) : 0;
}

// Whether nobody has written to the file for a while, by the wall clock of both. Also if it is not there.
bool is_quiet(const std::string& path) noexcept {
  struct stat found {};
  timespec now{};
  if (stat(path.c_str(), &found) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0) return true;
  return found.st_mtim.tv_sec + quiet_time.count() < now.tv_sec;
}

struct Operation {
  enum class Kind : std::uint8_t { insert, replace, remove, sweep };

  Operation* next = nullptr;
  Kind kind = Kind::insert;
  RecordPtr record;  // remove: only its key.
  Encoded encoded;
  Seen seen;
  Done done;
  std::shared_ptr<Home> home;  // Where it is completed; null: on the writer's thread.
  Answer answer;

  // sweep
  Time now{};
  std::size_t limit = 0;
  Callback<void(SweepAnswer)> swept;
  SweepAnswer sweep_answer;
  bool is_second_try = false;  // After room was made for the log.
};
using Pointer = std::unique_ptr<Operation>;
using Group = std::vector<Pointer>;

// The writer's connection, with its statements. Used inside the lock between processes.
class Writing {
 public:
  Writing(const std::string& path, const std::string& vfs, Millis busy_timeout) : connection(path, vfs, busy_timeout) {}
  void prepare(RecentKeys& recent, std::size_t most_recent) {
    rows.emplace(connection, recent, most_recent);
    begin_.emplace(connection, "BEGIN IMMEDIATE");
    commit_.emplace(connection, "COMMIT");
  }
  void begin(FileLock& lock) {
    begin_->step();
    begin_->reset();
    outside_writes = outside_.begin(connection, lock);
  }
  // `log`: its inode.
  void commit(FileLock& lock, std::uint64_t log) {
    wrote = false;
    commit_->step();
    commit_->reset();
    outside_.committed(connection, lock, log, wrote);
  }

  Connection connection;
  std::optional<Rows> rows;
  bool wrote = false;                // The commit, as SQLite tells.
  std::uint64_t outside_writes = 0;  // OutsideWrites, at the last begin.

 private:
  std::optional<Statement> begin_;
  std::optional<Statement> commit_;
  OutsideWrites outside_;
};

void check(const SqliteOptions& options) {
  const auto refuse = [](const std::string& what) { throw Exception(ErrorKind::misuse, "sqlite store: " + what); };
  if (options.path.empty()) refuse("the path is empty");
  if (options.path.find('\0') != std::string::npos) refuse("the path has a NUL byte in it");
  if (options.busy_timeout < Millis{0} || options.busy_timeout > Millis{600'000}) {
    refuse("busy_timeout must be 0 to 10 minutes");
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

// Brings the names in a directory to the disk. SQLite does it too, but does not look whether it works. Where names may
// be made and not read, all of the file system that `file` is on, which is there, and can be read.
void sync_directory(const std::filesystem::path& directory, const std::string& file, const std::string& where) {
  int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool is_readable = fd >= 0 || errno != EACCES;
  if (!is_readable) fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const auto sync = is_readable ? fsync : syncfs;
  const bool synced = fd >= 0 && (sync(fd) == 0 || errno == EINVAL);  // EINVAL: nothing to sync (fsync(2)).
  const int number = errno;
  if (fd >= 0) ::close(fd);
  if (!synced) {
    throw Exception(ErrorKind::unavailable, where + "cannot sync the directory " + directory.string() + ": " +
                                                std::strerror(number) + ": nothing is written, look at the disk");
  }
}

std::filesystem::path directory_of(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  return directory.empty() ? "." : directory;
}

// Makes the file and its directories where that is asked for. The name of the file is not on the disk then.
void prepare_file(const SqliteOptions& options) {
  const std::string where = "sqlite store " + options.path + ": ";
  const auto refuse = [&](const std::string& what, int number) {
    throw Exception(ErrorKind::unavailable,
                    where + what + (number == 0 ? "" : std::string(": ") + std::strerror(number)));
  };
  const std::filesystem::path directory = directory_of(options.path);
  struct stat found {};
  if (stat(directory.c_str(), &found) != 0) {
    if (errno != ENOENT) refuse("cannot look into the directory " + directory.string(), errno);
    if (!options.create || !options.create_directories) {
      refuse("the directory " + directory.string() + " does not exist: make it (mkdir -p), or name another file", 0);
    }
    std::filesystem::path made;
    bool is_new = false;  // Also below what another process makes just now.
    for (const auto& part : directory) {
      made /= part;
      is_new = is_new || stat(made.c_str(), &found) != 0;
      if (!is_new) continue;
      if (mkdir(made.c_str(), 0700) != 0 && errno != EEXIST)
        refuse("cannot make the directory " + made.string(), errno);
      sync_directory(directory_of(made.string()), made.string(), where);
    }
  } else if (!S_ISDIR(found.st_mode)) {
    refuse(directory.string() + " is not a directory", 0);
  }
  if (stat(options.path.c_str(), &found) == 0) {
    if (!S_ISREG(found.st_mode)) {
      throw Exception(ErrorKind::misuse, where + "this is not a file: name one, in a directory of your own");
    }
    return;
  }
  if (errno != ENOENT) refuse("cannot be looked at", errno);
  if (!options.create) refuse("the file does not exist, and it was asked not to make one (create=0)", 0);
  // Only if nobody else has made it: no connection of this process can have it open, whose locks a close() would end
  // (sqlite.org/howtocorrupt.html, 2.2).
  const int fd = ::open(options.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) {
    ::close(fd);
  } else if (errno != EEXIST) {
    refuse("cannot be made", errno);
  }
}

// The file is there, by its only name, which is what `path` is from here on.
SqliteOptions prepared(SqliteOptions options) {
  options.path = followed(options.path);
  prepare_file(options);
  options.path = real_path(options.path);
  refuse_other_names(options.path, options.allow_hard_links);
  return options;
}

class SqliteStore final : public Store {
 public:
  explicit SqliteStore(SqliteOptions options)
      : asked_(options.path),
        fork_guard_(asked_),
        vfs_(wal_vfs(options.vfs)),
        options_(prepared(std::move(options))),
        lock_(options_.path + "-lock", options_.path),
        presence_(options_.path + "-lock") {
    const std::string boot_id = options_.boot_id.empty() ? kernel_boot_id() : options_.boot_id;
    {
      const Locked locked(*this);
      const bool quiet = presence_.is_alone() || is_quiet(options_.path + "-wal");
      open_writer();
      anchor_ = std::make_unique<Connection>(options_.path, vfs_, options_.busy_timeout);
      anchor_->run("PRAGMA user_version");  // Opens the log.
      hash_key_ = read_hash_key(writing_->connection);
      clock_ = settle_clock(writing_->connection, *options_.clock, boot_id);
      if (!is_log_true()) make_log_true();
      check_first_page();
      // What a program that was killed had in memory. One that lives writes it before long, and better in its own time.
      index_if_more_than(quiet ? few_keys : 2 * writing_->rows->keys().lot());
    }
    writer_ = std::thread([this] {
      write_until_stopped();
      if (!orphaned_ || is_forked()) return;
      writer_.detach();
      delete this;
    });
    pthread_setname_np(writer_.native_handle(), "once-sqlite");  // For top and gdb; failing does not matter.
  }

  // Ends the store. From a completion, which the writer's thread cannot wait for, the thread does it when it is done.
  // In the child of a fork nothing of it may be touched, not even to free it: the thread is gone, what is open is the
  // parent's, and what is queued is done there.
  static void end(std::unique_ptr<SqliteStore> store) noexcept {
    if (store->is_forked()) {
      static std::atomic<SqliteStore*> left{nullptr};  // Where leak checkers find them.
      SqliteStore* const ours = store.release();
      ours->left_before_ = left.exchange(ours);
      return;
    }
    if (store->writer_.get_id() != std::this_thread::get_id()) return;
    store->orphaned_ = true;
    store->stopping_.store(true);
    store->queue_.nudge();
    static_cast<void>(store.release());
  }

  SqliteStore(const SqliteStore&) = delete;
  SqliteStore& operator=(const SqliteStore&) = delete;

  ~SqliteStore() override {
    if (writer_.joinable()) {
      stopping_.store(true);
      queue_.nudge();
      writer_.join();
    }
    {
      const std::lock_guard lock(readers_mutex_);
      readers_.clear();
    }
    finish_file();
  }

  void insert(RecordPtr record, Done done) override {
    write(Operation::Kind::insert, std::move(record), {}, std::move(done));
  }

  void replace(RecordPtr record, Seen seen, Done done) override {
    write(Operation::Kind::replace, std::move(record), seen, std::move(done));
  }

  void remove(std::string key, Seen seen, Done done) override {
    Record record;
    record.key = std::move(key);
    write(Operation::Kind::remove, share(std::move(record)), seen, std::move(done));
  }

  void get(std::string key, Done done) override {
    Answer answer;
    if (is_forked()) {
      answer = forked();
    } else {
      answer = answered([&] { return read(key); });
    }
    answer.time = time();
    done(std::move(answer));
  }

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    ListPage page;
    if (is_forked()) {
      page.error = forked().error;
    } else {
      const Answer answer = answered([&] {
        page = list_page(query);
        return Answer::ok();
      });
      if (answer.status == Answer::Status::failed) page.error = answer.error;
    }
    done(std::move(page));
  }

  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    if (is_forked()) return done({.removed = 0, .more = false, .error = forked().error});
    auto operation = std::make_unique<Operation>();
    operation->kind = Operation::Kind::sweep;
    operation->now = now;
    operation->limit = limit;
    operation->swept = std::move(done);
    queue_.push(operation.release());
  }

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override {
    return StoreTime{Time(std::chrono::floor<Millis>(options_.clock->uptime()) + clock_.offset), Millis{0}};
  }

  [[nodiscard]] Capabilities capabilities() const noexcept override {
    return {.max_record_bytes = max_bytes,
            .durable = true,
            .shared = true,
            .tells_time = true,
            .default_skew = Millis{0},
            .keeps_compressed = true};
  }

  [[nodiscard]] std::string name() const override { return "sqlite:" + options_.path; }

  [[nodiscard]] SqliteStatus status() const {
    SqliteStatus status;
    status.path = options_.path;
    status.asked_path = asked_;
    if (const auto names = names_of(options_.path)) {
      status.hard_links = names->links;
      status.mounts_known = names->are_mounts_known;
    }
    status.sqlite_version = sqlite3_libversion();
    status.schema_version = static_cast<int>(format_version);
    status.file_bytes = size_of(options_.path);
    status.log_bytes = size_of(options_.path + "-wal");
    status.boot_id = clock_.boot_id;
    status.clock_set_at = clock_.set_at;
    status.clock_ahead = time()->now - options_.clock->now();
    const std::lock_guard lock(checkpoint_error_mutex_);
    status.checkpoint_error = checkpoint_error_;
    return status;
  }

  [[nodiscard]] std::vector<std::string> check_file(SqliteCheck how) const {
    return Reading(options_.path, vfs_, options_.busy_timeout).check(hash_key_, *recent_keys_, how);
  }

 private:
  // Holds the lock between processes.
  class Locked {
   public:
    explicit Locked(SqliteStore& store) : store_(store) { store_.lock_.acquire(store_.options_.busy_timeout); }
    ~Locked() { release(); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    void release() noexcept {
      if (std::exchange(held_, false)) store_.lock_.release();
    }

   private:
    SqliteStore& store_;
    bool held_ = true;
  };

  // Turns what `work` throws into an answer.
  template <class Work>
  static Answer answered(Work&& work) {
    try {
      return std::forward<Work>(work)();
    } catch (const Exception& error) {
      return Answer::fail(error.kind(), error.what());
    } catch (const std::bad_alloc&) {
      return Answer::fail(ErrorKind::unavailable, "sqlite store: out of memory");
    }
  }

  // --- Callers' threads ---

  [[nodiscard]] bool is_forked() const noexcept { return fork_guard_.is_forked(); }

  [[nodiscard]] Answer forked() const {
    const Error error = ForkGuard::error(options_.path);
    return Answer::fail(error.kind, error.message);
  }

  void write(Operation::Kind kind, RecordPtr record, Seen seen, Done done) {
    if (is_forked()) return done(forked());
    if (record_bytes(*record) > max_bytes) {
      return done(Answer::cannot_keep("a record of " + std::to_string(record_bytes(*record)) +
                                      " bytes is over the sqlite store's limit of " + std::to_string(max_bytes)));
    }
    if (record->key.empty()) return done(Answer::fail(ErrorKind::misuse, "sqlite store: the key is empty"));
    auto operation = std::make_unique<Operation>();
    operation->kind = kind;
    operation->record = std::move(record);
    operation->encoded = encode(hash_key_, *operation->record);
    operation->seen = seen;
    operation->done = std::move(done);
    operation->home = home();
    queue_.push(operation.release());
  }

  void check_identity() const {
    check_identity(options_.path);
    if (asked_ != options_.path) check_identity(asked_);  // By links, which may lead elsewhere by now.
  }

  void check_identity(const std::string& path) const {
    const Identity now = Identity::of(path);
    if (now == file_) return;
    throw Exception(ErrorKind::unavailable,
                    "sqlite store " + path + ": the file was " + (now.there ? "replaced" : "deleted") +
                        " while it was open; nothing is read from or written to the old one any more: put it back, or "
                        "restart the programs that use it");
  }

  // Lends a connection for reading.
  class Reader {
   public:
    explicit Reader(const SqliteStore& store) : store_(store) {
      {
        const std::lock_guard lock(store_.readers_mutex_);
        if (!store_.readers_.empty()) {
          reading_ = std::move(store_.readers_.back());
          store_.readers_.pop_back();
        }
      }
      if (!reading_) {
        reading_ = std::make_unique<Reading>(store_.options_.path, store_.vfs_, store_.options_.busy_timeout);
      }
    }
    ~Reader() {
      // After a failure it is not used again: a fresh one may do better.
      if (std::uncaught_exceptions() != exceptions_) return;
      const std::lock_guard lock(store_.readers_mutex_);
      if (store_.readers_.size() < kept_readers) store_.readers_.push_back(std::move(reading_));
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    Reading* operator->() noexcept { return reading_.get(); }

   private:
    const SqliteStore& store_;
    const int exceptions_ = std::uncaught_exceptions();
    std::unique_ptr<Reading> reading_;
  };

  Answer read(const std::string& key) const {
    check_identity();
    Reader reader(*this);
    Reading::Found found = reader->find(key, hash_key_, *recent_keys_);
    if (found.looked_through > most_unknown_keys && !missing_keys_.exchange(true)) queue_.nudge();
    Answer answer = Answer::ok();
    if (found.row) {
      answer.place = Place::of(found.row->id, found.row->record).hint();
      answer.record = share(std::move(found.row->record));
    }
    return answer;
  }

  ListPage list_page(const ListQuery& query) const {
    check_identity();
    Reader reader(*this);
    return reader->list(query);
  }

  // --- The writer's thread ---

  void write_until_stopped() {
    for (;;) {
      if (is_forked()) return;                 // A completion has forked: in the child this thread is the only one.
      const bool stopping = stopping_.load();  // Before it is looked what there is: nothing comes after it.
      if (backlog_.empty() && sweeps_.empty() && !stopping) queue_.wait();
      take();
      if (!backlog_.empty() || !sweeps_.empty() || (missing_keys_.load() && !stopping)) {
        work();
      } else if (stopping) {
        return;
      }
    }
  }

  void take() {
    for (Operation* operation = queue_.take(); operation != nullptr;) {
      Operation* const next = operation->next;
      (operation->kind == Operation::Kind::sweep ? sweeps_ : backlog_).emplace_back(operation);
      operation = next;
    }
  }

  // One group and one slice of a sweep, if there are any.
  void work() {
    Group group;
    const bool missing_keys = missing_keys_.exchange(false);
    try {
      Locked locked(*this);
      take();  // What came while we waited for our turn.
      fill(group);
      make_ready();
      if (!group.empty() || missing_keys) write_group(group);
      if (group.empty() || checkpoint_due()) {
        finish(group);
        if (is_forked()) return;
        sweep_slice_once();
        checkpoint();
        return;
      }
      locked.release();
      finish(group);
      if (sweeps_.empty() || is_forked()) return;
    } catch (const Exception& error) {
      fail_all(group, error.kind(), error.what());
      return;
    }
    try {
      const Locked locked(*this);
      make_ready();
      sweep_slice_once();
      checkpoint();
    } catch (const Exception& error) {
      fail_all(group, error.kind(), error.what());
    }
  }

  void fill(Group& group) {
    std::size_t bytes = 0;
    while (!backlog_.empty() && group.size() < max_group && bytes < max_group_bytes) {
      bytes += record_bytes(*backlog_.front()->record);
      group.push_back(std::move(backlog_.front()));
      backlog_.pop_front();
    }
  }

  // The file is the one we opened, and the connection works. Inside the lock.
  void make_ready() {
    check_identity();
    check_log();  // Before a new connection takes those that lie there now for ours.
    if (!writing_) {
      const Identity log = log_;
      const Identity index = index_;
      open_writer();
      log_ = log;
      index_ = index;
      check_log();
    }
    check_first_page();
  }
  void check_first_page() {
    if (first_page_.is_as_before(writing_->connection)) return;
    throw Exception(
        ErrorKind::unavailable,
        "sqlite store " + options_.path +
            ": the file was overwritten while it was open (as by cp); nothing is written to it any more, as "
            "its log is of the file before: stop the programs that use it, delete it and its -wal and -shm "
            "files, and put a whole copy there");
  }
  void check_log() const {
    if (Identity::of(options_.path + "-wal") == log_ && Identity::of(options_.path + "-shm") == index_) return;
    throw Exception(ErrorKind::unavailable,
                    "sqlite store " + options_.path +
                        ": its -wal or -shm file was deleted or replaced while it was open; writing on would lose what "
                        "is written: restart all programs that use it, and never delete these files");
  }

  // Inside a transaction.
  void check_hash_key() {
    if (read_hash_key(writing_->connection) != hash_key_) {
      writing_->rows->keys().distrust();
      throw SqlError(ErrorKind::unavailable, other_store(options_.path), SQLITE_ERROR);
    }
  }

  static void set_wal(Connection& connection) {
    Statement mode(connection, "PRAGMA journal_mode = WAL");
    if (mode.step() && mode.bytes(0) == "wal") return;
    throw Exception(ErrorKind::unavailable, "sqlite store " + connection.path() +
                                                ": no write-ahead log is possible here: use a local file system");
  }

  void open_writer() {
    const Identity before = Identity::of(options_.path);
    if (file_.there && !(before == file_)) check_identity();
    auto opened = std::make_unique<Writing>(options_.path, vfs_, options_.busy_timeout);
    Connection& connection = opened->connection;
    has_tables(connection);  // Before the journal mode writes to a file that is not ours.
    // A log that grew beyond what is usual, under a reader that did not end, is cut off when it is begun anew.
    const std::size_t usual_log_bytes = std::size_t{options_.checkpoint_pages} * 2 * 4096;
    connection.run(("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = MEMORY; "
                    "PRAGMA cache_size = -" +
                    std::to_string(options_.cache_bytes / 1024) +
                    "; PRAGMA journal_size_limit = " + std::to_string(usual_log_bytes))
                       .c_str());
    set_wal(connection);
    sqlite3_wal_hook(
        connection.raw(),
        [](void* self, sqlite3*, const char*, int pages) {
          auto& store = *static_cast<SqliteStore*>(self);
          store.log_pages_ = static_cast<std::uint32_t>(pages);
          if (store.writing_) store.writing_->wrote = true;
          return SQLITE_OK;
        },
        this);
    const Identity after = Identity::of(options_.path);
    if (!(before == after)) {
      throw Exception(ErrorKind::unavailable, "sqlite store " + options_.path + ": the file was replaced just now");
    }
    make_tables(connection);
    opened->prepare(*recent_keys_, options_.recent_keys);
    file_ = after;
    log_ = Identity::of(options_.path + "-wal");
    index_ = Identity::of(options_.path + "-shm");
    writing_ = std::move(opened);
  }

  // What can be read of the log need not be on the disk: after a sync that failed no later one writes the same pages,
  // and programs see them all the same; a process may have been killed between its write and its sync. So nothing of it
  // is told to anybody before it was written again and synced, and its name too, unless it is what was noted after a
  // sync. Inside the lock.
  [[nodiscard]] bool is_log_true() {
    const SyncedLog now = synced_log(log_.inode, log_state(writing_->connection));
    return now != SyncedLog{} && now == lock_.notes().synced;
  }
  void make_log_true() {
    note_synced({});
    Connection& connection = writing_->connection;
    if (sqlite3_db_readonly(connection.raw(), "main") != 0) throw connection.error(SQLITE_READONLY);
    connection.run("BEGIN IMMEDIATE");
    const LogState state = log_state(connection);
    const int code = write_log_again(connection, state);
    if (code != SQLITE_OK) {
      throw SqlError(ErrorKind::unavailable,
                     "sqlite store " + options_.path +
                         ": its log may not be on the disk, and could not be written again (" + sqlite3_errstr(code) +
                         "): nothing is read from it before that works, look at the disk",
                     code);
    }
    connection.run("ROLLBACK");
    sync_directory(directory_of(options_.path), options_.path + "-lock", "sqlite store " + options_.path + ": ");
    note_synced(synced_log(log_.inode, state));
  }
  void note_synced(const SyncedLog& synced) noexcept {
    LogNotes notes = lock_.notes();
    notes.synced = synced;
    lock_.note(notes);
  }

  void commit() { writing_->commit(lock_, log_.inode); }

  // Writes the entries of keys that this or other programs have gathered in memory, if there may be more than so many.
  // Inside the lock. Nothing depends on it: if it fails, the writes after it say so, and what can be read is read.
  void index_if_more_than(std::size_t few) {
    try {
      while (writing_->rows->keys().missing() > few) {
        writing_->begin(lock_);
        writing_->rows->keys().index_rows();
        commit();
        checkpoint();
      }
    } catch (const SqlError& error) {
      undo(error, false);
      made_room(error.primary());
    }
  }

  // Many short programs each leave a key; a busy one leaves many. What other busy ones have is left to them.
  [[nodiscard]] bool should_index_on_close() const noexcept {
    if (!writing_) return false;
    const KeyIndexer& keys = writing_->rows->keys();
    return keys.all_added() > 0 && keys.known() > few_keys &&
           (keys.all_added() > few_keys || keys.known() <= many_keys);
  }

  // Leaves an answer in each operation.
  void write_group(Group& group) {
    std::optional<Lost> lost = try_group(group);
    if (lost && made_room(lost->code)) lost = try_group(group);
    if (!lost || lost->in_doubt || lost->code == SQLITE_BUSY || group.size() == 1) return;
    // The whole transaction was undone, perhaps for the sake of one: now each for itself.
    int dropped = 0;  // Connections in a row: each is opened anew and reads the newest rows again, while others wait.
    for (std::size_t i = 0; i < group.size(); ++i) {
      try {
        make_ready();
      } catch (const Exception& error) {  // The file has gone. Those before this one keep their answers.
        for (; i < group.size(); ++i) group[i]->answer = Answer::fail(error.kind(), error.what());
        return;
      }
      dropped = try_group({&group[i], 1}) && !writing_ ? dropped + 1 : 0;
      if (dropped < most_dropped) continue;
      const std::string why = "sqlite store " + options_.path +
                              ": not tried, as others before it have failed: " + group[i]->answer.error.message;
      while (++i < group.size()) group[i]->answer = Answer::fail(ErrorKind::unavailable, why);
      return;
    }
  }

  struct Lost {
    int code = 0;           // SQLite's primary result code.
    bool in_doubt = false;  // The commit may have reached the disk.
  };

  // One transaction. Empty if it was committed.
  std::optional<Lost> try_group(std::span<Pointer> group) {
    bool committing = false;
    try {
      writing_->begin(lock_);
      KeyIndexer& keys = writing_->rows->keys();
      if (keys.begin(writing_->outside_writes)) check_hash_key();
      const int before = sqlite3_total_changes(writing_->connection.raw());
      for (const Pointer& operation : group) {
        try {
          operation->answer = carry_out(*operation);
        } catch (const SqlError& error) {
          if (error.primary() != SQLITE_TOOBIG) throw;  // That one has changed nothing and concerns nobody else.
          operation->answer = Answer::fail(error.kind(), error.what());
        } catch (const Exception& error) {  // A malformed row in the way.
          operation->answer = Answer::fail(error.kind(), error.what());
        }
      }
      // A group of refusals writes nothing, so its commit costs no sync: a replay in a fresh process is but a read.
      if (sqlite3_total_changes(writing_->connection.raw()) != before) note_time_if_due();
      keys.move_some();
      committing = true;
      commit();
      keys.committed();
      const auto now = time();
      for (const Pointer& operation : group) operation->answer.time = now;
      return std::nullopt;
    } catch (const SqlError& error) {
      const Lost lost{error.primary(), undo(error, committing)};
      for (const Pointer& operation : group) {
        operation->answer = lost.in_doubt
                                ? Answer::fail(ErrorKind::in_doubt,
                                               std::string(error.what()) + " (it may have been written all the same)")
                                : Answer::fail(error.kind(), error.what());
      }
      return lost;
    }
  }

  // After a failed transaction. True if it may have been committed all the same.
  bool undo(const SqlError& error, bool committing) {
    noted_ = Time{};
    sqlite3* const db = writing_->connection.raw();
    // SQLite has undone it by itself in some cases (sqlite.org/lang_transaction.html, "Response To Errors Within A
    // Transaction").
    const bool undone =
        !writing_->connection.in_transaction() || sqlite3_exec(db, "ROLLBACK", nullptr, nullptr, nullptr) == SQLITE_OK;
    switch (error.primary()) {
      case SQLITE_BUSY:
      case SQLITE_FULL:  // The frame that commits is the last one of the log: it was not written whole.
      case SQLITE_READONLY:
        if (undone) {
          writing_->rows->keys().rolled_back();
        } else {
          writing_.reset();
        }
        return false;
      default:
        note_synced({});
        writing_.reset();                                         // A fresh connection may do better.
        return committing && error.code() != SQLITE_IOERR_WRITE;  // As for SQLITE_FULL.
    }
  }

  Answer carry_out(Operation& operation) {
    Rows& rows = *writing_->rows;
    std::int64_t id = 0;
    std::optional<Row> in_the_way;
    switch (operation.kind) {
      case Operation::Kind::insert:
        in_the_way = rows.insert(*operation.record, operation.encoded, id);
        if (!in_the_way) return Answer::ok(Place::of(id, *operation.record).hint());
        break;
      case Operation::Kind::replace:
        if (rows.replace(*operation.record, operation.encoded, operation.seen, id)) {
          return Answer::ok(Place::of(id, *operation.record).hint());
        }
        in_the_way = rows.find(operation.record->key, operation.encoded.key_hash);
        break;
      case Operation::Kind::remove:
        if (rows.remove(operation.record->key, operation.encoded.key_hash, operation.seen)) return Answer::ok();
        in_the_way = rows.find(operation.record->key, operation.encoded.key_hash);
        break;
      case Operation::Kind::sweep:
        break;  // Not in a group.
    }
    if (!in_the_way) return Answer::refuse(nullptr);
    const Place place = Place::of(in_the_way->id, in_the_way->record);
    return Answer::refuse(share(std::move(in_the_way->record)), place.hint());
  }

  // `forks_before`: when they were answered. In the child of a completion that forks none is completed any more: the
  // parent does that.
  static void complete(Group& group, unsigned forks_before) {
    for (Pointer& operation : group) {
      if (forks() != forks_before) return;
      operation->done(std::move(operation->answer));
      if (forks() == forks_before) operation.reset();
    }
  }

  // Whoever has a home gets all that is its own there, by one message; the rest is completed here, after these.
  static void finish(Group& group) {
    const unsigned forks_before = forks();
    while (!group.empty() && forks() == forks_before) {
      const std::shared_ptr<Home> home = first_home(group);
      if (!home) break;
      Group own;
      Group others;
      for (Pointer& operation : group) (operation->home == home ? own : others).push_back(std::move(operation));
      group.swap(others);
      Callback<void()> work = [own = std::move(own), forks_before]() mutable { complete(own, forks_before); };
      if (!home->bring(work)) work();
    }
    complete(group, forks_before);
    group.clear();
  }
  static std::shared_ptr<Home> first_home(const Group& group) {
    const auto found = std::ranges::find_if(group, [](const Pointer& operation) { return operation->home != nullptr; });
    return found == group.end() ? nullptr : (*found)->home;
  }

  // What prevented the transaction prevents everything that waits.
  void fail_all(Group& group, ErrorKind kind, const std::string& message) {
    take();
    while (!backlog_.empty()) {
      group.push_back(std::move(backlog_.front()));
      backlog_.pop_front();
    }
    for (const Pointer& operation : group) operation->answer = Answer::fail(kind, message);
    finish(group);
    std::deque<Pointer> sweeps = std::exchange(sweeps_, {});
    for (const Pointer& operation : sweeps) {
      if (is_forked()) return;
      operation->sweep_answer.error = Error{kind, message};
      operation->swept(std::move(operation->sweep_answer));
    }
  }

  void sweep_slice_once() {
    if (sweeps_.empty() || !writing_) return;
    Operation& operation = *sweeps_.front();
    SweepAnswer& answer = operation.sweep_answer;
    const std::size_t slice =
        std::min(operation.limit - answer.removed, backlog_.empty() ? idle_sweep_slice : sweep_slice);
    bool over = false;
    try {
      writing_->begin(lock_);
      const Rows::Swept swept = writing_->rows->sweep(operation.now, slice);
      const bool more = swept.looked_at == slice && writing_->rows->has_expired(operation.now);
      commit();
      answer.removed += swept.removed;
      answer.more = more;
      over = !more || answer.removed >= operation.limit;
    } catch (const SqlError& error) {
      undo(error, false);
      if (!std::exchange(operation.is_second_try, true) && made_room(error.primary())) return;  // Its next turn comes.
      answer.error = error.error();
      over = true;
    }
    if (!over) return;
    const Pointer finished = std::move(sweeps_.front());
    sweeps_.pop_front();
    finished->swept(std::move(finished->sweep_answer));
  }

  void note_time_if_due() {
    const Time now = time()->now;
    if (noted_ + note_time_every > now) return;
    note_time(writing_->connection, now);
    noted_ = now;
  }

  [[nodiscard]] bool checkpoint_due() const noexcept { return log_pages_ >= checkpoint_at_; }

  // Copies the log into the file. Inside the lock: a checkpoint beside another process's write is what the WAL-reset
  // bug of SQLite up to 3.51.2 takes (sqlite.org/wal.html#walresetbug).
  void checkpoint() {
    if (checkpoint_due() && !is_forked()) copy_log();
  }

  // After a write that failed: if there was no room for the log to grow, what it holds is copied into the file, so that
  // its room can be used anew.
  bool made_room(int code) { return code == SQLITE_FULL && copy_log(); }

  // True if all of it was copied: the next transaction begins it anew.
  bool copy_log() {
    if (!writing_) return false;
    int pages = 0;
    int copied = 0;
    const int code =
        sqlite3_wal_checkpoint_v2(writing_->connection.raw(), nullptr, SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);
    // If a reader still needs the log, or the disk is full, the log goes on growing for a while.
    const bool whole = code == SQLITE_OK && pages == copied;
    checkpoint_at_ = whole ? options_.checkpoint_pages : log_pages_ + options_.checkpoint_pages / 4;
    log_pages_ = whole ? 0 : log_pages_;
    const std::lock_guard lock(checkpoint_error_mutex_);
    checkpoint_error_ = code == SQLITE_OK ? std::string() : writing_->connection.error(code).what();
    return whole;
  }

  // On close: keys are indexed, a long log is copied and cut off, so that the next opener need not read them.
  // Nothing depends on it.
  void finish_file() {
    const Answer answer = answered([&] {
      const bool index = should_index_on_close();
      if (!writing_ || (!index && size_of(options_.path + "-wal") <= leave_log_bytes)) return Answer::ok();
      const Locked locked(*this);
      make_ready();
      if (index) index_if_more_than(few_keys);
      if (!writing_ || size_of(options_.path + "-wal") <= leave_log_bytes) return Answer::ok();
      // Others would take the log that was begun anew for a stranger's writes, and read all of the newest rows again.
      if (!presence_.is_alone()) return Answer::ok();
      sqlite3_busy_timeout(writing_->connection.raw(), 0);  // Not for the sake of a reader.
      sqlite3_wal_checkpoint_v2(writing_->connection.raw(), nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
      return Answer::ok();
    });
    static_cast<void>(answer);  // The log is as good.
    writing_.reset();
  }

  const std::string asked_;  // The path as it was given.
  const ForkGuard fork_guard_;
  const std::string vfs_;
  const SqliteOptions options_;  // With the file's real path.
  FileLock lock_;
  const Presence presence_;
  Identity file_;   // Of the file we opened.
  Identity log_;    // Of its -wal.
  Identity index_;  // Of its -shm.
  FirstPage first_page_;
  HashKey hash_key_;
  StoredClock clock_;

  mutable std::mutex readers_mutex_;
  mutable std::vector<std::unique_ptr<Reading>> readers_;

  std::unique_ptr<RecentKeys> recent_keys_ = std::make_unique<RecentKeys>();
  mutable std::atomic<bool> missing_keys_{false};  // The writer shall learn what other processes have written.
  mutable GroupQueue<Operation> queue_;
  std::atomic<bool> stopping_{false};

  // Does nothing but keep the log's index, which says how much of the log is committed, for as long as the store lives:
  // the next connection would make it anew from what can be read, and so trust what a sync that failed has left.
  std::unique_ptr<Connection> anchor_;

  // The writer's own.
  std::unique_ptr<Writing> writing_;  // Null after a failure: opened anew for the next group.
  std::deque<Pointer> backlog_;       // Taken from the queue, not yet written.
  std::deque<Pointer> sweeps_;
  std::uint32_t log_pages_ = 0;
  std::uint32_t checkpoint_at_ = options_.checkpoint_pages;
  Time noted_{};
  bool orphaned_ = false;               // Ended from a completion: the thread deletes the store.
  SqliteStore* left_before_ = nullptr;  // In the child of a fork.

  mutable std::mutex checkpoint_error_mutex_;
  std::string checkpoint_error_;

  std::thread writer_;  // Last: it uses the others.
};

// What callers have. The engine's last reference may go in a completion, on the thread that the store would wait for.
class SqliteHandle final : public Store {
 public:
  explicit SqliteHandle(SqliteOptions options) : store_(std::make_unique<SqliteStore>(std::move(options))) {}
  SqliteHandle(const SqliteHandle&) = delete;
  SqliteHandle& operator=(const SqliteHandle&) = delete;
  ~SqliteHandle() override { SqliteStore::end(std::move(store_)); }

  void insert(RecordPtr record, Done done) override { store_->insert(std::move(record), std::move(done)); }
  void replace(RecordPtr record, Seen seen, Done done) override {
    store_->replace(std::move(record), seen, std::move(done));
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

  [[nodiscard]] const SqliteStore& inside() const noexcept { return *store_; }

 private:
  std::unique_ptr<SqliteStore> store_;
};

}  // namespace
}  // namespace sqlite

std::unique_ptr<Store> make_sqlite_store(SqliteOptions options) {
  sqlite::check(options);
  // Relative to where the program is now, not to where it goes later. "link/.." is not the directory of the link.
  std::error_code failed;
  const auto absolute = std::filesystem::absolute(options.path, failed);
  if (failed) throw Exception(ErrorKind::unavailable, "sqlite store: no working directory: " + failed.message());
  options.path = absolute.string();
  return std::make_unique<sqlite::SqliteHandle>(std::move(options));
}

bool stop_counting_sqlite_memory() noexcept { return sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0) == SQLITE_OK; }

std::optional<SqliteStatus> sqlite_status(const Store& store) {
  const auto* const ours = dynamic_cast<const sqlite::SqliteHandle*>(&store);
  return ours == nullptr ? std::nullopt : std::optional(ours->inside().status());
}

std::vector<std::string> check_sqlite(const Store& store, SqliteCheck how) {
  const auto* const ours = dynamic_cast<const sqlite::SqliteHandle*>(&store);
  if (ours == nullptr) throw Exception(ErrorKind::misuse, store.name() + " is not a sqlite store");
  return ours->inside().check_file(how);
}

}  // namespace once::stores
