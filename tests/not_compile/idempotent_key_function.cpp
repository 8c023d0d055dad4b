// A key function that gives something else than a key.
// Expect: the key function must return a string, an integer
#include <string>

#include <once/idempotent.hpp>

struct Order {
  std::string id;
  double price;
};

void use(once::Engine& engine) {
  const auto charge = [](const Order&) {};
#ifdef WRONG
  once::idempotent(engine, {.name = "charge"}, charge, &Order::price);
#else
  once::idempotent(engine, {.name = "charge"}, charge, &Order::id);
#endif
}
