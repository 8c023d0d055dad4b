#include "frontends/proxy/admin.hpp"

#include <array>
#include <string_view>
#include <utility>

#include <once/key.hpp>
#include <once/store.hpp>

#include "frontends/proxy/head.hpp"

namespace once::proxy {

namespace {

constexpr Millis patience{5'000};  // For a request, and for an answer to be taken.
constexpr std::size_t most_head_bytes = 8 * 1024;

http::Answer text(unsigned status, std::string body) {
  return {.status = status,
          .reason = {},
          .headers = {{"Content-Type", "text/plain; charset=utf-8"}, {"Cache-Control", "no-store"}},
          .body = std::move(body)};
}

Task<http::Answer> ready(Loop& loop, const AdminPages& pages) {
  if (pages.draining()) co_return text(503, "draining\n");
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

}  // namespace

Task<void> serve_admin(Loop& loop, Socket socket, const AdminPages& pages) {
  Connection client(loop, std::move(socket));
  const auto until = Steady::now() + patience;
  HeadScan scan;
  std::string_view seen;
  while (scan.kind != HeadScan::Kind::complete) {
    if (scan.kind == HeadScan::Kind::malformed || client.buffer.size() > most_head_bytes) co_return;
    const auto left = std::chrono::duration_cast<Millis>(until - Steady::now());
    if (const error_code error = co_await client.fill(left)) co_return;
    const auto bytes = client.buffer.cdata();
    seen = {static_cast<const char*>(bytes.data()), bytes.size()};
    scan = scan_head(seen, scan.bytes);
  }
  // "GET /metrics?x HTTP/1.1"
  const std::string_view line = seen.substr(0, seen.find("\r\n"));
  const auto space = line.find(' ');
  const std::string_view method = line.substr(0, space);
  const std::string_view rest = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
  const bool is_head = method == "HEAD";
  http::Answer answer = text(405, "Only GET is answered here.\n");
  if (is_head || method == "GET") {
    answer = co_await page(loop, pages, rest.substr(0, rest.find_first_of(" ?")));
  } else {
    answer.headers.push_back({"Allow", "GET, HEAD"});
  }
  const Framing framing{Framing::Kind::length, answer.body.size()};
  const std::string lines = write_answer_head(answer.status, {}, answer.headers, framing, 11, false);
  const std::string_view body = is_head ? std::string_view() : std::string_view(answer.body);
  const std::array<net::const_buffer, 2> out{net::buffer(lines), net::buffer(body)};
  std::uint64_t written = 0;
  // Whoever has gone does not need it.
  static_cast<void>(co_await client.write(out, patience, written));
  error_code ignored;
  client.socket.shutdown(tcp::socket::shutdown_send, ignored);
}

}  // namespace once::proxy
