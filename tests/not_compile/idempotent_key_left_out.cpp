// Without a key all arguments are the key, and one of them has no codec.
// Expect: without a key all arguments are the key
#include <string>

#include <once/idempotent.hpp>

struct Database {};

void use(once::Engine& engine) {
  const auto charge = [](Database&, const std::string&) {};
#ifdef WRONG
  once::idempotent(engine, {.name = "charge"}, charge);
#else
  once::idempotent<1>(engine, {.name = "charge", .key = "id"}, charge);
#endif
}
