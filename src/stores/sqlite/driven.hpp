// A store without a thread of its own, for the simulation (docs/simulation.md).
#pragma once

#include <functional>
#include <memory>

#include <once/stores/sqlite.hpp>

namespace once::stores::sqlite {

struct DrivenStore {
  std::unique_ptr<Store> store;
  // Carries out a group of what was asked and a slice of a sweep, and completes them, as the writer's thread does.
  // False: there was nothing to do. Call it on one thread, never in a completion, and not after the store's end.
  std::function<bool()> turn;
};

// The destructor carries out what is left. Otherwise as make_sqlite_store(), but for a relative path.
DrivenStore make_driven_store(SqliteOptions options);

}  // namespace once::stores::sqlite
