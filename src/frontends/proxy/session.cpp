#include "frontends/proxy/session.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <boost/asio/redirect_error.hpp>

#include <once/platform/system.hpp>

#include "frontends/http/readings.hpp"
#include "frontends/proxy/answers.hpp"
#include "frontends/proxy/handshakes.hpp"
#include "frontends/proxy/networks.hpp"
#include "frontends/proxy/proxy_protocol.hpp"

namespace once::proxy {

using http::Answer;
using http::Examination;
using http::Opening;

namespace {

constexpr std::size_t head_piece_bytes = 4 * 1024;  // The buffer size of an idle connection.
constexpr std::size_t linger_bytes = std::size_t{256} * 1024;
constexpr Millis linger_limit{1'000};

// Counts a running request for as long as it lives.
class ActiveRequest {
 public:
  ActiveRequest(Metrics& metrics, std::string_view method, bool tls) : metrics_(metrics), method_(method), tls_(tls) {
    metrics_.active(method_, tls_, 1);
  }
  ~ActiveRequest() { metrics_.active(method_, tls_, -1); }
  ActiveRequest(const ActiveRequest&) = delete;
  ActiveRequest& operator=(const ActiveRequest&) = delete;

 private:
  Metrics& metrics_;
  std::string_view method_;  // The message's, which outlives this.
  bool tls_;
};

}  // namespace

Session::Session(Loop& loop, Socket socket, const ProxyOptions& options)
    : loop_(loop), options_(options), client_(loop, std::move(socket)) {
  error_code ignored;
  client_.socket.set_option(tcp::no_delay(true), ignored);
}

Task<bool> Session::begin() {
  const auto address = client_.remote();
  // It has disconnected. Its request is served, unless a PROXY header may name another client.
  if (!address && !options_.proxy_protocol.empty()) co_return false;
  if (!address) co_return true;
  peer_ = *address;
  if (contains(options_.proxy_protocol, peer_) && !co_await read_proxy_protocol()) co_return false;
  peer_name_ = sender_name_ = peer_.to_string();
  sender_ = peer_;
  is_trusted_ = contains(options_.trusted_proxies, peer_);
  if (is_trusted_) co_return true;  // Many clients are behind it.
  connected_ = loop_.clients->connect(peer_);
  if (!connected_) options_.metrics->count_refused_connection();
  co_return static_cast<bool>(connected_);
}

Task<bool> Session::read_proxy_protocol() {
  client_.set_idle(true);  // The end need not wait for it.
  client_.set_read_deadline(options_.timeouts.head);
  std::string bytes;
  error_code error;
  ProxyHeader header = read_proxy_header(bytes);
  while (!error && header.kind == ProxyHeader::Kind::incomplete) {
    const std::size_t seen = bytes.size();
    bytes.resize(seen + header.more);
    const auto into = net::buffer(bytes.data() + seen, header.more);
    const auto [failed, got] = co_await client_.socket.async_read_some(into, in_place);
    bytes.resize(seen + got);
    error = failed;
    if (!error) header = read_proxy_header(bytes);
  }
  client_.clear_read_deadline();
  client_.set_idle(false);
  if (header.kind != ProxyHeader::Kind::complete) {
    const HandshakeFailure failure{.fault = HandshakeFault::proxy_header, .said_something = !bytes.empty()};
    if (!loop_.stopping()) {
      loop_.handshakes->failed(Listener::clients, failure, client_.remote_address(), Steady::now());
    }
    co_return false;
  }
  if (header.client) peer_ = plain_address(*header.client);
  balancer_has_tls_ = header.tls;
  co_return true;
}

Task<bool> Session::begin_tls() {
  const auto certificate = loop_.certificate;
  if (!certificate) co_return true;
  client_.set_idle(true);  // The end need not wait for it.
  const error_code error = co_await client_.accept_tls(*certificate, options_.timeouts.head);
  client_.set_idle(false);
  if (!error) {
    if (has_own_certificate()) subject_ = client_.subject();
    co_return true;
  }
  if (loop_.stopping()) co_return false;
  const HandshakeFailure failure = client_.handshake_failure(error);
  loop_.handshakes->failed(Listener::clients, failure, peer_name_, Steady::now());
  // With TLS 1.3 a client has sent its request by now, and would see a reset instead of the alert.
  if (failure.openssl_code != 0) {
    client_.forget_tls();
    co_await linger();
  }
  co_return false;
}

bool Session::hold(std::size_t bytes) {
  if (!held_) held_.emplace(*loop_.clients, sender_);
  return held_->grow_to(bytes);
}

// The answer of a request that ran is always kept: others are refused instead.
void Session::hold_answer(std::size_t bytes) {
  if (bytes <= Connection::piece_bytes) return;
  if (!held_) held_.emplace(*loop_.clients, sender_);
  held_->grow_anyway(static_cast<std::size_t>(served_.request_body_bytes) + bytes);
}

Task<void> Session::run() {
  if (!co_await begin()) co_return client_.close();
  if (!co_await begin_tls()) co_return client_.close();
  for (Next next = Next::keep; next == Next::keep && !loop_.closing(); first_ = false) {
    served_ = Served();
    path_ = {};
    key_.clear();
    refusal_.reset();
    held_.reset();
    patience_.reset();
    endpoint_ = nullptr;
    head_.method = {};
    head_.version = 11;
    if (!co_await read_head()) {
      if (!refusal_) {
        client_.shut_down();
        break;
      }
      served_.outcome = RequestOutcome::refused;
      next = co_await send(*refusal_, false);
    } else {
      const ActiveRequest active(*options_.metrics, head_.method, arrived_by_tls());
      next = co_await serve();
    }
    tell();
    if (next == Next::close) co_await linger();
    if (next != Next::keep) break;
    if (loop_.stopping()) {
      client_.shut_down();
      break;
    }
  }
  client_.close();
}

// Reads on before closing. If unread bytes remain, the close causes a reset that overtakes the answer (RFC 9112,
// section 9.6).
Task<void> Session::linger() {
  client_.shut_down();
  error_code error;
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
  // An idle connection should cost little.
  if (client.buffer.capacity() > head_piece_bytes) client.buffer.release();
  auto until = about_now() + options_.timeouts.head;
  for (;;) {
    // Empty lines before a request are skipped (RFC 9112, section 2.2).
    const std::string_view seen = client.buffer.view();
    if (scan.bytes == 0 && seen.starts_with("\r\n")) {
      client.buffer.consume(2);
      continue;
    }
    if (!began && !seen.empty()) {
      began = true;
      until = about_now() + options_.timeouts.head;
    }
    scan = scan_head(seen, scan.bytes);
    if (scan.kind == HeadScan::Kind::complete && scan.bytes <= options_.max_head_bytes) break;
    began_ = Steady::now();
    served_.at = system_clock()->now();
    if (scan.kind == HeadScan::Kind::malformed) {
      served_.cause = "malformed";
      refusal_ = malformed(400, "A line of the head does not end in CR LF, is folded, or contains a NUL.");
      co_return false;
    }
    if (seen.size() > options_.max_head_bytes) {
      served_.cause = "head-too-large";
      refusal_ = problem("head-too-large", 431, "Request head is too large",
                         "The request line and the headers together are larger than the limit.");
      co_return false;
    }
    // No byte of a request has come: the connection may be closed at any time.
    const bool idle = seen.empty();
    if (idle && loop_.stopping()) co_return false;
    client.set_idle(idle);
    const Millis limit = began ? std::chrono::duration_cast<Millis>(until - about_now()) : options_.timeouts.idle;
    const error_code error = co_await client.fill(limit, head_piece_bytes);
    client.set_idle(false);
    if (error == net::error::timed_out && client.buffer.size() > 0) {
      served_.cause = "client-timeout";
      refusal_ = problem("request-timeout", 408, "Request took too long",
                         "Its head did not arrive in time. Nothing was carried out.");
      co_return false;
    }
    if (error) co_return false;
  }
  began_ = Steady::now();
  served_.at = system_clock()->now();
  const auto refusal = read_request(client.buffer.view().substr(0, scan.bytes), client.message, head_);
  client.buffer.consume(scan.bytes);
  path_ = std::string_view(head_.target).substr(0, head_.target.find_first_of("?#"));
  if (refusal) {
    served_.cause = refusal->status == 400 ? "malformed" : refusal->status == 431 ? "head-too-large" : "not-supported";
    refusal_ = malformed(refusal->status, refusal->detail);
    co_return false;
  }
  if (is_trusted_) {
    sender_ = client_behind(head_.headers, peer_, options_.trusted_proxies);
    sender_name_ = sender_.to_string();
  }
  served_.trace = trace_of(head_.headers);
  // HTTP/1.0 needs no host, and the upstream gets HTTP/1.1.
  const bool has_host = std::ranges::any_of(
      head_.headers, [](const http::HeaderView& header) { return http::same_name(header.name, "Host"); });
  if (!has_host && head_.host.empty()) head_.host = loop_.services->host();
  co_return true;
}

Framing Session::request_framing() const {
  if (incoming().chunked()) return {Framing::Kind::chunked, 0};
  if (const auto length = incoming().content_length()) return {Framing::Kind::length, *length};
  return {};
}

Millis Session::answer_limit() const {
  const Millis own = endpoint_->rules().options().answer_timeout;
  return own == Millis{0} ? options_.timeouts.answer : own;
}

bool Session::wants_more() const { return incoming().keep_alive() && !loop_.stopping(); }

Task<Session::Next> Session::serve() {
  request_.method = head_.method;
  request_.target = head_.target;
  request_.headers.assign(head_.headers.begin(), head_.headers.end());
  request_.body = {};
  request_.principal = subject_;
  if (rules_ != loop_.rules) rules_ = loop_.rules;
  if (services_ != loop_.services) services_ = loop_.services;
  endpoint_ = rules_->find(request_);
  // A '#' has no place in a target (RFC 9112, section 3.2): some servers read it as a part of the path.
  const bool leaves = !services_->path().empty() && path_.starts_with('/') &&
                      (head_.target.find('#') != std::string::npos || http::may_leave_folder(path_));
  if (endpoint_ == nullptr || leaves) {
    served_.outcome = RequestOutcome::refused;
    served_.cause = "path-unclear";
    return refuse(rules_->unclear());
  }
  served_.route = rules_->path_of(*endpoint_);
  if (has_look_alike(head_.headers, endpoint_->rules().options())) {
    served_.outcome = RequestOutcome::refused;
    served_.cause = "malformed";
    return refuse(malformed(400, "A header name contains '_', which some servers treat as '-'. Write it with '-'."));
  }
  Examination examined = endpoint_->rules().examine_head(request_);
  switch (examined.kind) {
    case Examination::Kind::refuse: {
      served_.outcome = RequestOutcome::refused;
      return refuse(std::move(examined.answer));
    }
    case Examination::Kind::pass:
      served_.outcome = RequestOutcome::passed;
      break;
    case Examination::Kind::no_key:
      // Completes at once; only for the observer.
      endpoint_->open(std::move(examined), [](Opening) {});
      served_.outcome = RequestOutcome::unprotected;
      break;
    case Examination::Kind::operation:
      return serve_operation();
  }
  return pass({}, false);
}

Task<Session::Next> Session::refuse(Answer answer) {
  refusal_ = std::move(answer);
  return send(*refusal_, incoming().is_done() && wants_more());
}

bool Session::waits_for_continue() const {
  return head_.version == 11 && !incoming().is_done() && client_.buffer.size() == 0 && expects_continue(head_.headers);
}

Task<void> Session::send_continue() {
  static constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
  const std::array<net::const_buffer, 1> out{net::buffer(go_on)};
  std::uint64_t written = 0;
  // The next read shows whether the client has disconnected.
  static_cast<void>(co_await client_.write(out, options_.timeouts.body, written));
}

Task<Session::Next> Session::send(const Answer& answer, bool keep_alive) {
  Framing framing{Framing::Kind::length, answer.body.size()};
  std::string_view body = answer.body;
  if (answer.status == 204 || answer.status == 304) framing = {};
  if (is_head()) framing = {};
  if (framing.kind == Framing::Kind::none) body = {};
  served_.status = answer.status;
  std::optional<http::Headers> for_page;
  if (endpoint_ != nullptr) {
    for_page = readable_by_page(answer, head_.headers, endpoint_->rules().options().cors_origins);
  }
  const std::string lines = write_answer_head(answer.status, answer.reason, for_page ? *for_page : answer.headers,
                                              framing, head_.version, keep_alive);
  const std::array<net::const_buffer, 2> out{net::buffer(lines), net::buffer(body)};
  error_code error;
  std::uint64_t written = client_.write_now(out);
  if (written < net::buffer_size(out)) {
    error = co_await client_.write_rest(out, written, options_.timeouts.body, written);
  }
  if (error) {
    if (served_.cause.empty()) served_.cause = to_string(Trouble::client_gone);
    co_return Next::vanish;
  }
  served_.answer_body_bytes = body.size();
  co_return keep_alive ? Next::keep : Next::close;
}

void Session::tell() {
  if (!options_.on_served) return;
  served_.client = sender_name_;
  served_.method = head_.method;
  served_.path = path_;
  served_.stored_key = key_;
  served_.took = Steady::now() - began_;
  options_.on_served(served_);
}

}  // namespace once::proxy
