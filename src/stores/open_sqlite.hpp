// The SQLite store's options out of a URL. Only in builds with that store.
#pragma once

#include <once/stores/sqlite.hpp>

#include "stores/url.hpp"

namespace once::stores {

// Takes the parameters it knows and refuses the rest. What is out of range the store refuses.
SqliteOptions sqlite_options(Url& url);

}  // namespace once::stores
