// once import: brings the records of another program's table into a store.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "commands/commands.hpp"
#include "import/importer.hpp"
#include "import/mapping.hpp"
#include "import/rows.hpp"
#include "output/progress.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "settings/access.hpp"

namespace once::cli {

namespace importing {

namespace {

using Json = nlohmann::ordered_json;

struct ImportCommand {
  RowsOptions rows;
  std::string to;
  MappingOptions mapping;
  std::string retention = "never";
  std::string resume;  // A file.
  std::optional<std::size_t> samples;
  bool dry_run = false;
  bool json = false;
};

struct NamedCount {
  const char* name;
  std::uint64_t ImportCounts::*count;
};
constexpr std::array<NamedCount, 12> named_counts{{{"rows", &ImportCounts::rows},
                                                   {"inserted", &ImportCounts::inserted},
                                                   {"decided", &ImportCounts::decided},
                                                   {"already", &ImportCounts::already},
                                                   {"expired", &ImportCounts::expired},
                                                   {"left_out", &ImportCounts::left_out},
                                                   {"conflicts", &ImportCounts::conflicts},
                                                   {"refused", &ImportCounts::refused},
                                                   {"completed", &ImportCounts::completed},
                                                   {"failed", &ImportCounts::failed},
                                                   {"unknown", &ImportCounts::unknown},
                                                   {"tombstones", &ImportCounts::tombstones}}};

// Where an import stopped, in a file that is there until it ends.
class ImportMark {
 public:
  // `work`: names the source, the store and the mapping.
  ImportMark(std::string file, Sha256 work) : file_(std::move(file)), work_(to_hex(work)) {}

  // Empty: the file is not there.
  std::string read(ImportCounts& counts) const {
    constexpr std::size_t max_bytes = std::size_t{1} << 20;
    std::string text;
    const int error = read_file(file_, max_bytes, text);
    if (error == ENOENT) return {};
    if (error != 0) misuse("cannot read '" + escaped(file_) + "': " + std::strerror(error));
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("position") || !json["position"].is_string() || !json.contains("work")) {
      misuse("'" + escaped(file_) + "' is not a file of --resume. Nothing was imported");
    }
    if (json["work"] != work_) {
      misuse("'" + escaped(file_) + "' belongs to an import from another source, into another store or with another " +
             "mapping: name another file, or remove it. Nothing was imported");
    }
    for (const auto& [name, count] : named_counts) {
      if (json.contains(name) && json[name].is_number_unsigned()) counts.*count = json[name].get<std::uint64_t>();
    }
    return json["position"].get<std::string>();
  }

  void write(const std::string& position, const ImportCounts& counts) const {
    Json json{{"work", work_}, {"position", position}};
    for (const auto& [name, count] : named_counts) json[name] = counts.*count;
    const std::string fresh = file_ + ".new";
    const Fd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd || !write_all(fd.get(), json_text(json)) || fsync(fd.get()) != 0 ||
        rename(fresh.c_str(), file_.c_str()) != 0) {
      throw Exception(ErrorKind::unavailable, "cannot write '" + escaped(file_) + "': " + std::strerror(errno));
    }
  }

  void remove() const {
    if (unlink(file_.c_str()) != 0 && errno != ENOENT) {
      throw Exception(ErrorKind::unavailable, "cannot remove '" + escaped(file_) + "': " + std::strerror(errno));
    }
  }

 private:
  const std::string file_;
  const std::string work_;
};

// A digest of all that decides what an import does.
Sha256 work_of(const ImportCommand& command, const MappingOptions& mapping) {
  Json all = Json::array({command.rows.from, command.to});
  for (const std::string* const part :
       {&mapping.preset,      &mapping.key,          &mapping.key_prefix, &mapping.hash,        &mapping.scope,
        &mapping.scope_from,  &mapping.where,        &mapping.state,      &mapping.completed,   &mapping.failed,
        &mapping.in_progress, &mapping.may_run,      &mapping.result,     &mapping.result_as,   &mapping.no_result,
        &mapping.http_status, &mapping.http_headers, &mapping.error,      &mapping.fingerprint, &mapping.expires,
        &mapping.created,     &mapping.finished,     &mapping.holder,     &mapping.expired,     &command.retention}) {
    all.push_back(*part);
  }
  all.push_back(mapping.utc);
  return sha256(all.dump());
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
  explicit Import(const ImportCommand& command) : command_(command), mapping_(mapping_of(command)) {}

  int run() {
    RowsOptions where = command_.rows;
    ImportCounts before;
    std::optional<ImportMark> mark;
    if (!command_.resume.empty()) {
      if (command_.dry_run) misuse("--resume does not go with --dry-run, which changes nothing");
      if (where.from.starts_with("sqlite:") || where.from.starts_with("postgres")) {
        misuse("--resume is not needed for SQL: run the same command again, and it goes on with what is missing");
      }
      mark.emplace(command_.resume, work_of(command_, mapping_.options()));
      where.position = mark->read(before);
    }
    const std::unique_ptr<Rows> rows = open_rows(where);
    if (mark && where.from.ends_with(":-"))
      misuse("--resume does not go with standard input, which cannot be read again");
    Store* const to = open_target();
    Importer importer(mapping_, to,
                      {.from = rows->name(),
                       .dry_run = command_.dry_run,
                       .samples = command_.samples.value_or(command_.dry_run ? 3 : 0),
                       .clock = system_clock(),
                       .random = system_random()});
    importer.counts = before;
    Progress progress(command_.dry_run ? "read" : "imported");
    for (std::vector<Row> some = rows->next(); !some.empty(); some = rows->next()) {
      importer.take(some);
      if (const std::string position = rows->position(); mark && !position.empty())
        mark->write(position, importer.counts);
      progress.show(importer.counts.rows);
    }
    progress.end();
    if (mark) mark->remove();
    return report(importer, rows->name(), to == nullptr ? escaped(command_.to) : to->name());
  }

 private:
  static MappingOptions mapping_of(const ImportCommand& command) {
    MappingOptions options = command.mapping;
    options.retention = parse_retention(command.retention, "--retention");
    if (options.retention <= Millis{0}) misuse("--retention must be longer than nothing");
    return options;
  }

  // Null: not there yet, in a dry run.
  Store* open_target() {
    const StoreOptions options{.url = command_.to, .offload = "none"};
    StoreAccess access;
    if (!command_.dry_run) {
      access = open_access(options, Missing::create);
    } else {
      try {
        access = open_to_look(options);
      } catch (const Exception& error) {
        if (error.kind() != ErrorKind::unavailable) throw;
        not_looked_ = error.what();
        return nullptr;
      }
    }
    if (access.raw_scopes) {
      misuse(
          "TO has a Powertools dialect, whose records have no unknown outcomes: import into a store without 'dialect'. "
          "A function that moves to once can keep the library's table as it is. Nothing was imported");
    }
    if (!access.store->capabilities().shared) misuse("TO exists only in this process. Nothing was imported");
    return access.store.get();  // Kept until the process ends.
  }

  [[nodiscard]] int report(const Importer& importer, const std::string& from, const std::string& to) const {
    const ImportCounts& counts = importer.counts;
    const int exit_code = counts.conflicts + counts.refused == 0 ? exit_ok : exit_found_problems;
    if (command_.json) {
      Json json{{"outcome", command_.dry_run ? "would_import" : "imported"}, {"from", from}, {"to", to}};
      for (const auto& [name, count] : named_counts) json[name] = counts.*count;
      json["problems"] = Json::array();
      for (const ImportProblem& problem : importer.problems()) json["problems"].push_back(problem_json(problem, "why"));
      json["samples"] = Json::array();
      for (const ImportProblem& sample : importer.samples()) json["samples"].push_back(problem_json(sample, "becomes"));
      if (!not_looked_.empty()) json["not_looked"] = not_looked_;
      return print(json_text(json), exit_code);
    }
    std::string text = std::string(command_.dry_run ? "would import " : "imported ") +
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
    line(counts.left_out, "were left out, by --where or --may-run");
    line(counts.conflicts, "in conflict with what is there. Nothing was changed there");
    line(counts.refused, "refused");
    if (!not_looked_.empty()) text += "TO was not compared: " + not_looked_ + "\n";
    if (!importer.samples().empty()) text += "For example:\n";
    for (const ImportProblem& sample : importer.samples()) text += problem_text(sample);
    const int printed = print(text, exit_code);
    if (exit_code == exit_ok) return printed;
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

std::string presets_text() {
  std::string text;
  for (const std::string_view name : preset_names()) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

}  // namespace

}  // namespace importing

void add_import(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<importing::ImportCommand>();
  CLI::App* const command = app.add_subcommand("import", "Bring the records of another program's table into a store");
  importing::MappingOptions& mapping = options->mapping;
  command
      ->add_option("FROM", options->rows.from,
                   "dynamodb://TABLE, postgresql://USER@HOST/DATABASE, sqlite:FILE, csv:FILE, jsonl:FILE,\n"
                   "dynamodb-export:FILE (lines of an export to S3); - is standard input")
      ->required();
  command->add_option("TO", options->to, "The URL of the store")->required();
  command->add_option("--table", options->rows.table, "SQL: the table, read whole");
  command->add_option("--query", options->rows.query, "SQL: a statement that selects the rows");
  command->add_option("--preset", mapping.preset,
                      "A common shape: " + importing::presets_text() + ". Options below replace its parts");
  const char* const keys = "Keys (EXPR: JMESPath over a row)";
  command->add_option("--key", mapping.key, "EXPR that selects the key")->group(keys);
  command->add_option("--key-prefix", mapping.key_prefix, "What the selected text begins with, and the key does not")
      ->group(keys);
  command
      ->add_option("--hash", mapping.hash,
                   "sha256 or md5: the key's name is the digest of the selection, as of a key\n"
                   "recipe with this hash (default: its text)")
      ->group(keys);
  command->add_option("--scope", mapping.scope, "The keys' namespace")->group(keys);
  command->add_option("--scope-from", mapping.scope_from, "EXPR that selects the namespace")->group(keys);
  command
      ->add_option("--fingerprint", mapping.fingerprint, "EXPR that selects what a retry must repeat (default: none)")
      ->group(keys);
  const char* const states = "States (WORDS: separated by commas, in any case)";
  command->add_option("--state", mapping.state, "EXPR that selects a word")->group(states);
  command->add_option("--completed", mapping.completed, "WORDS of operations that are done")->group(states);
  command->add_option("--failed", mapping.failed, "WORDS of operations whose failure is replayed")->group(states);
  command->add_option("--in-progress", mapping.in_progress, "WORDS of operations that become unknown")->group(states);
  command->add_option("--may-run", mapping.may_run, "WORDS of operations that may run again: not imported")
      ->group(states);
  command->add_option("--where", mapping.where, "EXPR: rows for which it is not true are left out")->group(states);
  const char* const results = "Results";
  command->add_option("--result", mapping.result, "EXPR that selects what is replayed")->group(results);
  command
      ->add_option("--result-as", mapping.result_as,
                   "json: the value; json-text: a text with JSON in it; json-any: such a text if it holds an\n"
                   "object or a list, else the value; text: its bytes; http: a response's body\n"
                   "(default: json)")
      ->group(results);
  command
      ->add_option("--no-result", mapping.no_result,
                   "A completed row without one: tombstone, a replay is refused; null, as JSON; empty\n"
                   "(default: tombstone)")
      ->group(results);
  command->add_option("--http-status", mapping.http_status, "EXPR that selects the response's status")->group(results);
  command->add_option("--http-headers", mapping.http_headers, "EXPR that selects its headers: an object, or pairs")
      ->group(results);
  command->add_option("--error", mapping.error, "EXPR that selects a failure's message")->group(results);
  const char* const times = "Times (numbers, their unit by their size; or dates)";
  command->add_option("--expires", mapping.expires, "EXPR that selects when the row counts no more (default: never)")
      ->group(times);
  command->add_option("--created", mapping.created, "EXPR that selects when the operation began")->group(times);
  command->add_option("--finished", mapping.finished, "EXPR that selects when it ended")->group(times);
  command->add_flag("--utc", mapping.utc, "Dates without a time zone are UTC (default: such rows are refused)")
      ->group(times);
  command->add_option("--retention", options->retention, "How long rows without an expiry are kept, from now on")
      ->capture_default_str()
      ->group(times);
  command
      ->add_option("--expired", mapping.expired,
                   "Rows that have expired: skip, or keep for --retention (default: skip)")
      ->group(times);
  command->add_option("--holder", mapping.holder, "EXPR that selects who ran it, for people");
  command->add_flag("-n,--dry-run", options->dry_run, "Read, map and compare, but change nothing");
  command->add_option("--samples", options->samples, "Show so many rows, mapped (default: 3 with --dry-run, else 0)");
  command->add_option("--resume", options->resume,
                      "A file that remembers how far the import is: the same command goes on there. It is\n"
                      "removed at the end");
  command->add_flag("--json", options->json, "Write JSON");
  command->footer(
      "Nothing in TO is overwritten, so an import may be repeated. An operation in progress becomes unknown: it does\n"
      "not run again until an operator decides. Import again when it has ended, and it gets its result. A row that\n"
      "cannot be mapped is refused, and named. The old program must claim nothing more when the new one starts.\n\n"
      "Exits with 1 if a row was refused or is in conflict with a record of TO: look at each.\n\n"
      "Examples:\n"
      "  once import --dry-run --preset article --scope pay dynamodb://idempotency sqlite:/var/lib/once/once.db\n"
      "  once import --preset rails --table idempotency_keys --scope-from \"join(' ', ['POST', request_path])\"\n"
      "    postgresql://app@db.example/shop postgresql://once@db.example/pay\n"
      "  once import csv:done.csv sqlite:once.db --key order --state \"'done'\" --completed done --result receipt");
  command->callback(
      [options, &invocation] { invocation.action = [options] { return importing::Import(*options).run(); }; });
}

}  // namespace once::cli
