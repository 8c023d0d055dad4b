#include "frontends/proxy/upstream.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <boost/asio/redirect_error.hpp>

#include "frontends/proxy/head.hpp"

namespace once::proxy {

namespace {

constexpr int max_interim_answers = 16;

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

}  // namespace

std::string_view to_string(Trouble trouble) noexcept {
  switch (trouble) {
    case Trouble::none:
      return "";
    case Trouble::unreachable:
      return "upstream-unreachable";
    case Trouble::connect_late:
      return "upstream-connect-timeout";
    case Trouble::no_tls:
      return "upstream-tls";
    case Trouble::lost:
      return "upstream-lost";
    case Trouble::late:
      return "upstream-timeout";
    case Trouble::bad_answer:
      return "upstream-malformed";
    case Trouble::client_gone:
      return "client-gone";
    case Trouble::client_late:
      return "client-timeout";
    case Trouble::client_bad:
      return "client-malformed";
  }
  return "?";
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

Task<Trouble> open_connection(Loop& loop, std::size_t service, Millis limit, std::unique_ptr<Connection>& connection,
                              std::string& problem) {
  const Address& address = loop.services->at(service).address;
  const bool tls = loop.services->at(service).tls;
  error_code error;
  std::vector<tcp::endpoint> endpoints;
  const auto literal = net::ip::make_address(address.host, error);
  if (!error) {
    endpoints.emplace_back(literal, address.port);
  } else {
    net::ip::basic_resolver<tcp, Executor> resolver(loop.io);
    const auto found = co_await resolver.async_resolve(address.host, std::to_string(address.port),
                                                       net::redirect_error(use_task, error));
    if (error) {
      problem = error.message();
      co_return Trouble::unreachable;
    }
    for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  }
  Trouble trouble = Trouble::unreachable;
  for (const tcp::endpoint& endpoint : endpoints) {
    connection = std::make_unique<Connection>(loop, Socket(loop.io));
    if (loop.closing()) break;
    error = co_await connection->connect(endpoint, limit);
    trouble = error == net::error::timed_out ? Trouble::connect_late : Trouble::unreachable;
    problem = error ? "no connection: " + error.message() : std::string();
    if (!error && tls) {
      error = co_await connection->connect_tls(address.host, loop.tickets[service], limit, problem);
      trouble = Trouble::no_tls;
    }
    if (!error) co_return Trouble::none;
  }
  connection.reset();
  co_return trouble;
}

Task<Trouble> Exchange::start(std::string_view head, BodySource body, bool is_head_method, Connection* interim_to) {
  const Trouble connected = co_await connect();
  if (connected != Trouble::none) co_return connected;
  const Trouble trouble = co_await talk(head, body, is_head_method, interim_to);
  const auto now = Steady::now();
  if (trouble == Trouble::none) {
    services_->answered(use_.index(), answer_->get().result_int(), now);
  } else if (trouble == Trouble::lost || trouble == Trouble::late || trouble == Trouble::bad_answer) {
    if (!reused_ && !loop_.closing()) services_->troubled(use_.index(), to_string(trouble), now);
  }
  co_return trouble;
}

// Another one is asked only as long as nothing went out.
Task<Trouble> Exchange::connect() {
  std::vector<std::size_t> tried;
  Trouble trouble = Trouble::unreachable;
  while (auto chosen = services_->choose(tried, Steady::now())) {
    use_ = std::move(*chosen);
    const std::size_t index = use_.index();
    service_ = services_->name(index);
    connection_ = loop_.take_kept(index);
    reused_ = connection_ != nullptr;
    if (reused_) co_return Trouble::none;
    std::string problem;
    trouble = co_await open_connection(loop_, index, options_.timeouts.connect, connection_, problem);
    if (trouble == Trouble::none || loop_.closing()) break;
    services_->unreachable(index, problem, Steady::now());
    tried.push_back(index);
  }
  co_return trouble;
}

Task<Trouble> Exchange::talk(std::string_view head, BodySource body, bool is_head_method, Connection* interim_to) {
  sending_started_ = true;
  body_ = body;
  body_bytes_ = body.bytes.size();
  // Most requests find room in the socket, and need nobody who writes while the answer may come.
  const std::array<net::const_buffer, 2> first{net::buffer(head), net::buffer(body.bytes)};
  written_ = connection_->write_now(first);
  if (body.client == nullptr && written_ == head.size() + body.bytes.size()) {
    sent_.set();
    connection_->set_read_deadline(options_.timeouts.answer);
  } else {
    const std::size_t of_head = std::min(head.size(), static_cast<std::size_t>(written_));
    body.bytes.remove_prefix(static_cast<std::size_t>(written_) - of_head);
    Task<void> sending = send(shared_from_this(), head.substr(of_head), body);
    spawn(loop_.io, std::move(sending));
  }
  const Trouble trouble = co_await read_head(is_head_method, interim_to);
  if (trouble == Trouble::none) co_return trouble;
  connection_->close();
  const bool client_failed_first =
      sent_.is_set() &&
      (sending_ == Trouble::client_gone || sending_ == Trouble::client_late || sending_ == Trouble::client_bad);
  if (body.client != nullptr && !sent_.is_set()) body.client->cancel();
  co_await sent_.wait();
  // Not a byte was taken by the kernel: nobody can have seen it.
  if (written_ == 0) co_return Trouble::unreachable;
  co_return client_failed_first ? sending_ : trouble;
}

Task<void> Exchange::send(std::shared_ptr<Exchange> self, std::string_view head, BodySource body) {
  const std::array<net::const_buffer, 2> first{net::buffer(head), net::buffer(body.bytes)};
  const error_code error = co_await self->connection_->write(first, self->options_.timeouts.body, self->written_);
  if (error) {
    // The answer may be there all the same (413, then a close): reading goes on, and tells.
    self->sending_ = error == net::error::timed_out ? Trouble::late : Trouble::lost;
  } else if (body.client != nullptr) {
    self->sending_ = co_await self->send_body(body);
    if (self->sending_ != Trouble::none && self->sending_ != Trouble::lost && self->sending_ != Trouble::late) {
      self->connection_->close();  // An answer to half a request is none.
    }
  }
  self->sent_.set();
  if (!self->head_read_) self->connection_->set_read_deadline(self->options_.timeouts.answer);
}

Task<Trouble> Exchange::send_body(BodySource body) {
  const Space space(loop_);
  for (;;) {
    const Piece piece = co_await read_piece(*body.client, *body.parser, space.span(), options_.timeouts.body);
    if (piece.trouble != Piece::End::none) co_return of_client(piece.trouble);
    body_bytes_ += piece.got;
    const std::string size = body.chunked ? chunk_head(piece.got) : std::string();
    std::string end = body.chunked ? "\r\n" : "";
    if (piece.got == 0 && body.trailers != nullptr) end.insert(0, trailer_lines(body.parser->get(), *body.trailers));
    const std::array<net::const_buffer, 3> out{net::buffer(size), net::buffer(space.first(piece.got)),
                                               net::buffer(end)};
    const error_code error = co_await connection_->write(out, options_.timeouts.body, written_);
    if (error) co_return error == net::error::timed_out ? Trouble::late : Trouble::lost;
    if (piece.got == 0) co_return Trouble::none;
  }
}

Task<Trouble> Exchange::read_head(bool is_head_method, Connection* interim_to) {
  Connection& connection = *connection_;
  for (int heads = 0; heads <= max_interim_answers; ++heads) {
    HeadScan scan;
    for (;;) {
      const auto seen = connection.buffer.cdata();
      scan = scan_head({static_cast<const char*>(seen.data()), seen.size()}, scan.bytes);
      if (scan.kind == HeadScan::Kind::malformed) co_return Trouble::bad_answer;
      if (scan.kind == HeadScan::Kind::complete) break;
      if (connection.buffer.size() > options_.max_head_bytes) co_return Trouble::bad_answer;
      const error_code error = co_await connection.fill_without_limit();
      if (error == net::error::timed_out) co_return Trouble::late;
      if (error == net::error::no_buffer_space) co_return Trouble::bad_answer;
      if (error) co_return connection.buffer.size() == 0 ? Trouble::lost : Trouble::bad_answer;
    }
    answer_.emplace();
    AnswerParser& answer = *answer_;
    answer.header_limit(static_cast<std::uint32_t>(scan.bytes));
    answer.body_limit(boost::none);
    answer.skip(is_head_method);
    error_code error;
    connection.buffer.consume(answer.put(connection.buffer.data(), error));
    if ((error && error != bhttp::error::need_more && error != bhttp::error::need_buffer) || !answer.is_header_done()) {
      co_return Trouble::bad_answer;
    }
    const auto headers = views_of(answer.get());
    const unsigned status = answer.get().result_int();
    const bool is_tunnel = status == 101 && !websocket_key_.empty() && accepts_websocket(headers, websocket_key_);
    if (status < 100 || (status == 101 && !is_tunnel) || !is_framed_well(headers, answer.get().version())) {
      co_return Trouble::bad_answer;
    }
    if (status >= 200 || is_tunnel) {
      head_read_ = true;
      connection.clear_read_deadline();
      co_return Trouble::none;
    }
    const auto reason = answer.get().reason();
    if (status == 100 || interim_to == nullptr) continue;
    const std::string lines = write_interim_head(status, {reason.data(), reason.size()}, forwarded(headers));
    const std::array<net::const_buffer, 1> out{net::buffer(lines)};
    std::uint64_t written = 0;
    // That the client has gone is found out when it gets the answer.
    static_cast<void>(co_await interim_to->write(out, options_.timeouts.body, written));
  }
  co_return Trouble::bad_answer;
}

Task<Piece> Exchange::read(std::span<char> into) {
  return read_piece(*connection_, *answer_, into, options_.timeouts.body);
}

Task<bool> Exchange::wait_until_sent() {
  co_await sent_.wait();
  co_return sending_ == Trouble::none;
}

Task<bool> Exchange::join() {
  if (!sending_started_) co_return false;
  if (!sent_.is_set()) {
    // The answer is over and the request is not: nothing good can follow on either connection.
    connection_->close();
    if (body_.client != nullptr) body_.client->cancel();
    co_await sent_.wait();
    co_return false;
  }
  if (sending_ != Trouble::none) co_return false;
  if (answer_ && answer_->is_done() && answer_->get().keep_alive() && connection_->buffer.size() == 0 &&
      connection_->socket.is_open() && websocket_key_.empty()) {
    loop_.keep(std::move(connection_), use_.index(), options_.timeouts.upstream_idle, options_.max_idle_upstream);
  }
  co_return true;
}

}  // namespace once::proxy
