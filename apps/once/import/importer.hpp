// Writes the rows of another program's table into a store.
//
// Nothing is overwritten but two kinds of records, each on condition that it did not change meanwhile: one that has
// expired, which counts as none, and one that an earlier import of the same source marked unknown and that nobody has
// touched since, once the row says how the operation ended. So an import may be repeated, and two may run at once.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include <once/clock.hpp>
#include <once/store.hpp>

#include "import/mapping.hpp"
#include "import/rows.hpp"

namespace once::cli::importing {

// How many rows ended in which way; each row is in one of those before `completed`.
struct ImportCounts {
  std::uint64_t rows = 0;       // Read so far: the sum of the next eight.
  std::uint64_t inserted = 0;   // Dry run: would be.
  std::uint64_t decided = 0;    // The record of an earlier import was unknown, and now the row says how it ended.
  std::uint64_t already = 0;    // The store had the same record, or one that has been decided since it was imported.
  std::uint64_t expired = 0;    // Not inserted: the row had expired.
  std::uint64_t left_out = 0;   // Not inserted: by --where.
  std::uint64_t may_run = 0;    // Not inserted: by --may-run.
  std::uint64_t conflicts = 0;  // The store has another record under the key, which was left as it is; or so has a
                                // row before this one.
  std::uint64_t refused = 0;    // Cannot be mapped, or not kept by the store.

  // Of inserted and decided ones.
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  std::uint64_t unknown = 0;
  std::uint64_t tombstones = 0;  // Of the completed ones: without a result.
};

// A row that an operator should look at.
struct ImportProblem {
  std::string row;  // "line 12"
  std::string key;  // Key::stored(), if it is known.
  std::string why;
};

struct ImportOptions {
  std::string from;      // Rows::name()
  std::string source;    // Rows::source()
  bool dry_run = false;  // Looks at the store, and changes nothing.
  std::size_t samples = 0;
  std::shared_ptr<Clock> clock = {};
  std::shared_ptr<Random> random = {};
};

// HistoryEntry::why of records that come from `from` (Rows::name()) and `source` (Rows::source()).
std::string origin_of(const std::string& from, const std::string& source);

// Gives a mapped record what an insert needs: owner, token, revision, an entry in its history. `max_bytes`:
// Capabilities::max_record_bytes of the store; with a larger result it becomes a tombstone.
void make_insertable(Record& record, const std::string& origin, Time now, Random& random, std::size_t max_bytes);

class Importer {
 public:
  static constexpr std::size_t max_problems = 20;  // That are kept; all are counted.

  // `to`: null in a dry run whose store is not there yet.
  Importer(const Mapping& mapping, Store* to, ImportOptions options);

  // Blocks. Throws Exception: the store's error, if it could not be asked; rows before are inserted and counted.
  void take(const std::vector<Row>& rows);

  ImportCounts counts;
  // Those of Mapping::where_columns() that no row had.
  [[nodiscard]] const std::set<std::string>& absent_columns() const noexcept { return absent_; }
  [[nodiscard]] const std::vector<ImportProblem>& problems() const noexcept { return problems_; }
  [[nodiscard]] const std::vector<ImportProblem>& samples() const noexcept {
    return samples_;
  }  // `why`: what it becomes.

 private:
  struct Pending {
    const Row* row = nullptr;
    Record record;
  };
  void take_some(const std::vector<Row>& rows, std::size_t begin, std::size_t end);
  void settle(Pending& pending, Answer answer);
  void meet(Pending& pending, const Record& there, std::uint64_t place);
  void replace(Pending& pending, const Record& there, std::uint64_t place, bool decides);
  void count(const Record& record);
  void problem(std::uint64_t& counter, const Row& row, const std::string& key, std::string why);
  [[nodiscard]] bool was_imported_from_here(const Record& record) const;
  [[nodiscard]] bool is_untouched(const Record& record) const;

  const Mapping& mapping_;
  Store* const to_;
  const ImportOptions options_;
  const std::string origin_;  // HistoryEntry::why of what it imports.
  Time now_{};
  std::set<std::string> absent_;
  std::vector<ImportProblem> problems_;
  std::vector<ImportProblem> samples_;
  std::unordered_set<std::uint64_t> keys_;  // Digests of those that were mapped. Eight bytes tell a few billion apart.
};

}  // namespace once::cli::importing
