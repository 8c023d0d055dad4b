// charge ORDER CENTS: charges a card. Start it any number of times: each order is charged once.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <once/codec_json.hpp>
#include <once/idempotent.hpp>
#include <once/stores/open.hpp>

struct Order {
  std::string id;
  long cents = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Order, id, cents)

static std::string charge_card(const Order& order) {
  std::fprintf(stderr, "charging %ld cents\n", order.cents);
  if (std::getenv("DIE") != nullptr) std::_Exit(9);  // The bank has the order, and we never hear from it.
  return "receipt for " + order.id;
}

int main(int argc, char** argv) try {
  if (argc != 3) return 64;
  once::Engine engine({.store = once::open_store("sqlite:payments.db"),
                       .policy = {.lease = once::Millis{2'000}, .on_lapse = once::OnLapse::hold}});
  // The key says what must happen once, and the fingerprint what a retry must repeat.
  auto charge = once::idempotent(engine, {.name = "charge", .key = &Order::id, .fingerprint = "cents"}, charge_card);
  std::printf("%s\n", charge({argv[1], std::atol(argv[2])}).c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
