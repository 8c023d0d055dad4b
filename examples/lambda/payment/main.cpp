// POST /payments, behind API Gateway or a function URL, which check who the client is. A client that got no answer
// retries with the same Idempotency-Key: the card is charged once, and the client gets the first answer.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/lambda/http.hpp>
#include <once/frontends/lambda/runtime.hpp>
#include <once/stores/open.hpp>

struct Payment {
  std::string order_id;
  std::int64_t cents = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Payment, order_id, cents)

// Stand for services that honour idempotency keys, as Stripe, Adyen and others do.
static std::string charge_card(const std::string& idempotency_key, const Payment& payment) {
  std::fprintf(stderr, "charged %s, key %.8s...\n", payment.order_id.c_str(), idempotency_key.c_str());
  return "ch_" + idempotency_key.substr(0, 8);
}

static void send_receipt(const std::string& idempotency_key, const Payment& payment) {
  std::fprintf(stderr, "sent the receipt for %s, key %.8s...\n", payment.order_id.c_str(), idempotency_key.c_str());
}

static once::http::Answer json_answer(unsigned status, const nlohmann::json& body) {
  return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = body.dump()};
}

static once::http::Answer pay(const once::http::Request& request, once::http::Execution& execution) {
  Payment payment;
  try {
    payment = nlohmann::json::parse(request.body).get<Payment>();
  } catch (const nlohmann::json::exception&) {
    return json_answer(400, {{"error", "order_id and cents are needed"}});
  }
  if (payment.cents < 1 || payment.cents > 1'000'000) return json_answer(400, {{"error", "cents: 1 to 1000000"}});

  // Every attempt sends the same keys, so each service acts once even if we die before we learn that it did. The
  // record keeps what a finished step returned: an attempt after a timeout continues after that step.
  const std::string charge =
      execution.step("charge", [&] { return charge_card(execution.derived_key("card"), payment); });
  execution.step("receipt", [&] { send_receipt(execution.derived_key("mail"), payment); });
  return json_answer(201, {{"order_id", payment.order_id}, {"charge", charge}});
}

static once::lambda::Handler make_handler() {
  const char* const store = std::getenv("ONCE_STORE");
  if (store == nullptr) throw std::runtime_error("ONCE_STORE is not set: dynamodb://TABLE, or sqlite:FILE at a desk");
  static once::Engine engine({.store = once::open_store(store)});

  once::http::Options options{.principal = once::http::Principal::given()};  // The signer, as AWS reports it.
  options.on_ambiguous = once::OnLapse::takeover;  // Both services honour our keys. If not: hold.
  // The same key with another body (another amount): 422. While the first request runs: 409.
  return once::lambda::http(engine, {.routes = options}, pay);
}

int main() { return once::lambda::run(make_handler); }
