// Charges an order's card and mails the receipt, once for each order, however often the event comes.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <unistd.h>

#include <once/engine/engine.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/frontends/lambda/runtime.hpp>
#include <once/stores/open.hpp>

static std::string pay(std::string_view event, once::Context& context) {
  // The record keeps what a finished step returned: no later attempt runs it again.
  const std::string charge = context.step("charge", [&] {
    std::fprintf(stderr, "charging %s\n", std::string(event).c_str());
    return std::string("ch_1");
  });
  context.step("mail", [] {
    if (std::getenv("MAIL_HANGS") != nullptr) pause();
    std::fprintf(stderr, "mailing the receipt\n");
  });
  return R"({"charge":")" + charge + "\"}";
}

int main() {
  return once::lambda::run([] {
    const char* const store = std::getenv("ONCE_STORE");
    static once::Engine engine({.store = once::open_store(store == nullptr ? "sqlite:once.db" : store)});
    return once::lambda::idempotent(engine, {.key = "order", .fingerprint = "cents"}, pay);
  });
}
