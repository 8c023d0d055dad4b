// With Boost.Asio: an idempotent operation that is a coroutine, and is awaited. Two hundred requests for ten orders on
// one thread; each order is charged once, and requests that come meanwhile wait without a thread.
#include <chrono>
#include <cstdio>
#include <string>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_future.hpp>
#include <once/idempotent_asio.hpp>
#include <once/stores/open.hpp>

namespace asio = boost::asio;

struct Order {
  std::string id;
};

// Stands for a request to a payment service.
static asio::awaitable<std::string> charge_card(const Order& order) {
  asio::steady_timer answer(co_await asio::this_coro::executor, std::chrono::milliseconds(1));
  co_await answer.async_wait(asio::use_awaitable);
  co_return "ch_" + order.id;
}

int main() {
  once::Engine engine({.store = once::open_store("sqlite:payments.db")});
  asio::io_context io;
  int charged = 0;
  int answered = 0;

  // [coroutines]
  auto charge = once::idempotent(engine, {.name = "charge", .key = &Order::id},
                                 [&](const Order& order) -> asio::awaitable<std::string> {
                                   ++charged;
                                   co_return co_await charge_card(order);
                                 });
  auto serve = [&](Order order) -> asio::awaitable<void> {
    const std::string receipt = co_await charge(order);  // Or with any completion token: charge(order, token).
    if (receipt == "ch_" + order.id) ++answered;
  };
  for (int i = 0; i < 200; ++i) asio::co_spawn(io, serve(Order{"order-" + std::to_string(i % 10)}), asio::detached);
  io.run();
  // [/coroutines]
  std::printf("charged %d, answered %d\n", charged, answered);

  // From code without coroutines. The work runs on Asio's own threads, because no executor is named.
  std::printf("receipt %s\n", charge(Order{"order-7"}, asio::use_future).get().c_str());
}
