// once ls: the records of a store.
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "commands/commands.hpp"
#include "output/listing.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "process/signals.hpp"
#include "settings/access.hpp"
#include "settings/filters.hpp"
#include "text/number.hpp"
#include "text/rfc3339.hpp"

namespace once::cli {

namespace {

struct LsOptions {
  StoreOptions store;
  FilterOptions filter;
  ListingOptions listing;
  std::string watch;  // Seconds. Empty: no.
};

// `head`: written just before the records.
int list(const LsOptions& options, const StoreAccess& access, Listing& listing, const std::string& head) {
  const Time now = operate::learn_now(*access.store, *system_clock()).now;
  const operate::Filter filter = filter_of(options.filter, now, access.raw_scopes);
  const auto error = operate::for_each(
      *access.store, filter, now, [&](const Record& record) { return listing.add(record, now); },
      [&](std::uint64_t records) {
        listing.read(records);
        return true;
      });
  if (!head.empty()) print(head + text::rfc3339(now) + "\n");
  const int exit_code = listing.end(error);
  if (exit_code == exit_ok && listing.count() == 0 && !options.listing.json) {
    say("no records" + std::string(is_empty(options.filter) ? "" : " match"));
  }
  return exit_code;
}

std::chrono::seconds watch_time(const std::string& text) {
  constexpr unsigned longest = 3600;
  const auto seconds = text::parse_whole<unsigned>(text);
  if (!seconds || *seconds < 1 || *seconds > longest) {
    misuse("--watch is " + escaped(text) + "; it is 1 to " + std::to_string(longest) + " seconds, as in --watch=5");
  }
  return std::chrono::seconds(*seconds);
}

// How many records fit, beside the time, the names of the columns, what is said below, and the cursor.
std::uint64_t rows_that_fit() {
  constexpr std::uint64_t usual_rows = 24;
  constexpr std::uint64_t other_rows = 4;
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row != 0;
  const std::uint64_t rows = known ? std::uint64_t{size.ws_row} : usual_rows;
  return rows > other_rows ? rows - other_rows : 1;
}

// Draws until the user ends it. A failure is told and may pass.
int watch(const LsOptions& options) {
  const std::chrono::seconds every = watch_time(options.watch);
  if (isatty(STDOUT_FILENO) != 1) {
    misuse("--watch needs a terminal. Elsewhere use watch(1), or a loop around once ls --json");
  }
  const StoreAccess access = open_to_look(options.store);
  // ECMA-48: to the top, clear. DECAWM off while it draws: a line that is too long must not take two.
  const std::string head = "\x1b[H\x1b[2J\x1b[?7lonce ls, every " + std::to_string(every.count()) + " s; Ctrl-C ends; ";
  const FirstSignal first_signal;
  do {
    ListingOptions fitting = options.listing;
    fitting.limit = std::min(fitting.limit.value_or(std::numeric_limits<std::uint64_t>::max()), rows_that_fit());
    Listing listing(fitting, false);
    const int exit_code = list(options, access, listing, head);
    print("\x1b[?7h");
    if (exit_code == exit_output) return exit_code;
  } while (!first_signal.came_within(every));
  return print("\n");
}

int list(const LsOptions& options) {
  Listing listing(options.listing, false);
  return list(options, open_to_look(options.store), listing, {});
}

}  // namespace

void add_ls(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<LsOptions>();
  CLI::App* const ls = app.add_subcommand("ls", "List records");
  add_store_options(*ls, options->store);
  add_filter_options(*ls, options->filter);
  add_listing_options(*ls, options->listing);
  ls->add_flag("--watch{2}", options->watch,
               "List what fits on the terminal again every 2 seconds, or as in --watch=5; Ctrl-C ends it")
      ->excludes("--json");
  ls->footer(
      "Examples:\n"
      "  once ls --state unknown --columns scope,key,label,reason\n"
      "  once ls --state in_progress --sort created --limit 20\n"
      "  once ls --state unknown --watch=5\n"
      "  once ls --scope payments --older-than 7d --json");
  ls->callback([options, &invocation] {
    invocation.action = [options] { return options->watch.empty() ? list(*options) : watch(*options); };
  });
}

}  // namespace once::cli
