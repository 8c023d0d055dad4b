// once's function for compare.py. BENCH_MODE: bare (the handler alone), idempotent, batch.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/lambda/batch.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/frontends/lambda/runtime.hpp>
#include <once/stores/open.hpp>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set");
  return value;
}

// The same in all functions of the comparison.
std::string charge(std::string_view event) {
  const auto order = nlohmann::json::parse(event);
  return nlohmann::json{{"order_id", order.at("order_id")}, {"status", "paid"}, {"amount", order.at("amount")}}.dump();
}

once::lambda::Handler make_handler() {
  const std::string mode = variable("BENCH_MODE");
  if (mode == "bare") return [](std::string_view event, const once::lambda::Invocation&) { return charge(event); };
  static once::Engine engine({.store = once::open_store(variable("ONCE_STORE"))});
  if (mode == "idempotent") return once::lambda::idempotent(engine, {.key = "order_id"}, charge);
  if (mode == "batch") {
    return once::sqs::batch(engine, {}, [](const once::sqs::Message& message) { return charge(message.body); });
  }
  throw std::runtime_error("BENCH_MODE is bare, idempotent or batch");
}

}  // namespace

int main() { return once::lambda::run(make_handler); }
