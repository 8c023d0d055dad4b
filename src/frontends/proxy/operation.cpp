// A request with a key: read completely, claimed, sent once, its answer stored and then sent.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "frontends/proxy/answers.hpp"
#include "frontends/proxy/reconciling.hpp"
#include "frontends/proxy/session.hpp"
#include "text/ascii.hpp"

namespace once::proxy {

using http::Answer;
using http::Examination;
using http::Execution;
using http::Opening;

namespace {

bool is_stream(const Incoming& answer, const std::vector<std::string>& types) {
  return std::ranges::any_of(answer.headers(), [&](const http::HeaderView& header) {
    if (!http::same_name(header.name, "Content-Type")) return false;
    const std::string_view own = text::trim(header.value.substr(0, header.value.find(';')));
    return http::same_name(own, "text/event-stream") ||
           std::ranges::any_of(types, [&](const std::string& type) { return http::same_name(own, type); });
  });
}

std::string write_events_head(const Answer& answer, bool is_chunked, unsigned version, bool keep_alive) {
  Framing framing;
  framing.kind = is_chunked ? Framing::Kind::chunked : Framing::Kind::until_close;
  return write_answer_head(answer.status, answer.reason, answer.headers, framing, version, keep_alive);
}

}  // namespace

// A body that came completely with the head, as most do. It is in the client's buffer, which stays unchanged until the
// request is over.
std::optional<std::string_view> Session::body_at_hand() {
  const Framing framing = request_framing();
  if (framing.kind == Framing::Kind::chunked) return std::nullopt;  // It may be in pieces.
  const std::uint64_t bytes = framing.length;
  if (bytes > client_.buffer.size() || bytes > endpoint_->rules().options().max_body_bytes) return std::nullopt;
  const Piece piece = take_piece(client_);
  served_.request_body_bytes += piece.bytes.size();
  return piece.bytes;
}

Task<bool> Session::read_body(std::string& body) {
  const std::size_t limit = endpoint_->rules().options().max_body_bytes;
  const auto until = about_now() + options_.timeouts.body;
  const auto no_room = [&] {
    served_.cause = "overloaded";
    served_.outcome = RequestOutcome::refused;
    refusal_ = overloaded();
    return false;
  };
  // A body announced above the limit is refused before.
  const std::uint64_t told = incoming().content_length().value_or(0);
  if (!hold(static_cast<std::size_t>(std::min<std::uint64_t>(told, limit)))) co_return no_room();
  while (body.size() <= limit) {
    Piece piece = take_piece(client_);
    if (piece.is_to_come() && !incoming().is_done()) {
      piece = co_await read_piece(client_, options_.timeouts.body, until);
    }
    served_.request_body_bytes += piece.bytes.size();
    body.append(piece.bytes);
    if (!hold(body.size())) co_return no_room();
    switch (piece.trouble) {
      case Piece::End::none:
        if (incoming().is_done()) co_return true;
        break;
      case Piece::End::gone:
        served_.cause = to_string(Trouble::client_gone);
        served_.outcome = RequestOutcome::error;
        co_return false;
      case Piece::End::late:
        served_.cause = to_string(Trouble::client_late);
        served_.outcome = RequestOutcome::refused;
        refusal_ = problem("request-timeout", 408, "Request took too long",
                           "Its body did not arrive in time. Nothing was carried out.");
        co_return false;
      case Piece::End::bad:
        served_.cause = "malformed";
        served_.outcome = RequestOutcome::refused;
        refusal_ = malformed(400, "The chunked body cannot be read.");
        co_return false;
    }
  }
  co_return true;  // At least one byte above the limit: the rules refuse it.
}

// Not in the coroutine's frame: g++ 12 then warns of how that is freed (-Wmismatched-new-delete), wrongly.
void Session::open_operation(Pending<Opening>& opened) {
  Examination examined = endpoint_->rules().examine(request_);
  if (examined.operation) key_ = examined.operation->key.stored();
  endpoint_->open(std::move(examined), opened.callback());
}

// The client has shown who it is, so the service is asked with its headers.
Task<void> Session::reconcile(Opening& opening) {
  const http::Rules& rules = endpoint_->rules();
  if (rules.options().reconcile.empty() || opening.record == nullptr) co_return;
  const std::string target = rules.reconcile_target(Key::from_stored(opening.record->key).name());
  if (target.empty()) co_return;
  const AskService by = [&](const RecordPtr&, Callback<void(Finding)> answer) {
    Arrival from = arrival();
    from.path = loop_.services->path();  // It goes there.
    ask_upstream(loop_, options_,
                 {.rules = {rules_, &rules},
                  .head = question_head(head_, target, rules.options(), from),
                  .answer = std::move(answer)});
  };
  Pending<Reconciled> asked(loop_);
  loop_.reconciler->ask(opening.record, by, asked.callback());
  if (!asked.is_there()) co_await asked.wait();
  const Reconciled reconciled = asked.take();
  if (!reconciled.is_decided() && reconciled.kind != Reconciled::Kind::changed) co_return;
  Pending<Opening> opened(loop_);
  open_operation(opened);
  if (!opened.is_there()) co_await opened.wait();
  opening = opened.take();
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
  Pending<Opening> opened(loop_);
  open_operation(opened);
  if (!opened.is_there()) co_await opened.wait();
  Opening opening = opened.take();
  if (opening.kind == Opening::Kind::unknown) co_await reconcile(opening);
  served_.outcome = outcome_of(opening.kind);
  if (!opening.runs()) {
    if (opening.kind == Opening::Kind::error) served_.cause = "store";
    co_return co_await send(opening.answer, incoming().is_done() && wants_more());
  }
  if (!opening.execution.is_protected()) co_return co_await pass(*body, true);
  co_return co_await run_claimed(opening.execution, *body);
}

// Without a tracer, the work's span is the client's.
bool Session::is_own(const TraceParent& span) const {
  return !span.empty() && std::ranges::none_of(head_.headers, [&](const http::HeaderView& header) {
    return http::same_name(header.name, "traceparent") && TraceParent::from_text(text::trim(header.value)) == span;
  });
}

// A timer beside the coroutine that works: it only writes to the client, while that one only speaks with the upstream.
struct Session::Patience {
  Patience(Loop& loop, Millis limit) : timer(loop.io, limit), told(loop) {}

  Timer timer;
  bool is_ended = false;  // The result is there.
  bool has_passed = false;
  Event told;
};

void Session::begin_patience() {
  const Millis limit = endpoint_->rules().options().client_timeout;
  if (limit == Millis{0}) return;
  patience_ = std::make_shared<Patience>(loop_, limit);
  Task<void> waiting = lose_patience(shared_from_this(), patience_);
  spawn(loop_.io, std::move(waiting));
}

Task<void> Session::lose_patience(std::shared_ptr<Session> self, std::shared_ptr<Patience> patience) {
  co_await self->loop_.sleep(patience->timer);
  if (patience->is_ended || self->loop_.closing()) co_return;
  patience->has_passed = true;
  self->served_.cause = "client-waited";
  const Answer answer = self->endpoint_->rules().problem(http::Problem::in_progress);
  co_await self->send(answer, false);
  self->client_.shut_down();
  patience->told.set();
}

Task<bool> Session::end_patience() {
  if (!patience_) co_return true;
  patience_->is_ended = true;
  patience_->timer.cancel();
  if (!patience_->has_passed) co_return true;
  if (!patience_->told.is_set()) co_await patience_->told.wait();
  co_return false;
}

Task<Session::Next> Session::send_result(const Answer& answer) {
  const bool is_there = co_await end_patience();
  if (!is_there) co_return Next::close;
  co_return co_await send(answer, wants_more());
}

Task<Session::Next> Session::run_claimed(Execution& execution, std::string_view body) {
  // Its length is known now, also if it came chunked.
  Framing framing = request_framing();
  if (framing.kind == Framing::Kind::chunked) framing = {Framing::Kind::length, body.size()};
  Arrival from = arrival();
  if (const TraceContext trace = execution.claim()->trace(); is_own(trace.parent)) {
    if (served_.trace.empty()) served_.trace = trace.parent;
    from.traceparent = trace.parent.text();
    from.tracestate = trace.state;
  }
  if (endpoint_->rules().options().send_claim) {
    const Claim& claim = *execution.claim();
    from.of_claim = {{"Once-Attempt", std::to_string(claim.attempt())},
                     {"Once-Token", std::to_string(claim.token())},
                     {"Once-Derived-Key", execution.derived_key("service")}};
  }
  if (endpoint_->rules().options().service_finish && execution.hand_out_to_service()) {
    const Claim& claim = *execution.claim();
    from.of_claim.push_back({"Once-Stored-Key", to_hex(claim.key())});
    from.of_claim.push_back({"Once-Owner", claim.owner().hex()});
  }
  const std::string head = write_request_head(head_, framing, from);
  const auto exchange = std::make_shared<Exchange>(loop_, *services_, options_, answer_limit());
  exchange->send_for(execution);
  BodySource source;
  source.bytes = body;
  begin_patience();
  const Trouble trouble = co_await exchange->start(head, source, is_head(), nullptr);
  served_.upstream = exchange->service();
  if (trouble == Trouble::none) {
    const Next next = co_await keep_answer(execution, *exchange);
    co_return next;
  }
  served_.upstream_took = Steady::now() - began_;
  co_await exchange->join();
  if (trouble == Trouble::large_head) {
    const Next next = co_await keep_status(execution, *exchange);
    co_return next;
  }
  const http::Fate fate = nothing_went_out(trouble) ? http::Fate::release : http::Fate::ambiguous;
  served_.outcome = RequestOutcome::error;
  served_.cause = to_string(trouble);
  served_.fate = to_string(fate);
  Pending<http::Finished> finished(loop_);
  execution.finish_told(answer_to(trouble, exchange->retry_after()), fate, finished.callback(),
                        reason_of(trouble, exchange->detail()));
  if (!finished.is_there()) co_await finished.wait();
  const http::Finished given = finished.take();
  log_finish(given);
  co_return co_await send_result(given.answer);
}

// It has the fate already that the answer has by itself.
void Session::log_finish(const http::Finished& finished) {
  if (finished.left_tombstone) served_.fate = "tombstone";
  if (!finished.by_service) return;
  served_.fate = to_string(http::Fate::store);
  served_.outcome = RequestOutcome::executed;
}

namespace {

// The status and Once-Fate. As it is for the proxy alone, `Connection` may name it, and then head_of() has it no more.
Answer fate_told(const Incoming& answer) {
  Answer told{.status = answer.status(), .reason = {}, .headers = {}, .body = {}};
  for (const http::HeaderView& header : answer.headers()) {
    if (!http::same_name(header.name, http::fate_header)) continue;
    told.headers.push_back({std::string(header.name), std::string(header.value)});
  }
  return told;
}

// Why an answer that says so itself is not stored. Empty: it does not, or it is.
std::string reason_of_fate(const Answer& told, const http::Options& rules) {
  if (!rules.service_fate || told.headers.empty()) return {};
  const std::string what = "the service answered " + std::to_string(told.status) + " with ";
  if (told.headers.size() > 1) return what + "more than one Once-Fate";
  const std::string_view word = text::trim(told.headers.front().value);
  if (word == "complete") return {};
  if (word == "release" || word == "hold") return what + "Once-Fate: " + std::string(word);
  constexpr std::size_t most = 32;
  return what + "an unknown Once-Fate, '" + std::string(word.substr(0, most)) + "'";
}

}  // namespace

// Of an answer whose head is over the limit. A retry gets its status.
Task<Session::Next> Session::keep_status(Execution& execution, Exchange& exchange) {
  const http::Options& rules = endpoint_->rules().options();
  const Answer told = fate_told(exchange.answer());
  // The part that was not read may have an Once-Fate.
  const bool may_say_more = rules.service_fate && told.headers.empty();
  const http::Fate fate = may_say_more ? http::Fate::hold : endpoint_->rules().fate_of(told);
  const Answer answer = answer_to(Trouble::large_head);
  served_.upstream_status = told.status;
  served_.outcome = RequestOutcome::error;
  served_.cause = to_string(Trouble::large_head);
  if (fate == http::Fate::store) {
    served_.fate = "tombstone";
    auto finish = [&](Callback<void(std::optional<Answer>)> done) {
      execution.finish_streamed(head_of(exchange.answer()), 0, fate, std::move(done));
    };
    const std::optional<Answer> instead = co_await completion<std::optional<Answer>>(loop_, finish);
    co_return co_await send_result(instead ? *instead : answer);
  }
  served_.fate = to_string(fate);
  std::string reason = reason_of_fate(told, rules);
  if (reason.empty()) reason = reason_of(Trouble::large_head, "its status was " + std::to_string(told.status));
  Pending<http::Finished> finished(loop_);
  execution.finish_told(answer, fate, finished.callback(), std::move(reason));
  if (!finished.is_there()) co_await finished.wait();
  const http::Finished given = finished.take();
  log_finish(given);
  co_return co_await send_result(given.answer);
}

Task<Session::Next> Session::keep_answer(Execution& execution, Exchange& exchange) {
  Answer answer = head_of(exchange.answer());
  served_.upstream_status = answer.status;
  const http::Rules& rules = endpoint_->rules();
  const Answer own = fate_told(exchange.answer());
  http::Fate fate = rules.fate_of(own);
  if (fate == http::Fate::store && is_stream(exchange.answer(), rules.options().stream_types)) {
    co_return co_await stream_answer(execution, exchange);
  }
  const std::size_t limit = rules.options().max_answer_bytes;
  // An answer without a body may announce a length (RFC 9110, section 8.6).
  const std::uint64_t told = exchange.answer().is_done() ? 0 : exchange.answer().content_length().value_or(0);
  const auto fits = [&] { return told <= limit && answer.body.size() <= limit; };
  Piece piece;
  while (fits() && piece.trouble == Piece::End::none && !exchange.answer().is_done()) {
    piece = exchange.take();
    if (piece.is_to_come() && !exchange.answer().is_done()) piece = co_await exchange.read();
    answer.body.append(piece.bytes);
    hold_answer(answer.body.size());
  }
  served_.upstream_took = Steady::now() - began_;
  std::string reason = reason_of_fate(own, rules.options());
  if (piece.trouble != Piece::End::none) {
    co_await exchange.join();
    const Trouble trouble = trouble_of_answer(piece.trouble);
    fate = http::Fate::ambiguous;
    served_.outcome = RequestOutcome::error;
    served_.cause = to_string(trouble);
    reason = reason_of(trouble, "in the body of its response");
    answer = answer_to(trouble);
  } else if (!fits()) {  // It is too large to be stored.
    served_.fate = fate == http::Fate::store ? "tombstone" : to_string(fate);
    const std::string body = std::exchange(answer.body, {});
    auto finish = [&](Callback<void(std::optional<Answer>)> done) {
      execution.finish_streamed(answer, told, fate, std::move(done), reason_of_fate(own, rules.options()));
    };
    std::optional<Answer> instead = co_await completion<std::optional<Answer>>(loop_, finish);
    const bool is_there = co_await end_patience();
    if (is_there && !instead) co_return co_await relay(exchange, body);
    co_await exchange.join();
    if (!is_there) co_return Next::close;
    co_return co_await send(*instead, wants_more());
  } else if (!exchange.join_now()) {
    co_await exchange.join();
  }
  Pending<http::Finished> finished(loop_);
  execution.finish_told(std::move(answer), fate, finished.callback(), std::move(reason));
  if (!finished.is_there()) co_await finished.wait();
  const http::Finished given = finished.take();
  served_.fate = to_string(fate);
  log_finish(given);
  co_return co_await send_result(given.answer);
}

// An answer of server-sent events (HTML, section 9.2), or another stream, sent to the client and stored.
struct Session::Events {
  Answer answer;
  bool is_chunked = true;  // Otherwise it ends with the connection.
  bool client_is_there = true;
  bool is_kept = true;
  Piece::End trouble = Piece::End::none;
};

// Sends the client's part: `bytes` with their framing.
Task<void> Session::send_events(Events& events, std::string_view before, std::string_view bytes) {
  std::string start(before);
  if (events.is_chunked && !bytes.empty()) start += chunk_head(bytes.size());
  const std::string_view end = events.is_chunked && !bytes.empty() ? "\r\n" : "";
  const std::array<net::const_buffer, 3> out{net::buffer(start), net::buffer(bytes), net::buffer(end)};
  std::uint64_t written = 0;
  const error_code error = co_await client_.write(out, options_.timeouts.body, written);
  if (error) {
    events.client_is_there = false;
    served_.cause = to_string(Trouble::client_gone);
  } else {
    served_.answer_body_bytes += bytes.size();
  }
}

// Until the end of the answer, or an error.
Task<void> Session::relay_events(Execution& execution, Exchange& exchange, Events& events) {
  const std::size_t limit = endpoint_->rules().options().max_answer_bytes;
  while (!exchange.answer().is_done()) {
    Piece piece = exchange.take();
    if (piece.is_to_come() && !exchange.answer().is_done()) piece = co_await exchange.read();
    events.trouble = piece.trouble;
    if (piece.trouble != Piece::End::none) co_return;
    if (events.client_is_there && !piece.bytes.empty()) co_await send_events(events, {}, piece.bytes);
    if (!events.is_kept) continue;
    events.answer.body.append(piece.bytes);
    hold_answer(events.answer.body.size());
    if (events.answer.body.size() <= limit) continue;
    // Too large to be stored: retries are told so.
    events.is_kept = false;
    events.answer.body.clear();
    served_.fate = "tombstone";
    Pending<std::optional<Answer>> left(loop_);
    execution.finish_streamed(events.answer, 0, http::Fate::store, left.callback());  // Else it is no such stream.
    if (!left.is_there()) co_await left.wait();
    if (left.take()) events.client_is_there = false;  // The client's retry gets the answer that counts.
  }
}

// Events are sent to the client as they come, and stored too. The end is sent after they are stored: an answer that
// looks complete is the one that retries get. A client that disconnects changes nothing.
Task<Session::Next> Session::stream_answer(Execution& execution, Exchange& exchange) {
  const auto own = std::make_unique<Events>();
  Events& events = *own;
  events.answer = head_of(exchange.answer());
  events.is_chunked = head_.version == 11;
  events.client_is_there = co_await end_patience();
  const bool keep_alive = wants_more() && events.is_chunked;
  if (events.client_is_there) {
    served_.status = events.answer.status;
    if (!events.is_chunked) reset_at_close(true);
    const std::string head = write_events_head(events.answer, events.is_chunked, head_.version, keep_alive);
    co_await send_events(events, head, {});
  }
  co_await relay_events(execution, exchange, events);
  served_.upstream_took = Steady::now() - began_;
  if (!exchange.join_now()) co_await exchange.join();
  http::Fate fate = http::Fate::store;
  std::string reason;
  if (events.trouble != Piece::End::none) {
    const Trouble trouble = trouble_of_answer(events.trouble);
    fate = http::Fate::ambiguous;
    events.answer = answer_to(trouble);
    reason = reason_of(trouble, "in the body of its response");
    events.client_is_there = false;  // It must not look complete.
    served_.outcome = RequestOutcome::error;
    served_.cause = to_string(trouble);
  }
  if (events.is_kept) {
    Pending<http::Finished> finished(loop_);
    execution.finish_told(std::move(events.answer), fate, finished.callback(), std::move(reason));
    if (!finished.is_there()) co_await finished.wait();
    const http::Finished given = finished.take();
    served_.fate = to_string(fate);
    log_finish(given);
    if (given.is_another) events.client_is_there = false;
  }
  if (!events.client_is_there) co_return Next::vanish;
  if (events.is_chunked) {
    co_await send_events(events, "0\r\n\r\n", {});
  } else {
    reset_at_close(false);
  }
  if (!events.client_is_there) co_return Next::vanish;
  co_return keep_alive ? Next::keep : Next::close;
}

}  // namespace once::proxy
