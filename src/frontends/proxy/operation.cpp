// A request with a key: read whole, claimed, sent once, its answer kept and then given.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "frontends/proxy/answers.hpp"
#include "frontends/proxy/session.hpp"

namespace once::proxy {

using http::Answer;
using http::Examination;
using http::Execution;
using http::Opening;

// A body that came with the head whole, as most do: it lies in the client's buffer, which nobody reads into before the
// request is over.
std::optional<std::string_view> Session::body_at_hand() {
  const Framing framing = request_framing();
  if (framing.kind == Framing::Kind::chunked) return std::nullopt;  // May lie there in pieces.
  const std::uint64_t bytes = framing.length;
  if (bytes > client_.buffer.size() || bytes > endpoint_->rules().options().max_body_bytes) return std::nullopt;
  const Piece piece = take_piece(client_);
  served_.request_body_bytes += piece.bytes.size();
  return piece.bytes;
}

Task<bool> Session::read_body(std::string& body) {
  const std::size_t limit = endpoint_->rules().options().max_body_bytes;
  const auto until = about_now() + options_.timeouts.body;
  while (body.size() <= limit) {
    Piece piece = take_piece(client_);
    if (piece.is_to_come() && !incoming().is_done()) {
      piece = co_await read_piece(client_, options_.timeouts.body, until);
    }
    served_.request_body_bytes += piece.bytes.size();
    body.append(piece.bytes);
    switch (piece.trouble) {
      case Piece::End::none:
        if (incoming().is_done()) co_return true;
        break;
      case Piece::End::gone:
        served_.cause = to_string(Trouble::client_gone);
        served_.outcome = Outcome::error;
        co_return false;
      case Piece::End::late:
        served_.cause = to_string(Trouble::client_late);
        served_.outcome = Outcome::refused;
        refusal_ = problem("request-timeout", 408, "Request took too long", "Its body did not come in time.");
        co_return false;
      case Piece::End::bad:
        served_.cause = "malformed";
        served_.outcome = Outcome::refused;
        refusal_ = malformed(400, "The chunked body cannot be read.");
        co_return false;
    }
  }
  co_return true;  // One byte over the limit or more: for the rules to refuse.
}

Task<Session::Next> Session::serve_operation() {
  if (waits_for_continue()) co_await send_continue();
  std::string read;
  std::optional<std::string_view> body = body_at_hand();
  if (!body) {
    if (!co_await read_body(read)) {
      if (!refusal_) co_return Next::vanish;
      co_return co_await send(*refusal_, false);
    }
    body = read;
  }
  request_.body = *body;
  Examination examined = endpoint_->rules().examine(request_);
  if (examined.operation) key_ = examined.operation->key.stored();
  Pending<Opening> opened(loop_);
  endpoint_->open(std::move(examined), opened.callback());
  if (!opened.is_there()) co_await opened.wait();
  Opening opening = opened.take();
  served_.outcome = outcome_of(opening.kind);
  if (!opening.runs()) {
    if (opening.kind == Opening::Kind::failed) served_.cause = "store";
    co_return co_await send(opening.answer, incoming().is_done() && wants_more());
  }
  if (!opening.execution.is_protected()) co_return co_await pass(*body, true);
  co_return co_await run_claimed(opening.execution, *body);
}

Task<Session::Next> Session::run_claimed(Execution& execution, std::string_view body) {
  // Its length is known now, whatever it came as.
  Framing framing = request_framing();
  if (framing.kind == Framing::Kind::chunked) framing = {Framing::Kind::length, body.size()};
  const std::string head = write_request_head(head_, framing, arrival());
  const auto exchange = std::make_shared<Exchange>(loop_, *services_, options_, answer_limit());
  BodySource source;
  source.bytes = body;
  const Trouble trouble = co_await exchange->start(head, source, is_head(), nullptr);
  served_.upstream = exchange->service();
  if (trouble == Trouble::none) {
    const Next next = co_await keep_answer(execution, *exchange);
    co_return next;
  }
  served_.upstream_took = Steady::now() - began_;
  co_await exchange->join();
  const http::Fate fate = nothing_went_out(trouble) ? http::Fate::release : http::Fate::ambiguous;
  served_.outcome = Outcome::error;
  served_.cause = to_string(trouble);
  served_.fate = word_of(fate);
  Answer answer = answer_to(trouble);
  auto finish = [&](Callback<void(Answer)> done) { execution.finish(std::move(answer), fate, std::move(done)); };
  const Answer given = co_await completion<Answer>(loop_, finish);
  co_return co_await send(given, wants_more());
}

Task<Session::Next> Session::keep_answer(Execution& execution, Exchange& exchange) {
  Answer answer = head_of(exchange.answer());
  served_.upstream_status = answer.status;
  const http::Rules& rules = endpoint_->rules();
  const std::size_t limit = rules.options().max_answer_bytes;
  // What has no body may tell the length of one all the same (RFC 9110, section 8.6).
  const std::uint64_t told = exchange.answer().is_done() ? 0 : exchange.answer().content_length().value_or(0);
  const auto fits = [&] { return told <= limit && answer.body.size() <= limit; };
  Piece piece;
  while (fits() && piece.trouble == Piece::End::none && !exchange.answer().is_done()) {
    piece = exchange.take();
    if (piece.is_to_come() && !exchange.answer().is_done()) piece = co_await exchange.read();
    answer.body.append(piece.bytes);
  }
  served_.upstream_took = Steady::now() - began_;
  http::Fate fate = rules.fate_of(answer.status);
  if (piece.trouble != Piece::End::none) {
    co_await exchange.join();
    const Trouble trouble = trouble_of_answer(piece.trouble);
    fate = http::Fate::ambiguous;
    served_.outcome = Outcome::error;
    served_.cause = to_string(trouble);
    answer = answer_to(trouble);
  } else if (!fits()) {  // There is more of it than can be kept.
    served_.fate = fate == http::Fate::store ? "tombstone" : word_of(fate);
    const std::string body = std::exchange(answer.body, {});
    auto finish = [&](Callback<void(std::optional<Answer>)> done) {
      execution.finish_streamed(answer, told, std::move(done));
    };
    std::optional<Answer> instead = co_await completion<std::optional<Answer>>(loop_, finish);
    if (!instead) co_return co_await relay(exchange, body);
    co_await exchange.join();
    co_return co_await send(*instead, wants_more());
  } else if (!exchange.join_now()) {
    co_await exchange.join();
  }
  Pending<http::Finished> finished(loop_);
  execution.finish_told(std::move(answer), fate, finished.callback());
  if (!finished.is_there()) co_await finished.wait();
  const http::Finished given = finished.take();
  served_.fate = given.left_tombstone ? "tombstone" : word_of(fate);
  co_return co_await send(given.answer, wants_more());
}

}  // namespace once::proxy
