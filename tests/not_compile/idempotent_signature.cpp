// A named type, and a callable of another signature.
// Expect: the callable must take the arguments of the signature
#include <string>

#include <once/idempotent.hpp>

void use(once::Engine& engine) {
#ifdef WRONG
  once::Idempotent<int(const std::string&)> charge(engine, {.name = "charge"}, [](int cents) { return cents; });
#else
  once::Idempotent<int(const std::string&)> charge(engine, {.name = "charge"}, [](const std::string&) { return 1; });
#endif
  charge("17");
}
