// A payment in steps. The first attempt charges the card and then fails; the second continues after the charge.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include <once/codec_json.hpp>
#include <once/idempotent.hpp>
#include <once/stores/open.hpp>

struct Order {
  std::string id;
  std::int64_t cents = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Order, id, cents)

// Stands for a payment service that honours idempotency keys, as Stripe, Adyen and others do.
static std::string charge_card(const std::string& idempotency_key, std::int64_t cents) {
  std::printf("  charged %lld cents, key %.8s...\n", static_cast<long long>(cents), idempotency_key.c_str());
  return "ch_1";
}

static void send_receipt(bool mail_works, const std::string& charge) {
  if (!mail_works) throw std::runtime_error("the mail server is down");
  std::printf("  sent the receipt for %s\n", charge.c_str());
}

int main() {
  once::Engine engine({.store = once::open_store("sqlite:payments.db"), .scope = "shop"});
  bool mail_works = false;

  // [steps]
  auto pay = once::idempotent(
      engine, {.name = "pay", .key = &Order::id, .fingerprint = "cents"},  // Another amount is refused: once::Mismatch.
      [&](once::Context& context, const Order& order) {
        std::printf("attempt %u\n", context.attempt());
        // The service sees the same key from every attempt, so it charges once even if we die before we learn that it
        // did. The record keeps what a finished step returned: no attempt runs it again.
        const std::string charge =
            context.step("charge", [&] { return charge_card(context.derived_key("card"), order.cents); });
        context.step("mail", [&] { send_receipt(mail_works, charge); });
        return charge;
      });
  // [/steps]

  for (int call = 1; call <= 3; ++call) {
    try {
      std::printf("paid: %s\n", pay({"order-17", 500}).c_str());
    } catch (const std::runtime_error& error) {
      std::printf("failed: %s\n", error.what());
      mail_works = true;
    }
  }
  try {
    pay({"order-17", 900});
  } catch (const once::Mismatch& error) {
    std::printf("refused: %s\n", error.what());
  }
}
