// The table that fallback= in a store's URL names: which one it is, how its rows are read, and which row stands for a
// key of ours.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <once/clock.hpp>
#include <once/platform/system.hpp>

#include "import/fallback_store.hpp"
#include "import/mapping.hpp"
#include "import/rows.hpp"

namespace once::cli::importing {

struct OldTableOptions {
  std::string name;        // For people: the file that describes it.
  MappingOptions mapping;  // `key` names a column.
  FinderOptions finder;
};

// Reads and checks the file: TOML with `mode`, `from`, `table`, `timeout`, and the flags of once import that map rows.
// Throws Exception(misuse), or unavailable if the file cannot be read, for whatever could make a look miss a row: a
// name that is not known, a mode other than read, no key-prefix, rows whose expiry nobody has decided about.
OldTableOptions read_old_table(const std::string& file);

// Whether the text is a name, as an expression may be.
bool is_column(std::string_view text);

// What some rows of the table show.
struct Examined {
  std::string found;   // "dynamodb:orders: 18 of its first 20 rows can be used, as a key of 8 bytes ...".
  std::string notice;  // What an operator should look at. Empty: nothing.
};

// Opens the table, maps some rows, and finds one of them by its key. Throws Exception, also if no row can be mapped.
// Blocks.
Examined examine(const OldTableOptions& table);

struct LookerOptions {
  OldTableOptions table;
  std::function<std::unique_ptr<Finder>(const FinderOptions&)> open = open_finder;
  // Called once, by a thread of its own, after the table was first opened.
  std::function<void(const Examined&)> on_open = [](const Examined&) {};
  unsigned max_threads = 4;
  std::shared_ptr<Clock> clock = system_clock();
  std::shared_ptr<Timers> timers = make_system_timers();
};

// Looks by up to max_threads, each with a connection of its own, which is opened for the first look. A look that has
// not ended after FinderOptions::timeout fails. Errors are unavailable; corrupt if the fault is in this row alone.
// Throws Exception(misuse) if the mapping cannot be used for single keys.
std::unique_ptr<OldTable> make_old_table(LookerOptions options);

}  // namespace once::cli::importing
