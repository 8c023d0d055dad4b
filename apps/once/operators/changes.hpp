// What resolve, release and extend have in common: find the record, plan, show, write under condition.
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

#include "settings/access.hpp"
#include "settings/identity.hpp"

namespace CLI {
class App;
}

namespace once::cli {

struct ChangeOptions {
  StoreOptions store;
  KeyOptions key;
  std::string reason;
  std::string by;
  std::optional<std::uint64_t> if_revision;
  bool dry_run = false;
  bool json = false;
};

void add_change_options(CLI::App& command, ChangeOptions& options);

// `skew`: the store's.
using Planner =
    std::function<operate::Plan(const Record& seen, const operate::Reason& reason, Stamp stamp, Millis skew)>;

// One change of one record, whoever asks for it.
struct ChangeRequest {
  std::string stored_key;
  operate::Reason reason;
  std::optional<std::uint64_t> if_revision;  // Refused unless the record has this one, ...
  std::optional<Owner> if_owner;             // ... and this owner.
  bool dry_run = false;
};
struct Changed {
  enum class Kind : std::uint8_t {
    written,
    planned,    // It would have been written, but for dry_run.
    no_record,  // There is none.
    other,      // Not the revision or owner that was asked for.
    refused,    // The plan says no.
    raced,      // Somebody else changed it meanwhile.
    failed,     // See `error`.
  };
  Kind kind = Kind::failed;
  RecordPtr record;  // As it is now, or would be. Null: there is none.
  std::string text;  // For people.
  Error error;
  std::string remark;  // What went wrong after it was written, which costs room and no more. Usually empty.
  Time now{};
};

// Finds the record, plans, and writes under condition. Waits.
Changed change_record(const StoreAccess& access, const ChangeRequest& request, const Planner& planner);
nlohmann::ordered_json change_json(const Changed& changed, bool dry_run);

// The same for a command: says what came of it, and gives the exit code: 0 done, exit_no_record, exit_conflict when the
// plan refuses or the record has changed.
int change(const ChangeOptions& options, const Planner& planner);

// What resolve writes. `as`: completed, failed or released, which keeps neither result nor failure. Throws
// Exception(misuse) for what does not go together; `dashes` stands before what it calls by its name.
operate::Resolution resolution_of(const std::string& as, std::optional<Result> result, Failure failure,
                                  std::string_view dashes = "--");

Owner fresh_owner();
Stamp fresh_stamp(Time now);

}  // namespace once::cli
