// once sweep: removes expired records, and the results that belong to them.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "access.hpp"
#include "commands.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "text.hpp"

namespace once::cli {

namespace {

struct SweepCommand {
  StoreOptions store;
  std::string expired_for;
  bool dry_run = false;
  bool json = false;
};

int sweep(const SweepCommand& options) {
  const StoreAccess access = open_access(options.store, Missing::refuse);
  const Time now = operate::now(*access.store, *system_clock());
  const Millis for_long =
      options.expired_for.empty() ? Millis{0} : parse_duration(options.expired_for, "--expired-for");
  const Time expired_before = now - for_long;
  Progress progress("removed");
  operate::Swept swept;
  if (options.dry_run) {
    operate::Filter filter;
    filter.standing = operate::Standing::expired;
    // Seen from that time on, what has expired for less long has not expired yet.
    swept.error = operate::for_each(*access.store, filter, expired_before, [&](const Record& record) {
      swept.removed += 1;
      if (record.result.placement == Placement::offloaded) swept.results_removed += 1;
      progress.tell(swept.removed);
      return true;
    });
  } else {
    swept = operate::sweep(
        *access.store,
        {.expired_before = expired_before, .offload = access.offload, .progress = [&](std::size_t removed) {
           progress.tell(removed);
           return true;
         }});
  }
  progress.end();
  if (swept.error) {
    if (swept.removed > 0) say(std::to_string(swept.removed) + " records were removed before this:");
    return fail_with(*swept.error);
  }
  if (options.json) {
    const nlohmann::ordered_json json = {
        {"removed", swept.removed}, {"results_removed", swept.results_removed}, {"dry_run", options.dry_run}};
    return print(json_text(json));
  }
  return print(
      std::to_string(swept.removed) + " expired records " + (options.dry_run ? "would be removed" : "removed") +
      (swept.results_removed == 0 ? std::string()
                                  : ", with " + std::to_string(swept.results_removed) + " results outside the store") +
      "\n");
}

}  // namespace

void add_sweep(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<SweepCommand>();
  CLI::App* const command = app.add_subcommand("sweep", "Remove expired records and their results");
  add_store_options(*command, options->store);
  command->add_option("--expired-for", options->expired_for, "Only those that expired at least so long ago, as in 7d");
  command->add_flag("-n,--dry-run", options->dry_run, "Count them, and remove nothing");
  command->add_flag("--json", options->json, "Write JSON");
  command->footer(
      "Examples:\n"
      "  once sweep --dry-run\n"
      "  once sweep --expired-for 7d");
  command->callback([options, &invocation] { invocation.action = [options] { return sweep(*options); }; });
}

}  // namespace once::cli
