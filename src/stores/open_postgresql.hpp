// The PostgreSQL store's options out of a URL. Only in builds with that store.
#pragma once

#include <string_view>

#include <once/stores/postgresql.hpp>

#include "stores/url.hpp"

namespace once::stores {

// Takes the parameters it knows and leaves the rest to libpq. What is out of range the store refuses.
PostgresqlOptions take_postgresql(Url& url);

// The options that open_store() opens for postgresql://…; `offload`, `seal` and `seal_command` are ignored. Throws
// Exception(misuse) as open_store() does, and for other schemes.
PostgresqlOptions postgresql_options(std::string_view url);

}  // namespace once::stores
