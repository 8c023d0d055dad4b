// SQLite's write-ahead log, written in one piece.
#pragma once

#include <string>

namespace once::stores::sqlite {

// The name of a VFS that passes everything to the one named `base` (empty: SQLite's default), but collects what is
// written to a write-ahead log and writes it at once when the log is synced. SQLite itself makes two system calls for
// each page of a commit, and a group of claims changes a hundred.
//
// That is sound for connections with synchronous=FULL only: there SQLite lets nobody read a frame of the log before it
// has synced it, and whatever else looks at the log (reading, its size, cutting it off) first writes out what
// was collected.
//
// It also tells a read that failed from damage: SQLite takes EIO for a damaged file (SQLITE_IOERR_CORRUPTFS).
//
// Registers the VFS with SQLite when it is first asked for. Thread-safe. Throws Exception(misuse) for an unknown base.
std::string wal_vfs(const std::string& base);

}  // namespace once::stores::sqlite
