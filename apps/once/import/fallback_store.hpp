// A store beside which another program's table may still hold results: before a claim begins, its row is read.
//
//   our store has a record under the key     that counts; the old table is not read
//   no row, or one that has expired          the claim is made
//   done or failed there                     the row becomes a record of our store, by an insert, and is replayed
//   in progress there                        conflict; nothing is written
//   unreachable, or a row that is not clear  an error; nothing is written
//
// Every write by which a claim begins comes after a look of the same call: the insert, and a replace() by another owner
// (a takeover, a retry of a failure, a claim over an expired record). docs/decisions/import.md says why that is
// enough, and for which old programs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/store.hpp>

namespace once::cli::importing {

// What the old table says about one key.
struct OldRow {
  enum class Kind : std::uint8_t {
    absent,  // No row counts: the old program would run the operation.
    found,   // `record` is what the row becomes: see Mapped. An unknown one is in progress there.
    failed,  // It is not known: see `error`.
  };
  Kind kind = Kind::absent;
  Record record = {};
  std::string origin = {};  // found: origin_of() the table.
  Error error = {};
};

// Thread-safe.
class OldTable {
 public:
  virtual ~OldTable() = default;  // When no look runs, perhaps in the completion of the last one.

  // Reads the row that stands for the key of `claim`, as it is now. `now`: the time by which a row has expired. Calls
  // `done` exactly once, perhaps before it returns, within a bounded time.
  virtual void look(RecordPtr claim, Time now, Callback<void(OldRow)> done) = 0;
};

// How looks ended. Thread-safe.
class LookCounts {
 public:
  enum class End : std::uint8_t { absent, replayed, tombstone, failure, in_progress, error };

  void count(End end) noexcept { ++counts_[static_cast<std::size_t>(end)]; }
  [[nodiscard]] std::uint64_t of(End end) const noexcept { return counts_[static_cast<std::size_t>(end)]; }
  [[nodiscard]] std::string text() const;  // Prometheus' text format.

 private:
  std::array<std::atomic<std::uint64_t>, 6> counts_{};
};

struct FallbackStoreOptions {
  std::shared_ptr<Store> store;  // Ours.
  std::unique_ptr<OldTable> old;
  std::shared_ptr<LookCounts> counts = std::make_shared<LookCounts>();
  std::string own_prefix = {};   // Stored keys that begin with this are no operations: they are not looked up. Empty:
                                 // all are.
  std::shared_ptr<Clock> clock;  // For a store that does not tell the time.
  std::shared_ptr<Random> random;
};

// Unlike other stores it may be destroyed before its operations have ended: they go on, and keep what they need.
std::unique_ptr<Store> make_fallback_store(FallbackStoreOptions options);

}  // namespace once::cli::importing
