// Sends a mail for each order event of EventBridge. EventBridge delivers an event at least once, and Lambda retries
// what failed: the mail is sent once.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/frontends/lambda/metrics.hpp>
#include <once/frontends/lambda/recipes.hpp>
#include <once/frontends/lambda/runtime.hpp>
#include <once/platform/environment.hpp>
#include <once/stores/open.hpp>

// Stands for a mail service.
static std::string send_mail(const std::string& idempotency_key, const std::string& customer,
                             const std::string& order_id) {
  std::fprintf(stderr, "mailed %s about %s, key %.8s...\n", customer.c_str(), order_id.c_str(),
               idempotency_key.c_str());
  return "mail-" + idempotency_key.substr(0, 8);
}

// [consume]
static std::string confirm(std::string_view event, once::Context& context) {
  const auto order = nlohmann::json::parse(event).at("detail");
  const std::string mail = send_mail(context.derived_key("mail"), order.at("customer"), order.at("order_id"));
  return nlohmann::json{{"mail", mail}}.dump();
}

static once::lambda::Handler make_handler() {
  const char* const store = std::getenv("ONCE_STORE");
  if (store == nullptr) throw std::runtime_error("ONCE_STORE is not set: dynamodb://TABLE");
  // ONCE_RETENTION=72h among the function's variables keeps results for three days. ONCE_METRICS=emf writes metrics
  // for CloudWatch. Its log says so at each start.
  const auto tell = [](std::string_view set) {
    std::fprintf(stderr, "from the environment: %.*s\n", static_cast<int>(set.size()), set.data());
  };
  static once::Engine engine({.store = once::open_store(store),
                              .policy = once::policy_from_environment(tell),
                              .observer = once::lambda::metrics_from_environment(tell)});
  // By its source and id, which every delivery of an event keeps.
  return once::lambda::idempotent(engine, {.key = std::string(once::lambda::recipes::event_bridge.key)}, confirm);
}

int main() { return once::lambda::run(make_handler); }
// [/consume]
