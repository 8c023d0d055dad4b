// A payments service on Boost.Beast, all of it on one thread: POST /charges charges once for each Idempotency-Key,
// while its clients retry and send everything four times at once.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>

#include <once/frontends/http/beast.hpp>
#include <once/stores/open.hpp>

namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using net::ip::tcp;
using once::http::BeastRequest;
using once::http::BeastResponse;

// [service]
class Service {
 public:
  Service(net::io_context& io, once::http::Endpoint& endpoint) : io_(io), endpoint_(endpoint) {}

  net::awaitable<void> session(tcp::socket socket) {
    boost::beast::flat_buffer buffer;
    for (;;) {
      BeastRequest request;
      co_await http::async_read(socket, buffer, request, net::use_awaitable);
      auto handler = [this](const BeastRequest& message, once::http::Execution&,
                            once::Callback<void(BeastResponse)> reply) { charge(message, std::move(reply)); };
      BeastResponse response =
          co_await once::http::async_serve(endpoint_, request, std::move(handler), net::use_awaitable);
      co_await http::async_write(socket, response, net::use_awaitable);
      if (!response.keep_alive()) co_return;
    }
  }

  [[nodiscard]] int charges() const noexcept { return charges_; }

 private:
  // Moves money, which takes a while, without blocking other requests.
  void charge(const BeastRequest& request, once::Callback<void(BeastResponse)> reply) {
    auto card = std::make_shared<net::steady_timer>(io_, std::chrono::milliseconds(20));
    card->async_wait([this, card, version = request.version(), reply = std::move(reply)](auto) mutable {
      const std::string id = std::to_string(++charges_);
      BeastResponse response(http::status::created, version);
      response.set(http::field::location, "/charges/" + id);
      response.set(http::field::content_type, "application/json");
      response.body() = "{\"charge\":" + id + "}\n";
      reply(std::move(response));
    });
  }

  net::io_context& io_;
  once::http::Endpoint& endpoint_;
  std::atomic<int> charges_ = 0;
};
// [/service]

net::awaitable<void> accept(tcp::acceptor& acceptor, Service& service) {
  for (;;) {
    tcp::socket socket = co_await acceptor.async_accept(net::use_awaitable);
    auto session = service.session(std::move(socket));
    // A session ends with an error of its connection: its client has disconnected.
    auto ended = [](const std::exception_ptr&) {};
    net::co_spawn(acceptor.get_executor(), std::move(session), std::move(ended));
  }
}

// A client's side.
BeastResponse post(tcp::endpoint server, const std::string& key, const std::string& body) {
  net::io_context io;
  tcp::socket socket(io);
  socket.connect(server);
  BeastRequest request(http::verb::post, "/charges", 11);
  request.set(http::field::host, "127.0.0.1");
  request.set("Idempotency-Key", key);
  request.body() = body;
  request.prepare_payload();
  http::write(socket, request);
  boost::beast::flat_buffer buffer;
  BeastResponse response;
  http::read(socket, buffer, response);
  return response;
}

// As clients should: while the first request is running, retry.
BeastResponse post_until_answered(tcp::endpoint server, const std::string& key, const std::string& body) {
  for (;;) {
    BeastResponse response = post(server, key, body);
    if (response.result() != http::status::conflict) return response;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // Retry-After is only the longest time to wait.
  }
}

void show(const char* what, const BeastResponse& response) {
  std::printf("%s: %u%s %s", what, response.result_int(),
              response.count("Idempotent-Replayed") != 0 ? " (replayed)" : "", response.body().c_str());
}

}  // namespace

int main() {
  once::Engine engine({.store = once::open_store("sqlite:charges.db"), .scope = "shop"});
  once::http::Endpoint endpoint(engine, {.principal = once::http::Principal::shared(), .route = "charges"});

  net::io_context io(1);
  Service service(io, endpoint);
  tcp::acceptor acceptor(io, {net::ip::make_address("127.0.0.1"), 0});
  const tcp::endpoint server = acceptor.local_endpoint();
  net::co_spawn(io, accept(acceptor, service), net::detached);
  std::jthread serving([&] { io.run(); });

  show("first", post(server, "order-17", "500"));
  show("retry", post(server, "\"order-17\"", "500"));
  show("other amount", post(server, "order-17", "900"));

  std::atomic<int> created = 0;
  {
    std::vector<std::jthread> clients;
    clients.reserve(20);
    for (int i = 0; i < 20; ++i) {
      clients.emplace_back([&, key = "storm-" + std::to_string(i % 5)] {
        if (post_until_answered(server, key, "100").result() == http::status::created) ++created;
      });
    }
  }
  std::printf("five orders, each four times at once: %d answers 201\n", created.load());
  std::printf("charges: %d\n", service.charges());
  io.stop();
}
