// A SQLite VFS over the default one that fails on command, as disks do.
#pragma once

#include <sqlite3.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace once::testing {

// For the whole process: tests that use it run one after another.
struct DiskFaults {
  std::atomic<bool> full{false};              // Writes to the log and the file fail as ENOSPC does.
  std::atomic<int> write_errno{0};            // They fail with this number, which SQLite calls EIO; 0: they do not.
  std::atomic<bool> log_write_io{false};      // Writes to the log fail as EIO does, with all bytes written.
  std::atomic<bool> log_sync{false};          // fdatasync of the log fails; what was written stays.
  std::atomic<bool> file_sync{false};         // The same for the file itself, that is: for checkpoints.
  std::atomic<bool> log_unsynced{false};      // fdatasync of the log does nothing, and says that it has.
  std::atomic<bool> file_unsynced{false};     // The same for the file itself.
  std::atomic<bool> log_synced_late{false};   // fdatasync of the log is done before the next write of it.
  std::atomic<bool> read{false};              // Reads of the file or the log fail as EIO does.
  std::atomic<std::int64_t> unread_from{-1};  // Reads of the file from this offset on fail as EIO does; -1: none.
  std::atomic<std::int64_t> room_bytes{-1};   // Single writes beyond this offset fail as ENOSPC does; -1: no limit.
  std::atomic<std::uint64_t> log_writes{0};   // Counted, never failed.
  std::atomic<std::uint64_t> log_syncs{0};
  std::function<void()> at_log_sync;  // Called after each; set while nothing is under way.

  void heal() {
    write_errno = 0;
    full = log_write_io = log_sync = file_sync = read = false;
    log_unsynced = file_unsynced = log_synced_late = false;
    room_bytes = unread_from = -1;
    at_log_sync = nullptr;
  }
};
DiskFaults& disk_faults();

// The VFS's name, for SqliteOptions::vfs. Registers it when it is first asked for.
std::string faulty_vfs();

}  // namespace once::testing
