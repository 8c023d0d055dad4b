#include "frontends/proxy/admin.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <once/frontends/proxy.hpp>
#include <once/key.hpp>
#include <once/operate.hpp>
#include <once/store.hpp>

#include "frontends/proxy/handshakes.hpp"
#include "frontends/proxy/head.hpp"
#include "frontends/proxy/upstream.hpp"
#include "tls/certificate_name.hpp"

namespace once::proxy {

namespace {

constexpr std::size_t most_head_bytes = 8 * 1024;
constexpr Millis probe_interval{10'000};

http::Answer text(unsigned status, std::string body) {
  return {.status = status,
          .reason = {},
          .headers = {{"Content-Type", "text/plain; charset=utf-8"}, {"Cache-Control", "no-store"}},
          .body = std::move(body)};
}

// Leaves in pages.probe whether the store takes new operations, or took them less than ten seconds ago.
Task<void> probe_writes(Loop& loop, AdminPages& pages) {
  WriteProbe& probe = pages.probe;
  const EngineOptions& engine = pages.engine->options();
  if (probe.is_running) {
    auto wait = [&](Callback<void(bool)> done) { probe.waiting.push_back(std::move(done)); };
    co_await completion<bool>(loop, wait);
    co_return;
  }
  std::string store = engine.store->name();
  const bool is_known = probe.ended_at && engine.clock->uptime() - *probe.ended_at < probe_interval;
  if (is_known && probe.store == store) co_return;
  probe.is_running = true;
  probe.store = std::move(store);
  using Failure = std::optional<Error>;
  auto start = [&](Callback<void(Failure)> done) {
    operate::probe(*engine.store, *engine.clock, *engine.random, engine.holder, std::move(done));
  };
  const Failure error = co_await completion<Failure>(loop, start);
  probe.refusal = error ? error->message : std::string();
  probe.ended_at = engine.clock->uptime();
  probe.is_running = false;
  for (auto& done : std::exchange(probe.waiting, {})) done(true);
}

// The page is open to all who can connect. The store's own words name hosts, users and files: they are for the log,
// once until it works again.
http::Answer not_ready(const AdminPages& pages, bool& is_told, const std::string& what, const std::string& why) {
  if (!is_told && pages.notice) pages.notice("not ready: " + what + ": " + why);
  is_told = true;
  return text(503, what + '\n');
}

void tell_recovery(const AdminPages& pages, bool& is_told, const std::string& what) {
  if (std::exchange(is_told, false) && pages.notice) pages.notice("ready again: " + what);
}

Task<http::Answer> ready(Loop& loop, AdminPages& pages, bool for_replays) {
  if (const std::string why = pages.unready ? pages.unready() : std::string(); !why.empty()) {
    co_return text(503, why + '\n');
  }
  // No request has this key, because their scopes contain a method; elsewhere it is only read. Any answer shows that
  // the store can be read.
  const std::string key = Key("once-proxy", "readiness").stored();
  auto ask = [&](Done done) { pages.engine->options().store->get(key, std::move(done)); };
  const Answer answer = co_await completion<Answer>(loop, ask);
  if (answer.status == AnswerStatus::failed) {
    co_return not_ready(pages, pages.told_of_reads, "the store cannot be read", answer.error.message);
  }
  tell_recovery(pages, pages.told_of_reads, "the store can be read");
  if (pages.probes_writes && !for_replays && !pages.engine->options().store->capabilities().expires_itself) {
    co_await probe_writes(loop, pages);
    if (!pages.probe.refusal.empty()) {
      co_return not_ready(pages, pages.told_of_writes, "the store takes no new operations", pages.probe.refusal);
    }
    tell_recovery(pages, pages.told_of_writes, "the store takes new operations");
  }
  co_return text(200, "ready\n");
}

Task<http::Answer> page(Loop& loop, AdminPages& pages, const http::Request& request) {
  const std::string_view target = request.target.substr(0, request.target.find('?'));
  if (target == "/healthz") co_return text(200, "alive\n");
  if (target == "/readyz") co_return co_await ready(loop, pages, request.target == "/readyz?replays");
  if (target == "/metrics") {
    if (pages.refuse_metrics) {
      if (auto refused = pages.refuse_metrics(request)) co_return std::move(*refused);
    }
    http::Answer answer = text(200, pages.metrics());
    answer.headers.front().value = "text/plain; version=0.0.4; charset=utf-8";
    co_return answer;
  }
  co_return text(404, "Not found. The pages are /healthz, /readyz and /metrics.\n");
}

// A request, and how reading it ended.
struct Asked {
  enum class Kind : std::uint8_t {
    whole,
    refused,  // `answer` says why.
    gone,     // The client has disconnected.
  };
  Kind kind = Kind::whole;
  OperatorsAnswer answer{http::Answer{}};
  std::string address;  // Who the client is: http::Request::principal.
  RequestHead head;     // Its views are into the connection's message.
  std::string body;

  Kind refuse(http::Answer why) {
    answer = std::move(why);
    return Kind::refused;
  }
};

// What to do after a failed read.
Asked::Kind unread(Asked& asked, error_code error) {
  return error == net::error::timed_out ? asked.refuse(text(408, "The request did not arrive in time.\n"))
                                        : Asked::Kind::gone;
}

// All bytes must be there by `until`.
Task<error_code> fill_until(Connection& client, Steady::time_point until) {
  const auto left = std::chrono::duration_cast<Millis>(until - Steady::now());
  error_code error = co_await client.fill(std::max(Millis{1}, left));
  if (!error && Steady::now() > until) error = net::error::timed_out;
  co_return error;
}

Task<Asked::Kind> read_asked(Connection& client, Asked& asked, Millis patience) {
  const auto until = Steady::now() + patience;
  HeadScan scan;
  for (;;) {
    scan = scan_head(client.buffer.view(), scan.bytes);
    if (scan.kind == HeadScan::Kind::malformed) {
      co_return asked.refuse(text(400, "A line of the request does not end in CR LF, is folded, or contains a NUL.\n"));
    }
    const bool complete = scan.kind == HeadScan::Kind::complete;
    if ((complete ? scan.bytes : client.buffer.size()) > most_head_bytes) {
      co_return asked.refuse(text(431, "The request's headers are too long.\n"));
    }
    if (complete) break;
    if (const error_code error = co_await fill_until(client, until)) co_return unread(asked, error);
  }
  Incoming& message = client.message;
  const auto refusal = read_request(client.buffer.view().substr(0, scan.bytes), message, asked.head);
  client.buffer.consume(scan.bytes);
  if (refusal) co_return asked.refuse(text(refusal->status, std::string(refusal->detail) + "\n"));
  constexpr std::size_t most = ProxyOptions::max_admin_body_bytes;
  const auto too_long = [&](std::uint64_t bytes) { return bytes > most; };
  const char* const over = "The body is too long.\n";
  if (too_long(message.content_length().value_or(0))) co_return asked.refuse(text(413, over));
  if (!message.is_done() && client.buffer.size() == 0 && expects_continue(asked.head.headers)) {
    const std::string lines = write_interim_head(100, "Continue", {});
    const std::array<net::const_buffer, 1> out{net::buffer(lines)};
    std::uint64_t written = 0;
    if (co_await client.write(out, patience, written)) co_return Asked::Kind::gone;
  }
  while (!message.is_done()) {
    const Piece piece = take_piece(client);
    if (piece.trouble != Piece::End::none) co_return asked.refuse(text(400, "The chunked body cannot be read.\n"));
    asked.body += piece.bytes;
    if (too_long(asked.body.size())) co_return asked.refuse(text(413, over));
    if (!piece.bytes.empty() || message.is_done()) continue;
    if (const error_code error = co_await fill_until(client, until)) co_return unread(asked, error);
  }
  co_return Asked::Kind::whole;
}

bool is_for_operators(std::string_view target) {
  const std::string_view path = target.substr(0, target.find('?'));
  return path.starts_with("/v1/") || path == "/console" || path.starts_with("/console/");
}

// The answer to the request.
Task<OperatorsAnswer> respond(Loop& loop, AdminPages& pages, const Asked& asked) {
  const RequestHead& head = asked.head;
  const http::Request request{.method = head.method,
                              .target = head.target,
                              .headers = head.headers,
                              .body = asked.body,
                              .principal = asked.address};
  if (pages.operators && is_for_operators(head.target)) {
    auto ask = [&](Callback<void(OperatorsAnswer)> done) { pages.operators(request, std::move(done)); };
    co_return co_await completion<OperatorsAnswer>(loop, ask);
  }
  if (head.method == "GET" || head.method == "HEAD") {
    co_return co_await page(loop, pages, request);
  }
  http::Answer answer = text(405, "Only GET and HEAD are allowed here.\n");
  answer.headers.push_back({"Allow", "GET, HEAD"});
  co_return answer;
}

// A stream's client. It has nothing more to say: whatever it sends ends the stream, as its end does.
struct Listening {
  Connection& client;
  AnswerStream& stream;
  bool has_ended = false;
  Event over;
};

Task<void> listen(Listening& listening) {
  static_cast<void>(co_await listening.client.fill_without_limit());
  listening.has_ended = true;
  listening.stream.stop();
  listening.over.set();
}

// Bytes that the kernel keeps for a client that does not take them.
constexpr int most_unsent_bytes = 64 * 1024;

// Whether nothing of the answer was sent because the client had gone.
Task<bool> send_whole(Connection& client, const Asked& asked, Millis patience, bool keep) {
  if (asked.answer.unsent && client.is_gone()) co_return true;
  const http::Answer& answer = asked.answer;
  const bool is_head = asked.head.method == "HEAD";
  // RFC 9110, 8.6: and no length of one. Nor has a stream, of which HEAD gets the head.
  const bool has_no_body = answer.status == 204 || answer.status == 304 || (is_head && answer.body.empty());
  const Framing framing{has_no_body ? Framing::Kind::none : Framing::Kind::length, answer.body.size()};
  const std::string lines =
      write_answer_head(answer.status, {}, answer.headers, framing, keep ? asked.head.version : 11, keep);
  const std::string_view body = is_head ? std::string_view() : std::string_view(answer.body);
  const std::array<net::const_buffer, 2> out{net::buffer(lines), net::buffer(body)};
  std::uint64_t written = 0;
  const error_code error = co_await client.write(out, patience, written);
  if (error || !keep) client.shut_down();
  co_return error&& written == 0;
}

// Reads what a refused client still sends, up to a limit: closed before, its connection would be reset, and it would
// not see why it was refused.
Task<void> drain(Connection& client, Millis patience) {
  constexpr std::size_t most = std::size_t{32} * 1024 * 1024;
  const auto until = Steady::now() + patience;
  for (std::size_t total = 0; total < most;) {
    total += client.buffer.size();
    client.buffer.consume(client.buffer.size());
    if (co_await fill_until(client, until)) co_return;
  }
}

Task<void> send_stream(Loop& loop, Connection& client, const Asked& asked, Millis patience) {
  AnswerStream& stream = *asked.answer.stream;
  Listening listening{client, stream, false, Event(loop)};
  error_code ignored;
  client.socket.set_option(net::socket_base::send_buffer_size(most_unsent_bytes), ignored);
  Task<void> life = listen(listening);
  spawn(loop.io, std::move(life));
  const bool in_chunks = asked.head.version >= 11;
  const Framing framing{in_chunks ? Framing::Kind::chunked : Framing::Kind::until_close};
  const http::Answer& answer = asked.answer;
  std::string bytes = write_answer_head(answer.status, {}, answer.headers, framing, 11, false);
  const auto ask = [&](Callback<void(std::string)> done) { stream.next(std::move(done)); };
  bool is_last = false;
  while (!listening.has_ended) {
    const std::array<net::const_buffer, 1> out{net::buffer(bytes)};
    std::uint64_t written = 0;
    if (co_await client.write(out, patience, written) || is_last) break;
    const std::string piece = co_await completion<std::string>(loop, ask);
    is_last = piece.empty();
    if (is_last && !in_chunks) break;
    bytes = in_chunks ? chunk_head(piece.size()) + piece + "\r\n" : piece;
  }
  client.shut_down();
  client.close();                  // Ends listen(), also if it has not begun.
  co_await listening.over.wait();  // It uses this function's variables.
}

// Counts a connection, for as long as it lives.
class Counted {
 public:
  explicit Counted(std::size_t& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::size_t& count_;
};

// Lists a connection without a complete request, for as long as it lives.
class Reading {
 public:
  Reading(AdminPages& pages, Connection& client) : all_(pages.reading), at_(all_.insert(all_.end(), &client)) {}
  ~Reading() { all_.erase(at_); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  std::list<Connection*>& all_;
  std::list<Connection*>::iterator at_;
};

// Who has opened the other end of a Unix socket, as the kernel knows it.
std::optional<ucred> peer_of(Socket& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool is_known = ::getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  return is_known ? std::optional(peer) : std::nullopt;
}

std::string process_of(Socket& socket) {
  const auto peer = peer_of(socket);
  return peer ? std::to_string(peer->uid) + ":" + std::to_string(peer->pid) : std::string();
}

// A request and its answer. Whether there may be another one; `reading` lists the connection then.
Task<bool> serve_one(Loop& loop, Connection& client, AdminPages& pages, const std::string& address,
                     std::optional<Reading>& reading) {
  // Not in the frame, for which g++ 12 gives a wrong warning (-Wmismatched-new-delete).
  const auto own = std::make_unique<Asked>();
  Asked& asked = *own;
  asked.address = address;
  asked.kind = co_await read_asked(client, asked, pages.patience);
  if (asked.kind == Asked::Kind::gone) co_return false;
  if (asked.kind == Asked::Kind::whole) {
    reading.reset();
    asked.answer = co_await respond(loop, pages, asked);
  }
  if (asked.answer.stream) {
    Task<void> sending = send_stream(loop, client, asked, pages.patience);
    co_await std::move(sending);
    co_return false;
  }
  const bool keep = pages.idle > Millis{0} && !pages.is_ending && asked.kind == Asked::Kind::whole &&
                    client.message.keep_alive() && !loop.closing();
  Task<bool> sending = send_whole(client, asked, pages.patience, keep);
  const bool is_unsent = co_await std::move(sending);
  if (asked.answer.status == 413 && asked.kind == Asked::Kind::refused) {  // Listed as reading: others may close it.
    Task<void> rest = drain(client, pages.patience);
    co_await std::move(rest);
  }
  if (is_unsent && asked.answer.unsent) asked.answer.unsent();
  if (is_unsent || !keep) co_return false;
  reading.emplace(pages, client);
  co_return true;
}

}  // namespace

Task<void> serve_admin(Loop& loop, Socket socket, AdminPages& pages) {
  if (pages.only_user) {
    const auto peer = peer_of(socket);
    if (!peer || peer->uid != *pages.only_user) co_return;
  }
  // Silent connections must not block a probe.
  if (pages.connections >= pages.most_connections) {
    if (pages.reading.empty()) co_return;
    pages.reading.front()->close();  // Its coroutine notices that later: until then there is one connection more.
    pages.reading.splice(pages.reading.end(), pages.reading, pages.reading.begin());
  }
  const Counted counted(pages.connections);
  Connection client(loop, std::move(socket));
  std::optional<Reading> reading(std::in_place, pages, client);
  if (const auto certificate = pages.certificate) {
    const std::string remote = client.remote_address();  // Read before the client disconnects.
    if (const error_code error = co_await client.accept_tls(*certificate, pages.patience)) {
      if (!loop.closing()) {
        loop.handshakes->failed(pages.listener, client.handshake_failure(error), remote, Steady::now());
      }
      co_return;
    }
  }
  const std::string address = pages.names_processes      ? process_of(client.socket)
                              : pages.names_certificates ? tls::certificate_name(client.certificate())
                                                         : client.remote_address();
  for (;;) {
    Task<bool> one = serve_one(loop, client, pages, address, reading);
    if (!co_await std::move(one)) co_return;
    // Nothing of the request is kept meanwhile.
    if (client.buffer.size() > 0) continue;
    const error_code error = co_await client.fill(pages.idle);
    if (error) co_return;
  }
}

Task<void> accept_admin(Loop& loop, Acceptor& acceptor, AdminPages& pages) {
  for (;;) {
    Socket socket(loop.io);
    if (!co_await accept_one(acceptor, socket)) break;
    Task<void> life = serve_admin(loop, std::move(socket), pages);
    spawn(loop.io, std::move(life));
  }
}

}  // namespace once::proxy
