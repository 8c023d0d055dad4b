// once sweep: removes expired records and their results.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "commands/commands.hpp"
#include "output/progress.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "settings/access.hpp"

namespace once::cli {

namespace {

struct SweepCommand {
  StoreOptions store;
  std::string expired_for;
  std::string orphans;
  bool dry_run = false;
  bool json = false;
};

// A name that the offload directory makes, also while it writes (once/offload/directory.hpp). Other files are left, in
// case the directory is the wrong one.
bool is_result_file(const std::string& name) {
  static const std::regex names("[0-9a-f]{16}-[0-9a-f]{32}(\\.part)?");
  return std::regex_match(name, names);
}

// Removes files of the offload directory that no record names, unless `dry_run`; returns their number. They are left by
// processes that died before they wrote their record, and by records that were removed without their files.
std::uint64_t sweep_orphans(const StoreAccess& access, Time now, Millis age, bool dry_run) {
  namespace fs = std::filesystem;
  // A result is stored before its record, which may be retried as long as the lease lives.
  if (age < std::chrono::hours(24)) {
    throw Exception(ErrorKind::misuse, "--orphans must be 24h or more: a younger file's record may not be written yet");
  }
  if (access.offload_directory.empty()) {
    throw Exception(ErrorKind::misuse,
                    "--orphans needs a directory: name it with --offload DIR (for S3, use a lifecycle rule)");
  }
  // First lists the files, then the records, so that files written meanwhile are not removed.
  std::set<std::string> files;
  std::error_code failed;
  const auto youngest = fs::file_time_type::clock::now() - age;
  for (fs::directory_iterator at(access.offload_directory, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code gone;  // Removed since the listing.
    const std::string name = at->path().filename();
    if (is_result_file(name) && at->is_regular_file(gone) && at->last_write_time(gone) < youngest && !gone)
      files.insert(name);
  }
  if (failed && failed != std::errc::no_such_file_or_directory) {
    throw Exception(ErrorKind::unavailable, "cannot read " + access.offload_directory + ": " + failed.message());
  }
  const auto error = operate::for_each(*access.store, {}, now, [&](const Record& record) {
    // It may name any of the files.
    if (is_sealed(record)) throw Exception(sealed_error(record));
    constexpr std::string_view scheme = "file:";
    if (record.result.location.starts_with(scheme)) files.erase(record.result.location.substr(scheme.size()));
    return true;
  });
  if (error) throw Exception(*error);
  if (dry_run) return files.size();
  std::uint64_t removed = 0;
  for (const std::string& name : files) {
    if (fs::remove(access.offload_directory + "/" + name, failed)) ++removed;
    if (failed) throw Exception(ErrorKind::unavailable, "cannot remove " + name + ": " + failed.message());
  }
  return removed;
}

int sweep(const SweepCommand& options) {
  const StoreAccess access = open_to_look(options.store, options.dry_run ? Missing::read : Missing::refuse);
  const StoreTime moment = operate::learn_now(*access.store, *system_clock());
  const Time now = moment.now - moment.error;  // The earliest possible time, so that no live record is removed.
  const Millis for_long =
      options.expired_for.empty() ? Millis{0} : parse_duration(options.expired_for, "--expired-for");
  const Time expired_before = now - for_long;
  std::uint64_t orphans = 0;
  if (!options.orphans.empty()) {
    orphans = sweep_orphans(access, now, parse_duration(options.orphans, "--orphans"), options.dry_run);
  }
  Progress progress("removed");
  operate::Swept swept;
  if (options.dry_run) {
    operate::Filter filter;
    filter.standing = operate::Standing::expired;
    // At that time, later expiries have not come yet.
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
    if (swept.removed > 0) {
      say(std::to_string(swept.removed) + (options.dry_run ? " records would be removed before this failure:"
                                                           : " records were removed before this failure:"));
    }
    return fail_with(*swept.error);
  }
  if (options.json) {
    const nlohmann::ordered_json json = {{"removed", swept.removed},
                                         {"results_removed", swept.results_removed},
                                         {"orphans_removed", orphans},
                                         {"dry_run", options.dry_run}};
    return print(json_text(json));
  }
  return print(
      std::to_string(swept.removed) + " expired records " + (options.dry_run ? "would be removed" : "removed") +
      (swept.results_removed == 0 ? std::string()
                                  : ", with " + std::to_string(swept.results_removed) + " results outside the store") +
      (orphans == 0 ? std::string() : ", and " + std::to_string(orphans) + " results that no record names") + "\n");
}

}  // namespace

void add_sweep(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<SweepCommand>();
  CLI::App* const command = app.add_subcommand("sweep", "Remove expired records and their results");
  add_store_options(*command, options->store);
  command->add_option("--expired-for", options->expired_for,
                      "Only records that expired at least this long ago, as in 7d");
  command->add_option("--orphans", options->orphans,
                      "Also remove files of the offload directory that no record names and that are at least this\n"
                      "old, as in 2d (at least 24h). Only this store may use the directory");
  command->add_flag("-n,--dry-run", options->dry_run, "Count the records, and remove nothing");
  command->add_flag("--json", options->json, "Write JSON");
  command->footer(
      "Examples:\n"
      "  once sweep --dry-run\n"
      "  once sweep --expired-for 7d");
  command->callback([options, &invocation] { invocation.action = [options] { return sweep(*options); }; });
}

}  // namespace once::cli
