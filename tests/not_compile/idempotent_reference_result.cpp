// A replay has no object that a reference could refer to.
// Expect: the result must not be a reference
#include <once/idempotent.hpp>

void use(once::Engine& engine, int& total) {
#ifdef WRONG
  once::idempotent(engine, {.name = "charge"}, [&total](int cents) -> int& { return total += cents; });
#else
  once::idempotent(engine, {.name = "charge"}, [&total](int cents) { return total += cents; });
#endif
}
