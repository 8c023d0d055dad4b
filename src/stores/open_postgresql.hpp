// The PostgreSQL store's options out of a URL. Only in builds with that store.
#pragma once

#include <once/stores/postgresql.hpp>

#include "stores/url.hpp"

namespace once::stores {

// Takes the parameters it knows and leaves the rest to libpq. What is out of range the store refuses.
PostgresqlOptions take_postgresql(Url& url);

}  // namespace once::stores
