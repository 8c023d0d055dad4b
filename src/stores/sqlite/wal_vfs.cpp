#include "stores/sqlite/wal_vfs.hpp"

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <once/error.hpp>

#include "stores/sqlite/log_state.hpp"

namespace once::stores::sqlite {

namespace {

constexpr std::size_t max_collected_bytes = std::size_t{4} * 1024 * 1024;

// SQLite's unix VFS takes the length of a read or write modulo 128 KiB (seekAndRead, seekAndWriteFd in os_unix.c).
constexpr std::size_t max_write_bytes = std::size_t{124} * 1024;

sqlite3_vfs* base_of(sqlite3_vfs* vfs) noexcept { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

constexpr std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + alignof(std::max_align_t) - 1) / alignof(std::max_align_t) * alignof(std::max_align_t);
}

// Placed after the base's own file structure, whose first member, the table of methods, is replaced by `methods`.
// Methods that are not overridden go directly to the base. For the log all overrides are used, for the database only
// reads and writes.
struct Log {
  sqlite3_io_methods methods{};
  const sqlite3_io_methods* base = nullptr;
  std::vector<char> collected;
  sqlite3_int64 begin = 0;           // The offset of `collected` in the file.
  sqlite3_file* database = nullptr;  // Of the log.
  std::uint64_t parts = 0;           // How many of its index are known to be there.
};

// The table of methods is Log's first member, so the file finds its Log.
static_assert(offsetof(Log, methods) == 0);
Log& log_of(sqlite3_file* file) noexcept {
  return *std::launder(reinterpret_cast<Log*>(const_cast<sqlite3_io_methods*>(file->pMethods)));
}

bool is_no_room(int reason) noexcept { return reason == ENOSPC || reason == EDQUOT || reason == EFBIG; }

// SQLite calls only ENOSPC "full". A quota and a limit on the size of files are the same: the end was not written, and
// a copy of the log makes room.
int full_or(int code, sqlite3_file* file) noexcept {
  if (code != SQLITE_IOERR_WRITE) return code;
  int reason = 0;
  log_of(file).base->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &reason);
  return is_no_room(reason) ? SQLITE_FULL : code;
}

// Is the log's old end behind these frames? Then a write of them that failed may have left whole frames: what is
// missing may be as it was before.
bool overwrites(sqlite3_file* file) noexcept {
  const Log& log = log_of(file);
  sqlite3_int64 size = 0;
  return log.base->xFileSize(file, &size) != SQLITE_OK ||
         size >= log.begin + static_cast<sqlite3_int64>(log.collected.size());
}

int write_out(sqlite3_file* file) noexcept {
  Log& log = log_of(file);
  if (log.collected.empty()) return SQLITE_OK;
  int code = SQLITE_OK;
  for (std::size_t at = 0; at < log.collected.size() && code == SQLITE_OK; at += max_write_bytes) {
    const std::size_t bytes = std::min(max_write_bytes, log.collected.size() - at);
    code = log.base->xWrite(file, log.collected.data() + at, static_cast<int>(bytes),
                            log.begin + static_cast<sqlite3_int64>(at));
    code = full_or(code, file);
  }
  if (code == SQLITE_FULL && overwrites(file)) code = full_over_frames;
  // Dropped on failure too: SQLite rolls back, and writes this part again.
  log.collected.clear();
  return code;
}

// SQLite indexes frames after it has synced them: without room for the index, a commit would be on the disk that its
// program takes for failed. So a new part of the index is made before the first frame of it is written.
int make_room_in_index(sqlite3_file* file, int size, sqlite3_int64 offset) noexcept {
  Log& log = log_of(file);
  constexpr sqlite3_int64 log_header = 32;
  constexpr int frame_header = 24;
  if (offset < log_header || size <= frame_header || log.database == nullptr) return SQLITE_OK;  // Not a page.
  const sqlite3_int64 frame = (offset + size - log_header) / (size + frame_header);
  const std::uint64_t part = index_part_of(static_cast<std::uint64_t>(frame));
  if (part < log.parts) return SQLITE_OK;
  errno = 0;
  const int code = make_index_part(log.database, part);
  if (code == SQLITE_OK) log.parts = part + 1;
  return code != SQLITE_OK && is_no_room(errno) ? SQLITE_FULL : code;
}

int log_write(sqlite3_file* file, const void* data, int size, sqlite3_int64 offset) noexcept {
  Log& log = log_of(file);
  if (const int code = make_room_in_index(file, size, offset); code != SQLITE_OK) {
    log.collected.clear();  // As in write_out().
    return code;
  }
  const auto bytes = static_cast<std::size_t>(size);
  const bool follows = offset == log.begin + static_cast<sqlite3_int64>(log.collected.size());
  if (!log.collected.empty() && (!follows || log.collected.size() + bytes > max_collected_bytes)) {
    const int code = write_out(file);
    if (code != SQLITE_OK) return code;
  }
  if (log.collected.empty()) log.begin = offset;
  try {
    const auto* const begin = static_cast<const char*>(data);
    log.collected.insert(log.collected.end(), begin, begin + bytes);
  } catch (const std::bad_alloc&) {
    return SQLITE_IOERR_NOMEM;
  }
  return SQLITE_OK;
}

int read(sqlite3_file* file, void* data, int size, sqlite3_int64 offset) noexcept {
  const int code = log_of(file).base->xRead(file, data, size, offset);
  return code == SQLITE_IOERR_CORRUPTFS ? SQLITE_IOERR_READ : code;
}

int log_read(sqlite3_file* file, void* data, int size, sqlite3_int64 offset) noexcept {
  Log& log = log_of(file);
  if (!log.collected.empty() && offset + size > log.begin) {
    const int code = write_out(file);
    if (code != SQLITE_OK) return code;
  }
  return read(file, data, size, offset);
}

int write(sqlite3_file* file, const void* data, int size, sqlite3_int64 offset) noexcept {
  return full_or(log_of(file).base->xWrite(file, data, size, offset), file);
}

int log_truncate(sqlite3_file* file, sqlite3_int64 size) noexcept {
  const int code = write_out(file);
  return code != SQLITE_OK ? code : log_of(file).base->xTruncate(file, size);
}

int log_size(sqlite3_file* file, sqlite3_int64* size) noexcept {
  const int code = write_out(file);
  return code != SQLITE_OK ? code : log_of(file).base->xFileSize(file, size);
}

int log_sync(sqlite3_file* file, int flags) noexcept {
  const int code = write_out(file);
  return code != SQLITE_OK ? code : log_of(file).base->xSync(file, flags);
}

int log_close(sqlite3_file* file) noexcept {
  Log& log = log_of(file);
  // Never synced, so never committed: it is dropped.
  const sqlite3_io_methods* const base = log.base;
  log.~Log();
  file->pMethods = base;
  return base->xClose(file);
}

int open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) noexcept {
  sqlite3_vfs* const base = base_of(vfs);
  const int code = base->xOpen(base, name, file, flags, out_flags);
  if (code != SQLITE_OK || (flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_DB)) == 0) return code;
  auto* const place = reinterpret_cast<std::byte*>(file) + aligned(static_cast<std::size_t>(base->szOsFile));
  auto* const log = ::new (static_cast<void*>(place)) Log;
  log->base = file->pMethods;
  log->methods = *file->pMethods;
  log->methods.xClose = log_close;
  log->methods.xRead = read;
  log->methods.xWrite = write;
  if ((flags & SQLITE_OPEN_WAL) != 0) {
    log->methods.xRead = log_read;
    log->methods.xWrite = log_write;
    log->methods.xTruncate = log_truncate;
    log->methods.xSync = log_sync;
    log->methods.xFileSize = log_size;
    log->database = sqlite3_database_file_object(name);
  }
  file->pMethods = &log->methods;
  return SQLITE_OK;
}

// Unique while it exists, also among the copies of this library in one process.
std::string name_of(const sqlite3_vfs& vfs, const char* base) {
  std::array<char, 2 * sizeof(std::uintptr_t)> digits{};
  const auto address = reinterpret_cast<std::uintptr_t>(&vfs);
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), address, 16).ptr;
  return "once-" + std::string(base) + "-" + std::string(digits.data(), end);
}

sqlite3_vfs forwarding_to(sqlite3_vfs* base) noexcept {
  sqlite3_vfs vfs{};
  vfs.iVersion = 2;
  vfs.szOsFile = static_cast<int>(aligned(static_cast<std::size_t>(base->szOsFile)) + sizeof(Log));
  vfs.mxPathname = base->mxPathname;
  vfs.pAppData = base;
  vfs.xOpen = open;
  vfs.xDelete = [](sqlite3_vfs* v, const char* name, int sync) { return base_of(v)->xDelete(base_of(v), name, sync); };
  vfs.xAccess = [](sqlite3_vfs* v, const char* name, int flags, int* out) {
    return base_of(v)->xAccess(base_of(v), name, flags, out);
  };
  vfs.xFullPathname = [](sqlite3_vfs* v, const char* name, int size, char* out) {
    return base_of(v)->xFullPathname(base_of(v), name, size, out);
  };
  vfs.xRandomness = [](sqlite3_vfs* v, int size, char* out) { return base_of(v)->xRandomness(base_of(v), size, out); };
  vfs.xSleep = [](sqlite3_vfs* v, int us) { return base_of(v)->xSleep(base_of(v), us); };
  vfs.xCurrentTime = [](sqlite3_vfs* v, double* out) { return base_of(v)->xCurrentTime(base_of(v), out); };
  vfs.xGetLastError = [](sqlite3_vfs* v, int size, char* out) {
    return base_of(v)->xGetLastError(base_of(v), size, out);
  };
  vfs.xCurrentTimeInt64 = [](sqlite3_vfs* v, sqlite3_int64* out) {
    return base_of(v)->xCurrentTimeInt64(base_of(v), out);
  };
  return vfs;
}

}  // namespace

WalVfs::WalVfs(const std::string& base) {
  sqlite3_vfs* const found = sqlite3_vfs_find(base.empty() ? nullptr : base.c_str());
  if (found == nullptr || found->iVersion < 2) {
    throw Exception(ErrorKind::misuse, "SQLite has no VFS named '" + base + "' of version 2 or later");
  }
  auto made = std::make_unique<Registered>();
  made->vfs = forwarding_to(found);
  made->name = name_of(made->vfs, found->zName);
  made->vfs.zName = made->name.c_str();
  if (sqlite3_vfs_register(&made->vfs, 0) != SQLITE_OK) {
    throw Exception(ErrorKind::unavailable, "SQLite cannot register a VFS: out of memory");
  }
  registered_ = std::move(made);
}

WalVfs::~WalVfs() {
  if (getpid() == registered_->process) {
    sqlite3_vfs_unregister(&registered_->vfs);
  } else {
    // In a child, which may have been forked while another thread held SQLite's lock: its list keeps the pointer.
    static_cast<void>(registered_.release());
  }
}

}  // namespace once::stores::sqlite
