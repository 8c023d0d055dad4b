// A key of a type that is not among the arguments.
// Expect: no argument has the member that the key is taken from
#include <string>

#include <once/idempotent.hpp>

struct Order {
  std::string id;
};
struct Refund {
  std::string id;
};

void use(once::Engine& engine) {
  const auto charge = [](const Order&) {};
#ifdef WRONG
  once::idempotent(engine, {.name = "charge", .key = &Refund::id}, charge);
#else
  once::idempotent(engine, {.name = "charge", .key = &Order::id}, charge);
#endif
}
