// How a key finds its row. The table key_index has an entry, hash and row id, for each row up to the one that once_meta
// calls indexed_to. Entries of the rows after that one are in memory only, and are read again from the rows when they
// are not: so a claim does not change a page of the index, at a random place, for itself alone. They are moved to the
// table in large lots, in the order of their hashes, so that those of a page come together.
//
// Ids grow and are never used again, even when the newest row is deleted (once_meta's last_deleted): an entry whose row
// is gone leads nowhere, and whoever has seen all rows up to one need only look beyond it. An entry names a candidate;
// its key is compared in the row.
//
// That holds while only programs of ours write. A sqlite3 shell may put an older copy back, and ids are given again:
// what is in memory then is of rows that are no more, and hides those that came instead. So each begin compares it with
// the file (Ends::continue_from), and reads all of it again after anybody else has written (outside_writes.hpp).
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

namespace once::stores::sqlite {

struct KeyEntry {
  std::int64_t hash = 0;
  std::int64_t id = 0;
};

// What the entries in memory are right for.
struct Known {
  std::int64_t covered = 0;       // They are of the rows up to this one …
  std::int64_t indexed_to = 0;    // … but those that the table had, up to this one, may be missing.
  std::int64_t last_deleted = 0;  // As it was.
  KeyEntry newest;                // A row that was there, the newest. id 0: none was.
  std::uint64_t writes = 0;       // OutsideWrites: while it is this. 0: it never is.
};

// Where the rows of the file end.
struct Ends {
  std::int64_t newest = 0;                    // The highest id there is; 0 without rows.
  std::int64_t last_deleted = 0;              // The highest id that was ever deleted.
  std::int64_t indexed_to = 0;                // 0 as well if somebody deleted it: then all rows are read again.
  std::optional<std::int64_t> hash_of_known;  // Of the row with the id of Known::newest.

  [[nodiscard]] std::int64_t last() const noexcept { return std::max(newest, last_deleted); }
  // False: somebody has changed the file by hand, or put back an older one. What is known is worth nothing.
  [[nodiscard]] bool continue_from(const Known& known) const noexcept;
};

// The entries in memory, for all connections of a store. Changed by the writer's thread only.
class RecentKeys {
 public:
  struct Found {
    std::vector<std::int64_t> ids;
    Known known;
  };
  // From any thread. Good for a transaction that begins afterwards: what is no longer here is in its table.
  [[nodiscard]] Found find(std::int64_t hash) const;
  struct All {
    std::vector<KeyEntry> entries;
    Known known;
  };
  [[nodiscard]] All all() const;  // The same.

  // From the writer's thread.
  [[nodiscard]] const Known& known() const noexcept { return known_; }
  [[nodiscard]] std::size_t size() const noexcept { return newer_.size() + apart_.size(); }
  void add(const KeyEntry& entry);  // Of a row that is not committed yet: covers nothing.
  void take_back(std::span<const KeyEntry> added);
  void extend(std::span<const KeyEntry> entries, const Ends& ends);                        // In the order of their ids.
  void assign(std::span<const KeyEntry> entries, const Ends& ends, std::uint64_t writes);  // The same.
  void distrust();                                                                         // Until it is assigned.
  void committed(std::span<const KeyEntry> added);  // They were add()ed; the last covers all.
  void drop_to(std::int64_t id);                    // The table has them. Nothing is set apart any more.
  // All that is here, by hash, for the table. It is still found.
  [[nodiscard]] std::vector<KeyEntry> set_apart();
  void drop_apart(std::int64_t indexed_to);  // The table's entries are committed.

 private:
  using Entries = std::unordered_multimap<std::int64_t, std::int64_t>;

  mutable std::mutex mutex_;  // Held to change them, and to read them elsewhere.
  Entries newer_;
  Entries apart_;
  Known known_;
};

// What one connection needs for looking. Inside a transaction, so that all calls see the same. Throws SqlError.
class KeyIndex {
 public:
  explicit KeyIndex(Connection& connection);

  Ends ends(const Known& known);
  std::vector<KeyEntry> entries_after(std::int64_t id);  // In the order of their ids.
  // Appends the ids that the table has for the hash.
  void find(std::int64_t hash, std::vector<std::int64_t>& ids);

 private:
  Statement ends_;
  Statement after_;
  Statement find_;
};

// The writer's part: what it calls in its transactions. Throws SqlError.
class KeyIndexer {
 public:
  // `least`: lot() of a small table.
  KeyIndexer(Connection& connection, RecentKeys& recent, std::size_t least);

  // First: learns what other processes have written. True if all that was known was read anew. `writes`: of
  // OutsideWrites.
  bool begin(std::uint64_t writes);
  void distrust() { recent_.distrust(); }  // The next begin() reads all anew, and reads do until then.
  [[nodiscard]] std::vector<std::int64_t> find(std::int64_t hash);
  [[nodiscard]] std::int64_t next_id() const noexcept { return next_id_; }
  void added(const KeyEntry& entry);  // The row with the next id is there.
  void move_some();                   // Last: moves entries to the table, in proportion to the rows that came.
  void committed();
  void rolled_back();

  // How many entries gather in memory before they are moved: with the table grows the number of its pages, of which a
  // lot of the same size changes more and more, each for fewer of its entries.
  [[nodiscard]] std::size_t lot();

  // For a store that is opened or closed: how many rows the table may lack, how many of these are known here, and how
  // many this one has added.
  [[nodiscard]] std::size_t missing();
  [[nodiscard]] std::size_t known() const noexcept { return recent_.size(); }
  [[nodiscard]] std::size_t all_added() const noexcept { return all_added_; }
  // In a transaction of its own: writes the entries of up to a million rows that the table lacks.
  void index_rows();

 private:
  void set_indexed_to(std::int64_t id);

  KeyIndex index_;
  RecentKeys& recent_;
  const std::size_t least_;
  std::size_t lot_ = least_;  // When it was asked last.
  bool is_current_ = false;   // recent_ is right for what it says.
  std::int64_t next_id_ = 1;
  std::vector<KeyEntry> added_;   // In this transaction …
  std::size_t all_added_ = 0;     // … and how many altogether.
  std::vector<KeyEntry> moving_;  // What was set apart, all of it committed …
  std::int64_t moving_to_ = 0;    // … indexed_to, once all are in the table …
  std::size_t moved_ = 0;         // … how many are, as committed …
  std::size_t moved_now_ = 0;     // … and with this transaction.
  Statement move_;
  Statement move_if_there_;
  Statement oldest_;
  Statement million_;
  Statement index_rows_;
  Statement set_indexed_to_;
};

}  // namespace once::stores::sqlite
