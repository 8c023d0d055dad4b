// For servers on Boost.Beast: converts messages, and has one asynchronous operation that puts an endpoint in front of a
// handler. Needs only the headers of Boost 1.81 or later, where it is included.
//
//   // in a session's coroutine
//   Response response = co_await once::http::async_serve(endpoint, request, charge, net::use_awaitable);
//
//   void charge(const Request& request, once::http::Execution& execution, once::Callback<void(Response)> reply);
//
// examples/http_beast.cpp is a whole server.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <once/callback.hpp>
#include <once/frontends/http/endpoint.hpp>

namespace once::http {

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

// One request, from its opening to its answer. The handler's reply keeps it alive.
class BeastServing {
 public:
  BeastServing(Callback<void(BeastResponse)> deliver, unsigned version, bool keep_alive)
      : deliver_(std::move(deliver)), version_(version), keep_alive_(keep_alive) {}
  BeastServing(const BeastServing&) = delete;
  BeastServing& operator=(const BeastServing&) = delete;
  ~BeastServing() {
    if (execution) fail(std::make_exception_ptr(std::runtime_error("it let go of its reply")));
  }

  void answer(Answer answer) { deliver_(to_response(std::move(answer), version_, keep_alive_)); }

  // The first call of these two counts.
  void reply(BeastResponse response) {
    if (answered_.test_and_set()) return;
    // An unprotected request's response is sent unchanged.
    if (!execution.is_protected()) return deliver_(std::move(response));
    execution.finish(to_answer(response), sender());
  }
  void fail(const std::exception_ptr& error) {
    if (!answered_.test_and_set()) execution.finish_thrown(error, sender());
  }

  Execution execution;

 private:
  Callback<void(Answer)> sender() {
    return [deliver = std::move(deliver_), version = version_, keep_alive = keep_alive_](Answer answer) mutable {
      deliver(to_response(std::move(answer), version, keep_alive));
    };
  }

  Callback<void(BeastResponse)> deliver_;
  const unsigned version_;
  const bool keep_alive_;
  std::atomic_flag answered_;
};

struct BeastServe {
  template <class Completion, class Handler>
  void operator()(Completion&& completion, Endpoint* endpoint, const BeastRequest* message, Handler handler,
                  const std::string& principal) const {
    namespace net = boost::asio;
    const auto executor = net::get_associated_executor(completion);
    // The completion comes from a thread of the store. The guard keeps the executor's loop running until then.
    auto deliver = [completion = std::forward<Completion>(completion),
                    work = net::make_work_guard(executor)](BeastResponse response) mutable {
      net::post(work.get_executor(), [completion = std::move(completion), response = std::move(response)]() mutable {
        std::move(completion)(std::move(response));
      });
      work.reset();
    };
    auto serving = std::make_shared<BeastServing>(std::move(deliver), message->version(), message->keep_alive());
    endpoint->open(to_request(*message, principal), [serving = std::move(serving), executor, message,
                                                     handler = std::move(handler)](Opening opening) mutable {
      if (!opening.runs()) return serving->answer(std::move(opening.answer));
      serving->execution = std::move(opening.execution);
      net::post(executor, [serving = std::move(serving), message, handler = std::move(handler)]() mutable {
        if (!serving->execution.may_begin()) {
          return serving->execution.finish_unbegun([serving](Answer answer) { serving->answer(std::move(answer)); });
        }
        try {
          handler(*message, serving->execution, Callback<void(BeastResponse)>([serving](BeastResponse response) {
            serving->reply(std::move(response));
          }));
        } catch (...) {  // Any exception: the policy decides about the claim, and the client gets a 500.
          serving->fail(std::current_exception());
        }
      });
    });
  }
};

}  // namespace detail

// Completes with the response to send, on the executor associated with the completion token. If the request may run, it
// calls the handler there:
//
//   handler(const BeastRequest& message, Execution& execution, Callback<void(BeastResponse)> reply)
//
// The handler calls `reply` once, from any thread, at once or later; `execution` lives until then. If it throws before,
// or destroys `reply` without a call, the answer is 500 (Options::on_throw). `endpoint` and `message` must live until
// the completion. `principal`: Request::principal. The operation cannot be cancelled; a disconnected client changes
// nothing.
template <class Handler, class Token>
auto async_serve(Endpoint& endpoint, const BeastRequest& message, Handler handler, Token&& token,
                 std::string_view principal = {}) {
  return boost::asio::async_initiate<Token, void(BeastResponse)>(detail::BeastServe(), token, &endpoint, &message,
                                                                 std::move(handler), std::string(principal));
}

}  // namespace once::http
