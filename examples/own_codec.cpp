// Results in your own encoding, without JSON: specialise once::Codec.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <once/idempotent.hpp>
#include <once/stores/memory.hpp>

struct Money {
  std::int64_t cents = 0;
  std::string currency;
};

// [codec]
template <>
struct once::Codec<Money> {
  static constexpr std::string_view content_type = "application/x-money";  // Kept with the result, for people.
  static std::string encode(const Money& money) { return std::to_string(money.cents) + " " + money.currency; }
  static Money decode(std::string_view bytes) {
    Money money;
    const auto [end, error] = std::from_chars(bytes.data(), bytes.data() + bytes.size(), money.cents);
    if (error != std::errc{} || !bytes.substr(static_cast<std::size_t>(end - bytes.data())).starts_with(' ')) {
      throw Exception(ErrorKind::corrupt, "no money: " + std::string(bytes));
    }
    money.currency = end + 1;
    return money;
  }
};
// [/codec]

int main() {
  once::Engine engine({.store = once::stores::make_memory_store()});
  auto refund = once::idempotent(engine, {.name = "refund"}, [](const std::string& order, int percent) {
    std::printf("refunding %d %% of %s\n", percent, order.c_str());
    return Money{percent * 10, "EUR"};
  });
  // No key is named: all arguments together are the key.
  for (const int percent : {50, 50, 100}) {
    const Money money = refund("order-17", percent);
    std::printf("%lld cents %s\n", static_cast<long long>(money.cents), money.currency.c_str());
  }
  // The same as a value instead of an exception.
  const auto outcome = refund.outcome("order-17", 100);
  std::printf("%s: %s\n", std::string(to_string(outcome.kind)).c_str(), outcome.result.bytes.c_str());
}
