// One act on all records that a filter selects: resolve, release, extend and rm with --all.
//
// 1. select() reads the records, and keeps the owner and revision of each that may be changed. Nothing is written.
// 2. The operator confirms their number.
// 3. carry_out() reads each of them again, and writes it only if it has that owner and revision still.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/operate.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "operators/changes.hpp"
#include "operators/store_access.hpp"

namespace once::operators {

// Why a record was left as it is.
enum class LeftBecause : std::uint8_t {
  refused,      // The plan says no.
  changed,      // It changed after it was counted.
  gone,         // There is no such record, or no longer.
  failed,       // It could not be read.
  not_reached,  // The act ended before.
};
// Stored keys, by the reason and its text for people.
using Left = std::map<std::pair<LeftBecause, std::string>, std::vector<std::string>>;

struct Counted {
  std::string stored_key;
  Owner owner;
  std::uint64_t revision = 0;
};

struct Selection {
  std::vector<Counted> records;  // Those that may be changed.
  Left left;                     // Those that the plan refuses.
  std::uint64_t matched = 0;
  bool bounded = false;        // More than `most` match. Where that was found, it ended.
  std::optional<Time> oldest;  // created_at.
  std::optional<Error> error;  // corrupt: some records cannot be read, and are not among these. Others: it ended there.
};

// What is asked while records are selected.
struct Selecting {
  std::function<bool(const Record&)> matches = {};     // Beside the filter. Empty: all do.
  std::function<bool(const Record&)> as_seen = {};     // False: it has changed since, and is left. Empty: none has.
  std::function<void(const Record&)> each = {};        // Called for every record that may be changed. May be empty.
  std::function<bool(std::uint64_t read)> go_on = {};  // False ends it. Called with the number of records read.
};

// Blocks.
Selection select(const StoreAccess& access, const operate::Filter& filter, Time now, const operate::Reason& reason,
                 const Act& act, std::size_t most, const Selecting& selecting);
// The same of the records with these stored keys.
Selection select_keys(const StoreAccess& access, const std::vector<std::string>& keys, Time now,
                      const operate::Reason& reason, const Act& act, const Selecting& selecting);

// What became of one record that was selected.
struct Carried {
  std::optional<LeftBecause> left;  // Empty: it was written.
  std::string why;                  // Why it was left.
  std::string remark;               // A failure after the write, which only costs room.
  std::optional<Error> ends;        // failed, and the next ones would fail too, each in its time.
};
// Blocks. Reads the record again, and writes it only if it has that owner and revision still.
Carried carry_out_one(const StoreAccess& access, const Counted& record, const operate::Reason& reason, const Act& act);

struct CarriedOut {
  std::uint64_t done = 0;
  std::vector<std::string> remarks;  // Failures after a write, which only cost room.
  std::optional<Error> error;        // What stopped it.
};

// Blocks. Adds to `left` what was not done. `go_on` is asked before each record, with the number of those done.
CarriedOut carry_out(const StoreAccess& access, const std::vector<Counted>& records, const operate::Reason& reason,
                     const Act& act, const std::function<bool(std::uint64_t done)>& go_on, Left& left);

}  // namespace once::operators
