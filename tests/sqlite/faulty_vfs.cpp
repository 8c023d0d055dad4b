#include "faulty_vfs.hpp"

#include <cstddef>
#include <new>
#include <stdexcept>
#include <utility>

namespace once::testing {

namespace {

struct File {
  sqlite3_io_methods methods{};
  const sqlite3_io_methods* base = nullptr;
  bool is_log = false;
  int late_sync = 0;  // The flags of one that is still to be done.
};

// Lies behind the base's own structure. Not found through file->pMethods: the store's VFS puts its own table there.
std::size_t place_of_file() {
  static const std::size_t place = (static_cast<std::size_t>(sqlite3_vfs_find(nullptr)->szOsFile) + 15U) / 16U * 16U;
  return place;
}
File& of(sqlite3_file* file) {
  return *std::launder(reinterpret_cast<File*>(reinterpret_cast<std::byte*>(file) + place_of_file()));
}

int write(sqlite3_file* file, const void* data, int size, sqlite3_int64 offset) {
  DiskFaults& faults = disk_faults();
  if (faults.full || (faults.room_bytes >= 0 && offset + size > faults.room_bytes)) return SQLITE_FULL;
  if (faults.write_errno != 0) return SQLITE_IOERR_WRITE;
  if (of(file).is_log) {
    if (faults.log_write_io) {
      static_cast<void>(of(file).base->xWrite(file, data, size, offset));
      return SQLITE_IOERR_WRITE;
    }
    ++faults.log_writes;
    if (const int flags = std::exchange(of(file).late_sync, 0); flags != 0) {
      if (const int code = of(file).base->xSync(file, flags); code != SQLITE_OK) return code;
    }
  }
  return of(file).base->xWrite(file, data, size, offset);
}

int sync(sqlite3_file* file, int flags) {
  DiskFaults& faults = disk_faults();
  if (of(file).is_log ? faults.log_sync : faults.file_sync) return SQLITE_IOERR_FSYNC;
  if (of(file).is_log ? faults.log_unsynced : faults.file_unsynced) return SQLITE_OK;
  if (of(file).is_log && faults.log_synced_late) {
    of(file).late_sync = flags;
    return SQLITE_OK;
  }
  const int code = of(file).base->xSync(file, flags);
  if (of(file).is_log) {
    ++faults.log_syncs;
    if (faults.at_log_sync) faults.at_log_sync();
  }
  return code;
}

int read(sqlite3_file* file, void* data, int size, sqlite3_int64 offset) {
  const std::int64_t unread_from = disk_faults().unread_from;
  if (disk_faults().read || (!of(file).is_log && unread_from >= 0 && offset >= unread_from)) return SQLITE_IOERR_READ;
  return of(file).base->xRead(file, data, size, offset);
}

int control(sqlite3_file* file, int what, void* argument) {
  const int number = disk_faults().write_errno;
  if (what != SQLITE_FCNTL_LAST_ERRNO || number == 0) return of(file).base->xFileControl(file, what, argument);
  *static_cast<int*>(argument) = number;
  return SQLITE_OK;
}

int close(sqlite3_file* file) {
  File& ours = of(file);
  const sqlite3_io_methods* const base = ours.base;
  ours.~File();
  file->pMethods = base;
  return base->xClose(file);
}

int open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out) {
  auto* const base = static_cast<sqlite3_vfs*>(vfs->pAppData);
  const int code = base->xOpen(base, name, file, flags, out);
  if (code != SQLITE_OK || (flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_DB)) == 0) return code;
  auto* const ours = ::new (reinterpret_cast<std::byte*>(file) + place_of_file()) File;
  ours->base = file->pMethods;
  ours->methods = *file->pMethods;
  ours->methods.xWrite = write;
  ours->methods.xSync = sync;
  ours->methods.xRead = read;
  ours->methods.xClose = close;
  ours->methods.xFileControl = control;
  ours->is_log = (flags & SQLITE_OPEN_WAL) != 0;
  file->pMethods = &ours->methods;
  return code;
}

}  // namespace

DiskFaults& disk_faults() {
  static DiskFaults faults;
  return faults;
}

std::string faulty_vfs() {
  static sqlite3_vfs vfs = [] {
    sqlite3_vfs* const base = sqlite3_vfs_find(nullptr);
    sqlite3_vfs made = *base;  // The unix VFS asks its own pAppData in xOpen only, which we pass on.
    made.pNext = nullptr;
    made.zName = "faulty";
    made.pAppData = base;
    made.szOsFile = static_cast<int>(place_of_file() + sizeof(File));
    made.xOpen = open;
    return made;
  }();
  if (sqlite3_vfs_find("faulty") == nullptr && sqlite3_vfs_register(&vfs, 0) != SQLITE_OK) {
    throw std::runtime_error("cannot register the faulty VFS");
  }
  return "faulty";
}

}  // namespace once::testing
