// once ls: the records of a store.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>

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
  ListingOptions listing;
};

int list(const LsOptions& options) {
  Listing listing(options.listing, false);
  const StoreAccess access = open_to_look(options.store);
  const Time now = operate::learn_now(*access.store, *system_clock()).now;
  const operate::Filter filter = filter_of(options.filter, now, access.raw_scopes);
  const auto error = operate::for_each(
      *access.store, filter, now, [&](const Record& record) { return listing.add(record, now); },
      [&](std::uint64_t records) { listing.read(records); });
  const int exit_code = listing.end(error);
  if (exit_code == exit_ok && listing.count() == 0 && !options.listing.json) {
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
  add_listing_options(*ls, options->listing);
  ls->footer(
      "Examples:\n"
      "  once ls --state unknown --columns scope,key,label,reason\n"
      "  once ls --state in_progress --sort created --limit 20\n"
      "  once ls --scope payments --older-than 7d --json");
  ls->callback([options, &invocation] { invocation.action = [options] { return list(*options); }; });
}

}  // namespace once::cli
