// The flags of `once import` that say what a row means. A file of fallback= has the same names.
#pragma once

#include <string>

#include "import/mapping.hpp"

namespace CLI {
class App;
}

namespace once::cli::importing {

struct MappingFlags {
  MappingOptions mapping;  // Without `retention`.
  std::string retention = "never";
};

void add_mapping_flags(CLI::App& command, MappingFlags& flags);

// Throws Exception(misuse) for a wrong retention.
MappingOptions mapping_of(const MappingFlags& flags);

}  // namespace once::cli::importing
