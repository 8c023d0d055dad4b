// The state of SQLite's log, as all connections share it, and how much of it is on the disk.
#pragma once

#include <sqlite3.h>

#include <array>
#include <cstdint>

#include "stores/sqlite/connection.hpp"

namespace once::stores::sqlite {

// From the header of SQLite's index of the log (sqlite.org/walformat.html, "The WAL-Index Header"; since SQLite 3.7.0).
struct LogState {
  std::uint32_t commits = 0;        // iChange: counts commits, from any number.
  std::uint64_t sum = 0;            // aCksum: of the whole header, so each commit changes it. 0: not known.
  std::uint64_t salts = 0;          // aSalt: changes when the log is restarted. 0: empty.
  std::uint64_t frames = 0;         // mxFrame: the committed frames …
  std::uint64_t frames_sum = 0;     // … and their aFrameCksum. Unlike `sum`, it is the same in a rebuilt index.
  std::uint32_t page_bytes = 4096;  // szPage. 0: the log is new.
  std::uint32_t pages = 0;          // nPage: of the database, after the last commit in the log. 0: the log is new.
};
// Stable only inside a write transaction. Elsewhere it may mix two states.
LogState log_state(Connection& connection);
std::uint64_t end_of_log(const LogState& state) noexcept;  // Where its committed frames end in the file.
// The index has parts of this size, each for about 4,096 frames. SQLite makes one when it commits the first frame of
// it.
constexpr int index_part_bytes = 32 * 1024;
std::uint64_t index_part_of(std::uint64_t frame) noexcept;  // From 0; `frame`: from 1.
// Makes the part, if it is not there, through the database's open file. Call it inside a write transaction. Returns
// SQLite's result code.
int make_index_part(sqlite3_file* database, std::uint64_t part) noexcept;
sqlite3_file* open_file(Connection& connection) noexcept;  // The database's, or null.
// Whether the next commit writes over older frames of a log of this length. Call it inside a write transaction.
bool overwrites_log(Connection& connection, std::uint64_t file_bytes);

// Writes the committed part of the log over itself and syncs it. Then the disk has it, even if earlier syncs failed.
// Call it inside a write transaction that has written nothing, with the present `state`. Each frame is compared with
// the index: after a failed sync the kernel may have dropped pages, and read others from the disk. Returns SQLite's
// result code. SQLITE_IOERR_DATA: the log does not match the index.
int write_log_again(Connection& connection, const LogState& state);

// Detects that the file was overwritten in place while it was open, as by `cp copy.db once.db`. No lock or log shows
// that, but the first page does: otherwise it changes only by a copy of the log.
class FirstPage {
 public:
  // Call it inside the lock. False: the page's head has changed since the last call, and not by a copy of the log.
  bool is_as_before(Connection& connection);

 private:
  using Head = std::array<char, 100>;  // Has the change counter and the size (sqlite.org/fileformat2.html, 1.3).
  struct Copies {                      // Changes whenever a copy of the log begins or ends.
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
