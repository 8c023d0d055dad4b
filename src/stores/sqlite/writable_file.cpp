#include "stores/sqlite/writable_file.hpp"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include <once/error.hpp>

#include "platform/file.hpp"

namespace once::stores::sqlite {

namespace {

constexpr std::size_t leave_log_bytes = 512 * 1024;  // A log up to this size is not copied on close.
constexpr std::size_t few_keys = 64;                 // To index fewer does not pay for a sync …
constexpr std::size_t many_keys = 1024;              // … and to index more takes some milliseconds.
constexpr std::chrono::seconds quiet_time{1};        // Busy programs write more often.
constexpr Millis note_time_every{10'000};
// The pages that a claim and its finish write, without a large result.
constexpr std::uint64_t finish_bytes = std::uint64_t{64} * 1024;
// By how much a database grows when the claims of some other programs are finished, without large results.
constexpr std::uint64_t growth_bytes = std::uint64_t{256} * 1024;

// Whether the file was not written for a while, by the wall clock. Also if it does not exist.
bool is_quiet(const std::string& path) noexcept {
  struct stat found {};
  timespec now{};
  if (stat(path.c_str(), &found) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0) return true;
  return found.st_mtim.tv_sec + quiet_time.count() < now.tv_sec;
}

// Whether the disk has so much room for users other than root.
bool is_free(const std::string& path, std::uint64_t bytes) noexcept {
  struct statvfs found {};
  return statvfs(path.c_str(), &found) != 0 || found.f_bavail * std::uint64_t{found.f_frsize} >= bytes;
}

// SQLite may write zeros behind the end of the file that it has seen. So nobody copies the log to there meanwhile: that
// needs the same lock (sqlite.org/walformat.html, "WAL Locks"). Returns SQLite's result code, and errno if it is known.
int make_longer(sqlite3_file* file, sqlite3_int64 bytes, int& reason) noexcept {
  constexpr int copying = 1;  // WAL_CKPT_LOCK.
  const sqlite3_io_methods& call = *file->pMethods;
  int code = call.xShmLock(file, copying, 1, SQLITE_SHM_LOCK | SQLITE_SHM_EXCLUSIVE);
  if (code != SQLITE_OK) return code;
  code = call.xFileControl(file, SQLITE_FCNTL_SIZE_HINT, &bytes);
  if (code != SQLITE_OK) call.xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &reason);
  call.xShmLock(file, copying, 1, SQLITE_SHM_UNLOCK | SQLITE_SHM_EXCLUSIVE);
  return code;
}

}  // namespace

WritableFile::WritableFile(StoreFile& file, RecentKeys& recent)
    : file_(file), recent_(recent), lock_(file.path() + "-lock", file.path()) {
  const NoFileSizeSignal no_signal;
  const FileLock::Guard guard = lock();
  const bool quiet = lock_.is_alone() || is_quiet(file_.path() + "-wal");
  open();
  anchor_ = std::make_unique<Connection>(file_.path(), file_.vfs(), file_.options().busy_timeout);
  anchor_->run("PRAGMA user_version");  // Opens the log.
  file_.learn(connection_->connection(), lock_.is_alone());
  lock_.show_presence();
  if (!is_log_true()) make_log_true();
  check_first_page();
  static_cast<void>(reserve(finish_bytes));  // So that the first claims need not. If it fails, they say so.
  // Entries that a killed program had in memory. A living one will write them itself.
  index_if_more_than(quiet ? few_keys : 2 * rows().keys().lot());
}

WritableFile::~WritableFile() {
  const NoFileSizeSignal no_signal;
  try {
    tidy_up();
  } catch (const std::exception&) {  // The log has everything.
  }
}

void WritableFile::make_ready() {
  file_.check_identity();
  check_log();  // Before a new connection would accept replaced files.
  if (!connection_) {
    const Identity log = log_;
    const Identity index = index_;
    open();
    log_ = log;
    index_ = index;
    check_log();
  }
  check_first_page();
}

void WritableFile::open() {
  auto opened = std::make_unique<WriterConnection>(file_, recent_);
  log_ = Identity::of(file_.path() + "-wal");
  log_file_.reset();
  reserved_to_ = 0;
  index_ = Identity::of(file_.path() + "-shm");
  connection_ = std::move(opened);
}

void WritableFile::check_log() const {
  if (Identity::of(file_.path() + "-wal") == log_ && Identity::of(file_.path() + "-shm") == index_) {
    return file_.check_index();
  }
  throw Exception(ErrorKind::unavailable,
                  "sqlite store " + file_.path() +
                      ": its -wal or -shm file was deleted or replaced while it was open. Further writes would be "
                      "lost: restart all programs that use it, and never delete these files");
}

void WritableFile::check_first_page() {
  if (first_page_.is_as_before(connection_->connection())) return;
  throw Exception(
      ErrorKind::unavailable,
      "sqlite store " + file_.path() +
          ": the file was overwritten while it was open (as by cp). The store no longer writes to it, because "
          "its log belongs to the old file. Stop the programs that use it, delete it and its -wal and -shm "
          "files, and put a whole copy there");
}

// --- What is read is on the disk ---

// The readable log may not be on the disk. After a failed sync no later one writes the same pages, but programs still
// read them. Or a process was killed between its write and its sync. So unless the log matches the note of the last
// sync, it is written again and synced, with its name, before anything of it is returned.
bool WritableFile::is_log_true() {
  const SyncedLog now = synced_log(log_.inode, log_state(connection_->connection()));
  return now != SyncedLog{} && now == lock_.notes().synced;
}

void WritableFile::make_log_true() {
  note_synced({});
  Connection& connection = connection_->connection();
  if (sqlite3_db_readonly(connection.raw(), "main") != 0) throw connection.error(SQLITE_READONLY);
  connection.run("BEGIN IMMEDIATE");
  const LogState state = log_state(connection);
  const int code = write_log_again(connection, state);
  if (code != SQLITE_OK) {
    throw SqlError(ErrorKind::unavailable,
                   "sqlite store " + file_.path() +
                       ": its log may not be on the disk, and could not be written again (" + sqlite3_errstr(code) +
                       "). Nothing is read from the file until that works; check the disk",
                   code);
  }
  connection.run("ROLLBACK");
  file_.sync_directory();
  note_synced(synced_log(log_.inode, state));
}

void WritableFile::note_synced(const SyncedLog& synced) noexcept {
  LogNotes notes = lock_.notes();
  notes.synced = synced;
  lock_.note(notes);
}

// --- Transactions ---

void WritableFile::learn_keys() {
  if (!connection_->learn_keys() || read_hash_key(connection_->connection()) == file_.hash_key()) return;
  rows().keys().distrust();
  throw SqlError(ErrorKind::unavailable, other_store(file_.path()), SQLITE_ERROR);
}

void WritableFile::commit() {
  committing_ = true;
  if (connection_->commit(lock_, log_.inode)) log_pages_ = connection_->log_pages();
  committing_ = false;
}

void WritableFile::commit_with_keys() {
  // A group of refusals writes nothing, so its commit needs no sync: a replay in a new process only reads.
  if (connection_->has_changed()) note_time_if_due();
  rows().keys().move_some();
  commit();
  rows().keys().committed();
}

bool WritableFile::undo(const SqlError& error) {
  const bool committing = std::exchange(committing_, false);
  noted_ = Time{};
  sqlite3* const db = connection_->connection().raw();
  // After some errors SQLite has already rolled back (sqlite.org/lang_transaction.html, "Response To Errors Within A
  // Transaction").
  const bool undone = !connection_->connection().in_transaction() ||
                      sqlite3_exec(db, "ROLLBACK", nullptr, nullptr, nullptr) == SQLITE_OK;
  switch (error.primary()) {
    case SQLITE_BUSY:
    case SQLITE_FULL:
    case SQLITE_READONLY:
      if (undone) {
        rows().keys().rolled_back();
      } else {
        connection_.reset();
      }
      return committing && error.code() == full_over_frames;
    default:
      note_synced({});
      connection_.reset();  // A new one may work.
      // A write that failed may have reached the log whole, and whoever opens the file after a crash finds it there.
      return committing;
  }
}

void WritableFile::forget() {
  noted_ = Time{};
  rows().keys().rolled_back();
}

void WritableFile::note_time_if_due() {
  const Time now = file_.time().now;
  if (noted_ + note_time_every > now) return;
  note_time(connection_->connection(), now);
  noted_ = now;
}

// --- Copies of the log ---

void WritableFile::checkpoint() {
  if (checkpoint_due()) copy_log();
}

// True if all of it was copied: then the next transaction restarts the log, unless some reader still needs it.
bool WritableFile::copy_log() {
  if (!connection_) return false;
  int pages = 0;
  int copied = 0;
  Connection& connection = connection_->connection();
  const int code = sqlite3_wal_checkpoint_v2(connection.raw(), nullptr, SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);
  // If a reader still needs the log, or the disk is full, the log continues to grow for a while.
  const bool whole = code == SQLITE_OK && pages == copied;
  const std::uint32_t often = file_.options().checkpoint_pages;
  checkpoint_at_ = whole ? often : log_pages_ + often / 4;
  log_pages_ = whole ? 0 : log_pages_;
  const std::string problem = code == SQLITE_OK ? std::string() : connection.error(code).what();
  if (whole) reserve_again();
  const std::lock_guard lock(checkpoint_error_mutex_);
  checkpoint_error_ = problem;
  return whole;
}

void WritableFile::cut_log() {
  const int code = end_log(SQLITE_CHECKPOINT_TRUNCATE);
  if (code != SQLITE_OK) throw connection_->connection().error(code);
}

// For SQLITE_OK, all of it was copied and no reader needs it: the next transaction restarts it.
int WritableFile::end_log(int mode) {
  Connection& connection = connection_->connection();
  sqlite3_busy_timeout(connection.raw(), 0);  // Other programs wait for our lock.
  const int code = sqlite3_wal_checkpoint_v2(connection.raw(), nullptr, mode, nullptr, nullptr);
  sqlite3_busy_timeout(connection.raw(), static_cast<int>(file_.options().busy_timeout.count()));
  if (code == SQLITE_OK) {
    checkpoint_at_ = file_.options().checkpoint_pages;
    log_pages_ = 0;
    reserve_again();
  }
  return code;
}

// Whether the next write begins the log anew. A reader that came before a copy keeps the log, and so its length: then
// the claim would still fit, and its finish would not.
bool WritableFile::begins_anew() { return connection_ && end_log(SQLITE_CHECKPOINT_RESTART) == SQLITE_OK; }

std::uint64_t WritableFile::log_bytes() { return end_of_log(log_state(connection_->connection())); }

bool WritableFile::can_grow_by(std::uint64_t bytes, bool log_begins_anew) {
  const std::optional<std::uint64_t> limit = file_size_limit();
  if (!limit) return true;
  Connection& connection = connection_->connection();
  const auto pages = static_cast<std::uint64_t>(connection.number("PRAGMA page_count"));
  const auto page_bytes = static_cast<std::uint64_t>(connection.number("PRAGMA page_size"));
  return std::max(pages * page_bytes, log_begins_anew ? 0 : log_bytes()) + bytes <= *limit;
}

// 0 or errno. Blocks are allocated behind the log's end, and its length stays. Other processes use the same ones: they
// are for some finishes, and each group with claims looks again.
int WritableFile::reserve_log() {
  const LogState state = log_state(connection_->connection());
  const std::uint64_t used = end_of_log(state);
  if (reserved_in_ == state.salts && used + finish_bytes <= reserved_to_) return 0;
  if (!log_file_) log_file_.reset(::open((file_.path() + "-wal").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!log_file_) return 0;  // The write itself will say why.
  const NoFileSizeSignal no_signal;
  if (fallocate(log_file_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(used), off_t{4 * finish_bytes}) != 0) {
    return errno == ENOSPC || errno == EDQUOT ? errno : 0;  // Otherwise this file system cannot reserve.
  }
  reserved_in_ = state.salts;
  reserved_to_ = used + 4 * finish_bytes;
  return 0;
}

// SQLite makes the file longer, by chunks. A limit on the size of files is looked at for claims.
bool WritableFile::reserve(std::uint64_t bytes) {
  Connection& connection = connection_->connection();
  sqlite3_file* const file = open_file(connection);
  if (file == nullptr) return true;
  const LogState state = log_state(connection);
  const auto number = [&](const char* pragma) { return static_cast<std::uint64_t>(connection.number(pragma)); };
  const bool is_new = state.pages == 0 || state.page_bytes == 0;  // The log has no commit.
  const std::uint64_t page_bytes = is_new ? number("PRAGMA page_size") : state.page_bytes;
  const std::uint64_t pages = is_new ? number("PRAGMA page_count") : state.pages;
  const std::uint64_t wanted = pages * page_bytes + growth_bytes + bytes;
  const auto needed = static_cast<sqlite3_int64>(wanted);
  reserved_for_ = bytes;
  sqlite3_int64 size = 0;
  if (file->pMethods->xFileSize(file, &size) != SQLITE_OK || size >= needed) return true;
  const bool may_fit = is_free(file_.path(), static_cast<std::uint64_t>(needed - size));
  if (may_fit) {  // Otherwise a try would first take all that is left.
    const NoFileSizeSignal no_signal;
    int reason = 0;
    const int code = make_longer(file, needed, reason);
    if (code == SQLITE_OK || code == SQLITE_NOTFOUND) return true;
    if (const auto limit = file_size_limit(); limit && static_cast<std::uint64_t>(needed) > *limit) return true;
    // Not every file system and VFS can reserve, and another program may copy the log just now.
    if (reason != EDQUOT && is_free(file_.path(), static_cast<std::uint64_t>(needed - size))) return true;
  }
  // Pages of removed records serve as well.
  return size + static_cast<sqlite3_int64>(number("PRAGMA freelist_count") * page_bytes) >= needed;
}

// A copy of the log cuts off what was reserved behind the pages, and perhaps behind the log.
void WritableFile::reserve_again() {
  try {
    if (reserve(reserved_for_)) static_cast<void>(reserve_log());
  } catch (const SqlError&) {  // The next write says why.
  }
}

// 0 or errno. The part of the index for the frames of a finish is there, or is made.
int WritableFile::reserve_index() {
  constexpr std::uint64_t few_frames = 4 * finish_bytes / 4096;
  Connection& connection = connection_->connection();
  const std::uint64_t part = index_part_of(log_state(connection).frames + few_frames);
  const std::uint64_t needed = (part + 1) * index_part_bytes;
  if (index_bytes_ < needed) index_bytes_ = size_of(file_.path() + "-shm");
  sqlite3_file* const file = open_file(connection);
  if (index_bytes_ >= needed || file == nullptr) return 0;
  const NoFileSizeSignal no_signal;
  connection.run("BEGIN IMMEDIATE");  // Other programs write the index inside theirs.
  errno = 0;
  const int code = make_index_part(file, part);
  const int reason = errno;
  connection.run("ROLLBACK");
  return code != SQLITE_OK && (reason == ENOSPC || reason == EDQUOT) ? reason : 0;
}

std::string WritableFile::why_no_room_for_claims(bool is_reserved) {
  int reason = is_reserved ? reserve_index() : ENOSPC;
  if (reason == 0) reason = reserve_log();
  if (reason != 0 && is_reserved && begins_anew()) reason = 0;
  if (reason != 0) {
    return "sqlite store " + file_.path() + ": no space left to keep how an operation ends (" + std::strerror(reason) +
           "): free some, then try again";
  }
  if (can_grow_by(finish_bytes, false) || (begins_anew() && can_grow_by(finish_bytes, true))) return {};
  return "sqlite store " + file_.path() + ": no room is left to keep how an operation ends" + file_size_limit_text() +
         ": raise the limit";
}

std::string WritableFile::checkpoint_error() const {
  const std::lock_guard lock(checkpoint_error_mutex_);
  return checkpoint_error_;
}

// --- Opening and closing ---

// Writes the entries of keys that programs have in memory, if there may be more than `few`. Inside the lock. If it
// fails, later writes report that, and reads still work.
void WritableFile::index_if_more_than(std::size_t few) {
  try {
    while (rows().keys().missing() > few) {
      begin();
      rows().keys().index_rows();
      commit();
      checkpoint();
    }
  } catch (const SqlError& error) {
    undo(error);
    made_room(error.primary());
  }
}

// Many short programs each leave a key, a busy one leaves many. Other busy programs index their own.
bool WritableFile::should_index_on_close() const noexcept {
  const KeyIndexer& keys = connection_->rows().keys();
  return keys.all_added() > 0 && keys.known() > few_keys && (keys.all_added() > few_keys || keys.known() <= many_keys);
}

// Indexes keys, and copies and truncates a long log, so that the next opener need not read them.
void WritableFile::tidy_up() {
  if (!connection_) return;
  const auto log_is_long = [&] { return size_of(file_.path() + "-wal") > leave_log_bytes; };
  const bool index = should_index_on_close();
  if (!index && !log_is_long()) return;
  const FileLock::Guard guard = lock();
  make_ready();
  if (index) index_if_more_than(few_keys);
  if (!connection_ || !log_is_long()) return;
  // Others would take the restarted log for foreign writes, and read all of the newest rows again.
  if (!lock_.is_alone()) return;
  Connection& connection = connection_->connection();
  sqlite3_busy_timeout(connection.raw(), 0);  // Do not wait for a reader.
  sqlite3_wal_checkpoint_v2(connection.raw(), nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
}

}  // namespace once::stores::sqlite
