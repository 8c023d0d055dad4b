// For servers on Boost.Beast: converts messages, and has one asynchronous operation that puts an endpoint in front of a
// handler. Needs only the headers of Boost 1.81 or later, where it is included.
//
//   // in a session's coroutine
//   Response response = co_await once::http::async_serve(endpoint, request, charge, net::use_awaitable);
//
//   net::awaitable<Response> charge(const Request& request, once::http::Execution& execution);
//
// A step of such a handler is awaited too: async_step() below.
//
// examples/http_beast.cpp is a whole server.
#pragma once

#include <atomic>
#include <concepts>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <once/callback.hpp>
#include <once/engine/asio.hpp>
#include <once/engine/asio_delivery.hpp>
#include <once/engine/unwinding.hpp>
#include <once/frontends/http/endpoint.hpp>

namespace once::http {

// These are the messages that the adapter takes and gives: with their whole body in memory.
using BeastRequest = boost::beast::http::request<boost::beast::http::string_body>;
using BeastResponse = boost::beast::http::response<boost::beast::http::string_body>;

namespace detail {

template <class View>
std::string_view view_of(const View& view) noexcept {
  return {view.data(), view.size()};
}

}  // namespace detail

// Views into `message`, which must outlive it.
inline Request to_request(const BeastRequest& message, std::string_view principal = {}) {
  Request request{.method = detail::view_of(message.method_string()),
                  .target = detail::view_of(message.target()),
                  .headers = {},
                  .body = message.body(),
                  .principal = principal};
  for (const auto& field : message) {
    request.headers.push_back({detail::view_of(field.name_string()), detail::view_of(field.value())});
  }
  return request;
}

// A copy of the response: headers in their order, and the whole body.
inline Answer to_answer(const BeastResponse& message) {
  Answer answer{.status = message.result_int(),
                .reason = std::string(detail::view_of(message.reason())),
                .headers = {},
                .body = message.body()};
  for (const auto& field : message) {
    answer.headers.push_back(
        {std::string(detail::view_of(field.name_string())), std::string(detail::view_of(field.value()))});
  }
  return answer;
}

// `version`: the request's HTTP version, 11 or 10. Framed by Content-Length.
inline BeastResponse to_response(Answer answer, unsigned version, bool keep_alive) {
  BeastResponse message;
  message.version(version);
  message.result(answer.status);
  if (!answer.reason.empty()) message.reason(answer.reason);
  for (const Header& header : answer.headers) {
    if (same_name(header.name, "Content-Length") || same_name(header.name, "Transfer-Encoding")) continue;
    message.insert(header.name, header.value);
  }
  message.keep_alive(keep_alive);
  const bool has_body = answer.status >= 200 && answer.status != 204 && answer.status != 304;
  if (has_body) message.body() = std::move(answer.body);
  message.prepare_payload();
  return message;
}

namespace detail {

using BeastDelivery = once::detail::AsioDelivery<BeastResponse>;

// One request, from its opening to its answer. The handler's reply keeps it alive.
class BeastServing {
 public:
  BeastServing(std::shared_ptr<BeastDelivery> delivery, const BeastRequest& message)
      : delivery_(std::move(delivery)),
        body_(message.body()),
        version_(message.version()),
        keep_alive_(message.keep_alive()) {}
  BeastServing(const BeastServing&) = delete;
  BeastServing& operator=(const BeastServing&) = delete;
  ~BeastServing() {
    if (execution && !begun) {
      execution.finish_unbegun(sender());  // The context was destroyed before.
    } else if (!delivery_->is_over()) {    // Otherwise its work was cut off: unless it is finished, its claim lapses.
      fail(std::make_exception_ptr(std::runtime_error("the handler dropped its reply callback without calling it")));
    }
  }

  void answer(Answer answer) {
    answered_.test_and_set();
    delivery_->deliver(to_response(std::move(answer), version_, keep_alive_));
  }

  // The first call of these two counts. Without an execution the handler has finished it, and replies with the answer.
  void reply(BeastResponse response) {
    if (answered_.test_and_set()) return;
    // An unprotected request's response is sent unchanged.
    if (!execution || !execution.is_protected()) return delivery_->deliver(std::move(response));
    execution.finish(to_answer(response), sender());
  }
  void fail(const std::exception_ptr& error) {
    if (answered_.test_and_set()) return;
    if (execution) return execution.finish_thrown(error, body_, sender());
    Answer answer;
    answer.status = 500;
    sender()(std::move(answer));
  }

  Execution execution = {};
  bool begun = false;  // The handler was called.

 private:
  Callback<void(Answer)> sender() {
    return [delivery = delivery_, version = version_, keep_alive = keep_alive_](Answer answer) {
      delivery->deliver(to_response(std::move(answer), version, keep_alive));
    };
  }

  const std::shared_ptr<BeastDelivery> delivery_;
  const std::string_view body_;  // Of the message, which lives until the delivery.
  const unsigned version_;
  const bool keep_alive_;
  std::atomic_flag answered_ = {};
};

template <class T>
struct IsBeastAwaitable : std::false_type {};
template <class E>
struct IsBeastAwaitable<boost::asio::awaitable<BeastResponse, E>> : std::true_type {
  using Executor = E;
};

// Whether the reply of a handler is a std::function, which copies what it holds. A Callback cannot be copied.
template <class T>
struct IsStdFunction : std::false_type {};
template <class Signature>
struct IsStdFunction<std::function<Signature>> : std::true_type {};
template <class Handler>
struct CopiesReply : std::false_type {};
template <class Message, class Its, class Reply>
struct CopiesReply<std::function<void(Message, Its, Reply)>> : IsStdFunction<std::remove_cvref_t<Reply>> {};

template <class Handler>
using BeastHandled = std::invoke_result<Handler&, const BeastRequest&, Execution&>;
template <class Handler>
concept BeastFunction = std::invocable<Handler&, const BeastRequest&, Execution&> &&
                        std::same_as<typename BeastHandled<Handler>::type, BeastResponse>;
template <class Handler>
concept BeastCoroutine = std::invocable<Handler&, const BeastRequest&, Execution&> &&
                         IsBeastAwaitable<typename BeastHandled<Handler>::type>::value;
template <class Handler>
concept BeastCallback =
    !requires { requires CopiesReply<decltype(std::function(std::declval<Handler>()))>::value; } &&
    requires(Handler& handler, const BeastRequest& message, Execution& execution, Callback<void(BeastResponse)> reply) {
      { handler(message, execution, std::move(reply)) } -> std::same_as<void>;
    };

// Called on the executor.
template <class Handler, class Executor>
void call_handler(Handler handler, const std::shared_ptr<BeastServing>& serving, const BeastRequest& message,
                  const Executor& executor) {
  if constexpr (BeastFunction<Handler>) {
    serving->reply(handler(message, serving->execution));
  } else if constexpr (BeastCoroutine<Handler>) {
    constexpr bool can_run =
        std::convertible_to<const Executor&, typename IsBeastAwaitable<typename BeastHandled<Handler>::type>::Executor>;
    static_assert(
        can_run,
        "once: a coroutine of async_serve() runs on the executor of the completion token, which is not of the "
        "awaitable's type; return a boost::asio::awaitable<BeastResponse>");
    if constexpr (can_run) {
      auto kept = std::make_shared<Handler>(std::move(handler));  // The coroutine refers to its captures.
      boost::asio::co_spawn(executor, (*kept)(message, serving->execution),
                            [serving, kept](const std::exception_ptr& error, BeastResponse response) {
                              if (error) return serving->fail(error);
                              serving->reply(std::move(response));
                            });
    }
  } else {
    handler(message, serving->execution,
            Callback<void(BeastResponse)>([serving](BeastResponse response) { serving->reply(std::move(response)); }));
  }
}

struct BeastServe {
  template <class Completion, class Handler>
  void operator()(Completion&& completion, Endpoint* endpoint, const BeastRequest* message, Handler handler,
                  const std::string& principal) const {
    const auto executor = boost::asio::get_associated_executor(completion);
    // The completion comes from a thread of the store. It keeps the executor's loop running until then.
    auto delivery = std::make_shared<once::detail::AsioHandlerDelivery<std::decay_t<Completion>, BeastResponse>>(
        std::forward<Completion>(completion));
    auto serving = std::make_shared<BeastServing>(delivery, *message);
    endpoint->open(to_request(*message, principal), [serving = std::move(serving), delivery = std::move(delivery),
                                                     executor, message,
                                                     handler = std::move(handler)](Opening opening) mutable {
      if (!opening.runs()) return serving->answer(std::move(opening.answer));
      serving->execution = std::move(opening.execution);
      delivery->post([serving = std::move(serving), executor, message, handler = std::move(handler)]() mutable {
        serving->begun = true;
        if (!serving->execution.may_begin()) {
          return serving->execution.finish_unbegun([serving](Answer answer) { serving->answer(std::move(answer)); });
        }
        try {
          call_handler(std::move(handler), serving, *message, executor);
        } catch (...) {               // Any exception: the policy decides about the claim, and the client gets a 500.
          if (is_unwinding()) throw;  // As in Engine::run(): the claim lapses.
          serving->fail(std::current_exception());
        }
      });
    });
  }
};

}  // namespace detail

// Execution::step() for a coroutine of the handler: once::async_step(), which says more.
//
//   const std::string id = co_await once::http::async_step(execution, "charge", [&] { return charge_card(order); });
template <class Step>
auto async_step(Execution& execution, std::string name, Step step) {
  return once::detail::async_step<Step>(execution.claim(), std::move(name), std::move(step));
}

// Completes with the response to send, on the executor associated with the completion token. If the request may run, it
// calls the handler there, which is one of
//
//   BeastResponse handler(const BeastRequest& message, Execution& execution)
//   boost::asio::awaitable<BeastResponse> handler(const BeastRequest& message, Execution& execution)
//   void handler(const BeastRequest& message, Execution& execution, Callback<void(BeastResponse)> reply)
//
// A coroutine runs on that executor, and awaits its steps by async_step(). The third one calls `reply` once, from any
// thread, at once or later; `execution` lives until then. If a handler throws, or destroys `reply` without a call, the
// answer is 500 (Options::on_throw), or 400 for a body that is not JSON (Execution::is_malformed). To report an
// exception of asynchronous work, call Execution::finish_thrown() and reply with the answer that it returns. `endpoint`
// and `message` must live until the completion. `principal`: Request::principal. The operation cannot be cancelled; a
// disconnected client changes nothing.
//
// If the executor's context is destroyed before, it never completes, and the completion is destroyed with the context.
// A handler that replies later still has its answer stored. The claim of one that does not lapses, and then
// Options::on_ambiguous decides, or it ends as a dropped `reply` does; it is released if the handler was not called.
template <class Handler, class Token = boost::asio::use_awaitable_t<>>
auto async_serve(Endpoint& endpoint, const BeastRequest& message, Handler handler, Token&& token = Token(),
                 std::string_view principal = {}) {
  constexpr bool is_handler =
      detail::BeastFunction<Handler> || detail::BeastCoroutine<Handler> || detail::BeastCallback<Handler>;
  static_assert(is_handler,
                "once: a handler of async_serve() takes (const BeastRequest&, Execution&) and returns a BeastResponse "
                "or a boost::asio::awaitable<BeastResponse>, or takes a Callback<void(BeastResponse)> as well and "
                "returns nothing");
  constexpr bool is_token = boost::asio::completion_token_for<std::remove_reference_t<Token>, void(BeastResponse)>;
  static_assert(is_token,
                "once: async_serve() completes with void(BeastResponse), which its completion token does not take");
  if constexpr (is_handler && is_token) {
    return boost::asio::async_initiate<Token, void(BeastResponse)>(detail::BeastServe(), token, &endpoint, &message,
                                                                   std::move(handler), std::string(principal));
  } else if constexpr (is_token) {
    return once::detail::refused<void(BeastResponse)>(token);
  }
}

// A message of another kind, which is an error of the compiler.
template <class Body, class Fields, class Handler, class Token = boost::asio::use_awaitable_t<>>
auto async_serve(Endpoint&, const boost::beast::http::request<Body, Fields>&, const Handler&, Token&& token = Token(),
                 std::string_view = {}) {
  static_assert(
      std::is_void_v<Body>,
      "once: async_serve() takes a BeastRequest: a boost::beast::http::request<boost::beast::http::string_body> "
      "with the usual fields");
  return once::detail::refused<void(BeastResponse)>(token);
}

}  // namespace once::http
