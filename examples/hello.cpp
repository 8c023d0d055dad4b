// Three lines make a function idempotent. Run it twice: the second run charges nothing and has the same receipt.
#include <cstdint>
#include <cstdio>
#include <string>

#include <once/codec_json.hpp>
#include <once/idempotent.hpp>
#include <once/stores/open.hpp>

// [types]
struct Order {
  std::string id;
  std::int64_t cents = 0;
};

struct Receipt {
  std::string charge;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Receipt, charge)
// [/types]

static Receipt charge_card(const Order& order) {
  std::printf("charging %lld cents for %s\n", static_cast<long long>(order.cents), order.id.c_str());
  return {"ch_" + order.id};
}

int main() {
  const Order order{"order-17", 500};
  // [three lines]
  once::Engine engine({.store = once::open_store("sqlite:payments.db")});
  auto charge = once::idempotent(engine, {.name = "charge", .key = &Order::id}, charge_card);
  Receipt receipt = charge(order);  // Any number of times, in any process: charge_card(order) runs once.
  // [/three lines]
  std::printf("receipt %s\n", receipt.charge.c_str());
}
