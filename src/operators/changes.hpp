// One change of one record, by command or API: read it, plan, write conditionally.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include <once/operate.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "operators/store_access.hpp"

namespace once::operators {

// `skew`: the store's.
using Planner =
    std::function<operate::Plan(const Record& seen, const operate::Reason& reason, Stamp stamp, Millis skew)>;

// What a command does to a record.
struct Act {
  Planner planner;
  std::string done;      // "resolved"
  bool removes = false;  // By operate::plan_remove().
};

struct ChangeRequest {
  std::string stored_key = {};
  std::string label = {};  // Not empty: refused unless the record has this label.
  operate::Reason reason = {};
  std::optional<std::uint64_t> if_revision = {};  // Refused unless the record has this one, ...
  std::optional<Owner> if_owner = {};             // ... and this owner.
  bool dry_run = false;
  bool removes = false;
};
struct Changed {
  enum class Kind : std::uint8_t {
    written,
    planned,    // Not written because of dry_run.
    no_record,  // No such record.
    other,      // Another revision or owner than requested.
    refused,    // The plan says no.
    raced,      // It was changed meanwhile.
    failed,     // See `error`.
  };
  Kind kind = Kind::failed;
  RecordPtr record = {};     // As it is now, or would be. Null: no record.
  std::string text = {};     // For people.
  std::string refusal = {};  // refused: what the plan says.
  Error error = {};
  bool unfit = false;       // failed: the store can never keep such a record.
  std::string remark = {};  // A failure after the write, which only costs room. Usually empty.
  Time now{};
};

// Finds the record, plans, and writes conditionally. Blocks.
Changed change_record(const StoreAccess& access, const ChangeRequest& request, const Planner& planner);
// After removals: cuts off the log of a file, which has their records still. Returns why it could not, or empty. Waits
// for readers, at most two seconds.
std::string cut_log(const StoreAccess& access);
nlohmann::ordered_json change_json(const Changed& changed, bool dry_run);

// What resolve writes. `as`: completed, failed or released, which has neither result nor failure. Throws
// Exception(misuse) for contradicting options; `dashes` is the prefix of option names in its text.
operate::Resolution resolution_of(const std::string& as, std::optional<Result> result, Failure failure,
                                  std::string_view dashes = "--");

Owner fresh_owner();
Stamp fresh_stamp(Time now);

}  // namespace once::operators
