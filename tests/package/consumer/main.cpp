// The least that a user of the library writes: a store, an engine, an operation that happens once. Options are named
// where they differ from the defaults, and warnings are errors.
#include <chrono>
#include <cstdio>
#include <string>

#include <once/engine/engine.hpp>
#include <once/stores/sqlite.hpp>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  once::Engine engine(
      {.store = once::stores::make_sqlite_store({.path = argv[1]}), .scope = "charge", .cache_records = 5});
  int charges = 0;
  const auto charge = [&charges] { return "receipt " + std::to_string(++charges); };
  once::Request request{.key = once::Key("charge", "order-17"),
                        .policy = once::Policy{.lease = std::chrono::seconds(5)}};
  const std::string first = engine.run(request, charge).value();
  const std::string again = engine.run("order-17", {}, charge).value();
  std::printf("%s, %s, %d charge\n", first.c_str(), again.c_str(), charges);
  return charges == 1 && first == "receipt 1" && again == first ? 0 : 1;
}
