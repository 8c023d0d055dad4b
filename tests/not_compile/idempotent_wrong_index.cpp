// The key is taken from an argument that there is not.
// Expect: the callable has no argument N
#include <string>

#include <once/idempotent.hpp>

void use(once::Engine& engine) {
  const auto charge = [](once::Context&, int, const std::string&) {};
#ifdef WRONG
  once::idempotent<2>(engine, {.name = "charge", .key = "id"}, charge);
#else
  once::idempotent<1>(engine, {.name = "charge", .key = "id"}, charge);
#endif
}
