// A shared library with a copy of once of its own, which is unloaded while its process goes on.
#include "plugin.hpp"

#include <exception>
#include <string>
#include <thread>

#include <once/engine/engine.hpp>
#include <once/stores/sqlite.hpp>

int plugin_run(const char* database, const char* key) {
  try {
    once::Engine engine({.store = once::stores::make_sqlite_store({.path = database}), .scope = "process"});
    int ran = 0;
    std::thread([&engine, &ran, key] {  // Which ends before the plugin is unloaded.
      static_cast<void>(engine.run(key, {}, [&ran] { return std::to_string(++ran); }).value());
    })
        .join();
    return ran;
  } catch (const std::exception&) {
    return -1;
  }
}
