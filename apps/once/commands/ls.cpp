// once ls: the records of a store.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include <once/key.hpp>
#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "commands/commands.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "settings/access.hpp"
#include "settings/filters.hpp"

namespace once::cli {

namespace {

struct LsOptions {
  StoreOptions store;
  FilterOptions filter;
  std::optional<std::uint64_t> limit;
  bool json = false;
};

std::string ends(const Record& record, operate::Standing standing, Time now) {
  const std::string overdue = is_overdue(record, now) ? ", overdue since " + relative(record.expected_until, now) : "";
  switch (standing) {
    case operate::Standing::running:
      return "lease " + relative(record.lease_until, now) + overdue;
    case operate::Standing::lapsed:
      return "lapsed " + relative(record.lease_until, now) + overdue;
    case operate::Standing::unknown:
      return "since " + relative(record.finished_at, now);
    case operate::Standing::released:
    case operate::Standing::completed:
    case operate::Standing::failed:
    case operate::Standing::expired:
      break;
  }
  return (standing == operate::Standing::expired ? "expired " : "expires ") + relative(record.expires_at, now) +
         overdue;
}

// Unless it says what the key says already.
std::string other_label(const Record& record, const KeyParts& parts) {
  return record.label.empty() || record.label == parts.name ? "-" : escaped(record.label);
}

int list(const LsOptions& options) {
  const StoreAccess access = open_to_look(options.store);
  const Time now = operate::learn_now(*access.store, *system_clock()).now;
  const operate::Filter filter = filter_of(options.filter, now, access.raw_scopes);
  std::uint64_t count = 0;
  // Written as they come, in pieces: there may be millions.
  constexpr std::size_t piece_rows = 500;
  std::string text;
  int written = exit_ok;
  Table table({"STATE", "SCOPE", "KEY", "ATTEMPT", "CREATED", "UNTIL", "LABEL", "HOLDER"});
  if (options.json) text = "[";
  const auto error = operate::for_each(*access.store, filter, now, [&](const Record& record) {
    if (options.limit && count == *options.limit) return false;
    count += 1;
    if (options.json) {
      std::string one = json_text(record_json(record, now, false));
      one.pop_back();
      text += (count == 1 ? "\n" : ",\n") + one;
      constexpr std::size_t piece_bytes = 65536;
      if (text.size() > piece_bytes) {
        written = print(text);
        text.clear();
      }
      return written == exit_ok;
    }
    const KeyParts parts = key_parts(record.key);
    const operate::Standing standing = operate::standing(record, now);
    if (table.rows() > piece_rows) written = print(table.take());
    table.add({std::string(operate::to_string(standing)), parts.scope.empty() ? "-" : escaped(parts.scope),
               escaped(parts.name), std::to_string(record.attempt), relative(record.created_at, now),
               ends(record, standing, now), other_label(record, parts), escaped(record.holder)});
    return written == exit_ok;
  });
  if (written != exit_ok) return written;
  if (options.json) {
    // An array without its end shows that records are missing. Unreadable records do not count as missing.
    if (!error || error->kind == ErrorKind::corrupt) text += count == 0 ? "]\n" : "\n]\n";
    written = print(text);
  } else if (count > 0) {
    written = print(table.take());
  } else if (!error) {
    say("no records" + std::string(is_empty(options.filter) ? "" : " match"));
  }
  return error ? fail_with(*error) : written;
}

}  // namespace

void add_ls(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<LsOptions>();
  CLI::App* const ls = app.add_subcommand("ls", "List records");
  add_store_options(*ls, options->store);
  add_filter_options(*ls, options->filter);
  ls->add_option("--limit", options->limit, "List at most this many records, from 1 (default: all)")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  ls->add_flag("--json", options->json, "Write a JSON array of records, without their results");
  ls->footer(
      "Examples:\n"
      "  once ls --state unknown\n"
      "  once ls --scope payments --older-than 7d --json");
  ls->callback([options, &invocation] { invocation.action = [options] { return list(*options); }; });
}

}  // namespace once::cli
