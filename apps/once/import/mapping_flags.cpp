#include "import/mapping_flags.hpp"

#include <CLI/CLI.hpp>

#include "output/text.hpp"

namespace once::cli::importing {

namespace {

std::string presets_text() {
  std::string text;
  for (const std::string_view name : preset_names()) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

}  // namespace

void add_mapping_flags(CLI::App& command, MappingFlags& flags) {
  command.add_option("--preset", flags.mapping.preset,
                     "A common shape: " + presets_text() + ". Options below replace its parts");
  const char* const keys = "Keys (EXPR: JMESPath over a row, or \"one of a, b\": the column that it has)";
  command.add_option("--key", flags.mapping.key, "EXPR that selects the key")->group(keys);
  command
      .add_option("--key-prefix", flags.mapping.key_prefix, "What the selected text begins with, and the key does not")
      ->group(keys);
  command
      .add_option("--hash", flags.mapping.hash,
                  "sha256 or md5: the key's name is the digest of the selection, as of a key\n"
                  "recipe with this hash (default: its text)")
      ->group(keys);
  command.add_option("--scope", flags.mapping.scope, "The keys' namespace")->group(keys);
  command.add_option("--scope-from", flags.mapping.scope_from, "EXPR that selects the namespace")->group(keys);
  command
      .add_option("--fingerprint", flags.mapping.fingerprint,
                  "EXPR that selects what a retry must repeat (default: none)")
      ->group(keys);
  const char* const states = "States (WORDS: separated by commas, in any case)";
  command.add_option("--state", flags.mapping.state, "EXPR that selects a word")->group(states);
  command.add_option("--completed", flags.mapping.completed, "WORDS of operations that are done")->group(states);
  command.add_option("--failed", flags.mapping.failed, "WORDS of operations whose failure is replayed")->group(states);
  command.add_option("--in-progress", flags.mapping.in_progress, "WORDS of operations that become unknown")
      ->group(states);
  command.add_option("--may-run", flags.mapping.may_run, "WORDS of operations that may run again: not imported")
      ->group(states);
  command.add_option("--where", flags.mapping.where, "EXPR: rows for which it is false are left out")->group(states);
  const char* const results = "Results";
  command.add_option("--result", flags.mapping.result, "EXPR that selects what is replayed")->group(results);
  command
      .add_option("--result-as", flags.mapping.result_as,
                  "json: the value; json-text: a text with JSON in it; json-any: such a text if it holds an\n"
                  "object or a list, else the value; text: its bytes; http: a response's body\n"
                  "(default: json)")
      ->group(results);
  command
      .add_option("--no-result", flags.mapping.no_result,
                  "A completed row without one: tombstone, a replay is refused; null, as JSON; empty\n"
                  "(default: tombstone)")
      ->group(results);
  command.add_option("--http-status", flags.mapping.http_status, "EXPR that selects the response's status")
      ->group(results);
  command
      .add_option("--http-headers", flags.mapping.http_headers, "EXPR that selects its headers: an object, or pairs")
      ->group(results);
  command.add_option("--error", flags.mapping.error, "EXPR that selects a failure's message")->group(results);
  const char* const times = "Times (numbers, their unit by their size; or dates)";
  command
      .add_option("--expires", flags.mapping.expires, "EXPR that selects when the row counts no more (default: never)")
      ->group(times);
  command.add_option("--created", flags.mapping.created, "EXPR that selects when the operation began")->group(times);
  command.add_option("--finished", flags.mapping.finished, "EXPR that selects when it ended")->group(times);
  command.add_flag("--utc", flags.mapping.utc, "Dates without a time zone are UTC (default: such rows are refused)")
      ->group(times);
  command.add_option("--retention", flags.retention, "How long rows without an expiry are kept, from now on")
      ->capture_default_str()
      ->group(times);
  command
      .add_option("--expired", flags.mapping.expired,
                  "Rows that have expired: skip, or keep for --retention (default: skip, and exit with 1)")
      ->group(times);
  command.add_option("--holder", flags.mapping.holder, "EXPR that selects who ran it, for people");
}

MappingOptions mapping_of(const MappingFlags& flags) {
  MappingOptions options = flags.mapping;
  options.retention = parse_retention(flags.retention, "--retention");
  if (options.retention <= Millis{0}) misuse("--retention must be longer than nothing");
  return options;
}

}  // namespace once::cli::importing
