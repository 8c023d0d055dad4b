#include "operators/changes.hpp"

#include <array>
#include <bit>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/sqlite.hpp>

#include "operators/record_json.hpp"
#include "operators/words.hpp"
#include "platform/wait.hpp"

namespace once::operators {

Owner fresh_owner() {
  Owner owner;
  system_random()->fill(owner.bytes);
  return owner;
}

Stamp fresh_stamp(Time now) {
  std::array<std::uint8_t, 4> bytes{};
  system_random()->fill(bytes);
  return {now, std::bit_cast<std::uint32_t>(bytes)};
}

// Explains to a caller with a corrected command why it is refused.
static std::string what_follows(const Record& record) {
  if (!is_released(record)) return {};
  if (record.fingerprint.empty()) return "; the next caller runs it, with any payload";
  return "; the next caller runs it, with the same payload (--any-payload allows another one)";
}

// No record names it now. Returns why it is left, or empty.
static std::string remove_result(const StoreAccess& access, const std::string& location) {
  if (!access.offload) return "the result at " + escaped(location) + " is left, as --offload is none";
  const auto removed = wait_for<OffloadAnswer>(
      [&](Callback<void(OffloadAnswer)> done) { access.offload->remove(location, std::move(done)); });
  return removed.error ? "the result at " + escaped(location) + " is left: " + removed.error->message : std::string();
}

std::string cut_log(const StoreAccess& access) {
  constexpr int tries = 100;
  std::optional<Error> error;
  for (int i = 0; i < tries; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    error = stores::cut_sqlite_log(*access.store);
    if (!error) return {};
  }
  return "the file's log still has what was removed, until its readers end. Run the same command again then: " +
         error->message;
}

Changed change_record(const StoreAccess& access, const ChangeRequest& request, const Planner& planner) {
  const Answer seen = blocking::get(*access.store, request.stored_key);
  const std::string name = quoted_stored(request.stored_key);
  Changed changed{.record = seen.record, .now = operate::now(*access.store, *system_clock())};
  const auto end = [&](Changed::Kind kind, std::string text) {
    changed.kind = kind;
    changed.text = std::move(text);
    return std::move(changed);
  };
  if (seen.status == AnswerStatus::failed) {
    changed.error = seen.error;
    return changed;
  }
  if (!seen.record) return end(Changed::Kind::no_record, "there is no record for " + name);
  const Record& record = *seen.record;
  if (request.if_revision && *request.if_revision != record.revision) {
    return end(Changed::Kind::other, "refused: the record for " + name + " has revision " +
                                         std::to_string(record.revision) + ", not " +
                                         std::to_string(*request.if_revision) + ". Nothing was changed. It is now:");
  }
  if (request.if_owner && *request.if_owner != record.owner) {
    return end(Changed::Kind::other, "refused: the record for " + name +
                                         " has another owner than the one you gave. Nothing was changed. It is now:");
  }
  if (!request.label.empty() && request.label != record.label) {
    return end(Changed::Kind::other, "refused: the record for " + name + " no longer has the label '" +
                                         escaped(request.label) + "'. Nothing was changed. It is now:");
  }
  operate::Plan plan =
      planner(record, request.reason, fresh_stamp(changed.now), access.store->capabilities().default_skew);
  if (!plan.next) {
    changed.refusal = std::move(plan.refusal);
    return end(Changed::Kind::refused, "refused: " + name + ": " + changed.refusal);
  }
  if (request.dry_run) {
    changed.record = share(std::move(*plan.next));
    return end(Changed::Kind::planned, request.removes
                                           ? "dry run, this would be removed, and the operation could run again:"
                                           : "dry run, this would be written:");
  }
  const Result old = record.result;
  operate::Applied applied = request.removes ? operate::remove(*access.store, record, seen.place)
                                             : operate::apply(*access.store, record, seen.place, std::move(*plan.next));
  changed.record = std::move(applied.record);
  switch (applied.kind) {
    case operate::Applied::Kind::done:
      if (old.placement == Placement::offloaded &&
          (!changed.record || changed.record->result.placement != Placement::offloaded)) {
        changed.remark = remove_result(access, old.location);
      }
      if (request.removes) {
        return end(Changed::Kind::written, "removed " + name + ": the operation can run again");
      }
      return end(Changed::Kind::written, "written" + what_follows(*changed.record) + ":");
    case operate::Applied::Kind::changed:
      return end(Changed::Kind::raced, "refused: the record for " + name +
                                           " changed since it was read. Your change was not written. " +
                                           (changed.record ? "It is now:" : "The record no longer exists."));
    case operate::Applied::Kind::failed:
      changed.error = std::move(applied.error);
      changed.unfit = applied.unfit;
  }
  return changed;
}

nlohmann::ordered_json change_json(const Changed& changed, bool dry_run) {
  nlohmann::ordered_json json;
  json["changed"] = changed.kind == Changed::Kind::written;
  json["dry_run"] = dry_run;
  json["message"] = changed.text;
  json["remark"] = changed.remark.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(changed.remark);
  json["record"] = changed.record ? record_json(*changed.record, changed.now, false) : nlohmann::ordered_json(nullptr);
  return json;
}

operate::Resolution resolution_of(const std::string& as, std::optional<Result> result, Failure failure,
                                  std::string_view dashes) {
  const auto misuse = [&](const std::string& text) { return Exception(ErrorKind::misuse, std::string(dashes) + text); };
  operate::Resolution resolution;
  if (as == "released") {
    if (result || failure != Failure{}) throw misuse("as released takes neither a result nor a failure");
    resolution.as = operate::As::released;
    return resolution;
  }
  if (as != "completed" && as != "failed") throw misuse("as must be completed, failed or released");
  if (result) {
    if (result->content_type.size() > Result::max_content_type_bytes) throw misuse("content-type is too long");
    resolution.result = std::move(*result);
  }
  if (as == "failed") {
    resolution.as = operate::As::failed;
    resolution.failure = std::move(failure);
    if (resolution.failure.code.empty()) resolution.failure.code = "resolved";
  } else if (failure != Failure{}) {
    throw misuse("code and " + std::string(dashes) + "message go with " + std::string(dashes) + "as failed");
  }
  return resolution;
}

}  // namespace once::operators
