#include "frontends/proxy/upstream.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <boost/asio/local/stream_protocol.hpp>

#include "frontends/proxy/head.hpp"
#include "frontends/proxy/names.hpp"

namespace once::proxy {

namespace {

constexpr int max_interim_answers = 1'000;  // Their time is limited by that of the answer.

Trouble of_client(Piece::End end) {
  switch (end) {
    case Piece::End::none:
      return Trouble::none;
    case Piece::End::gone:
      return Trouble::client_gone;
    case Piece::End::late:
      return Trouble::client_late;
    case Piece::End::bad:
      return Trouble::client_bad;
  }
  return Trouble::client_bad;
}

// "The request has both ..." of a response.
std::string framing_fault_of(const Incoming& answer) {
  std::string fault(answer.framing_fault());
  constexpr std::string_view subject = "The request";
  if (fault.starts_with(subject)) fault.replace(0, subject.size(), "it");
  if (fault.ends_with('.')) fault.pop_back();
  return fault;
}

}  // namespace

std::string_view to_string(Trouble trouble) noexcept {
  switch (trouble) {
    case Trouble::none:
      return "";
    case Trouble::unreachable:
      return "upstream-unreachable";
    case Trouble::aside:
      return "upstream-aside";
    case Trouble::connect_late:
      return "upstream-connect-timeout";
    case Trouble::no_tls:
      return "upstream-tls";
    case Trouble::lease_over:
      return "lease-over";
    case Trouble::lost:
      return "upstream-lost";
    case Trouble::late:
      return "upstream-timeout";
    case Trouble::bad_answer:
      return "upstream-malformed";
    case Trouble::large_head:
      return "upstream-head-too-large";
    case Trouble::client_gone:
      return "client-gone";
    case Trouble::client_late:
      return "client-timeout";
    case Trouble::client_bad:
      return "client-malformed";
  }
  return "?";
}

std::string reason_of(Trouble trouble, std::string_view detail) {
  const auto text = [&]() -> std::string_view {
    switch (trouble) {
      case Trouble::none:
        return "";
      case Trouble::unreachable:
        return "no connection to the service";
      case Trouble::aside:
        return "the service is put aside because it fails";
      case Trouble::connect_late:
        return "no connection to the service in time";
      case Trouble::no_tls:
        return "the TLS handshake with the service failed";
      case Trouble::lease_over:
        return "the lease was over before anything was sent";
      case Trouble::lost:
        return "the service closed the connection before the end of a response";
      case Trouble::late:
        return "the service did not respond in time";
      case Trouble::bad_answer:
        return "the response of the service is malformed";
      case Trouble::large_head:
        return "the head of the service's response is over the limit";
      case Trouble::client_gone:
        return "the client closed the connection before the end of its request";
      case Trouble::client_late:
        return "the request of the client took too long";
      case Trouble::client_bad:
        return "the request of the client is malformed";
    }
    return "?";
  }();
  std::string out(text);
  if (!detail.empty()) out.append(": ").append(detail);
  return out;
}

Trouble trouble_of_answer(Piece::End end) noexcept {
  switch (end) {
    case Piece::End::none:
      return Trouble::none;
    case Piece::End::gone:
      return Trouble::lost;
    case Piece::End::late:
      return Trouble::late;
    case Piece::End::bad:
      return Trouble::bad_answer;
  }
  return Trouble::bad_answer;
}

Piece take_piece(Connection& connection) {
  const Incoming::Step step = connection.message.take(connection.buffer.view());
  connection.buffer.consume(step.skipped + step.piece.size());
  return {step.piece, step.malformed ? Piece::End::bad : Piece::End::none};
}

Task<Piece> read_piece(Connection& connection, Millis limit, Steady::time_point until) {
  for (;;) {
    const Piece piece = take_piece(connection);
    if (!piece.is_to_come() || connection.message.is_done()) co_return piece;
    if (until != Steady::time_point::max()) {
      const auto left = std::chrono::duration_cast<Millis>(until - about_now());
      if (left <= Millis{0}) co_return Piece{{}, Piece::End::late};
      limit = std::min(limit, left);
    }
    const error_code error = co_await connection.fill(limit);
    if (error == net::error::eof) {
      co_return Piece{{}, connection.message.end_with_connection() ? Piece::End::none : Piece::End::gone};
    }
    if (error == net::error::timed_out) co_return Piece{{}, Piece::End::late};
    if (error == net::error::no_buffer_space) co_return Piece{{}, Piece::End::bad};
    if (error) co_return Piece{{}, Piece::End::gone};
  }
}

Task<Trouble> open_connection(Loop& loop, const Services& services, std::size_t index, Millis limit,
                              std::unique_ptr<Connection>& connection, std::string& problem) {
  const Address& address = services.at(index).address;
  const bool tls = services.at(index).tls;
  error_code error;
  std::vector<Stream::endpoint> endpoints;
  const auto literal = net::ip::make_address(address.host, error);
  if (!address.socket.empty()) {
    endpoints.emplace_back(net::local::stream_protocol::endpoint(address.socket));
  } else if (!error) {
    endpoints.emplace_back(tcp::endpoint(literal, address.port));
  } else {
    Names::Found found = co_await loop.names->find(address, limit);
    problem = std::move(found.problem);
    if (found.endpoints.empty()) co_return found.late ? Trouble::connect_late : Trouble::unreachable;
    endpoints.assign(found.endpoints.begin(), found.endpoints.end());
  }
  Trouble trouble = Trouble::unreachable;
  for (const Stream::endpoint& endpoint : endpoints) {
    connection = std::make_unique<Connection>(loop, Socket(loop.io));
    if (loop.closing()) break;
    error = co_await connection->connect(endpoint, limit);
    trouble = error == net::error::timed_out ? Trouble::connect_late : Trouble::unreachable;
    problem = error ? "no connection: " + error.message() : std::string();
    if (!error && tls) {
      auto& ticket = loop.tickets[services.id(index)];
      if (!ticket) ticket = std::make_shared<tls::Ticket>();
      error = co_await connection->connect_tls(address.host, ticket, limit, problem);
      trouble = Trouble::no_tls;
    }
    if (!error) co_return Trouble::none;
  }
  connection.reset();
  co_return trouble;
}

Task<Trouble> Exchange::start(std::string_view head, BodySource body, bool is_head_method, Connection* interim_to) {
  // Most have a kept connection, which saves a coroutine.
  return choose() ? talk(head, body, is_head_method, interim_to)
                  : connect_and_talk(head, body, is_head_method, interim_to);
}

Task<Trouble> Exchange::connect_and_talk(std::string_view head, BodySource body, bool is_head_method,
                                         Connection* interim_to) {
  const Trouble connected = co_await connect();
  if (connected != Trouble::none) co_return connected;
  co_return co_await talk(head, body, is_head_method, interim_to);
}

void Exchange::tell(Trouble trouble) {
  const auto now = Steady::now();
  if (trouble == Trouble::none || trouble == Trouble::large_head) {
    services_.answered(use_, answer().status(), now);
  } else if (trouble == Trouble::no_tls) {
    services_.unreachable(use_, connection_->refusal_of_certificate(), now);
  } else if (reused_ || loop_.closing()) {
    return;
  } else if (trouble == Trouble::late) {
    services_.late(use_, to_string(trouble), now);
  } else if (trouble == Trouble::lost || trouble == Trouble::bad_answer) {
    services_.troubled(use_, to_string(trouble), now);
  }
}

// Chooses a service. True: and has a kept connection to it.
bool Exchange::choose() {
  auto chosen = services_.choose(tried_, about_now());
  if (!chosen) return false;
  use_ = std::move(*chosen);
  has_service_ = true;
  service_ = services_.name(use_.index());
  connection_ = only_new_ ? nullptr : loop_.take_kept(services_.id(use_.index()));
  reused_ = connection_ != nullptr;
  return reused_;
}

// Another upstream is tried only while no byte was sent.
Task<Trouble> Exchange::connect() {
  Trouble trouble = Trouble::unreachable;
  if (!has_service_) {
    retry_after_ = services_.wait(Steady::now());
    if (retry_after_ > Millis{0}) trouble = Trouble::aside;
  }
  while (has_service_) {
    const std::size_t index = use_.index();
    std::string problem;
    trouble = co_await open_connection(loop_, services_, index, options_.timeouts.connect, connection_, problem);
    if (trouble == Trouble::none || loop_.closing()) break;
    services_.unreachable(use_, problem, Steady::now());
    detail_ = problem;
    tried_.push_back(index);
    has_service_ = false;
    if (choose()) co_return Trouble::none;
  }
  co_return trouble;
}

Task<Trouble> Exchange::talk(std::string_view head, BodySource body, bool is_head_method, Connection* interim_to) {
  // A process that was stopped may have lost the claim.
  if (!may_send()) {
    connection_->close();
    co_return Trouble::lease_over;
  }
  sending_started_ = true;
  body_ = body;
  body_bytes_ = body.bytes.size();
  // Most requests fit into the socket, and need no writer coroutine.
  const std::array<net::const_buffer, 2> first{net::buffer(head), net::buffer(body.bytes)};
  written_ = connection_->write_now(first);
  if (body.client == nullptr && written_ == head.size() + body.bytes.size()) {
    sent_.set();
    connection_->set_read_deadline(answer_limit_);
  } else {
    const std::size_t of_head = std::min(head.size(), static_cast<std::size_t>(written_));
    body.bytes.remove_prefix(static_cast<std::size_t>(written_) - of_head);
    Task<void> sending = send(shared_from_this(), head.substr(of_head), body);
    spawn(loop_.io, std::move(sending));
  }
  const Trouble trouble = co_await read_head(is_head_method, interim_to);
  if (trouble == Trouble::none) {
    tell(trouble);
    co_return trouble;
  }
  const Trouble why = co_await why_no_answer(trouble, body.client);
  tell(why);
  co_return why;
}

Task<Trouble> Exchange::why_no_answer(Trouble trouble, Connection* client) {
  connection_->close();
  const bool client_failed_first =
      sent_.is_set() &&
      (sending_ == Trouble::client_gone || sending_ == Trouble::client_late || sending_ == Trouble::client_bad);
  if (client != nullptr && !sent_.is_set()) client->cancel();
  co_await sent_.wait();
  if (sending_ == Trouble::lease_over) co_return sending_;
  if (trouble == Trouble::no_tls) co_return trouble;
  // The kernel took no byte: the upstream cannot have seen the request.
  if (written_ == 0) co_return Trouble::unreachable;
  if (client_failed_first) co_return sending_;
  // The write timed out. That cancelled the read too, which does not know why.
  if (trouble == Trouble::lost && sending_ == Trouble::late) co_return Trouble::late;
  co_return trouble;
}

Task<void> Exchange::send(std::shared_ptr<Exchange> self, std::string_view head, BodySource body) {
  if (self->written_ == 0 && !self->may_send()) {  // Checked again, because it begins later than talk()'s check.
    self->sending_ = Trouble::lease_over;
    self->connection_->close();
    self->sent_.set();
    co_return;
  }
  const std::array<net::const_buffer, 2> first{net::buffer(head), net::buffer(body.bytes)};
  const error_code error = co_await self->connection_->write(first, self->options_.timeouts.body, self->written_);
  if (error) {
    // The answer may be there (413, then a close): the reader finds out.
    self->sending_ = error == net::error::timed_out ? Trouble::late : Trouble::lost;
  } else if (body.client != nullptr) {
    self->sending_ = co_await self->send_body(body);
    if (self->sending_ != Trouble::none && self->sending_ != Trouble::lost && self->sending_ != Trouble::late) {
      self->connection_->close();  // An answer to an incomplete request does not count.
    }
  }
  self->sent_.set();
  if (!self->head_read_) self->connection_->set_read_deadline(self->answer_limit_);
}

Task<Trouble> Exchange::send_body(BodySource body) {
  for (;;) {
    const Piece piece = co_await read_piece(*body.client, options_.timeouts.body);
    if (piece.trouble != Piece::End::none) co_return of_client(piece.trouble);
    const bool over = piece.bytes.empty();
    body_bytes_ += piece.bytes.size();
    const std::string size = body.chunked ? chunk_head(piece.bytes.size()) : std::string();
    std::string end = body.chunked ? "\r\n" : "";
    if (over && body.trailers != nullptr) end.insert(0, trailer_lines(body.client->message.trailers(), *body.trailers));
    const std::array<net::const_buffer, 3> out{net::buffer(size), net::buffer(piece.bytes), net::buffer(end)};
    const error_code error = co_await connection_->write(out, options_.timeouts.body, written_);
    if (error) co_return error == net::error::timed_out ? Trouble::late : Trouble::lost;
    if (over) co_return Trouble::none;
  }
}

Trouble Exchange::bad(std::string_view detail) {
  detail_ = detail;
  return Trouble::bad_answer;
}

// The buffer has a part of the head. Its complete lines begin with the status.
Trouble Exchange::large_head(bool is_head_method) {
  const std::string_view seen = connection_->buffer.view().substr(0, options_.max_head_bytes);
  const auto end = seen.rfind("\r\n");
  Incoming& part = connection_->message;
  const bool is_read =
      end != std::string_view::npos &&
      (part.read_answer(std::string(seen.substr(0, end)) + "\r\n\r\n", is_head_method) || part.has_too_many());
  if (!is_read || part.status() < 200) return bad("its head is over the limit (head-limit), and has no status");
  return Trouble::large_head;
}

Task<Trouble> Exchange::read_head(bool is_head_method, Connection* interim_to) {
  Connection& connection = *connection_;
  for (int heads = 0; heads <= max_interim_answers; ++heads) {
    HeadScan scan;
    for (;;) {
      scan = scan_head(connection.buffer.view(), scan.bytes);
      if (scan.kind == HeadScan::Kind::malformed)
        co_return bad("a line of its head does not end in CR LF, is folded, or has a NUL");
      if (scan.kind == HeadScan::Kind::complete && scan.bytes <= options_.max_head_bytes) break;
      if (connection.buffer.size() > options_.max_head_bytes) co_return large_head(is_head_method);
      const error_code error = co_await connection.fill_without_limit();
      if (error == net::error::timed_out) co_return Trouble::late;
      if (error == net::error::no_buffer_space) co_return large_head(is_head_method);
      if (error && connection.buffer.size() != 0) co_return bad("the connection was closed in its head");
      if (error) co_return !reused_ && !connection.refusal_of_certificate().empty() ? Trouble::no_tls : Trouble::lost;
    }
    Incoming& answer = connection.message;
    const bool is_read = answer.read_answer(connection.buffer.view().substr(0, scan.bytes), is_head_method);
    connection.buffer.consume(scan.bytes);
    if (!is_read && answer.has_too_many() && answer.status() >= 200) co_return Trouble::large_head;
    if (!is_read)
      co_return bad(answer.status() == 0 ? "its status line is not HTTP/1" : "a line of its head is no header");
    if (!answer.is_framed_well()) co_return bad(framing_fault_of(answer));
    const unsigned status = answer.status();
    const bool is_tunnel =
        status == 101 && !websocket_key_.empty() && accepts_websocket(answer.headers(), websocket_key_);
    if (status == 101 && !is_tunnel) co_return bad("a 101 that nobody asked for");
    if (status >= 200 || is_tunnel) {
      head_read_ = true;
      connection.clear_read_deadline();
      co_return Trouble::none;
    }
    if (status == 100 || interim_to == nullptr) continue;
    const std::string lines = write_interim_head(status, answer.reason(), forwarded(answer.headers()));
    const std::array<net::const_buffer, 1> out{net::buffer(lines)};
    std::uint64_t written = 0;
    // The final answer shows whether the client has disconnected. But it must not follow an incomplete head.
    if (co_await interim_to->write(out, options_.timeouts.body, written) && written > 0) interim_to->close();
  }
  co_return bad("more than 1000 interim responses");
}

Task<bool> Exchange::wait_until_sent() {
  co_await sent_.wait();
  co_return sending_ == Trouble::none;
}

Task<bool> Exchange::join() {
  if (const auto sent = join_now()) co_return *sent;
  // The answer ended before the request: neither connection can be used again.
  connection_->close();
  if (body_.client != nullptr) body_.client->cancel();
  co_await sent_.wait();
  co_return false;
}

std::optional<bool> Exchange::join_now() {
  if (!sending_started_) return false;
  if (!sent_.is_set()) return std::nullopt;
  if (sending_ != Trouble::none) return false;
  if (head_read_ && answer().is_done() && answer().keep_alive() && connection_->buffer.size() == 0 &&
      connection_->socket.is_open() && websocket_key_.empty()) {
    // Not a connection to an upstream that was removed meanwhile.
    const std::uint64_t service = services_.id(use_.index());
    if (&services_ == loop_.services.get() || loop_.services->find(service)) {
      const Millis idle = kept_for(answer().headers(), options_.timeouts.upstream_idle);
      if (idle > Millis{0}) loop_.keep(std::move(connection_), service, idle, options_.max_idle_upstream);
    }
  }
  return true;
}

}  // namespace once::proxy
