// Blocking calls of a store, for tools and tests: each starts the operation and waits for its completion. Do not call
// them from a store's completion: they would wait for themselves.
#pragma once

#include <cstddef>
#include <string>

#include <once/store.hpp>

namespace once::blocking {

// These are the functions of Store with these names. They report failures in what they return.
Answer insert(Store& store, Record record);
Answer replace(Store& store, Record record, Seen seen);
Answer remove(Store& store, std::string key, Seen seen);
Answer get(Store& store, std::string key);
ListPage list(Store& store, ListQuery query);
SweepAnswer sweep(Store& store, Time now, std::size_t limit);

}  // namespace once::blocking
