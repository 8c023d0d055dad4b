// How to test work that must happen once: a store in memory, time that stands still, and faults on purpose.
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include <once/idempotent.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>

using namespace std::chrono_literals;

struct Order {
  std::string id;
};

// What is tested: it needs an engine, which a test gives it.
static std::string pay(once::Engine& engine, int& charges, const Order& order) {
  auto charge = once::idempotent(engine, {.name = "charge", .key = &Order::id}, [&charges](const Order& one) {
    ++charges;
    return "receipt for " + one.id;
  });
  return charge(order);
}

static bool check(bool right, const char* what) {
  std::printf("%s: %s\n", right ? "passed" : "FAILED", what);
  return right;
}

static bool a_retry() {
  // [retry]
  once::Engine engine({.store = once::stores::make_memory_store(), .scope = "shop"});
  int charges = 0;
  const std::string first = pay(engine, charges, {"order-17"});
  const std::string again = pay(engine, charges, {"order-17"});
  return check(first == again && charges == 1, "a retry gets the first receipt");
  // [/retry]
}

static bool a_death() {
  // [death]
  auto clock = std::make_shared<once::testing::ManualClock>();
  once::Engine engine({.store = once::stores::make_memory_store(clock), .scope = "shop", .clock = clock});
  int charges = 0;
  {
    once::Begin killed = engine.begin({.key = once::Key("shop/charge", "order-17"), .fingerprint = {}});
    if (killed.kind != once::Begin::Kind::claimed) return check(false, "the claim");
  }                     // It had the claim, and is gone without a finish.
  clock->advance(31s);  // The lease is 30 s by default.
  pay(engine, charges, {"order-17"});
  return check(charges == 1, "after a death, the next call runs the work");
  // [/death]
}

static bool no_store() {
  // [no store]
  auto store = std::make_shared<once::testing::FaultyStore>(
      once::stores::make_memory_store(), [](const once::testing::StoreCall&) {
        return once::testing::Fault{.kind = once::testing::Fault::Kind::unavailable};
      });
  once::Engine engine({.store = store, .scope = "shop"});
  int charges = 0;
  try {
    pay(engine, charges, {"order-17"});
  } catch (const once::StoreFailed&) {
    return check(charges == 0, "without its store, nothing runs");
  }
  return check(false, "the store failed, and the call did not");
  // [/no store]
}

int main() {
  const bool retry = a_retry();
  const bool death = a_death();
  const bool store = no_store();
  return retry && death && store ? 0 : 1;
}
