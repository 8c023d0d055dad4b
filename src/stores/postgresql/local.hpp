// What a local transaction must know of its store.
#pragma once

#include <optional>
#include <string>

#include <once/store.hpp>

namespace once::stores::postgresql {

struct LocalSchema {
  std::string schema;
  bool allow_clear = false;
};

// Empty: it is no PostgreSQL store, under whatever wraps.
std::optional<LocalSchema> local_schema(const Store& store);

}  // namespace once::stores::postgresql
