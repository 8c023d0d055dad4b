// host PLUGIN DATABASE: two copies of the library in one process and on one file, at once; then the plugin is unloaded,
// and the host goes on. Three times.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>

#include <once/engine/engine.hpp>
#include <once/stores/sqlite.hpp>

#include "plugin.hpp"

namespace {

// Opens the file anew.
bool run(const char* database, const std::string& key, bool is_new) {
  once::Engine engine({.store = once::stores::make_sqlite_store({.path = database}), .scope = "host"});
  bool ran = false;
  const auto outcome = engine.run(key, {}, [&ran] {
    ran = true;
    return std::string("1");
  });
  return outcome.value() == "1" && ran == is_new;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const char* const database = argv[2];
  for (int round = 0; round < 3; ++round) {
    const std::string name = std::to_string(round);
    void* const plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) return std::puts(dlerror()), 1;
    const auto plugin_runs = reinterpret_cast<decltype(&plugin_run)>(dlsym(plugin, "plugin_run"));
    if (plugin_runs == nullptr) return std::puts(dlerror()), 1;
    int ran = 0;
    std::thread other([&] {
      for (int i = 0; i < 10; ++i) ran += plugin_runs(database, (name + "plugin" + std::to_string(i)).c_str());
    });
    for (int i = 0; i < 10; ++i) {
      if (!run(database, name + "host" + std::to_string(i), true)) return std::puts("the host's copy failed"), 1;
    }
    other.join();
    if (ran != 10) return std::puts("the plugin's copy failed"), 1;
    dlclose(plugin);
    if (dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != nullptr) return std::puts("the plugin is still there"), 1;
    if (!run(database, name + "plugin0", false)) return std::puts("the host does not see what the plugin did"), 1;
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) return std::puts("a child after that crashed"), 1;
  }
  return 0;
}
