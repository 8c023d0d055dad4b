#include "frontends/proxy/session.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>
#include <vector>

#include <boost/asio/redirect_error.hpp>

#include <once/error.hpp>
#include <once/fingerprint.hpp>
#include <once/platform/system.hpp>

namespace once::proxy {

using http::Answer;
using http::Examination;
using http::Execution;
using http::Opening;

namespace {

constexpr std::size_t piece_bytes = Connection::piece_bytes;
constexpr std::size_t head_piece_bytes = 4 * 1024;  // All that an idle connection has for a buffer.
constexpr std::size_t linger_bytes = std::size_t{256} * 1024;
constexpr Millis linger_limit{1'000};

Outcome outcome_of(Opening::Kind kind) noexcept {
  switch (kind) {
    case Opening::Kind::passed:
      return Outcome::passed;
    case Opening::Kind::unprotected:
      return Outcome::unprotected;
    case Opening::Kind::claimed:
      return Outcome::executed;
    case Opening::Kind::replayed:
      return Outcome::replayed;
    case Opening::Kind::conflict:
      return Outcome::conflict;
    case Opening::Kind::mismatch:
      return Outcome::mismatch;
    case Opening::Kind::unknown:
      return Outcome::unknown;
    case Opening::Kind::refused:
      return Outcome::refused;
    case Opening::Kind::failed:
      return Outcome::error;
  }
  return Outcome::error;
}

std::string_view word_of(http::Fate fate) noexcept {
  switch (fate) {
    case http::Fate::store:
      return "stored";
    case http::Fate::release:
      return "released";
    case http::Fate::ambiguous:
      break;
  }
  return "ambiguous";
}

Answer head_of(AnswerParser& parser) {
  const auto reason = parser.get().reason();
  return {.status = parser.get().result_int(),
          .reason = std::string(reason.data(), reason.size()),
          .headers = forwarded(views_of(parser.get())),
          .body = {}};
}

Answer malformed(unsigned status, std::string_view detail) {
  if (status == 501) return problem("not-supported", status, "Not supported", detail);
  if (status == 505) return problem("version-not-supported", status, "HTTP version is not supported", detail);
  return problem("malformed-request", status, "Request is malformed", detail);
}

}  // namespace

Session::Session(Loop& loop, Socket socket, http::Endpoint& endpoint, const ProxyOptions& options)
    : loop_(loop), endpoint_(endpoint), options_(options), client_(loop, std::move(socket)) {
  error_code ignored;
  client_.socket.set_option(tcp::no_delay(true), ignored);
  const auto remote = client_.socket.remote_endpoint(ignored);
  if (ignored) return;
  net::ip::address address = remote.address();
  // One that came over IPv4 to a socket for both is what it is (RFC 4291, section 2.5.5.2).
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = net::ip::make_address_v4(net::ip::v4_mapped, address.to_v6());
  }
  address_ = address.to_string();
}

Task<void> Session::run() {
  for (Next next = Next::keep; next == Next::keep && !loop_.closing(); first_ = false) {
    served_ = Served();
    parser_.reset();
    path_.clear();
    key_hash_.clear();
    refusal_.reset();
    head_ = RequestHead();
    if (!co_await read_head()) {
      if (!refusal_) break;
      served_.outcome = Outcome::refused;
      next = co_await send(*refusal_, false);
    } else {
      next = co_await serve();
    }
    tell();
    if (next == Next::close) co_await linger();
    if (next != Next::keep || loop_.draining()) break;
  }
  client_.close();
}

// The answer to a request that was not read to its end would be lost if the connection were closed at once: the reset
// that unread bytes cause overtakes it (RFC 9112, section 9.6).
Task<void> Session::linger() {
  error_code error;
  client_.socket.shutdown(tcp::socket::shutdown_send, error);
  const auto until = Steady::now() + linger_limit;
  std::size_t read = 0;
  while (!error && read < linger_bytes && !loop_.closing()) {
    const auto left = std::chrono::duration_cast<Millis>(until - Steady::now());
    if (left <= Millis{0}) break;
    client_.buffer.clear();
    error = co_await client_.fill(left);
    read += client_.buffer.size();
  }
}

Task<bool> Session::read_head() {
  Connection& client = client_;
  HeadScan scan;
  bool began = first_;
  if (client.buffer.size() == 0) client.buffer.shrink_to_fit();  // An idle connection shall cost little.
  auto until = Steady::now() + options_.timeouts.head;
  for (;;) {
    // Empty lines before a request are left out (RFC 9112, section 2.2).
    const auto seen_bytes = client.buffer.cdata();
    std::string_view seen(static_cast<const char*>(seen_bytes.data()), seen_bytes.size());
    if (scan.bytes == 0 && seen.starts_with("\r\n")) {
      client.buffer.consume(2);
      continue;
    }
    if (!began && !seen.empty()) {
      began = true;
      until = Steady::now() + options_.timeouts.head;
    }
    scan = scan_head(seen, scan.bytes);
    if (scan.kind == HeadScan::Kind::complete && scan.bytes <= options_.max_head_bytes) break;
    began_ = Steady::now();
    served_.at = system_clock()->now();
    if (scan.kind == HeadScan::Kind::malformed) {
      served_.cause = "malformed";
      refusal_ = malformed(400, "A line of the head does not end in CR LF, is folded, or has a NUL in it.");
      co_return false;
    }
    if (seen.size() > options_.max_head_bytes) {
      served_.cause = "head-too-large";
      refusal_ = problem("head-too-large", 431, "Request head is too large",
                         "The request line and the headers together are over the limit.");
      co_return false;
    }
    // Nothing of a request has come: the connection may go at any time.
    const bool idle = seen.empty();
    if (idle && loop_.draining()) co_return false;
    client.set_idle(idle);
    const Millis limit = began ? std::chrono::duration_cast<Millis>(until - Steady::now()) : options_.timeouts.idle;
    const error_code error = co_await client.fill(limit, head_piece_bytes);
    client.set_idle(false);
    if (error == net::error::timed_out && client.buffer.size() > 0) {
      served_.cause = "client-timeout";
      refusal_ = problem("request-timeout", 408, "Request took too long", "Its head did not come in time.");
      co_return false;
    }
    if (error) co_return false;
  }
  began_ = Steady::now();
  served_.at = system_clock()->now();
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(scan.bytes));
  parser_->body_limit(boost::none);
  const bool other_http = is_other_http({static_cast<const char*>(client.buffer.cdata().data()), scan.bytes});
  error_code error;
  client.buffer.consume(parser_->put(client.buffer.data(), error));
  if ((error && error != bhttp::error::need_more && error != bhttp::error::need_buffer) || !parser_->is_header_done()) {
    served_.cause = other_http ? "not-supported" : "malformed";
    refusal_ = other_http ? malformed(505, "Only HTTP/1.0 and HTTP/1.1 are understood here.")
                          : malformed(400, "The request line or a header cannot be read.");
    co_return false;
  }
  const auto method = parser_->get().method_string();
  const auto target = parser_->get().target();
  head_.method = {method.data(), method.size()};
  head_.target.assign(target.data(), target.size());
  head_.version = parser_->get().version();
  head_.headers = views_of(parser_->get());
  const auto refusal = check_request(head_);
  path_ = head_.target.substr(0, head_.target.find_first_of("?#"));
  if (refusal) {
    served_.cause = refusal->status == 400 ? "malformed" : "not-supported";
    refusal_ = malformed(refusal->status, refusal->detail);
    co_return false;
  }
  // HTTP/1.0 needs no host, and the upstream gets HTTP/1.1.
  const bool has_host = std::ranges::any_of(
      head_.headers, [](const http::HeaderView& header) { return http::same_name(header.name, "Host"); });
  if (!has_host && head_.host.empty()) head_.host = options_.upstream.host;
  co_return true;
}

http::Request Session::view(std::string_view body) const {
  return {.method = head_.method, .target = head_.target, .headers = head_.headers, .body = body, .principal = {}};
}

Framing Session::request_framing() const {
  if (parser_->chunked()) return {Framing::Kind::chunked, 0};
  if (const auto length = parser_->content_length()) return {Framing::Kind::length, *length};
  return {};
}

bool Session::wants_more() const { return parser_->keep_alive() && !loop_.draining(); }

Task<Session::Next> Session::serve() {
  Examination examined = endpoint_.rules().examine_head(view({}));
  switch (examined.kind) {
    case Examination::Kind::refuse: {
      served_.outcome = Outcome::refused;
      co_return co_await send(examined.answer, parser_->is_done() && wants_more());
    }
    case Examination::Kind::pass:
      served_.outcome = Outcome::passed;
      break;
    case Examination::Kind::no_key:
      // Completes at once; it tells the observer.
      endpoint_.open(std::move(examined), [](Opening) {});
      served_.outcome = Outcome::unprotected;
      break;
    case Examination::Kind::operation:
      co_return co_await serve_operation();
  }
  co_await send_continue();
  co_return co_await pass({}, false);
}

Task<void> Session::send_continue() {
  const bool expected = std::ranges::any_of(head_.headers, [](const http::HeaderView& header) {
    return http::same_name(header.name, "Expect") && http::same_name(header.value, "100-continue");
  });
  if (!expected || head_.version != 11 || parser_->is_done() || client_.buffer.size() > 0) co_return;
  static constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
  const std::array<net::const_buffer, 1> out{net::buffer(go_on)};
  std::uint64_t written = 0;
  // That the client has gone is found out by reading on.
  static_cast<void>(co_await client_.write(out, options_.timeouts.body, written));
}

Task<bool> Session::read_body(std::string& body) {
  const std::size_t limit = endpoint_.rules().options().max_body_bytes;
  const auto until = Steady::now() + options_.timeouts.body;
  std::vector<char> space(piece_bytes);
  while (body.size() <= limit) {
    const auto left = std::max(Millis{1}, std::chrono::duration_cast<Millis>(until - Steady::now()));
    const Piece piece = co_await read_piece(client_, *parser_, space, left);
    served_.request_body_bytes += piece.got;
    body.append(space.data(), piece.got);
    switch (piece.trouble) {
      case Piece::End::none:
        if (piece.got == 0) co_return true;
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
  co_await send_continue();
  std::string body;
  if (!co_await read_body(body)) {
    if (!refusal_) co_return Next::vanish;
    co_return co_await send(*refusal_, false);
  }
  Examination examined = endpoint_.rules().examine(view(body));
  if (examined.operation) {
    key_hash_ = to_hex(sha256(examined.operation->key.stored())).substr(0, 16);
  }
  auto start = [&](Callback<void(Opening)> done) { endpoint_.open(std::move(examined), std::move(done)); };
  Opening opening = co_await completion<Opening>(loop_, start);
  served_.outcome = outcome_of(opening.kind);
  if (!opening.runs()) {
    if (opening.kind == Opening::Kind::failed) served_.cause = "store";
    co_return co_await send(opening.answer, parser_->is_done() && wants_more());
  }
  if (!opening.execution.is_protected()) co_return co_await pass(body, true);
  co_return co_await run_claimed(opening.execution, body);
}

Answer Session::answer_to(Trouble trouble) const {
  switch (trouble) {
    case Trouble::unreachable:
    case Trouble::connect_late: {
      Answer answer = problem("upstream-unreachable", 503, "The service cannot be reached",
                              "Nothing was carried out. Send the same request again after the time in Retry-After.");
      answer.headers.push_back({"Retry-After", "1"});
      return answer;
    }
    case Trouble::late:
      return problem("upstream-timeout", 504, "The service did not answer in time",
                     "Whether the request was carried out is not known.");
    case Trouble::client_late:
      return problem("request-timeout", 408, "Request took too long", "Its body did not come in time.");
    case Trouble::client_bad:
      return malformed(400, "The chunked body cannot be read.");
    default:
      return problem("upstream-failed", 502, "The service gave no answer",
                     "Its connection broke off, or what it sent is not HTTP. Whether the request was carried out is "
                     "not known.");
  }
}

Task<Session::Next> Session::run_claimed(Execution& execution, const std::string& body) {
  // Its length is known now, whatever it came as.
  Framing framing = request_framing();
  if (framing.kind == Framing::Kind::chunked) framing = {Framing::Kind::length, body.size()};
  const std::string head = write_request_head(head_, framing, address_);
  const auto exchange = std::make_shared<Exchange>(loop_, options_);
  BodySource source;
  source.bytes = body;
  const Trouble trouble = co_await exchange->start(head, source, is_head(), nullptr);
  served_.upstream_took = Steady::now() - began_;
  if (trouble == Trouble::none) {
    const Next next = co_await keep_answer(execution, *exchange);
    co_return next;
  }
  co_await exchange->join();
  const bool nothing_done = trouble == Trouble::unreachable || trouble == Trouble::connect_late;
  const http::Fate fate = nothing_done ? http::Fate::release : http::Fate::ambiguous;
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
  const http::Rules& rules = endpoint_.rules();
  const std::size_t limit = rules.options().max_answer_bytes;
  const std::uint64_t told = is_head() ? 0 : exchange.answer().content_length().value_or(0);
  std::vector<char> space(piece_bytes);
  Piece piece{1, Piece::End::none};
  while (told <= limit && answer.body.size() <= limit && piece.got > 0) {
    piece = co_await exchange.read(space);
    answer.body.append(space.data(), piece.got);
  }
  served_.upstream_took = Steady::now() - began_;
  http::Fate fate = rules.fate_of(answer.status);
  if (piece.trouble != Piece::End::none) {
    co_await exchange.join();
    const Trouble trouble = piece.trouble == Piece::End::late  ? Trouble::late
                            : piece.trouble == Piece::End::bad ? Trouble::bad_answer
                                                               : Trouble::lost;
    fate = http::Fate::ambiguous;
    served_.outcome = Outcome::error;
    served_.cause = to_string(trouble);
    answer = answer_to(trouble);
  } else if (piece.got > 0) {  // There is more of it than can be kept.
    served_.fate = fate == http::Fate::store ? "tombstone" : word_of(fate);
    Answer head = answer;
    head.body.clear();
    auto finish = [&](Callback<void(std::optional<Answer>)> done) {
      execution.finish_streamed(head, told, std::move(done));
    };
    std::optional<Answer> instead = co_await completion<std::optional<Answer>>(loop_, finish);
    if (!instead) co_return co_await relay(exchange, answer.body);
    co_await exchange.join();
    co_return co_await send(*instead, wants_more());
  } else {
    co_await exchange.join();
  }
  served_.fate = word_of(fate);
  auto finish = [&](Callback<void(Answer)> done) { execution.finish(std::move(answer), fate, std::move(done)); };
  const Answer given = co_await completion<Answer>(loop_, finish);
  co_return co_await send(given, wants_more());
}

Task<Session::Next> Session::pass(std::string_view body, bool body_was_read) {
  Framing framing = request_framing();
  if (body_was_read && framing.kind == Framing::Kind::chunked) framing = {Framing::Kind::length, body.size()};
  const std::string head = write_request_head(head_, framing, address_);
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
  std::vector<char> space(piece_bytes);
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

Task<Session::Next> Session::send(const Answer& answer, bool keep_alive) {
  Framing framing{Framing::Kind::length, answer.body.size()};
  std::string_view body = answer.body;
  if (answer.status == 204 || answer.status == 304) framing = {};
  if (is_head()) framing = {};
  if (framing.kind == Framing::Kind::none) body = {};
  served_.status = answer.status;
  const std::string lines =
      write_answer_head(answer.status, answer.reason, answer.headers, framing, head_.version, keep_alive);
  const std::array<net::const_buffer, 2> out{net::buffer(lines), net::buffer(body)};
  std::uint64_t written = 0;
  const error_code error = co_await client_.write(out, options_.timeouts.body, written);
  if (error) {
    if (served_.cause.empty()) served_.cause = to_string(Trouble::client_gone);
    co_return Next::vanish;
  }
  served_.answer_body_bytes = body.size();
  co_return keep_alive ? Next::keep : Next::close;
}

void Session::tell() {
  if (!options_.on_served) return;
  served_.client = address_;
  served_.method = head_.method;
  served_.path = path_;
  served_.key_hash = key_hash_;
  served_.took = Steady::now() - began_;
  options_.on_served(served_);
}

}  // namespace once::proxy
