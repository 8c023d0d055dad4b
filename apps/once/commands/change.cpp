#include "commands/change.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include "commands/find_record.hpp"
#include "output/report.hpp"
#include "output/text.hpp"

namespace once::cli {

void add_change_options(CLI::App& command, ChangeOptions& options, const char* why, const char* who) {
  add_store_options(command, options.store);
  add_stored_key_options(command, options.key);
  command.add_option("--reason", options.reason, why)->required();
  command.add_option("--who", options.by, who);
  command.add_option("--if-revision", options.if_revision, "Fail unless the record has this revision");
  command.add_flag("-n,--dry-run", options.dry_run, "Show what would be written, but write nothing");
  command.add_flag("--json", options.json, "Write JSON");
  const char* const many = "Many records";
  command.add_flag("--all", options.all, "Instead of a key: all records that the following options and --scope select")
      ->group(many);
  command.add_option("--confirm", options.confirm, "Go on if this many can be changed (default: asked on a terminal)")
      ->group(many);
  add_filter_options(command, options.filter, many);
}

int change(const ChangeOptions& options, const Act& act) {
  if (options.all) return act_on_all(options, act);
  if (!is_empty(options.filter) || options.confirm) {
    misuse("--confirm and the options that select records go with --all. Nothing was changed");
  }
  const RecordName name = name_of(options.key);
  const StoreAccess access = open_to_look(options.store, Missing::refuse);
  RecordFound found = find_record(access, name, options.key);
  Changed changed = change_record(access,
                                  {.stored_key = std::move(found.key),
                                   .label = std::move(found.label),
                                   .reason = {.by = options.by.empty() ? who() : options.by, .text = options.reason},
                                   .if_revision = options.if_revision,
                                   .dry_run = options.dry_run,
                                   .removes = act.removes},
                                  act.planner);
  // Also for a record that is gone: the last removal may have left the log.
  const bool gone = changed.kind == Changed::Kind::written || changed.kind == Changed::Kind::no_record;
  if (act.removes && gone && !options.dry_run) {
    const std::string left = cut_log(access);
    changed.remark += (changed.remark.empty() || left.empty() ? "" : "; ") + left;
  }
  if (!changed.remark.empty()) say(changed.remark);
  int exit_code = exit_conflict;
  switch (changed.kind) {
    case Changed::Kind::failed:
      return fail_with(changed.error);
    case Changed::Kind::written:
    case Changed::Kind::planned:
      exit_code = act.removes && !changed.remark.empty() ? exit_found_problems : exit_ok;
      break;
    case Changed::Kind::no_record:
      exit_code = exit_no_record;
      break;
    case Changed::Kind::other:
    case Changed::Kind::refused:
    case Changed::Kind::raced:
      break;
  }
  if (options.json) return print(json_text(change_json(changed, options.dry_run)), exit_code);
  const std::string record = changed.record ? record_text(*changed.record, changed.now) : std::string();
  if (exit_code == exit_ok || exit_code == exit_found_problems) return print(changed.text + "\n" + record, exit_code);
  say(changed.text + (record.empty() ? "" : "\n" + record));
  return exit_code;
}

}  // namespace once::cli
