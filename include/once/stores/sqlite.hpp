// A store in a file: durable, for many threads and processes of one host. It is a SQLite database, so any sqlite3 shell
// reads it (docs/stores/sqlite.md describes its tables).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <once/clock.hpp>
#include <once/platform/system.hpp>
#include <once/store.hpp>

namespace once::stores {

// Which file, who may open it, and how it is written.
struct SqliteOptions {
  // The file. Beside it are <path>-wal and <path>-shm (SQLite's) and <path>-lock (ours, holds no data). All must be on
  // a local file system: neither SQLite's write-ahead log nor the lock works over a network. Symbolic links are
  // followed first: the three are beside the file that the path leads to.
  std::string path = {};

  // Open a file although it, or a file beside it, has more names (hard links). Programs that open one file by two names
  // do not see each other's claims, and damage it. So set this only if no program opens the other names, such as
  // backups. Otherwise: Exception(misuse). A file that is mounted by itself, without its directory, is always misuse
  // (Linux reports it since 5.8).
  bool allow_hard_links = false;

  // Create the file if it does not exist, with mode 0600. To share it, change its mode: the files beside it follow.
  // Otherwise a missing file is Exception(unavailable).
  bool create = true;

  // Create missing directories too, with mode 0700. Otherwise a missing directory is Exception(unavailable).
  bool create_directories = false;

  // Only read, for people who look: the program needs no permission to write, makes no file unless SQLite needs its
  // index of the log, and every change fails as misuse. Reads may then show a commit whose sync failed, or is not done
  // yet. If the directory cannot be written and there is no log, the file is read as it is. Otherwise a log without an
  // index (<path>-shm) cannot be read: copy both files to a directory of your own.
  bool read_only = false;

  // Open a file on a file system that hosts or mounts may share without sharing its locks and mapped pages: FUSE, NFS,
  // SMB, CIFS, 9p, virtiofs, Ceph and others. Set it only if all programs run on one host and open the file by the same
  // path. Otherwise: Exception(misuse).
  bool allow_shared_file_system = false;

  // Let a program without seal keys claim operations in a file that holds, or ever held, sealed records
  // (once/seal.hpp). The first sealed record marks the file. From then on a claim in the clear fails as misuse, in
  // every program that has it open: a program that was not told of the keys must not store payloads in the clear. A
  // claim that was made in the clear before may still be renewed and finished.
  bool allow_clear = false;

  // How long a write waits for another program that holds the file, before it fails as unavailable. 0 to 10 min.
  Millis busy_timeout{5'000};

  // How long a companion (SqlStatements, SqliteWork) may run before it is declined. All other writers wait meanwhile. 1
  // ms to 1 min.
  Millis work_timeout{1'000};

  // The write-ahead log is copied into the file when it has grown by this many pages of 4 KiB. More pages: fewer but
  // longer pauses. 100 to 1 000 000.
  std::uint32_t checkpoint_pages = 4'000;

  // How much of the file the writer keeps in memory. 1 MiB to 4 GiB. Each thread that reads concurrently costs up to 2
  // MiB more. More is not faster: after the split of an index page, SQLite scans all of it in each commit. The kernel's
  // page cache has the rest (measured: docs/stores/sqlite.md).
  std::size_t cache_bytes = std::size_t{8} * 1024 * 1024;

  // How many new keys are collected in memory before they are written to the index together, in its order. 1 to 1 000
  // 000. A fortieth of the records if that is more, up to eight times this number. More keys: fewer index pages are
  // written per key. Each key costs about 100 bytes in every process, and at most twice as many are kept. A program
  // that opens the file beside a busy one reads them from their records. After a crash the first program indexes them
  // (docs/stores/sqlite.md says how long that takes).
  std::size_t recent_keys = 32'768;

  // For tests: another clock.
  std::shared_ptr<Clock> clock = system_clock();
  // For tests: another boot id; `clock` is not converted then. Empty: the kernel's (/proc/sys/kernel/random/boot_id,
  // proc(5)).
  std::string boot_id = {};
  std::string vfs = {};  // For tests: another SQLite VFS below once's own. Empty: SQLite's default.
};

// Opens the store, and creates and migrates the file as needed. Throws Exception:
// - misuse: an option out of range; a file of another program, of a newer version, with a second name, or on a file
//   system that cannot keep it safe; the child of a fork; a clock that cannot be compared with that of the others
//   (below, Time).
// - corrupt: not a database, or damaged.
// - unavailable: no such directory, no permission, held by another program, disk full.
//
// Guarantees. Acknowledged writes are on disk (WAL, synchronous=FULL; concurrent writes share a sync). Reads see every
// acknowledged write of any process.
//
// Threads. Any number may use the store. insert, replace, remove and sweep are queued for one writer thread, which
// completes them. (Those begun on a loop's thread of once's proxy are completed there.) get and list run on the calling
// thread, on their own connection, and complete before they return. A get takes some microseconds while the file is in
// the page cache.
//
// Processes. Any number on the same host may open the file; busy ones get equal shares.
//
// fork(). Open stores after fork(), or let the child exec(): SQLite's locks and open files belong to the parent. In the
// child (and its children) each operation of an inherited store fails as misuse at once, and so does opening any file
// as a store. The inherited store may be destroyed there, or left: the parent continues to use it, and its end changes
// nothing. Running operations complete in the parent only. Executed programs inherit no descriptor. A process made
// without fork()'s handlers (clone(2), _Fork()) must not use the store at all.
//
// Time. The store reports its own time (Store::time() and with each answer): the host's uptime (CLOCK_BOOTTIME,
// including suspend) plus an offset. The first open after each boot computes the offset from the wall clock, and keeps
// it in the file for all processes. So a later change of the wall clock, by hand or by NTP, does not change a lease.
// But a wall clock that is wrong at that first open stays wrong for this store until the next boot;
// SqliteStatus::clock_ahead shows by how much. After a boot the time never goes back before the one noted in the file
// (every 10 s while there are writes). In a time namespace the uptime is converted to the host's, by the offsets in
// /proc. If these or the boot id cannot be read, opening fails as misuse. So it does if another process has the file
// open under another boot id (systemd-nspawn makes one up): it may hold claims, and no process outlives its boot. A
// process that is moved into another time namespace while it has the file open (CRIU) must open it again.
//
// Failures. None is fatal: the next operation tries again.
// - unavailable: disk full, file-size limit, read-only, a failed read or write, or held by another program longer than
//   busy_timeout. Also if the file was deleted or replaced while open: restart the program to use the new one.
// - in_doubt: the sync of a commit failed. Reads show the state before it while any store has the file open, and
//   nothing relies on data that may not be on the disk (docs/decisions/sqlite-disks.md).
// - corrupt: SQLite found damage, or a row was edited by hand. The message names its key.
//
// Sizes. Records of up to 64 MiB; keys are any bytes.
//
// The destructor completes queued operations (for at most busy_timeout if another program holds the file). In a
// completion it returns at once, and the writer thread closes the file later.
std::unique_ptr<Store> make_sqlite_store(SqliteOptions options);

// For a program in which only once uses SQLite: turns off SQLite's count of the memory that it uses
// (SQLITE_CONFIG_MEMSTATUS, sqlite.org/c3ref/c_config_covering_index_scan.html). The count takes a lock for each
// allocation: a claim and its completion make about fifteen, and as many frees. Afterwards sqlite3_memory_used() is 0
// and heap limits do nothing, in the whole process. Call it before anything in the process uses SQLite, and while no
// other thread may begin to. False: SQLite is in use already, and nothing has changed.
bool stop_counting_sqlite_memory() noexcept;

// For `once doctor` and similar tools.
struct SqliteStatus {
  std::string path = {};            // The file's real path …
  std::string asked_path = {};      // … and the given one, made absolute; it may contain links.
  std::uint32_t hard_links = 1;     // Names of the file now. More than 1: see SqliteOptions::allow_hard_links.
  bool mounts_known = true;         // Whether this kernel reports that a file is mounted by itself.
  std::string sqlite_version = {};  // Of the library in use: "3.40.1".
  int schema_version = 0;           // Of the file.
  std::uint64_t file_bytes = 0;     // Of the file without its log.
  // About how many records there are, expired ones included: an estimate from about a thousand entries of the table of
  // keys, within some percent; nearly exact below a thousand. Empty: the file could not be read just now.
  std::optional<std::uint64_t> about_records = {};
  std::uint64_t log_bytes = 0;    // Of <path>-wal. If much more than checkpoint_pages, some reader never ends.
  std::string boot_id = {};       // Of this boot of the host, as this process sees it.
  std::string boot_in_file = {};  // Of the boot in which the file's clock was set. Another one only with read_only.
  Uptime uptime_ahead{0};         // This process's CLOCK_BOOTTIME minus the host's; not 0 in a time namespace.
  Time clock_set_at{};            // The wall clock at the first open of this boot.
  Millis clock_ahead{0};          // The store's time minus the wall clock, now.
  // Its name, if SqliteOptions::allow_shared_file_system was needed. Otherwise empty.
  std::string shared_file_system = {};
  std::string checkpoint_error = {};  // Why the last copy of the log into the file failed, or empty.
};

// Empty if `store` is not from make_sqlite_store(). Reads some pages of the file. Throws nothing; thread-safe.
std::optional<SqliteStatus> sqlite_status(const Store& store);

// Copies the write-ahead log into the file and cuts it off, so that no removed or overwritten record is in it any more.
// (The store overwrites what it removes in the file with zeros: PRAGMA secure_delete.) Blocks until the writer has done
// it; does not wait for readers. Fails as unavailable while a transaction of another program reads from the log: try
// again later. Other errors: see make_sqlite_store(). Afterwards each program that has the file open reads the newest
// rows again, which takes some milliseconds. Does nothing if `store` is not from make_sqlite_store(). Throws nothing.
std::optional<Error> cut_sqlite_log(Store& store);

// How much check_sqlite reads.
enum class SqliteCheck : std::uint8_t {
  whole,   // SQLite's own check, and every row: some seconds for each million.
  newest,  // The newest 20 000 rows and those with the same keys: less than a second.
};

// Reads the file and returns its faults, each with what to do next; empty if there are none. Checks that PRAGMA
// integrity_check passes, that every row can be decoded and is found by its key, and that no key has two rows. Throws
// Exception if the file cannot be read, misuse if `store` is not from make_sqlite_store().
std::vector<std::string> check_sqlite(const Store& store, SqliteCheck how = SqliteCheck::whole);

}  // namespace once::stores
