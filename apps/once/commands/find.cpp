// once find: records by what people call them.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "commands/commands.hpp"
#include "operators/search.hpp"
#include "output/listing.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "settings/access.hpp"
#include "settings/filters.hpp"

namespace once::cli {

namespace {

struct FindOptions {
  StoreOptions store;
  FilterOptions filter;
  std::string text;
  ListingOptions listing;
};

int find(const FindOptions& options) {
  const Search search(options.text);
  Listing listing(options.listing, true);
  const StoreAccess access = open_to_look(options.store);
  const Time now = operate::learn_now(*access.store, *system_clock()).now;
  const auto error = operate::for_each(
      *access.store, filter_of(options.filter, now, access.raw_scopes), now,
      [&](const Record& record) {
        const Match match = search.match(record);
        return match == Match::none || listing.add(record, now, to_string(match));
      },
      [&](std::uint64_t records) {
        listing.read(records);
        return true;
      });
  const int exit_code = listing.end(error);
  if (exit_code != exit_ok) return exit_code;
  if (listing.count() > 0) return exit_ok;
  say("no record" + std::string(is_empty(options.filter) ? "" : " that these options select") + " has '" +
      escaped(options.text) + "' as its key or label");
  return exit_no_record;
}

}  // namespace

void add_find(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<FindOptions>();
  CLI::App* const command = app.add_subcommand("find", "Find records by key or label, in all scopes");
  add_store_options(*command, options->store);
  add_filter_options(*command, options->filter);
  add_listing_options(*command, options->listing);
  command->add_option("TEXT", options->text, "What people call the operation, as in order-17")->required();
  command->footer(
      "Finds TEXT as a key, as a label, as what a key is the digest of, and as the key_hash of a log line. Also\n"
      "finds keys, and scopes with keys, that begin with TEXT, and labels that contain it; these need not agree in\n"
      "upper and lower case. The column MATCH says why a record is listed. Reads all records that the options "
      "select.\n\n"
      "Examples:\n"
      "  once find order-17\n"
      "  once find order-17 --state unknown --json | jq -r .[].stored_key_hex\n"
      "  once find payments/order-17\n\n"
      "Exit codes: 0 found; 239 nothing found; 243 the store cannot be used; 244 some records cannot be read.");
  command->callback([options, &invocation] { invocation.action = [options] { return find(*options); }; });
}

}  // namespace once::cli
