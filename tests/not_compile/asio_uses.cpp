// What cannot work with Boost.Asio is one sentence each, and no error of Boost's.
// Expect only: once: a handler of async_serve\(\) takes
// Expect only: once: async_serve\(\) takes a BeastRequest
// Expect only: once: async_serve\(\) completes with void\(BeastResponse\)
// Expect only: once: a coroutine of async_serve\(\) runs on the executor
// Expect only: once: the coroutine runs on the executor
// Expect only: once: the work must be callable as work\(once::Context&\) or work\(\)
// Expect only: once: a step must be callable as step\(\)
// Expect only: once: no once::Codec for the result of the step
// Expect only: once: a coroutine is awaited: use once::async_run\(\) and once::async_step\(\)
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/dynamic_body.hpp>

#include <once/engine/asio.hpp>
#include <once/frontends/http/beast.hpp>

namespace net = boost::asio;
using once::http::async_serve;
using once::http::BeastRequest;
using once::http::BeastResponse;
using once::http::Endpoint;
using once::http::Execution;

struct NoCodec {};

BeastResponse function(const BeastRequest&, Execution&);
net::awaitable<BeastResponse> coroutine(const BeastRequest&, Execution&);
void callback(const BeastRequest&, Execution&, once::Callback<void(BeastResponse)>);

net::awaitable<void> serve(Endpoint& endpoint, const BeastRequest& request) {
#ifdef WRONG
  const auto copies = [](const BeastRequest&, Execution&, const std::function<void(BeastResponse)>&) {};
  [[maybe_unused]] const BeastResponse first = co_await async_serve(endpoint, request, copies);
  const boost::beast::http::request<boost::beast::http::dynamic_body> other;
  [[maybe_unused]] const BeastResponse second = co_await async_serve(endpoint, other, function, net::use_awaitable);
  async_serve(endpoint, request, function, [](std::exception_ptr, const BeastResponse&) {});
  const auto elsewhere = [](const BeastRequest&,
                            Execution&) -> net::awaitable<BeastResponse, net::io_context::executor_type> {
    co_return BeastResponse();
  };
  [[maybe_unused]] const BeastResponse third = co_await async_serve(endpoint, request, elsewhere);
#else
  [[maybe_unused]] const BeastResponse first = co_await async_serve(endpoint, request, callback);
  [[maybe_unused]] const BeastResponse second = co_await async_serve(endpoint, request, coroutine, net::use_awaitable);
  async_serve(endpoint, request, function, [](const BeastResponse&) {});
  [[maybe_unused]] const BeastResponse third =
      co_await async_serve(endpoint, request, &coroutine, net::deferred)(net::use_awaitable);
  [[maybe_unused]] const BeastResponse generic =
      co_await async_serve(endpoint, request, [](const auto&, auto&, auto reply) { reply(BeastResponse()); });
  [[maybe_unused]] const BeastResponse owning = co_await async_serve(
      endpoint, request,
      [owned = std::make_unique<int>()](const BeastRequest&, Execution&) { return BeastResponse(); });
#endif
}

net::awaitable<void> run(once::Engine& engine, once::Context& context) {
#ifdef WRONG
  co_await once::async_run(engine, {.key = once::Key("s", "k")}, [](int) { return std::string(); });
  co_await once::async_run(engine, {.key = once::Key("s", "k")},
                           []() -> net::awaitable<std::string, net::io_context::executor_type> { co_return ""; });
  co_await once::async_step(context, "step", [](int) {});
  co_await once::async_step(context, "step", [] { return NoCodec(); });
  co_await context.step("step", []() -> net::awaitable<std::string> { co_return ""; });
#else
  co_await once::async_run(engine, {.key = once::Key("s", "k")}, [] { return std::string(); });
  co_await once::async_run(engine, {.key = once::Key("s", "k")},
                           [](once::Context&) -> net::awaitable<std::string> { co_return ""; });
  co_await once::async_step(context, "step", [] {});
  co_await once::async_step(context, "step", []() -> net::awaitable<std::string> { co_return ""; });
  context.step("step", [] { return std::string(); });
#endif
}
