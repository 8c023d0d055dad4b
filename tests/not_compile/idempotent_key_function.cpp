// A key of a type that is no name.
// Expect: the key must be a string, an integer
#include <string>

#include <once/idempotent.hpp>

struct Order {
  std::string id;
  double price;
};

void use(once::Engine& engine) {
  const auto charge = [](const Order&) {};
#ifdef WRONG
  once::idempotent(engine, {.name = "charge", .key = &Order::price}, charge);
#else
  once::idempotent(engine, {.name = "charge", .key = &Order::id}, charge);
#endif
}
