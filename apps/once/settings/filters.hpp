// Flags of ls, find, stats, and of acts on many records: which records to select.
#pragma once

#include "operators/filters.hpp"
#include "output/names.hpp"

namespace CLI {
class App;
}

namespace once::cli {

// `group`: their heading in the help. If the command has a --scope of its own, that one is left to the caller.
void add_filter_options(CLI::App& command, FilterOptions& options, const char* group = "Options");

}  // namespace once::cli
