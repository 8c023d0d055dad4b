// Streams requests without a key, and answers that are too large to be stored.
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontends/proxy/answers.hpp"
#include "frontends/proxy/session.hpp"
#include "frontends/proxy/tunnel.hpp"

namespace once::proxy {

using http::Answer;

Task<Session::Next> Session::pass(std::string_view body, bool body_was_read) {
  if (!body_was_read && waits_for_continue()) co_await send_continue();
  Framing framing = request_framing();
  if (body_was_read && framing.kind == Framing::Kind::chunked) framing = {Framing::Kind::length, body.size()};
  // If the request had a key, its body was read, and it cannot be a tunnel.
  const std::string_view key = body_was_read || served_.outcome != RequestOutcome::passed ? "" : websocket_key(head_);
  if (!key.empty()) framing.kind = Framing::Kind::tunnel;
  std::vector<std::string> trailers;
  Arrival from = arrival();
  if (!body_was_read) {
    from.takes_trailers = takes_trailers(head_.headers);
    if (framing.kind == Framing::Kind::chunked)
      trailers = announced_trailers(head_.headers, &endpoint_->rules().options());
    framing.trailers = joined(trailers);
  }
  const std::string head = write_request_head(head_, framing, from);
  BodySource source;
  source.bytes = body;
  // Sends the part of the body that is already there with the head, without waiting.
  if (framing.kind == Framing::Kind::length && !incoming().is_done()) source.bytes = take_piece(client_).bytes;
  if (!incoming().is_done()) {
    source.client = &client_;
    source.chunked = framing.kind == Framing::Kind::chunked;
    if (!trailers.empty()) source.trailers = &trailers;
  }
  // If a kept connection is dead, a request that a client may repeat (RFC 9110, section 9.2.2) is sent again.
  const bool repeatable = source.client == nullptr && source.bytes.empty() &&
                          (head_.method == "GET" || is_head() || head_.method == "OPTIONS");
  std::shared_ptr<Exchange> exchange;
  Trouble trouble = Trouble::none;
  do {
    const bool again = exchange != nullptr;
    exchange = std::make_shared<Exchange>(loop_, *services_, options_, answer_limit());
    exchange->ask_for_tunnel(key);
    if (again) exchange->ask_for_new_connection();
    trouble = co_await exchange->start(head, source, is_head(), head_.version == 11 ? &client_ : nullptr);
    if (trouble != Trouble::none) co_await exchange->join();
  } while (repeatable && exchange->reused() && (trouble == Trouble::lost || trouble == Trouble::unreachable));
  served_.upstream = exchange->service();
  served_.upstream_took = Steady::now() - began_;
  served_.request_body_bytes = exchange->request_body_bytes();
  if (trouble != Trouble::none) {
    served_.outcome = trouble == Trouble::client_bad ? RequestOutcome::refused : RequestOutcome::error;
    served_.cause = to_string(trouble);
    if (trouble == Trouble::client_gone) co_return Next::vanish;
    const Answer answer = answer_to(trouble, exchange->retry_after());
    co_return co_await send(answer, incoming().is_done() && wants_more());
  }
  served_.upstream_status = exchange->answer().status();
  if (exchange->has_tunnel()) co_return co_await tunnel(*exchange);
  co_return co_await relay(*exchange, {});
}

Task<Session::Next> Session::tunnel(Exchange& exchange) {
  const Incoming& head = exchange.answer();
  served_.status = head.status();
  const std::string lines = write_answer_head(head.status(), head.reason(), forwarded(head.headers()),
                                              {.kind = Framing::Kind::tunnel}, head_.version, true);
  const std::array<net::const_buffer, 1> out{net::buffer(lines)};
  std::uint64_t written = 0;
  const bool all_sent = co_await exchange.wait_until_sent();
  if (!all_sent || co_await client_.write(out, options_.timeouts.body, written)) {
    served_.cause = to_string(Trouble::client_gone);
    co_return Next::vanish;
  }
  options_.metrics->tunnels(1);
  const TunnelEnd end =
      co_await run_tunnel(loop_, client_, exchange.connection(), options_.timeouts.tunnel, options_.timeouts.body);
  options_.metrics->tunnels(-1);
  served_.request_body_bytes = end.up_bytes;
  served_.answer_body_bytes = end.down_bytes;
  if (end.kind == TunnelEnd::Kind::idle) served_.cause = "tunnel-idle";
  if (end.kind == TunnelEnd::Kind::broken) served_.cause = "tunnel-broken";
  co_return Next::vanish;
}

// Some answers end with the connection. Until the end has come, closing the connection must reset it.
void Session::reset_at_close(bool wanted) {
  error_code ignored;
  client_.socket.set_option(net::socket_base::linger(wanted, 0), ignored);
}

// Sends the answer to the client as it comes, beginning with the part of its body already read.
Task<Session::Next> Session::relay(Exchange& exchange, std::string_view already) {
  const Incoming& answer = exchange.answer();
  const unsigned status = answer.status();
  served_.status = status;
  Framing framing;
  const bool bodiless = is_head() || status == 204 || status == 304;
  if (const auto length = answer.content_length(); length && status != 204) {
    framing = {Framing::Kind::length, *length};
  } else if (!bodiless) {
    framing.kind = head_.version == 11 ? Framing::Kind::chunked : Framing::Kind::until_close;
  }
  std::vector<std::string> trailers;
  if (framing.kind == Framing::Kind::chunked && already.empty() && takes_trailers(head_.headers)) {
    trailers = announced_trailers(answer.headers());
    framing.trailers = joined(trailers);
  }
  // Not known yet whether all of the request will be read; if not, the connection is closed.
  const bool keep_alive = wants_more() && framing.kind != Framing::Kind::until_close;
  std::string prefix =
      write_answer_head(status, answer.reason(), forwarded(answer.headers()), framing, head_.version, keep_alive);
  if (framing.kind == Framing::Kind::until_close) reset_at_close(true);
  std::string_view body = already;
  Next next = Next::keep;
  for (;;) {
    if (body.empty()) {
      Piece piece = exchange.take();
      if (piece.is_to_come() && !answer.is_done()) piece = co_await exchange.read();
      if (piece.trouble != Piece::End::none) {
        served_.outcome = RequestOutcome::error;
        served_.cause = to_string(trouble_of_answer(piece.trouble));
        next = Next::vanish;  // An incomplete answer must not look complete.
      }
      body = piece.bytes;
    }
    const bool over = body.empty() || (framing.kind == Framing::Kind::length && answer.is_done());
    std::string_view suffix;
    if (framing.kind == Framing::Kind::chunked && next == Next::keep) {
      prefix += chunk_head(body.size());
      if (over) prefix += trailer_lines(answer.trailers(), trailers);
      suffix = "\r\n";
    }
    const std::array<net::const_buffer, 3> out{net::buffer(prefix), net::buffer(body), net::buffer(suffix)};
    error_code error;
    std::uint64_t written = client_.write_now(out);
    if (written < net::buffer_size(out)) {
      error = co_await client_.write_rest(out, written, options_.timeouts.body, written);
    }
    if (error) {
      if (served_.cause.empty()) served_.cause = to_string(Trouble::client_gone);
      next = Next::vanish;
      break;
    }
    served_.answer_body_bytes += body.size();
    prefix.clear();
    if (over) break;
    body = {};
  }
  std::optional<bool> all_sent = exchange.join_now();
  if (!all_sent) all_sent = co_await exchange.join();
  if (next != Next::keep) co_return next;
  if (framing.kind == Framing::Kind::until_close) reset_at_close(false);
  const bool clean = *all_sent && incoming().is_done();
  co_return keep_alive&& clean ? Next::keep : Next::close;
}

}  // namespace once::proxy
