// once ls: the records of a store.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "commands/commands.hpp"
#include "output/listing.hpp"
#include "output/report.hpp"
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

int list(const LsOptions& options) {
  const StoreAccess access = open_to_look(options.store);
  const Time now = operate::learn_now(*access.store, *system_clock()).now;
  const operate::Filter filter = filter_of(options.filter, now, access.raw_scopes);
  Listing listing(options.json, false, now);
  const auto error = operate::for_each(
      *access.store, filter, now,
      [&](const Record& record) {
        if (options.limit && listing.count() == *options.limit) return false;
        return listing.add(record);
      },
      [&](std::uint64_t records) { listing.read(records); });
  const int exit_code = listing.end(error);
  if (exit_code == exit_ok && listing.count() == 0 && !options.json) {
    say("no records" + std::string(is_empty(options.filter) ? "" : " match"));
  }
  return exit_code;
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
