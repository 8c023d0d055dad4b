// The blocking face of a store, for tools and tests: starts the operation and waits for its completion.
// Must not be called from a store's completion: it would wait for itself.
#pragma once

#include <cstddef>
#include <string>

#include <once/store.hpp>

namespace once::blocking {

Answer insert(Store& store, Record record);
Answer replace(Store& store, Record record, Seen seen);
Answer remove(Store& store, std::string key, Seen seen);
Answer get(Store& store, std::string key);
ListPage list(Store& store, ListQuery query);
SweepAnswer sweep(Store& store, Time now, std::size_t limit);

}  // namespace once::blocking
