// How SQLite's log stands, as all connections share it, and what has been brought of it to the disk.
#pragma once

#include <sqlite3.h>

#include <array>
#include <cstdint>

#include "stores/sqlite/connection.hpp"

namespace once::stores::sqlite {

// From the header of SQLite's index of the log (sqlite.org/walformat.html, "The WAL-Index Header"; since SQLite 3.7.0).
struct LogState {
  std::uint32_t commits = 0;  // iChange: counts them, from anything on.
  std::uint64_t sum = 0;      // aCksum: of the whole header, so each commit changes it. 0: nothing is known.
  std::uint64_t salts = 0;    // aSalt: other ones each time that the log is begun anew. 0: it is empty.
  std::uint64_t frames = 0;   // mxFrame: how many are committed …
  std::uint64_t frames_sum =
      0;  // … and aFrameCksum, of all of these: unlike `sum` it is the same in an index made anew.
};
// Inside a transaction that writes nobody changes it. Elsewhere it may be of two states, and then is neither's.
LogState log_state(Connection& connection);

// Writes the committed part of the log over itself and syncs it: after this the disk has it, whatever became of earlier
// syncs. `state`: as it is now, inside a transaction that writes and has written nothing. What is written is compared
// with it: since the index was made the kernel may have dropped pages that a failed sync had left, and reads others
// from the disk. Returns SQLite's result code; SQLITE_IOERR_DATA: the log is not what the index says.
int write_log_again(Connection& connection, const LogState& state);

// Whether the file was overwritten in place while it was open, as by `cp copy.db once.db`. No lock and no log tells of
// it; what does is its first page, which changes in no other way than by a copy of the log.
class FirstPage {
 public:
  // Inside the lock. False: its head is another than the last time that this was asked, and nobody has copied it there.
  bool is_as_before(Connection& connection);

 private:
  using Head = std::array<char, 100>;  // With the change counter and the size (sqlite.org/fileformat2.html, 1.3).
  struct Copies {                      // Another one after each copy of the log that was begun or done.
    std::uint64_t salts = 0;
    std::uint32_t copied = 0;  // nBackfill.
    std::uint32_t begun = 0;   // nBackfillAttempted.
    friend bool operator==(const Copies&, const Copies&) = default;
  };
  static Copies copies(Connection& connection);
  static bool is_in_log(Connection& connection, const Head& head);

  bool is_known_ = false;
  Head head_{};
  Copies copies_;
};

}  // namespace once::stores::sqlite
