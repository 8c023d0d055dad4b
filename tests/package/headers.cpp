// All public headers, in a program that has these macros already, as Qt's qtmetamacros.h, X11's X.h and Xlib.h, and
// many builds define them. Only compiled.
#include <httplib.h>  // These two use such names themselves.

#include <pqxx/pqxx>

#define emit
#define foreach(variable, container) for (variable : container)
#define forever for (;;)
#define signals public
#define slots

#define Above 0
#define AllocAll 1
#define Always 2
#define Below 1
#define Bool int
#define Complex 0
#define Convex 2
#define CurrentTime 0L
#define Expose 12
#define False 0
#define FocusIn 9
#define None 0L
#define Opposite 4
#define Status int
#define Success 0
#define True 1
#define Unsorted 0

#define DEBUG 1
#define ERROR 3
#define FALSE 0
#define OK 0
#define TRUE 1

#include "headers.inc"

#include <chrono>
#include <string>

namespace shop {

struct Order {
  std::string id = {};
  long cents = 0;
};
ONCE_JSON(Order, id, cents)

struct Receipt {
  std::string charge = {};
  long cents = 0;
};
ONCE_JSON(Receipt, charge, cents)

}  // namespace shop

// As README and the pages have it: options are named where they differ from the defaults.
int main() {
  once::Engine engine({.store = once::open_store("memory:")});
  const once::Engine other({.store = once::open_store("memory:"), .scope = "shop", .cache_records = 5});
  const auto charge = once::idempotent(engine, {.name = "charge", .policy = {.lease = std::chrono::seconds(5)}},
                                       [](long cents) { return shop::Receipt{.charge = "ch_1", .cents = cents}; });
  const auto order = once::idempotent(engine, {.name = "order", .key = "id", .input_without = {"cents"}},
                                      [](once::Context& context, const shop::Order& given) {
                                        return context.step("id", [&given] { return given.id; });
                                      });
  const once::Request request{.key = once::Key("shop", "k"), .policy = once::Policy{.retention = once::keep_forever}};
  const once::http::Endpoint endpoint(engine,
                                      {.principal = once::http::Principal::header("X-Api-Key"), .route = "/charges"});
  const auto store = once::stores::make_sqlite_store({.path = "once.db"});
  once::LogObserver log;
  const auto outcome = engine.run(request, [] { return std::string("r"); });
  return outcome.value() == order(shop::Order{.id = "r"}) && charge(5).cents == 5 ? 0 : 1;
}
