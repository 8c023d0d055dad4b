// What streams through: requests without a key, and answers that are too large to be kept.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "frontends/proxy/answers.hpp"
#include "frontends/proxy/session.hpp"

namespace once::proxy {

using http::Answer;

Task<Session::Next> Session::pass(std::string_view body, bool body_was_read) {
  Framing framing = request_framing();
  if (body_was_read && framing.kind == Framing::Kind::chunked) framing = {Framing::Kind::length, body.size()};
  const std::string head = write_request_head(head_, framing, arrival());
  BodySource source;
  source.bytes = body;
  if (!body_was_read && !parser_->is_done()) {
    source.client = &client_;
    source.parser = &*parser_;
    source.chunked = framing.kind == Framing::Kind::chunked;
  }
  // What a client may send again without asking may be sent again by us (RFC 9110, section 9.2.2), if a kept connection
  // turns out to be a dead one.
  const bool repeatable =
      source.client == nullptr && body.empty() && (head_.method == "GET" || is_head() || head_.method == "OPTIONS");
  std::shared_ptr<Exchange> exchange;
  Trouble trouble = Trouble::none;
  do {
    exchange = std::make_shared<Exchange>(loop_, options_);
    trouble = co_await exchange->start(head, source, is_head(), head_.version == 11 ? &client_ : nullptr);
    if (trouble != Trouble::none) co_await exchange->join();
  } while (repeatable && exchange->reused() && (trouble == Trouble::lost || trouble == Trouble::unreachable));
  served_.upstream_took = Steady::now() - began_;
  served_.request_body_bytes = exchange->request_body_bytes();
  if (trouble != Trouble::none) {
    served_.outcome = trouble == Trouble::client_bad ? Outcome::refused : Outcome::error;
    served_.cause = to_string(trouble);
    if (trouble == Trouble::client_gone) co_return Next::vanish;
    const Answer answer = answer_to(trouble);
    co_return co_await send(answer, parser_->is_done() && wants_more());
  }
  served_.upstream_status = exchange->answer().get().result_int();
  co_return co_await relay(*exchange, {});
}

// The answer goes to the client as it comes, with what was read of its body already.
Task<Session::Next> Session::relay(Exchange& exchange, std::string_view already) {
  AnswerParser& parser = exchange.answer();
  const Answer head = head_of(parser);
  served_.status = head.status;
  Framing framing;
  const bool bodiless = is_head() || head.status == 204 || head.status == 304;
  if (const auto length = parser.content_length(); length && head.status != 204) {
    framing = {Framing::Kind::length, *length};
  } else if (!bodiless) {
    framing.kind = head_.version == 11 ? Framing::Kind::chunked : Framing::Kind::until_close;
  }
  // Whether all of the request will have been read by then is not known yet; if it is not, the connection is closed.
  bool keep_alive = wants_more() && framing.kind != Framing::Kind::until_close;
  const std::string lines =
      write_answer_head(head.status, head.reason, head.headers, framing, head_.version, keep_alive);
  std::vector<char> space(Connection::piece_bytes);
  std::string_view body = already;
  std::string prefix = lines;
  Next next = Next::keep;
  for (;;) {
    if (body.empty()) {
      const Piece piece = co_await exchange.read(space);
      if (piece.trouble != Piece::End::none) {
        served_.outcome = Outcome::error;
        served_.cause = piece.trouble == Piece::End::late ? to_string(Trouble::late) : to_string(Trouble::lost);
        next = Next::vanish;  // An answer without its end must not look like one that has it.
      }
      body = std::string_view(space.data(), piece.got);
    }
    const bool over = body.empty();
    std::string_view suffix;
    if (framing.kind == Framing::Kind::chunked && next == Next::keep) {
      prefix += chunk_head(body.size());
      suffix = "\r\n";
    }
    const std::array<net::const_buffer, 3> out{net::buffer(prefix), net::buffer(body), net::buffer(suffix)};
    std::uint64_t written = 0;
    const error_code error = co_await client_.write(out, options_.timeouts.body, written);
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
  const bool all_sent = co_await exchange.join();
  if (next != Next::keep) co_return next;
  co_return keep_alive&& all_sent && parser_->is_done() ? Next::keep : Next::close;
}

}  // namespace once::proxy
