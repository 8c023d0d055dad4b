// A PostgreSQL store's URL as options, for tools that work on its schema.
#pragma once

#include <string_view>

#include <once/stores/postgresql.hpp>

namespace once::stores {

// The options that open_store() opens for postgresql://…; `offload` and `seal` are ignored. Throws Exception(misuse) as
// open_store() does, and for other schemes.
PostgresqlOptions postgresql_options(std::string_view url);

}  // namespace once::stores
