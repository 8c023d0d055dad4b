#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <once/error.hpp>

#include "import/mapping_flags.hpp"
#include "import/old_table.hpp"
#include "output/nearest.hpp"
#include "output/text.hpp"
#include "settings/proxy_file.hpp"
#include "text/ascii.hpp"

namespace once::cli::importing {

namespace {

constexpr const char* only_read =
    "the only mode is read: the old table is read before a claim, and the old program must no longer claim. "
    "There is no mode in which both programs claim: two tables cannot be claimed in one step, and whatever claims them "
    "one after the other lets both programs run the same operation when one dies or is slow in between. Stop the old "
    "program's claims";
constexpr const char* which_prefix =
    "key-prefix is missing: write key-prefix = \"create_order#\" if the old keys begin with what the new program's "
    "keys do not, or key-prefix = \"\" if they are the same. With the wrong one no row is found, and work runs again";

// What the file says, before it is checked. Its names are those of flags.
struct Given {
  MappingFlags flags;
  std::string mode;
  std::string from;
  std::string table;
  std::string timeout = "5s";
  bool has_prefix = false;
};

void add_names(CLI::App& names, Given& given) {
  names.add_option("--mode", given.mode);
  names.add_option("--from", given.from);
  names.add_option("--table", given.table);
  names.add_option("--timeout", given.timeout);
  add_mapping_flags(names, given.flags);
}

void set(CLI::App& names, const FlatSetting& setting, Given& given) {
  const std::string& name = setting.key;
  if (name == "where" || name == "query") {
    misuse(name + " is not for fallback=: what it leaves out would run. Make a view, and name it in `table`");
  }
  CLI::Option* const option = names.get_option_no_throw("--" + name);
  if (option == nullptr || name == "help") {
    std::vector<std::string> known;
    for (const CLI::Option* const one : names.get_options()) known.push_back(one->get_single_name());
    const std::string near = nearest(name, known);
    misuse("unknown setting '" + escaped(name) + "'" + (near.empty() ? "" : ": did you mean '" + near + "'?"));
  }
  const bool is_toggle = option->get_expected_max() == 0;
  if (setting.is_toggle != is_toggle) misuse(name + " must be " + (is_toggle ? "true or false" : "a string"));
  if (setting.text.empty() && name != "key-prefix") misuse(name + " is empty: leave it out, or write a value");
  if (setting.text.find('\0') != std::string::npos) misuse(name + " has a character 0");
  given.has_prefix = given.has_prefix || name == "key-prefix";
  option->add_result(setting.text);
  option->run_callback();
}

// Whatever could make a look miss a row.
void check(const Given& given, OldTableOptions& table) {
  if (given.mode.empty()) {
    misuse("mode is missing: write mode = \"read\" if the old program no longer claims; " + std::string(only_read));
  }
  if (given.mode != "read") misuse("mode is '" + escaped(given.mode) + "'; " + std::string(only_read));
  if (given.from.empty()) misuse("from is missing: the URL of the old table");
  table.mapping = mapping_of(given.flags);
  table.finder = {.rows = {.from = given.from, .table = given.table, .query = {}},
                  .column = table.mapping.key,
                  .timeout = parse_duration(given.timeout, "timeout")};
  if (table.finder.timeout < Millis{100} || table.finder.timeout > Millis{60'000})
    misuse("timeout must be 100ms to 1m");
  check_finder(table.finder);
  const Mapping mapping(table.mapping);
  const MappingOptions& all = mapping.options();
  if (all.preset.starts_with("powertools")) {
    misuse("a table of Powertools is not for fallback=: a function in its dialect keeps the table as it is");
  }
  if (!is_column(table.mapping.key)) {
    misuse(
        "key must name the column by which a row is found, as in key = \"idempotency_key\": what an expression makes "
        "of a row cannot be looked up");
  }
  if (!given.has_prefix) misuse(which_prefix);
  if (all.in_progress.empty()) {
    misuse(
        "in-progress names no state: a table that shows only what is done says nothing about what still runs there. "
        "Stop the old program, and bring its rows by once import");
  }
  if (!all.expires.empty() && all.expired.empty()) {
    misuse(
        "say what becomes of rows that have expired: expired = \"skip\" if the old program compares the expiry and "
        "runs them again, \"keep\" if it goes by the row alone");
  }
}

}  // namespace

bool is_column(std::string_view text) {
  return !text.empty() && !text::is_digit(text.front()) &&
         std::ranges::all_of(text, [](char c) { return text::is_letter_or_digit(c) || c == '_'; });
}

OldTableOptions read_old_table(const std::string& file) {
  std::vector<Complaint> complaints;
  const std::vector<FlatSetting> settings = read_flat_file(file, complaints);
  if (!complaints.empty()) misuse("fallback=: " + to_string(complaints.front()));
  OldTableOptions table;
  table.name = file;
  Given given;
  CLI::App names;
  add_names(names, given);
  Place place{.file = file};
  try {
    for (const FlatSetting& setting : settings) {
      place = setting.place;
      set(names, setting, given);
    }
    place = {.file = file};
    check(given, table);
  } catch (const Exception& error) {
    if (error.kind() != ErrorKind::misuse) throw;
    misuse("fallback=: " + to_string(Complaint{.place = place, .text = error.what()}));
  }
  return table;
}

}  // namespace once::cli::importing
