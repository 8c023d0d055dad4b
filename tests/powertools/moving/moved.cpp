// The function after it has moved. ONCE_STORE says which table and which library's records:
// docs/moving-from-powertools.md
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/stores/open.hpp>

namespace {

struct Receipt {
  std::string status;
  int amount = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Receipt, status, amount)

Receipt charge(const nlohmann::json& event) {
  std::fprintf(stderr, "charging %s\n", event.at("order_id").dump().c_str());
  return {.status = "paid", .amount = event.at("amount")};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  return value == nullptr ? "" : value;
}

// [moved]
// What the library was configured with.
once::lambda::IdempotentOptions options_for(once::keys::Dialect dialect) {
  once::lambda::IdempotentOptions options{
      .key = "order_id",        // event_key_jmespath, eventKeyJmesPath
      .fingerprint = "amount",  // payload_validation_jmespath, payloadValidationJmesPath
      .name = dialect == once::keys::Dialect::powertools_python ? "app.handler" : "",
      .dialect = dialect};
  options.policy = once::Policy{.retention = std::chrono::hours(1)};  // expires_after_seconds, expiresAfterSeconds
  return options;
}

// For once::lambda::run(), or any other runtime.
once::lambda::Handler make_handler(once::Engine& engine, once::keys::Dialect dialect) {
  return once::lambda::idempotent(engine, options_for(dialect), [](std::string_view event) {
    const Receipt receipt = charge(nlohmann::json::parse(event));
    return nlohmann::json(receipt).dump();
  });
}
// [/moved]

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    once::Engine engine({.store = once::open_store(variable("ONCE_STORE"))});
    const once::lambda::Handler handler = make_handler(engine, once::keys::dialect_from(argv[1]).value());
    std::printf("%s\n", handler(argv[2], {}).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
