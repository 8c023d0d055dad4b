// The function after it has moved. ONCE_STORE says which table and which library's records:
// docs/moving-from-powertools.md
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>
#include <once/codec_json.hpp>
#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
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
class Handler {
 public:
  Handler(once::keys::Dialect dialect, const std::string& store_url)
      : keys_({.scope =
                   once::keys::powertools_scope(dialect, variable("AWS_LAMBDA_FUNCTION_NAME"),
                                                dialect == once::keys::Dialect::powertools_python ? "app.handler" : ""),
               .expression = "order_id",  // event_key_jmespath, eventKeyJmesPath
               .validation = "amount",    // payload_validation_jmespath, payloadValidationJmesPath
               .dialect = dialect}),
        engine_({.store = once::open_store(store_url), .policy = {.retention = std::chrono::hours(1)}}) {
  }  // expires_after_seconds

  std::string operator()(const std::string& event) {
    const auto work = [&] { return charge(nlohmann::json::parse(event)); };
    const once::keys::Derived derived = keys_.derive(event);
    const once::Outcome outcome =
        derived.key ? engine_.run({.key = *derived.key, .fingerprint = derived.fingerprint}, work)
                    : engine_.run_unprotected(work);  // As the library does with an event without a key.
    return outcome.value();                           // JSON. Throws Conflict, Mismatch ... where there is no result.
  }

 private:
  once::keys::KeyDeriver keys_;
  once::Engine engine_;
};
// [/moved]

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    Handler handler(once::keys::dialect_from(argv[1]).value(), variable("ONCE_STORE"));
    std::printf("%s\n", handler(argv[2]).c_str());
  } catch (const once::Exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
