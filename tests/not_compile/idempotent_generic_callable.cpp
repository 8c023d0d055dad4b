// A generic callable has many signatures: its arguments are not known before it is called.
// Expect: needs a callable with one signature
#include <once/idempotent.hpp>

void use(once::Engine& engine) {
#ifdef WRONG
  once::idempotent(engine, {.name = "charge"}, [](auto cents) { return cents; });
#else
  once::idempotent(engine, {.name = "charge"}, [](int cents) { return cents; });
#endif
}
