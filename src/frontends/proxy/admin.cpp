#include "frontends/proxy/admin.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <once/frontends/proxy.hpp>
#include <once/key.hpp>
#include <once/store.hpp>

#include "frontends/proxy/handshakes.hpp"
#include "frontends/proxy/head.hpp"

namespace once::proxy {

namespace {

constexpr std::size_t most_head_bytes = 8 * 1024;
constexpr std::size_t most_connections = 64;

http::Answer text(unsigned status, std::string body) {
  return {.status = status,
          .reason = {},
          .headers = {{"Content-Type", "text/plain; charset=utf-8"}, {"Cache-Control", "no-store"}},
          .body = std::move(body)};
}

Task<http::Answer> ready(Loop& loop, const AdminPages& pages) {
  if (pages.draining()) co_return text(503, "draining\n");
  if (!pages.upstream_available()) co_return text(503, "no upstream is available\n");
  // No request has this key, as a scope of theirs has a method in it; any answer will do.
  const std::string key = Key("once-proxy", "readiness").stored();
  auto ask = [&](Done done) { pages.engine->options().store->get(key, std::move(done)); };
  const Answer answer = co_await completion<Answer>(loop, ask);
  // What failed is in the log of whoever runs it, and not for everybody who can connect.
  if (answer.status == Answer::Status::failed) co_return text(503, "the store does not answer\n");
  co_return text(200, "ready\n");
}

Task<http::Answer> page(Loop& loop, const AdminPages& pages, std::string_view target) {
  if (target == "/healthz") co_return text(200, "alive\n");
  if (target == "/readyz") co_return co_await ready(loop, pages);
  if (target == "/metrics") {
    http::Answer answer = text(200, pages.metrics());
    answer.headers.front().value = "text/plain; version=0.0.4; charset=utf-8";
    co_return answer;
  }
  co_return text(404, "There are /healthz, /readyz and /metrics.\n");
}

http::Answer too_late() { return text(408, "The request did not come in time.\n"); }
http::Answer too_long() { return text(431, "The request's headers are too long.\n"); }

namespace bhttp = boost::beast::http;
using OperatorParser = bhttp::request_parser<bhttp::string_body>;

std::vector<http::HeaderView> views_of(const bhttp::fields& fields) {
  std::vector<http::HeaderView> views;
  for (const auto& field : fields) {
    const auto name = field.name_string();
    const auto value = field.value();
    views.push_back({{name.data(), name.size()}, {value.data(), value.size()}});
  }
  return views;
}

// Reads a request. An answer: it cannot be read, and that is why. Gone: `parser` is not done.
Task<std::optional<http::Answer>> read_request(Connection& client, OperatorParser& parser, Millis patience) {
  const auto until = Steady::now() + patience;
  parser.header_limit(most_head_bytes);
  parser.body_limit(ProxyOptions::max_admin_body_bytes);
  parser.eager(true);
  const auto fill = [&client, until] {
    return client.fill(std::max(Millis{1}, std::chrono::duration_cast<Millis>(until - Steady::now())));
  };
  HeadScan scan;
  while (scan.kind != HeadScan::Kind::complete) {
    if (scan.kind == HeadScan::Kind::malformed) co_return text(400, "The request cannot be read.\n");
    if (client.buffer.size() > most_head_bytes) co_return too_long();
    const error_code error = co_await fill();
    if (error == net::error::timed_out || Steady::now() > until) co_return too_late();
    if (error) co_return std::nullopt;
    scan = scan_head(client.buffer.view(), scan.bytes);
  }
  if (scan.bytes > most_head_bytes) co_return too_long();
  bool asked_on = false;
  for (;;) {
    error_code error;
    client.buffer.consume(parser.put(net::buffer(client.buffer.view()), error));
    if (error == bhttp::error::body_limit) {
      co_return text(413, "The body is too long.\n");
    }
    if (error && error != bhttp::error::need_more) co_return text(400, "The request cannot be read.\n");
    if (parser.is_done()) co_return std::nullopt;
    if (!asked_on && parser.is_header_done() && parser.get().find(bhttp::field::expect) != parser.get().end()) {
      const std::string lines = write_interim_head(100, "Continue", {});
      const std::array<net::const_buffer, 1> out{net::buffer(lines)};
      std::uint64_t written = 0;
      if (co_await client.write(out, patience, written)) co_return std::nullopt;
      asked_on = true;
    }
    error = co_await fill();
    if (error == net::error::timed_out || Steady::now() > until) co_return too_late();
    if (error) co_return std::nullopt;
  }
}

// The answer to what was read.
Task<http::Answer> respond(Loop& loop, const AdminPages& pages, const OperatorParser& parser) {
  const auto& message = parser.get();
  const auto method = message.method_string();
  const auto target = message.target();
  RequestHead head{.method = {method.data(), method.size()},
                   .target = std::string(target),
                   .host = {},
                   .version = message.version(),
                   .headers = views_of(message)};
  if (const auto refusal = check_request(head)) co_return text(refusal->status, std::string(refusal->detail) + "\n");
  if (pages.operators && head.target.starts_with("/v1/")) {
    const http::Request request{
        .method = head.method, .target = head.target, .headers = head.headers, .body = message.body(), .principal = {}};
    auto ask = [&](Callback<void(http::Answer)> done) { pages.operators(request, std::move(done)); };
    co_return co_await completion<http::Answer>(loop, ask);
  }
  if (head.method == "GET" || head.method == "HEAD") {
    co_return co_await page(loop, pages, std::string_view(head.target).substr(0, head.target.find('?')));
  }
  http::Answer answer = text(405, "Only GET is answered here.\n");
  answer.headers.push_back({"Allow", "GET, HEAD"});
  co_return answer;
}

// How many there are, for as long as it lives.
class Counted {
 public:
  explicit Counted(std::size_t& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::size_t& count_;
};

}  // namespace

Task<void> serve_admin(Loop& loop, Socket socket, AdminPages& pages) {
  if (pages.connections >= most_connections) co_return;
  const Counted counted(pages.connections);
  Connection client(loop, std::move(socket));
  if (const auto certificate = pages.certificate) {
    if (const error_code error = co_await client.accept_tls(*certificate, pages.patience)) {
      if (!loop.closing()) {
        loop.handshakes->failed(Listener::operators, client.handshake_failure(error), client.remote_address(),
                                Steady::now());
      }
      co_return;
    }
  }
  // Not in the frame: g++ 12 then warns of how that is freed (-Wmismatched-new-delete), wrongly.
  const auto parser = std::make_unique<OperatorParser>();
  std::optional<http::Answer> answer = co_await read_request(client, *parser, pages.patience);
  if (!answer) {
    if (!parser->is_done()) co_return;
    answer.emplace(co_await respond(loop, pages, *parser));
  }
  const bool is_head = parser->is_header_done() && parser->get().method() == bhttp::verb::head;
  const Framing framing{Framing::Kind::length, answer->body.size()};
  const std::string lines = write_answer_head(answer->status, {}, answer->headers, framing, 11, false);
  const std::string_view body = is_head ? std::string_view() : std::string_view(answer->body);
  const std::array<net::const_buffer, 2> out{net::buffer(lines), net::buffer(body)};
  std::uint64_t written = 0;
  // Whoever has gone does not need it.
  static_cast<void>(co_await client.write(out, pages.patience, written));
  client.shut_down();
}

}  // namespace once::proxy
