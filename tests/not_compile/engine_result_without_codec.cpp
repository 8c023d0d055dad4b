// The work of Engine::run returns something that could not be kept.
// Expect: no once::Codec for the result of the work
#include <string>

#include <once/engine/engine.hpp>

struct Receipt {
  int cents;
};

void use(once::Engine& engine) {
#ifdef WRONG
  engine.run("order-17", "", [] { return Receipt{500}; });
#else
  engine.run("order-17", "", [] { return std::string("500"); });
#endif
}
