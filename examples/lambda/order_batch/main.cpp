// Ships the orders that come from an SQS queue, ten at a time. Each order is shipped once, however often its message is
// delivered or sent. Only failed ones come again.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/lambda/batch.hpp>
#include <once/frontends/lambda/runtime.hpp>
#include <once/stores/open.hpp>

struct Order {
  std::string order_id;
  std::string sku;
  int quantity = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Order, order_id, sku, quantity)

// Stand for a warehouse and a carrier, which honour idempotency keys.
static void reserve(const std::string& idempotency_key, const Order& order) {
  if (order.sku == "SOLD-OUT") throw std::runtime_error("the warehouse has none left");
  std::fprintf(stderr, "reserved for %s, key %.8s...\n", order.order_id.c_str(), idempotency_key.c_str());
}

static std::string hand_over(const std::string& idempotency_key, const Order& order) {
  std::fprintf(stderr, "shipped %s, key %.8s...\n", order.order_id.c_str(), idempotency_key.c_str());
  return "parcel-" + idempotency_key.substr(0, 8);
}

static Order read(const std::string& body) {
  try {
    const auto order = nlohmann::json::parse(body).get<Order>();
    if (order.quantity > 0) return order;
  } catch (const nlohmann::json::exception& error) {
    throw once::sqs::PoisonMessage(error.what());
  }
  throw once::sqs::PoisonMessage("nothing is ordered");  // No retry will fix that.
}

// [ship]
static std::string ship(const once::sqs::Message& message, once::Context& context) {
  const Order order = read(message.body);
  // If an attempt dies after the first step, the next one continues with the second. Both services see the same
  // key each time.
  context.step("reserve", [&] { reserve(context.derived_key("warehouse"), order); });
  return context.step("ship", [&] { return hand_over(context.derived_key("carrier"), order); });
}

static once::lambda::Handler make_handler() {
  const char* const store = std::getenv("ONCE_STORE");
  if (store == nullptr) throw std::runtime_error("ONCE_STORE is not set: dynamodb://TABLE");
  static once::Engine engine({.store = once::open_store(store)});
  // The order's number is the key, so that an order that is sent twice, as two messages, is shipped once too.
  return once::sqs::batch(engine, {.key_source = once::sqs::KeySource::payload, .key = "order_id"}, ship);
}

int main() { return once::lambda::run(make_handler); }
// [/ship]
