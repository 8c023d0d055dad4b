// A server that has no adapter: what it must do for once::http::Endpoint. Its requests, responses and threads are made
// up here, and stand for those of your framework.
#include <cstdio>
#include <exception>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/frontends/http/endpoint.hpp>
#include <once/stores/open.hpp>

namespace {

// The framework's.
struct ServersRequest {
  std::string method;
  std::string target;  // "/charges?a=b", as it was sent.
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};
using ServersSend = std::function<void(int status, const once::http::Headers& headers, const std::string& body)>;

// [translate]
// Views into `request`.
once::http::Request to_request(const ServersRequest& request) {
  once::http::Request out{.method = request.method, .target = request.target, .headers = {}, .body = request.body};
  for (const auto& [name, value] : request.headers) out.headers.push_back({name, value});
  return out;
}

void send_answer(const ServersSend& send, const once::http::Answer& answer) {
  send(static_cast<int>(answer.status), answer.headers, answer.body);
}
// [/translate]

int charges = 0;

// Your handler. It is not called for a replay.
once::http::Answer charge(const std::string& cents, once::http::Execution& execution) {
  std::printf("  charging %s with a key of %zu characters\n", cents.c_str(), execution.derived_key("bank").size());
  return {.status = 201,
          .reason = {},
          .headers = {{"Content-Type", "text/plain"}},
          .body = "ch_" + std::to_string(++charges)};
}

// [blocking]
// In a server with a thread for each request. What the handler throws passes through, to the server's own 500.
void serve(once::http::Endpoint& endpoint, const ServersRequest& request, const ServersSend& send) {
  send_answer(send, endpoint.run(to_request(request),
                                 [&](once::http::Execution& execution) { return charge(request.body, execution); }));
}
// [/blocking]

// [completion]
// In a server with a loop. `workers` stands for its threads: completions must not block. `send` is called on any
// thread.
void serve_later(once::http::Endpoint& endpoint, const ServersRequest& request, const ServersSend& send,
                 std::vector<std::jthread>& workers) {
  const auto reply = [send](const once::http::Answer& answer) { send_answer(send, answer); };
  endpoint.open(to_request(request), [reply, body = request.body, &workers](once::http::Opening opening) {
    if (!opening.runs()) return reply(opening.answer);  // A replay, a conflict, a refusal ...
    workers.emplace_back([reply, body, execution = std::move(opening.execution)]() mutable {
      if (!execution.may_begin()) return execution.finish_unbegun(reply);  // Its lease is over: do nothing.
      once::http::Answer answer;
      try {
        answer = charge(body, execution);
      } catch (const std::exception&) {  // Options::on_throw decides about the key. The client gets 500, or 400.
        return execution.finish_thrown(std::current_exception(), body, reply);
      }
      execution.finish(std::move(answer), reply);
    });
  });
}
// [/completion]

void show(int status, const once::http::Headers& headers, const std::string& body) {
  const char* replayed = "";
  for (const once::http::Header& header : headers) {
    if (header.name == "Idempotent-Replayed") replayed = " (replayed)";
  }
  std::printf("  %d%s %s\n", status, replayed, status < 300 ? body.c_str() : "");
}

}  // namespace

int main() {
  once::Engine engine({.store = once::open_store("sqlite:charges.db"), .scope = "shop"});
  once::http::Endpoint endpoint(engine, {.principal = once::http::Principal::header("X-Api-Key"), .route = "charges"});
  const auto post = [&](const std::string& key, const std::string& cents) {
    std::printf("POST /charges, key %s, %s\n", key.c_str(), cents.c_str());
    return ServersRequest{"POST", "/charges", {{"X-Api-Key", "alice"}, {"Idempotency-Key", key}}, cents};
  };
  serve(endpoint, post("order-17", "500"), show);
  serve(endpoint, post("order-17", "500"), show);  // The client's retry.
  serve(endpoint, post("order-17", "900"), show);  // Another request under the same key.
  for (int i = 0; i < 2; ++i) {
    std::promise<void> answered;
    std::vector<std::jthread> workers;
    serve_later(
        endpoint, post("order-18", "700"),
        [&](int status, const once::http::Headers& headers, const std::string& body) {
          show(status, headers, body);
          answered.set_value();
        },
        workers);
    answered.get_future().wait();
  }
}
