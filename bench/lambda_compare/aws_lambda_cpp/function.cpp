// The function on AWS's own runtime for C++, for compare.py: bare, or with once's handler as plain strings.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <aws/lambda-runtime/runtime.h>
#include <nlohmann/json.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/stores/open.hpp>

using namespace aws::lambda_runtime;

static std::string charge(std::string_view event) {
  const auto order = nlohmann::json::parse(event);
  return nlohmann::json{{"order_id", order.at("order_id")}, {"status", "paid"}, {"amount", order.at("amount")}}.dump();
}

int main() {
  std::optional<once::Engine> engine;
  once::lambda::Handler handler = [](std::string_view event, const once::lambda::Invocation&) { return charge(event); };
  if (std::string_view(std::getenv("BENCH_MODE")) == "idempotent") {
    engine.emplace(once::EngineOptions{.store = once::open_store(std::getenv("ONCE_STORE"))});
    handler = once::lambda::idempotent(*engine, {.key = "order_id"}, charge);
  }
  run_handler([&](const invocation_request& request) {
    const once::lambda::Invocation invocation{.request_id = request.request_id,
                                              .function_arn = request.function_arn,
                                              .deadline = std::chrono::floor<once::Millis>(request.deadline)};
    return invocation_response::success(handler(request.payload, invocation), "application/json");
  });
}
