#include "changes.hpp"

#include <CLI/CLI.hpp>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>

#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>

#include "report.hpp"
#include "text.hpp"

namespace once::cli {

namespace {

int show_change(const ChangeOptions& options, const Record* record, Time now, bool done, const std::string& text,
                int exit_code) {
  if (options.json) {
    nlohmann::ordered_json json;
    json["changed"] = done;
    json["dry_run"] = options.dry_run;
    json["message"] = text;
    json["record"] = record != nullptr ? record_json(*record, now, false) : nlohmann::ordered_json(nullptr);
    return print(json_text(json), exit_code);
  }
  if (exit_code != exit_ok) {
    say(text + (record != nullptr ? "\n" + record_text(*record, now) : std::string()));
    return exit_code;
  }
  return print(text + "\n" + (record != nullptr ? record_text(*record, now) : std::string()), exit_code);
}

}  // namespace

void add_change_options(CLI::App& command, ChangeOptions& options) {
  add_store_options(command, options.store);
  add_key_options(command, options.key);
  command.add_option("--reason", options.reason, "Why; it is kept in the record")->required();
  command.add_option("--who", options.by, "Who; it is kept in the record (default: USER@HOST)");
  command.add_option("--if-revision", options.if_revision, "Refuse unless the record has this revision");
  command.add_flag("-n,--dry-run", options.dry_run, "Show what would be written, and write nothing");
  command.add_flag("--json", options.json, "Write JSON");
}

Owner fresh_owner() {
  Owner owner;
  system_random()->fill(owner.bytes);
  return owner;
}

int change(const ChangeOptions& options, const Planner& planner) {
  const Key key = key_of(options.key);
  const StoreAccess access = open_access(options.store, Missing::refuse);
  Answer seen = blocking::get(*access.store, key.stored());
  const Time now = operate::now(*access.store, *system_clock());
  if (seen.status == Answer::Status::failed) return fail_with(seen.error);
  if (!seen.record) {
    return show_change(options, nullptr, now, false, "there is no record of " + quoted(key), exit_no_record);
  }
  if (options.if_revision && *options.if_revision != seen.record->revision) {
    return show_change(options, seen.record.get(), now, false,
                       "refused: the record of " + quoted(key) + " has revision " +
                           std::to_string(seen.record->revision) + ", not " + std::to_string(*options.if_revision) +
                           ". Look at what it says now:",
                       exit_conflict);
  }
  operate::Plan plan =
      planner(*seen.record, {.by = options.by.empty() ? who() : options.by, .text = options.reason}, now);
  if (!plan.next) {
    return show_change(options, seen.record.get(), now, false, "refused: " + quoted(key) + ": " + plan.refusal,
                       exit_conflict);
  }
  if (options.dry_run) {
    return show_change(options, &*plan.next, now, false, "would be written, but for --dry-run:", exit_ok);
  }
  const Result old = seen.record->result;
  operate::Applied applied = operate::apply(*access.store, *seen.record, seen.place, std::move(*plan.next));
  switch (applied.kind) {
    case operate::Applied::Kind::done:
      if (old.placement == Placement::offloaded && applied.record->result.placement != Placement::offloaded &&
          access.offload) {
        // Nothing points there any more. What cannot be removed costs room and no more: say so.
        std::promise<OffloadAnswer> removed;
        access.offload->remove(old.location,
                               [&removed](OffloadAnswer answer) { removed.set_value(std::move(answer)); });
        if (const auto answer = removed.get_future().get(); answer.error) say(answer.error->message);
      }
      return show_change(options, applied.record.get(), now, true, "written:", exit_ok);
    case operate::Applied::Kind::changed:
      return show_change(options, applied.record.get(), now, false,
                         "refused: the record of " + quoted(key) + " was changed by somebody else meanwhile, and " +
                             (applied.record ? "is now:" : "is gone"),
                         exit_conflict);
    case operate::Applied::Kind::failed:
      return fail_with(applied.error);
  }
  return exit_internal;
}

}  // namespace once::cli
