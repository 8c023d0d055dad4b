// The store in a file: durable, for many threads and many processes of one host. SQLite is inside; any sqlite3 shell
// reads the file (see docs/stores/sqlite.md for its tables).
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

struct SqliteOptions {
  // The file. Beside it are <path>-wal and <path>-shm (SQLite's) and <path>-lock (ours, holds no data). All must be on
  // a local file system: neither SQLite's write-ahead log nor the lock works over a network. Symbolic links are
  // followed first: the three are beside the file that the path leads to.
  std::string path;

  // Open a file although it, or a file beside it, has more names (hard links). Programs that open one file by two names
  // do not see each other's claims, and damage it. So set this only if you keep hard-linked backups that no program
  // opens. Without: Exception(misuse). A file that is mounted by itself, not with its directory, is misuse either way
  // (Linux reports it since 5.8).
  bool allow_hard_links = false;

  // Create the file if it does not exist, with mode 0600 (results may be private; chmod it to share it, the files
  // beside it follow). Without: a missing file is Exception(unavailable).
  bool create = true;

  // Create missing directories above it as well, with mode 0700. Without: a missing directory is
  // Exception(unavailable).
  bool create_directories = false;

  // How long a write waits for another program that holds the file, before it fails as unavailable. 0 to 10 min.
  Millis busy_timeout{5'000};

  // The write-ahead log is copied into the file when it has grown by this many pages of 4 KiB. Longer: fewer copies,
  // each a longer pause. 100 to 1 000 000.
  std::uint32_t checkpoint_pages = 4'000;

  // How much of the file the writer keeps in memory. 1 MiB to 4 GiB. Each thread that reads at the same time as others
  // costs up to 2 MiB more. More is not faster: SQLite looks through all of it in each commit after the split of an
  // index page, and what it does not find there is in the kernel's page cache (measured: docs/stores/sqlite.md).
  std::size_t cache_bytes = std::size_t{8} * 1024 * 1024;

  // How many entries of the index of keys are collected in memory before they are written to it together, in the order
  // of the index. It is this number, or a fortieth of the records if that is more, up to eight times the number. More:
  // fewer index pages are written for each new key. Each entry costs about 100 bytes in every process. At most twice as
  // many are kept. A program that opens the file beside a busy one reads them from their records; after a crash the
  // first program indexes them (docs/stores/sqlite.md says how long that takes). 1 to 1 000 000.
  std::size_t recent_keys = 32'768;

  // For tests: another clock, another boot, another SQLite VFS below ours. Empty boot_id: the kernel's
  // (/proc/sys/kernel/random/boot_id, proc(5)). Empty vfs: SQLite's default.
  std::shared_ptr<Clock> clock = system_clock();
  std::string boot_id;
  std::string vfs;
};

// Opens the store, and creates and migrates the file as needed. Throws Exception: misuse (an option out of range, a
// file of another program, a file of a newer version, a file with a second name, the child of a fork), corrupt (not a
// database, damaged), unavailable (no such directory, no permission, held by another program, disk full).
//
// Guarantees. Acknowledged writes are on disk (WAL, synchronous=FULL; one sync for each group of writes that came
// together). Reads see every acknowledged write of any process.
//
// Threads. insert, replace, remove and sweep are queued for one writer thread and completed by it (those begun on a
// loop's thread of once's proxy by that one). get and list run on the calling thread, on a connection of their own, and
// complete before they return: a get takes some microseconds while the file is in the page cache. The store may be used
// by any number of threads.
//
// Processes. Any number on the same host may have the file open; busy ones get equal shares.
//
// fork(). Open stores after it, a daemon in its last process, or have the child exec(): what SQLite knows of open files
// and its locks is the parent's. In the child (and its children) each operation of an inherited store fails as misuse
// at once, and so does opening any file as a store. The inherited store may be destroyed there, or left: the parent
// continues to use it, and the end of the parent changes nothing. Running operations complete in the parent only. Child
// processes that are executed inherit no descriptor. A process made without fork()'s handlers (clone(2), _Fork()) must
// touch nothing of it.
//
// Time. The store reports its own (Store::time() and with each answer): the host's uptime (CLOCK_BOOTTIME, suspend
// included) plus an offset that is taken from the wall clock once in each boot of the host, at the first open, and kept
// in the file for every process. So setting the wall clock, by hand or by NTP, neither breaks nor prolongs a lease. The
// price: a wall clock that is wrong at that first open stays wrong for this store until the next boot;
// SqliteStatus::clock_ahead shows by how much. After a boot the time does not go back before the time noted in the file
// (every 10 s while there are writes), whatever the wall clock says. The programs must see one CLOCK_BOOTTIME: no time
// namespaces between them.
//
// Failures. unavailable: disk full, file-size limit, read-only, held by another program longer than busy_timeout, the
// file deleted or replaced while open (the store never continues with a file that others no longer see: restart the
// program to use a new one), a failed read or write of the disk. in_doubt: the sync of a commit failed; reads show the
// state before while any store has the file open, and nothing relies on what may not be on the disk
// (docs/decisions/failed-syncs.md). corrupt: SQLite found damage, or a row was malformed by hand (the message names its
// key). Nothing of this is fatal: the next operation tries again.
//
// Sizes. Records of up to 64 MiB; keys are any bytes.
//
// The destructor completes queued operations (for at most busy_timeout if another program holds the file). In a
// completion it returns at once, and the writer thread closes the file when it is done.
std::unique_ptr<Store> make_sqlite_store(SqliteOptions options);

// For a program that has SQLite to itself: SQLite no longer counts the memory that it uses, which takes a lock for each
// of the allocations of a claim and its completion, some fifteen and as many frees (SQLITE_CONFIG_MEMSTATUS,
// sqlite.org/c3ref/c_config_covering_index_scan.html). sqlite3_memory_used() is 0 then, and heap limits do nothing, in
// the whole process. Call it before anything in the process uses SQLite, and while no other thread may begin to. False:
// SQLite is in use already, and nothing has changed.
bool stop_counting_sqlite_memory() noexcept;

// For `once doctor` and the like.
struct SqliteStatus {
  std::string path;              // The file's real one …
  std::string asked_path;        // … and the given one, made absolute: perhaps through links.
  std::uint32_t hard_links = 1;  // Names of the file, now. More than 1: see SqliteOptions::allow_hard_links.
  bool mounts_known = true;      // Whether this kernel reports that a file is mounted by itself.
  std::string sqlite_version;    // Of the library in use: "3.40.1".
  int schema_version = 0;        // Of the file.
  std::uint64_t file_bytes = 0;
  std::uint64_t log_bytes = 0;  // Of <path>-wal. Much more than checkpoint_pages: a reader never ends.
  std::string boot_id;
  Time clock_set_at{};           // The wall clock at the first open of this boot.
  Millis clock_ahead{0};         // The store's time minus the wall clock, now.
  std::string checkpoint_error;  // Why the last copy of the log into the file failed. Empty: it did not.
};

// Empty if `store` is not one of make_sqlite_store. Throws nothing; thread-safe.
std::optional<SqliteStatus> sqlite_status(const Store& store);

// How much check_sqlite reads.
enum class SqliteCheck : std::uint8_t {
  whole,   // SQLite's own check, and every row: some seconds for each million.
  newest,  // The newest 20 000 rows and those with the same keys: less than a second.
};

// Reads the file and lists what is wrong with it, each with what to do next; empty if it is sound: PRAGMA
// integrity_check; every row can be decoded; every row would be found by its key, by this store as it is now; no key
// stands twice. Throws Exception if the file cannot be read, misuse if `store` is not one of make_sqlite_store.
std::vector<std::string> check_sqlite(const Store& store, SqliteCheck how = SqliteCheck::whole);

}  // namespace once::stores
