// One exchange with the upstream: a connection, a request, whose answer may come while it is written, the answer's
// head, and its body in pieces. Nothing is sent twice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/endpoint.hpp>
#include <once/frontends/proxy.hpp>

#include "frontends/proxy/loop.hpp"
#include "frontends/proxy/services.hpp"

namespace once::proxy {

// Why there is no answer.
enum class Trouble : std::uint8_t {
  none,
  unreachable,   // No byte was sent: no connection, or none that took a byte.
  aside,         // The same: all upstreams are put aside.
  connect_late,  // The same, by the timeout.
  no_tls,        // The same: the handshake failed.
  lease_over,    // The same: another attempt may have the claim by now.
  lost,          // It was sent, and the connection ended before the answer.
  late,          // It was sent, and the answer did not come in time.
  bad_answer,    // The answer is not HTTP, or its framing is invalid.
  large_head,    // The answer's head is over the limit. answer() has its status, and the lines that were read.
  client_gone,   // The client's body ended before its end.
  client_late,   // … came too slowly.
  client_bad,    // … is malformed.
};
std::string_view to_string(Trouble trouble) noexcept;
// The same for people: what happened, and `detail` if there is one.
std::string reason_of(Trouble trouble, std::string_view detail = {});

// Whether the upstream certainly has seen nothing of the request.
[[nodiscard]] constexpr bool nothing_went_out(Trouble trouble) noexcept {
  return trouble == Trouble::unreachable || trouble == Trouble::aside || trouble == Trouble::connect_late ||
         trouble == Trouble::no_tls || trouble == Trouble::lease_over;
}

// A piece of a message's body, valid until the next read of the connection. Empty with End::none, from read_piece():
// the body is over.
struct Piece {
  std::string_view bytes;
  enum class End : std::uint8_t { none, gone, late, bad } trouble = End::none;

  [[nodiscard]] bool is_to_come() const noexcept {
    return bytes.empty() && trouble == End::none;
  }  // From take_piece(): more must be read, or the body is over.
};
// The part that was read already, which needs no coroutine.
Piece take_piece(Connection& connection);
// `limit`: for each read. `until`: for all of them.
Task<Piece> read_piece(Connection& connection, Millis limit, Steady::time_point until = Steady::time_point::max());

// The trouble of an answer whose body ended so.
Trouble trouble_of_answer(Piece::End end) noexcept;

// The request's body: bytes, and then the rest of a client's body as it comes, if there is a client.
struct BodySource {
  std::string_view bytes;
  Connection* client = nullptr;
  bool chunked = false;
  const std::vector<std::string>* trailers = nullptr;  // chunked: the allowed trailers.
};

// A new connection, with TLS if required. Otherwise the problem, for the operator.
Task<Trouble> open_connection(Loop& loop, const Services& services, std::size_t index, Millis limit,
                              std::unique_ptr<Connection>& connection, std::string& problem);

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // `services` must live until join(). `answer_limit` replaces Timeouts::answer.
  Exchange(Loop& loop, Services& services, const ProxyOptions& options, Millis answer_limit)
      : loop_(loop), options_(options), answer_limit_(answer_limit), services_(services), sent_(loop) {}

  // Until the answer's head. `head` and the data of `body` must live until join(). Interim answers (1xx) except 100 are
  // sent to `interim_to`, unless it is null.
  Task<Trouble> start(std::string_view head, BodySource body, bool is_head_method, Connection* interim_to);

  // Call it before start(): then a 101 that accepts this key is an answer too. The connection is for a tunnel, and
  // never kept.
  void ask_for_tunnel(std::string_view websocket_key) { websocket_key_ = websocket_key; }
  // Call it before start(): its claim is checked just before the first byte. `execution` must live until join().
  void send_for(const http::Execution& execution) noexcept { execution_ = &execution; }
  // Call it before start(): no kept connection is used.
  void ask_for_new_connection() noexcept { only_new_ = true; }
  [[nodiscard]] bool has_tunnel() const noexcept { return connection_->message.status() == 101; }
  // Instead of read() and join(): waits until all of the request was sent.
  Task<bool> wait_until_sent();  // False: it was not sent.
  [[nodiscard]] Connection& connection() noexcept { return *connection_; }

  // Between start() and join().
  [[nodiscard]] const Incoming& answer() const noexcept { return connection_->message; }
  [[nodiscard]] std::string_view service() const noexcept {
    return service_;
  }                                                                           // The upstream that was asked, or empty.
  [[nodiscard]] Millis retry_after() const noexcept { return retry_after_; }  // Of Trouble::aside.
  [[nodiscard]] bool reused() const noexcept { return reused_; }
  [[nodiscard]] const std::string& detail() const noexcept { return detail_; }  // Of reason_of(). Often empty.
  [[nodiscard]] std::uint64_t request_body_bytes() const noexcept { return body_bytes_; }

  // Of the answer's body.
  Piece take() { return take_piece(*connection_); }
  Task<Piece> read() { return read_piece(*connection_, options_.timeouts.body); }

  // Ends the exchange: waits for the writer, and keeps the connection for the next one if it is clean. Always call it
  // after start(). True if all of the request was sent.
  Task<bool> join();
  // The same if there is no writer to wait for, which is the usual case. Empty: there is one.
  std::optional<bool> join_now();

 private:
  bool choose();
  [[nodiscard]] bool may_send() const noexcept { return execution_ == nullptr || execution_->may_begin(); }
  Task<Trouble> connect();
  Task<Trouble> connect_and_talk(std::string_view head, BodySource body, bool is_head_method, Connection* interim_to);
  Task<Trouble> talk(std::string_view head, BodySource body, bool is_head_method, Connection* interim_to);
  Task<Trouble> why_no_answer(Trouble trouble, Connection* client);
  void tell(Trouble trouble);  // Reports what is known of the service.
  Trouble bad(std::string_view detail);
  Trouble large_head(bool is_head_method);
  Task<Trouble> read_head(bool is_head_method, Connection* interim_to);
  static Task<void> send(std::shared_ptr<Exchange> self, std::string_view head, BodySource body);
  Task<Trouble> send_body(BodySource body);

  Loop& loop_;
  const ProxyOptions& options_;
  const Millis answer_limit_;
  Services& services_;
  Services::Use use_;  // The use of the chosen service.
  std::vector<std::size_t> tried_;
  Millis retry_after_{0};
  bool has_service_ = false;
  std::string_view service_;
  std::unique_ptr<Connection> connection_;
  Event sent_;  // The writer is done.
  const http::Execution* execution_ = nullptr;
  BodySource body_;
  std::string websocket_key_;
  std::string detail_;
  Trouble sending_ = Trouble::none;
  std::uint64_t written_ = 0;  // Bytes that the kernel took of head and body.
  std::uint64_t body_bytes_ = 0;
  bool only_new_ = false;
  bool reused_ = false;
  bool head_read_ = false;
  bool sending_started_ = false;
};

}  // namespace once::proxy
