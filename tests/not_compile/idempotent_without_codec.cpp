// A result that no codec knows could not be replayed.
// Expect: no once::Codec for the result
#include <once/idempotent.hpp>

struct Receipt {
  int cents;
};

void use(once::Engine& engine) {
#ifdef WRONG
  once::idempotent(engine, {.name = "charge"}, [](int cents) { return Receipt{cents}; });
#else
  once::idempotent(engine, {.name = "charge"}, [](int cents) { return Receipt{cents}.cents; });
#endif
}
