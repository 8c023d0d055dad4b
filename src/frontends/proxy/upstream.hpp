// One exchange with the upstream: a connection, a request that is written while its answer may come already, the
// answer's head, and its body piece by piece. Nothing is ever sent twice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/proxy.hpp>

#include "frontends/proxy/loop.hpp"
#include "frontends/proxy/services.hpp"

namespace once::proxy {

// Why there is no answer.
enum class Trouble : std::uint8_t {
  none,
  unreachable,   // Nothing went out: no connection, or none that took a byte.
  connect_late,  // The same, by the timeout.
  no_tls,        // The same: the handshake failed.
  lost,          // It went out, and the connection ended before the answer did.
  late,          // It went out, and the answer did not come in time.
  bad_answer,    // What came is not HTTP, or cannot be framed.
  client_gone,   // The client's body ended before its end.
  client_late,   // … came too slowly.
  client_bad,    // … is malformed.
};
std::string_view to_string(Trouble trouble) noexcept;

// Certain that the upstream has seen nothing of the request.
[[nodiscard]] constexpr bool nothing_went_out(Trouble trouble) noexcept {
  return trouble == Trouble::unreachable || trouble == Trouble::connect_late || trouble == Trouble::no_tls;
}

// Reads on in a body: `got` bytes of it are in `into`. 0 and none: it is over.
struct Piece {
  std::size_t got = 0;
  enum class End : std::uint8_t { none, gone, late, bad } trouble = End::none;
};
template <class Parser>
Task<Piece> read_piece(Connection& connection, Parser& parser, std::span<char> into, Millis limit);

// What it means that an answer's body ended so.
Trouble trouble_of_answer(Piece::End end) noexcept;

// What follows the head: bytes, and then the rest of a client's body as it comes, if there is a client.
struct BodySource {
  std::string_view bytes;
  Connection* client = nullptr;
  RequestParser* parser = nullptr;
  bool chunked = false;
  const std::vector<std::string>* trailers = nullptr;  // Of a chunked one: what may follow it.
};

// A new connection, with TLS if it is to be. Else what is wrong, which is for the operator.
Task<Trouble> open_connection(Loop& loop, std::size_t service, Millis limit, std::unique_ptr<Connection>& connection,
                              std::string& problem);

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Loop& loop, const ProxyOptions& options) : loop_(loop), options_(options), sent_(loop) {}

  // Up to the answer's head. `head` and what `body` points to must live until join(). Interim answers (1xx) but 100 go
  // to `interim_to` as they come, unless it is null.
  Task<Trouble> start(std::string_view head, BodySource body, bool is_head_method, Connection* interim_to);

  // Before start(): a 101 that accepts this key is an answer, too. The connection is then for a tunnel, and never kept.
  void ask_for_tunnel(std::string_view websocket_key) { websocket_key_ = websocket_key; }
  [[nodiscard]] bool has_tunnel() const noexcept { return answer_->get().result_int() == 101; }
  // In place of read() and join(), once all of the request is out.
  Task<bool> wait_until_sent();  // False: it never was.
  [[nodiscard]] Connection& connection() noexcept { return *connection_; }

  [[nodiscard]] AnswerParser& answer() noexcept { return *answer_; }
  [[nodiscard]] std::string_view service() const noexcept { return service_; }  // Which was asked; empty: none.
  [[nodiscard]] bool reused() const noexcept { return reused_; }
  [[nodiscard]] std::uint64_t request_body_bytes() const noexcept { return body_bytes_; }

  Task<Piece> read(std::span<char> into);

  // Ends the exchange: waits for whoever writes, and keeps the connection for the next one if it is clean. Must be
  // called after start(), whatever it gave. True if all of the request was sent.
  Task<bool> join();

 private:
  Task<Trouble> connect();
  Task<Trouble> talk(std::string_view head, BodySource body, bool is_head_method, Connection* interim_to);
  Task<Trouble> read_head(bool is_head_method, Connection* interim_to);
  static Task<void> send(std::shared_ptr<Exchange> self, std::string_view head, BodySource body);
  Task<Trouble> send_body(BodySource body);

  Loop& loop_;
  const ProxyOptions& options_;
  std::shared_ptr<Services> services_ = loop_.services;
  Services::Use use_;  // Of the service that was chosen.
  std::string_view service_;
  std::unique_ptr<Connection> connection_;
  std::optional<AnswerParser> answer_;
  Event sent_;  // Whoever writes is done.
  BodySource body_;
  std::string websocket_key_;
  Trouble sending_ = Trouble::none;
  std::uint64_t written_ = 0;  // Bytes that the kernel took of head and body.
  std::uint64_t body_bytes_ = 0;
  bool reused_ = false;
  bool head_read_ = false;
  bool sending_started_ = false;
};

template <class Parser>
Task<Piece> read_piece(Connection& connection, Parser& parser, std::span<char> into, Millis limit) {
  for (;;) {
    if (parser.is_done()) co_return Piece{};
    auto& body = parser.get().body();
    body.data = into.data();
    body.size = into.size();
    body.more = true;
    error_code error;
    if (connection.buffer.size() > 0) {
      const std::size_t used = parser.put(connection.buffer.data(), error);
      connection.buffer.consume(used);
      if (error && error != bhttp::error::need_buffer && error != bhttp::error::need_more) {
        co_return Piece{0, Piece::End::bad};
      }
      if (const std::size_t got = into.size() - body.size; got > 0) co_return Piece{got, Piece::End::none};
      if (error != bhttp::error::need_more) continue;
    }
    error = co_await connection.fill(limit);
    if (error == net::error::eof) {
      parser.put_eof(error);
      if (!error && parser.is_done()) co_return Piece{};
      co_return Piece{0, Piece::End::gone};
    }
    if (error == net::error::timed_out) co_return Piece{0, Piece::End::late};
    if (error == net::error::no_buffer_space) co_return Piece{0, Piece::End::bad};
    if (error) co_return Piece{0, Piece::End::gone};
  }
}

}  // namespace once::proxy
