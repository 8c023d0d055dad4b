// SQLite's write-ahead log, written in one piece.
#pragma once

#include <string>

namespace once::stores::sqlite {

// The name of a VFS that forwards to the one named `base` (empty: SQLite's default). It collects writes to a
// write-ahead log, and writes them at once when the log is synced. SQLite itself makes two system calls for each page
// of a commit, and a group of claims changes a hundred pages.
//
// Use it only with synchronous=FULL: then SQLite shows no frame of the log before it has synced it. Every other access
// to the log (read, size, truncate) first writes the collected data.
//
// It also distinguishes a failed read from damage: SQLite takes EIO for a damaged file (SQLITE_IOERR_CORRUPTFS).
//
// Registers the VFS with SQLite at the first call. Thread-safe. Throws Exception(misuse) for an unknown base.
std::string wal_vfs(const std::string& base);

}  // namespace once::stores::sqlite
