// Finds the row of a key by the hash of the key. The table key_index has an entry (hash, row id) for each row up to
// indexed_to (in once_meta). Entries of later rows are only in the memory of each process. They move to the table in
// large lots, sorted by hash, so that one changed page takes several entries. Otherwise each claim would change a
// random page for its own entry.
//
// 1. A claims K, which becomes row 7. Its entry is in A's memory; the table ends at row 6.
// 2. Process B, which knows the rows up to 6, claims K too. Its begin() reads the hash of row 7. So B finds K, and is
//    refused.
// 3. A has a full lot. Its next commits move the entries to the table, and then set indexed_to to 7.
// 4. B's next begin() sees that, and drops its entry.
// (SqliteKeys.OfOtherProgramsAreFoundAtOnce)
//
// If A is killed before step 3, the next process reads the hashes of all rows after indexed_to.
//
// An entry only names a candidate: the key is compared in the row. So an entry of a deleted row does no harm, and stays
// until there are many (dropped_keys.hpp). But ids must never be used again, even after the newest row is deleted
// (last_deleted in once_meta):
//
// 1. A claims K, which becomes row 7. B has seen it, and knows the rows up to 7.
// 2. A removes K.
// 3. A claims L. If that became row 7 again, B would not read it, and would claim L too. So it becomes row 8.
// (SqliteKeys.AnIdIsNeverUsedAgain)
//
// A sqlite3 shell can break that rule:
//
// 1. The shell copies the file.
// 2. A claims 50 keys: rows 11 to 60.
// 3. The shell restores the copy.
// 4. B claims 50 other keys: rows 11 to 60 again.
// 5. A knows the rows up to 60, but has none of B's keys in memory, and would claim them again.
// (SqliteOutside.AnOlderCopyPutBackIsNoticed)
//
// So each begin() compares memory with the file (Ends::continue_from), and reads the rows again after a foreign write
// (outside_writes.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/dropped_keys.hpp"

namespace once::stores::sqlite {

// The state of the file that the entries in memory match.
struct Known {
  std::int64_t covered = 0;       // They cover the rows up to this one …
  std::int64_t indexed_to = 0;    // … but entries up to this one may be only in the table.
  std::int64_t last_deleted = 0;  // Its value then.
  KeyEntry newest;                // The newest row then. id 0: none.
  std::uint64_t writes = 0;       // Valid while OutsideWrites gives this number. 0: never.
};

// Where the rows of the file end.
struct Ends {
  std::int64_t newest = 0;                    // The highest id; 0 without rows.
  std::int64_t last_deleted = 0;              // The highest id ever deleted.
  std::int64_t indexed_to = 0;                // 0 also if a shell deleted it: then all rows are read again.
  std::optional<std::int64_t> hash_of_known;  // The hash of the row with the id Known::newest.

  [[nodiscard]] std::int64_t last() const noexcept { return std::max(newest, last_deleted); }
  // False: a shell changed the file, or restored an older one. Then `known` is useless.
  [[nodiscard]] bool continue_from(const Known& known) const noexcept;
};

// The entries in memory, for all connections of a store. Only the writer's thread changes them.
class RecentKeys {
 public:
  struct Found {
    std::vector<std::int64_t> ids;
    Known known;
  };
  // From any thread. Call it before a transaction begins: entries that are no longer here are in the transaction's
  // table.
  [[nodiscard]] Found find(std::int64_t hash) const;
  struct All {
    std::vector<KeyEntry> entries;
    Known known;
  };
  [[nodiscard]] All all() const;  // The same.

  // From the writer's thread.
  [[nodiscard]] const Known& known() const noexcept { return known_; }
  [[nodiscard]] std::size_t size() const noexcept { return newer_.size() + apart_.size(); }
  void add(const KeyEntry& entry);  // Of a row that is not committed yet: `covered` stays.
  void take_back(std::span<const KeyEntry> added);
  void extend(std::span<const KeyEntry> entries, const Ends& ends);                        // Sorted by id.
  void assign(std::span<const KeyEntry> entries, const Ends& ends, std::uint64_t writes);  // The same.
  void distrust();                                                                         // Until the next assign().
  void committed(std::span<const KeyEntry> added);  // These were add()ed, in the order of their ids.
  void drop_to(std::int64_t id);                    // The table has the entries up to `id`. Ends set_apart().
  // All entries, sorted by hash, to move to the table. find() still finds them.
  [[nodiscard]] std::vector<KeyEntry> set_apart();
  void drop_apart(std::int64_t indexed_to);  // They are committed in the table.

 private:
  using Entries = std::unordered_multimap<std::int64_t, std::int64_t>;

  mutable std::mutex mutex_;  // For changes, and for reads by other threads.
  Entries newer_;
  Entries apart_;
  Known known_;
};

// One connection's queries. Call them inside a transaction, so that all see the same state. Throws SqlError.
class KeyIndex {
 public:
  explicit KeyIndex(Connection& connection);

  Ends ends(const Known& known);
  std::vector<KeyEntry> entries_after(std::int64_t id);  // Sorted by id.
  // Appends the ids of the hash in the table.
  void find(std::int64_t hash, std::vector<std::int64_t>& ids);

 private:
  Statement ends_;
  Statement after_;
  Statement find_;
};

// The writer's part, called in its transactions. Throws SqlError.
class KeyIndexer {
 public:
  // `least`: lot() of a small table.
  KeyIndexer(Connection& connection, RecentKeys& recent, std::size_t least);

  // Call it first: reads what other processes have written. True if everything was read again. `writes`: from
  // OutsideWrites.
  bool begin(std::uint64_t writes);
  void distrust() { recent_.distrust(); }  // The next begin() reads everything again, and readers do until then.
  [[nodiscard]] std::vector<std::int64_t> find(std::int64_t hash);
  [[nodiscard]] std::int64_t next_id() const noexcept { return next_id_; }
  void added(const KeyEntry& entry);  // The row with the next id was inserted.
  void move_some();  // Call it last: moves entries to the table, in proportion to the new rows, and removes others.
  // After rows were deleted: whether entries of such rows are due, so that move_some() removes some of them.
  bool removes_more();
  void committed();
  void rolled_back();

  // How many entries are collected in memory before they are moved. It grows with the table: in a table of more pages,
  // the same lot would change more pages, each for fewer entries.
  [[nodiscard]] std::size_t lot();

  // For the opening and closing of a store: how many rows may be missing in the table, how many of these are in memory,
  // and how many rows this store has added.
  [[nodiscard]] std::size_t missing();
  [[nodiscard]] std::size_t known() const noexcept { return recent_.size(); }
  [[nodiscard]] std::size_t all_added() const noexcept { return all_added_; }
  // In its own transaction: writes the missing entries of up to a million rows.
  void index_rows();

 private:
  void set_indexed_to(std::int64_t id);
  [[nodiscard]] std::size_t rows();  // An upper bound.

  KeyIndex index_;
  DroppedKeys dropped_;
  RecentKeys& recent_;
  const std::size_t least_;
  std::size_t lot_ = least_;  // The last result of lot().
  bool is_current_ = false;   // recent_ matches its known().
  std::int64_t next_id_ = 1;
  std::vector<KeyEntry> added_;   // In this transaction …
  std::size_t all_added_ = 0;     // … and the total number.
  std::vector<KeyEntry> moving_;  // The entries set apart, all of committed rows …
  std::int64_t moving_to_ = 0;    // … the value of indexed_to when all are in the table …
  std::size_t moved_ = 0;         // … how many are there, as committed …
  std::size_t moved_now_ = 0;     // … and with this transaction.
  Statement move_;
  Statement move_if_there_;
  Statement oldest_;
  Statement million_;
  Statement index_rows_;
  Statement set_indexed_to_;
};

// About how many rows there are: see SqliteStatus::about_records. Throws SqlError.
std::uint64_t estimate_rows(Connection& connection);

}  // namespace once::stores::sqlite
