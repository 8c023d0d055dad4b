// An expression reads JSON, but this argument has no codec for JSON.
// Expect: no once::Codec for the argument
#include <once/idempotent.hpp>

struct Order {
  int id;
};

void use(once::Engine& engine) {
  const auto charge = [](const Order&) {};
#ifdef WRONG
  once::idempotent(engine, {.name = "charge", .key = "id"}, charge);
#else
  once::idempotent(engine, {.name = "charge", .key = &Order::id}, charge);
#endif
}
