// once import: brings the records of another program's table into a store.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "commands/commands.hpp"
#include "import/importer.hpp"
#include "import/mapping.hpp"
#include "import/mapping_flags.hpp"
#include "import/rows.hpp"
#include "output/progress.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "settings/access.hpp"
#include "stores/url.hpp"

namespace once::cli {

namespace importing {

namespace {

using Json = nlohmann::ordered_json;

struct ImportCommand {
  RowsOptions rows;
  std::string to;
  MappingFlags flags;
  std::optional<std::size_t> samples;
  bool dry_run = false;
  bool json = false;
};

struct NamedCount {
  const char* name;
  std::uint64_t ImportCounts::*count;
};
constexpr std::array<NamedCount, 13> named_counts{{{"rows", &ImportCounts::rows},
                                                   {"inserted", &ImportCounts::inserted},
                                                   {"decided", &ImportCounts::decided},
                                                   {"already", &ImportCounts::already},
                                                   {"expired", &ImportCounts::expired},
                                                   {"left_out", &ImportCounts::left_out},
                                                   {"may_run", &ImportCounts::may_run},
                                                   {"conflicts", &ImportCounts::conflicts},
                                                   {"refused", &ImportCounts::refused},
                                                   {"completed", &ImportCounts::completed},
                                                   {"failed", &ImportCounts::failed},
                                                   {"unknown", &ImportCounts::unknown},
                                                   {"tombstones", &ImportCounts::tombstones}}};

// Whether TO is a file that an import would create.
bool is_missing_file(const std::string& url) {
  if (!url.starts_with("sqlite:")) return false;
  struct stat found {};
  return stat(stores::Url(url).path().c_str(), &found) != 0 && errno == ENOENT;
}

Json problem_json(const ImportProblem& problem, const char* text) {
  const KeyParts key = key_parts(problem.key);
  Json json{{"row", problem.row}};
  if (!problem.key.empty()) {
    json["scope"] = key.scope;
    json["key"] = key.name;
  }
  json[text] = problem.why;
  return json;
}

std::string problem_text(const ImportProblem& problem) {
  return "  " + problem.row + (problem.key.empty() ? "" : ", " + quoted_stored(problem.key)) + ": " + problem.why +
         "\n";
}

class Import {
 public:
  explicit Import(const ImportCommand& command) : command_(command), mapping_(mapping_of(command.flags)) {}

  int run() {
    const std::unique_ptr<Rows> rows = open_rows(command_.rows);
    Store* const to = open_target();
    const std::string to_name = to == nullptr ? escaped(command_.to) : to->name();
    Importer importer(mapping_, to,
                      {.from = rows->name(),
                       .source = rows->source(),
                       .dry_run = command_.dry_run,
                       .samples = command_.samples.value_or(command_.dry_run ? 3 : 0),
                       .clock = system_clock(),
                       .random = system_random()});
    Progress progress(command_.dry_run ? "read" : "imported");
    try {
      for (std::vector<Row> some = rows->next(); !some.empty(); some = rows->next()) {
        importer.take(some);
        progress.show(importer.counts.rows);
      }
    } catch (const Exception&) {  // What was done so far is not lost with the error, which is said behind it.
      progress.end();
      report(importer, rows->name(), to_name, true);
      throw;
    }
    progress.end();
    return report(importer, rows->name(), to_name, false);
  }

 private:
  // Null: a file that is not there yet, in a dry run.
  Store* open_target() {
    const StoreOptions options{.url = command_.to, .offload = "none"};
    StoreAccess access;
    if (!command_.dry_run) {
      access = open_access(options, Missing::create);
    } else if (is_missing_file(command_.to)) {
      not_looked_ = "it does not exist yet";
      return nullptr;
    } else {
      access = open_to_look(options, Missing::read, IfFallback::refuse);
    }
    if (access.raw_scopes) {
      misuse(
          "TO has a Powertools dialect, whose records have no unknown outcomes: import into a store without 'dialect'. "
          "A function that moves to once can keep the library's table as it is. Nothing was imported");
    }
    if (!access.store->capabilities().shared) misuse("TO exists only in this process. Nothing was imported");
    return access.store.get();  // Kept until the process ends.
  }

  // What an operator should decide, though no row is at fault.
  [[nodiscard]] std::vector<std::string> warnings_of(const Importer& importer) const {
    const ImportCounts& counts = importer.counts;
    std::vector<std::string> warnings;
    if (counts.expired > 0 && mapping_.options().expired.empty()) {
      warnings.push_back(
          std::to_string(counts.expired) +
          " rows had expired, and their operations can run again. Does the old program compare the expiry, and run "
          "them "
          "again too? Then add --expired skip. If it goes by the row alone, --expired keep imports them");
    }
    for (const std::string& column : importer.absent_columns()) {
      if (counts.rows > 0) warnings.push_back("--where names '" + escaped(column) + "', which no row has");
    }
    if (counts.rows > 0 && counts.left_out == counts.rows) warnings.emplace_back("--where leaves out every row");
    return warnings;
  }

  int report(const Importer& importer, const std::string& from, const std::string& to, bool stopped) const {
    const ImportCounts& counts = importer.counts;
    const std::vector<std::string> warnings = warnings_of(importer);
    const bool is_clean = counts.conflicts + counts.refused == 0 && warnings.empty();
    const int exit_code = is_clean ? exit_ok : exit_found_problems;
    if (command_.json) {
      const char* const outcome = stopped ? "stopped" : command_.dry_run ? "would_import" : "imported";
      Json json{{"outcome", outcome}, {"from", from}, {"to", to}};
      for (const auto& [name, count] : named_counts) json[name] = counts.*count;
      json["problems"] = Json::array();
      for (const ImportProblem& problem : importer.problems()) json["problems"].push_back(problem_json(problem, "why"));
      json["samples"] = Json::array();
      for (const ImportProblem& sample : importer.samples()) json["samples"].push_back(problem_json(sample, "becomes"));
      json["warnings"] = warnings;
      if (!not_looked_.empty()) json["not_looked"] = not_looked_;
      return print(json_text(json), exit_code);
    }
    std::string text = std::string(stopped ? "stopped: " : "") +
                       std::string(command_.dry_run ? "would import " : "imported ") +
                       std::to_string(counts.inserted + counts.decided) + " of " + std::to_string(counts.rows) +
                       " rows of " + from + " into " + to + "\n";
    const auto line = [&](std::uint64_t count, const std::string& what) {
      if (count > 0) text += "  " + std::to_string(count) + " " + what + "\n";
    };
    line(counts.completed,
         "completed" + (counts.tombstones == 0 ? std::string()
                                               : ", " + std::to_string(counts.tombstones) +
                                                     " of them without a result: a replay says so, and runs nothing"));
    line(counts.failed, "failed");
    line(counts.unknown,
         "unknown, because they were in progress: `once ls --state unknown` lists them, `once resolve` decides");
    line(counts.decided, "of these were unknown after an earlier import");
    line(counts.already, "were there already");
    line(counts.expired, "had expired, and are not imported (--expired keep imports them)");
    line(counts.left_out, "were left out, by --where");
    line(counts.may_run, "may run again, by --may-run, and are not imported");
    line(counts.conflicts, "in conflict with what is there. Nothing was changed there");
    line(counts.refused, "refused");
    if (!not_looked_.empty()) text += "TO was not compared: " + not_looked_ + "\n";
    if (!importer.samples().empty()) text += "For example:\n";
    for (const ImportProblem& sample : importer.samples()) text += problem_text(sample);
    const int printed = print(text, exit_code);
    for (const std::string& warning : warnings) say(warning);
    if (importer.problems().empty()) return printed;
    std::string problems = "NOT imported, so their operations can run again:\n";
    for (const ImportProblem& problem : importer.problems()) problems += problem_text(problem);
    const std::uint64_t more = counts.conflicts + counts.refused - importer.problems().size();
    if (more > 0) problems += "  and " + std::to_string(more) + " more\n";
    problems.pop_back();
    say(problems);
    return printed;
  }

  const ImportCommand& command_;
  const Mapping mapping_;
  std::string not_looked_;
};

}  // namespace

}  // namespace importing

void add_import(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<importing::ImportCommand>();
  CLI::App* const command = app.add_subcommand("import", "Bring the records of another program's table into a store");
  command
      ->add_option("FROM", options->rows.from,
                   "dynamodb://TABLE, postgresql://USER@HOST/DATABASE, sqlite:FILE, csv:FILE, jsonl:FILE,\n"
                   "dynamodb-export:FILE (lines of an export to S3); - is standard input")
      ->required();
  command->add_option("TO", options->to, "The URL of the store")->required();
  command->add_option("--table", options->rows.table, "SQL: the table, read whole");
  command->add_option("--query", options->rows.query, "SQL: a statement that selects the rows");
  importing::add_mapping_flags(*command, options->flags);
  command->add_flag("-n,--dry-run", options->dry_run, "Read, map and compare, but change nothing");
  command->add_option("--samples", options->samples, "Show so many rows, mapped (default: 3 with --dry-run, else 0)");
  command->add_flag("--json", options->json, "Write JSON");
  command->footer(
      "Nothing in TO is overwritten, so an import may be repeated. An operation in progress becomes unknown: it does\n"
      "not run again until an operator decides. Import again when it has ended, and it gets its result. A row that\n"
      "cannot be mapped is refused, and named. The old program must claim nothing more when the new one starts.\n\n"
      "Exits with 1 if a row was refused or is in conflict with a record of TO, if rows had expired and --expired is\n"
      "not given, or if --where names a column that no row has: look at each.\n\n"
      "Examples:\n"
      "  once import --dry-run --preset article --scope pay dynamodb://idempotency sqlite:/var/lib/once/once.db\n"
      "  once import --preset rails --table idempotency_keys --scope-from \"join(' ', ['POST', request_path])\"\n"
      "    postgresql://app@db.example/shop postgresql://once@db.example/pay\n"
      "  once import csv:done.csv sqlite:once.db --key order --state \"'done'\" --completed done --result receipt");
  command->callback(
      [options, &invocation] { invocation.action = [options] { return importing::Import(*options).run(); }; });
}

}  // namespace once::cli
