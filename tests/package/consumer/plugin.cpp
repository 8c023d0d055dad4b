// A plugin with a copy of the library of its own.
#include <string>

#include <once/engine/engine.hpp>
#include <once/stores/sqlite.hpp>

#include "plugin.hpp"

int plugin_run(const char* database, const char* key) {
  try {
    once::Engine engine({.store = once::stores::make_sqlite_store({.path = database}), .scope = "host"});
    int ran = 0;
    const auto outcome = engine.run(key, {}, [&ran] { return std::to_string(++ran); });
    return outcome.value() == "1" ? ran : -1;
  } catch (...) {
    return -1;  // Not through C.
  }
}
