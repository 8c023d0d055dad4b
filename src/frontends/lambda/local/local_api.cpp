#include "once/frontends/lambda/local_api.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "keys/decode.hpp"
#include "keys/json.hpp"

namespace once::lambda {

namespace {

namespace asio = boost::asio;
namespace lhttp = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;
using Point = LocalApiOptions::Point;
using RequestParser = lhttp::request_parser<lhttp::string_body>;

constexpr std::string_view api_base = "/2018-06-01/runtime/";
// Lambda-Runtime-Function-XRay-Error-Cause alone may have 1 MiB (AWS, "Using the Lambda runtime API").
constexpr std::uint32_t request_head_bytes = 2 * 1024 * 1024;
constexpr std::size_t discard_bytes =
    std::size_t{64} * 1024 * 1024;  // Of a refused body, before the connection is cut.

constexpr Millis no_room_pause{50};  // When there is no file descriptor left for another connection.

struct LocalInvocation {
  LocalInvocation(asio::io_context& io, std::string the_event, SubmitOptions the_options,
                  Callback<void(InvocationOutcome)> on_done)
      : event(std::move(the_event)), options(std::move(the_options)), done(std::move(on_done)), deadline(io) {}

  std::string event;
  SubmitOptions options;
  Callback<void(InvocationOutcome)> done;
  asio::steady_timer deadline;
  SteadyClock::time_point given_at{};
  bool given = false;
};
using InvocationPtr = std::shared_ptr<LocalInvocation>;

bool plain_id(std::string_view id) {
  return id.size() <= 256 && std::all_of(id.begin(), id.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_' ||
                  c == '.';
         });
}

bool fits_header(std::string_view text) {
  return text.size() <= 8192 && std::none_of(text.begin(), text.end(), [](char c) {
           return static_cast<unsigned char>(c) < 0x20 || c == '\x7f';
         });
}

// Empty if that is no base64.
std::string decode_trailer(std::string_view text) {
  try {
    return keys::decode_base64(text, keys::Dialect::native);
  } catch (const Exception&) {
    return {};
  }
}

// errorType and errorMessage of {"errorMessage": ..., "errorType": ...}, as far as they are there.
void read_error(InvocationOutcome& outcome) {
  std::pmr::monotonic_buffer_resource arena;
  keys::json::Value value;
  const keys::json::Rules lenient{.unique_names = false, .exact_numbers = false, .lone_surrogates = true};
  if (!keys::json::try_parse(outcome.error_body, lenient, arena, value)) return;
  if (value.kind() != keys::json::Kind::object) return;
  const auto text = [&](std::string_view name) {
    const keys::json::Value member = value.member(name);
    return member.kind() == keys::json::Kind::string ? std::string(member.text()) : std::string();
  };
  if (outcome.error_type.empty()) outcome.error_type = text("errorType");
  outcome.error_message = text("errorMessage");
}

std::string error_json(std::string_view type, std::string_view message) {
  return R"({"errorMessage":")" + std::string(message) + R"(","errorType":")" + std::string(type) + "\"}\n";
}

struct Route {
  ApiCall call = ApiCall::next;
  std::string id;
};

std::optional<Route> route_of(lhttp::verb method, std::string_view target) {
  if (!target.starts_with(api_base)) return std::nullopt;
  target.remove_prefix(api_base.size());
  if (method == lhttp::verb::get) {
    return target == "invocation/next" ? std::optional<Route>(Route{}) : std::nullopt;
  }
  if (method != lhttp::verb::post) return std::nullopt;
  if (target == "init/error") return Route{.call = ApiCall::init_error, .id = {}};
  constexpr std::string_view prefix = "invocation/";
  if (!target.starts_with(prefix)) return std::nullopt;
  target.remove_prefix(prefix.size());
  const auto slash = target.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view what = target.substr(slash + 1);
  if (what != "response" && what != "error") return std::nullopt;
  return Route{.call = what == "response" ? ApiCall::response : ApiCall::error,
               .id = std::string(target.substr(0, slash))};
}

}  // namespace

std::string make_request_id(Random& random) {
  std::array<std::uint8_t, 16> bytes{};
  random.fill(bytes);
  bytes[6] = static_cast<std::uint8_t>((bytes[6] & 0x0FU) | 0x40U);  // RFC 9562: version 4 …
  bytes[8] = static_cast<std::uint8_t>((bytes[8] & 0x3FU) | 0x80U);  // … and its variant.
  static constexpr std::string_view hex = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += hex[bytes.at(i) >> 4U];
    out += hex[bytes.at(i) & 0xFU];
  }
  return out;
}

std::string_view to_string(InvocationOutcome::Kind kind) noexcept {
  switch (kind) {
    case InvocationOutcome::Kind::response:
      return "response";
    case InvocationOutcome::Kind::error:
      return "error";
    case InvocationOutcome::Kind::timed_out:
      return "timed_out";
    case InvocationOutcome::Kind::died:
      return "died";
    case InvocationOutcome::Kind::dropped:
      return "dropped";
  }
  return "?";
}

// All but the counts belongs to the thread of `io`.
class LocalApi::Impl {
 public:
  class Session;
  using SessionPtr = std::shared_ptr<Session>;

  explicit Impl(LocalApiOptions the_options) : options(std::move(the_options)), io(1), acceptor(io) {
    if (!options.clock) options.clock = system_clock();
    if (!options.random) options.random = system_random();
    error_code error;
    const auto host = asio::ip::make_address(options.host, error);
    if (error) throw Exception(ErrorKind::misuse, "'" + options.host + "' is no IP address to listen on");
    const tcp::endpoint endpoint(host, options.port);
    // Asio's own sockets are inherited by processes that are started meanwhile; a function's must not have them.
    const int listener = ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (listener < 0) {
      throw Exception(ErrorKind::unavailable, std::string("cannot make a socket: ") + std::strerror(errno));
    }
    acceptor.assign(endpoint.protocol(), listener, error);
    if (!error) acceptor.non_blocking(true, error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      throw Exception(ErrorKind::unavailable, "cannot listen on " + options.host + ':' + std::to_string(options.port) +
                                                  ": " + error.message() +
                                                  ". Choose another port, or 0 for any free one");
    }
    port = acceptor.local_endpoint().port();
  }

  void start() {
    accept();
    thread = std::thread([this] { io.run(); });
  }
  void stop();

  template <class Change>
  void count(Change&& change) {
    {
      const std::lock_guard lock(mutex);
      change(counted);
    }
    news.notify_all();
  }
  void count_lists() {
    count([&](Counts& c) {
      c.waiting = waiting.size();
      c.queued = queue.size();
      c.running = running.size();
      c.held = held.size() + stuck;
    });
  }

  bool see(Point point, const std::string& id) const { return !options.on_point || options.on_point(point, id); }

  void accept();
  void accept_later();
  void submit(const InvocationPtr& invocation);
  void match();
  void give(const SessionPtr& session, const InvocationPtr& invocation, const std::optional<ApiFault>& fault);
  void not_delivered(const InvocationPtr& invocation);
  void finish(InvocationPtr invocation, InvocationOutcome outcome);
  void died(const std::string& how, Waiting waiting);
  std::optional<ApiFault> take_fault(ApiCall call);

  LocalApiOptions options;
  asio::io_context io;
  tcp::acceptor acceptor;
  asio::steady_timer no_room{io};
  std::uint16_t port = 0;
  std::thread thread;

  std::set<SessionPtr> sessions;
  std::deque<std::pair<SessionPtr, std::optional<ApiFault>>> waiting;
  std::deque<InvocationPtr> queue;
  std::map<std::string, InvocationPtr, std::less<>> running;
  std::map<ApiCall, std::deque<ApiFault>> faults;
  std::vector<Callback<void()>> held;
  std::size_t stuck = 0;
  bool touched = false;  // Something was given since the function died.
  bool stopped = false;

  mutable std::mutex mutex;
  mutable std::condition_variable news;
  Counts counted;
  InvocationOutcome init_error;
  std::set<std::string, std::less<>> ids;  // Of open invocations.
};

// A connection: one request after the other.
class LocalApi::Impl::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Impl& server, tcp::socket socket) : server_(server), socket_(std::move(socket)) {}

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    read();
  }

  void close(bool reset = false) {
    if (!socket_.is_open()) return;
    error_code ignored;
    if (reset) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    if (!reset) socket_.shutdown(tcp::socket::shutdown_send, ignored);
    socket_.close(ignored);
    const auto self = shared_from_this();
    std::erase_if(server_.waiting, [&](const auto& one) { return one.first == self; });
    if (std::exchange(stuck_, false)) --server_.stuck;
    server_.sessions.erase(self);
    server_.count([](Counts& c) { --c.open; });
    server_.count_lists();
  }

  // While an event is waited for: does the client leave?
  void watch() {
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      if (error || !self->socket_.is_open()) return;
      char byte = 0;
      error_code peeked;
      self->socket_.non_blocking(true, peeked);
      const std::size_t count = self->socket_.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, peeked);
      if (count == 0 && peeked != asio::error::would_block) self->close();
    });
  }

  void send_event(const InvocationPtr& invocation, const std::optional<ApiFault>& fault, const std::string& head) {
    error_code ignored;
    socket_.cancel(ignored);  // The watch.
    if (fault && after(*fault)) return close(fault->kind == ApiFault::Kind::reset_after);
    answer_head_ = head;
    const bool half = fault && fault->kind == ApiFault::Kind::half_answer;
    std::size_t body = invocation->event.size();
    if (half) {
      body /= 2;
      if (body == 0) answer_head_.erase(answer_head_.size() / 2);
    }
    const std::array<asio::const_buffer, 2> buffers{asio::buffer(answer_head_),
                                                    asio::buffer(invocation->event.data(), body)};
    asio::async_write(socket_, buffers, [self = shared_from_this(), invocation, half](error_code error, std::size_t) {
      if (error) {
        self->server_.not_delivered(invocation);
        return self->close();
      }
      if (self->server_.running.contains(invocation->options.request_id)) {
        self->server_.see(Point::given, invocation->options.request_id);
      }
      if (half) return self->close();
      self->next_request();
    });
  }

  void send(unsigned status, std::string body, Callback<void()> sent = nullptr) {
    const std::optional<ApiFault> fault = std::exchange(fault_, std::nullopt);
    if (fault && after(*fault)) {
      if (sent) sent();
      return close(fault->kind == ApiFault::Kind::reset_after);
    }
    const bool half = fault && fault->kind == ApiFault::Kind::half_answer;
    const bool last = half || discard_;
    answer_head_ = "HTTP/1.1 " + std::to_string(status) + ' ' +
                   std::string(lhttp::obsolete_reason(lhttp::int_to_status(status))) +
                   "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                   (last ? "\r\nConnection: close\r\n\r\n" : "\r\n\r\n") + body;
    if (half) answer_head_.erase(answer_head_.size() - (body.size() + 1) / 2);
    asio::async_write(socket_, asio::buffer(answer_head_),
                      [self = shared_from_this(), sent = std::move(sent), half](error_code error, std::size_t) mutable {
                        if (sent) sent();
                        if (error || half) return self->close();
                        if (self->discard_) return self->discard(discard_bytes);
                        self->next_request();
                      });
  }

 private:
  static bool after(const ApiFault& fault) {
    return fault.kind == ApiFault::Kind::reset_after || fault.kind == ApiFault::Kind::close_after;
  }

  void next_request() {
    if (!socket_.is_open()) return;
    if (parser_ && !parser_->get().keep_alive()) return close();
    read();
  }

  void read() {
    parser_.emplace();
    parser_->header_limit(request_head_bytes);
    parser_->body_limit(boost::none);  // Until it is known what it is.
    discard_ = false;
    fault_.reset();
    lhttp::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
      if (!error) return self->on_head();
      if (error == lhttp::error::end_of_stream || error == asio::error::connection_reset ||
          error == asio::error::operation_aborted || error == asio::error::eof) {
        return self->close();
      }
      self->refuse(400, "BadRequest", "this is no request of the Runtime API");
    });
  }

  // Reads no more of the request than is needed to be heard.
  void refuse(unsigned status, std::string_view type, std::string_view message) {
    server_.count([](Counts& c) { ++c.refused; });
    discard_ = true;
    send(status, error_json(type, message));
  }

  void on_head() {
    const auto& request = parser_->get();
    const auto target = request.target();
    auto route = route_of(request.method(), std::string_view(target.data(), target.size()));
    if (!route) return refuse(404, "NotFound", "the Runtime API has no such call");
    route_ = *std::move(route);
    fault_ = server_.take_fault(route_.call);
    if (fault_ && fault_->kind == ApiFault::Kind::refuse_early) {
      const unsigned status = std::exchange(fault_, std::nullopt)->status;
      discard_ = true;
      return send(status, error_json(status == 413 ? "RequestEntityTooLarge" : "Planned", "a planned fault"));
    }
    streamed_ = route_.call == ApiCall::response && header("Lambda-Runtime-Function-Response-Mode") == "streaming";
    limit_ = streamed_ ? server_.options.max_stream_bytes : server_.options.max_response_bytes;
    const auto length = parser_->content_length();
    if (length && *length > limit_) return too_large();
    parser_->body_limit(static_cast<std::uint64_t>(limit_));
    lhttp::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
      if (error == lhttp::error::body_limit) return self->too_large();
      if (error) return self->cut_off();
      self->on_request();
    });
  }

  void too_large() {
    count_call();
    const auto found = server_.running.find(route_.id);
    if (route_.call == ApiCall::response && found != server_.running.end()) {
      InvocationOutcome outcome;
      outcome.kind = InvocationOutcome::Kind::error;
      outcome.streamed = streamed_;
      if (streamed_) outcome.body = std::move(parser_->get().body());
      outcome.error_type = "Function.ResponseSizeTooLarge";
      outcome.error_message = "the response is larger than " + std::to_string(limit_) + " bytes";
      server_.finish(found->second, std::move(outcome));
    }
    refuse(413, "RequestEntityTooLarge", "the body is larger than " + std::to_string(limit_) + " bytes");
  }

  // The connection ended within a body. Of a streamed response the caller has the first part by now; of any other,
  // nothing has happened.
  void cut_off() {
    const auto found = server_.running.find(route_.id);
    if (streamed_ && found != server_.running.end()) {
      InvocationOutcome outcome;
      outcome.kind = InvocationOutcome::Kind::error;
      outcome.streamed = true;
      outcome.body = std::move(parser_->get().body());
      outcome.content_type = header("Content-Type");
      outcome.error_type = "Runtime.TruncatedResponse";
      outcome.error_message = "the connection ended within the streamed response";
      server_.finish(found->second, std::move(outcome));
    }
    close();
  }

  void count_call() {
    server_.count([&](Counts& c) {
      switch (route_.call) {
        case ApiCall::next:
          ++c.next;
          return;
        case ApiCall::response:
          ++c.responses;
          return;
        case ApiCall::error:
          ++c.errors;
          return;
        case ApiCall::init_error:
          ++c.init_errors;
          return;
      }
    });
  }

  void on_request() {
    count_call();
    if (fault_) {
      switch (fault_->kind) {
        case ApiFault::Kind::reset_before:
          return close(true);
        case ApiFault::Kind::close_before:
          return close();
        case ApiFault::Kind::status: {
          const unsigned status = std::exchange(fault_, std::nullopt)->status;
          return send(status, error_json("Planned", "a planned fault"));
        }
        case ApiFault::Kind::held:
          fault_.reset();
          server_.held.emplace_back([self = shared_from_this()] {
            if (self->socket_.is_open()) self->carry_out();
          });
          return server_.count_lists();
        default:
          break;  // At the answer.
      }
    }
    carry_out();
  }

  void carry_out() {
    if (route_.call == ApiCall::next) {
      server_.waiting.emplace_back(shared_from_this(), std::exchange(fault_, std::nullopt));
      watch();
      if (server_.queue.empty()) server_.see(Point::waiting, {});
      return server_.match();
    }
    InvocationOutcome outcome;
    outcome.kind =
        route_.call == ApiCall::response ? InvocationOutcome::Kind::response : InvocationOutcome::Kind::error;
    outcome.content_type = header("Content-Type");
    auto& body = parser_->get().body();
    if (route_.call == ApiCall::response) {
      outcome.body = std::move(body);
      outcome.streamed = streamed_;
      if (parser_->chunked()) read_trailers(outcome);
    } else {
      outcome.error_type = header("Lambda-Runtime-Function-Error-Type");
      outcome.error_body = std::move(body);
      read_error(outcome);
    }
    if (route_.call == ApiCall::init_error) return take_init_error(outcome);
    const auto found = server_.running.find(route_.id);
    if (found == server_.running.end()) {
      server_.count([](Counts& c) { ++c.refused; });
      return send(400, error_json("InvalidRequestID", "no invocation with this id is open"));
    }
    const InvocationPtr invocation = found->second;
    if (!server_.see(Point::answering, route_.id)) {
      stuck_ = true;
      ++server_.stuck;
      server_.count_lists();
      return watch();
    }
    server_.finish(invocation, std::move(outcome));
    send(202, "{\"status\":\"OK\"}\n",
         [self = shared_from_this(), id = route_.id] { self->server_.see(Point::answered, id); });
  }

  void read_trailers(InvocationOutcome& outcome) {
    outcome.error_type = header("Lambda-Runtime-Function-Error-Type");
    if (outcome.error_type.empty()) return;
    outcome.kind = InvocationOutcome::Kind::error;
    outcome.error_body = decode_trailer(header("Lambda-Runtime-Function-Error-Body"));
    read_error(outcome);
  }

  // The invocation that waits longest fails with it, as on the platform.
  void take_init_error(InvocationOutcome& outcome) {
    {
      const std::lock_guard lock(server_.mutex);
      server_.init_error = outcome;
    }
    if (!server_.queue.empty()) {
      const InvocationPtr first = server_.queue.front();
      server_.queue.pop_front();
      server_.finish(first, outcome);
    }
    send(202, "{\"status\":\"OK\"}\n");
  }

  [[nodiscard]] std::string header(const char* name) const {
    const auto& request = parser_->get();
    const auto found = request.find(name);
    return found == request.end() ? std::string() : std::string(found->value());
  }

  // So that a client that still sends gets to read the answer, and no reset before it.
  void discard(std::size_t left) {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    buffer_.clear();
    discarded_.resize(65536);
    socket_.async_read_some(asio::buffer(discarded_),
                            [self = shared_from_this(), left](error_code error, std::size_t size) {
                              if (error || size >= left) return self->close();
                              self->discard(left - size);
                            });
  }

  Impl& server_;
  tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  std::optional<RequestParser> parser_;
  std::optional<ApiFault> fault_;
  Route route_;
  std::size_t limit_ = 0;
  bool streamed_ = false;
  bool discard_ = false;  // The rest of the request is not read; the connection ends after the answer.
  bool stuck_ = false;    // Not taken, by on_point.
  std::string answer_head_;
  std::vector<char> discarded_;
};

void LocalApi::Impl::accept() {
  acceptor.async_wait(tcp::acceptor::wait_read, [this](error_code error) {
    if (stopped || error == asio::error::operation_aborted) return;
    const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return accept_later();
    tcp::socket socket(io);
    socket.assign(acceptor.local_endpoint().protocol(), fd, error);
    if (error) {
      ::close(fd);
    } else if (sessions.size() < options.max_connections) {
      const auto session = std::make_shared<Session>(*this, std::move(socket));
      sessions.insert(session);
      count([](Counts& c) {
        ++c.connections;
        ++c.open;
      });
      session->start();
    }
    accept();
  });
}

// Whoever wants to connect waits in the kernel's queue, and would be reported again at once.
void LocalApi::Impl::accept_later() {
  no_room.expires_after(no_room_pause);
  no_room.async_wait([this](error_code) {
    if (!stopped) accept();
  });
}

void LocalApi::Impl::submit(const InvocationPtr& invocation) {
  if (stopped) return finish(invocation, InvocationOutcome{});
  queue.push_back(invocation);
  match();
}

void LocalApi::Impl::match() {
  while (!queue.empty() && !waiting.empty()) {
    const InvocationPtr invocation = queue.front();
    queue.pop_front();
    const auto [session, fault] = waiting.front();
    waiting.pop_front();
    give(session, invocation, fault);
  }
  count_lists();
}

void LocalApi::Impl::give(const SessionPtr& session, const InvocationPtr& invocation,
                          const std::optional<ApiFault>& fault) {
  const SubmitOptions& of = invocation->options;
  invocation->given = touched = true;
  invocation->given_at = SteadyClock::now();
  running[of.request_id] = invocation;
  const Time deadline = options.clock->now() + of.timeout;
  std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nLambda-Runtime-Aws-Request-Id: " + of.request_id +
      "\r\nLambda-Runtime-Deadline-Ms: " + std::to_string(unix_ms(deadline)) +
      "\r\nLambda-Runtime-Invoked-Function-Arn: " + of.function_arn;
  const auto add = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) head.append("\r\n").append(name).append(": ").append(value);
  };
  add("Lambda-Runtime-Trace-Id", of.trace_id);
  add("Lambda-Runtime-Client-Context", of.client_context);
  add("Lambda-Runtime-Cognito-Identity", of.cognito_identity);
  head += "\r\nContent-Length: " + std::to_string(invocation->event.size()) + "\r\n\r\n";
  invocation->deadline.expires_after(of.timeout);
  invocation->deadline.async_wait([this, weak = std::weak_ptr(invocation)](error_code error) {
    const InvocationPtr late = weak.lock();
    if (error || !late || !running.contains(late->options.request_id)) return;
    InvocationOutcome outcome;
    outcome.kind = InvocationOutcome::Kind::timed_out;
    finish(late, std::move(outcome));
  });
  session->send_event(invocation, fault, head);
}

// The client has left at that very moment: another one gets it.
void LocalApi::Impl::not_delivered(const InvocationPtr& invocation) {
  if (running.erase(invocation->options.request_id) == 0) return;
  invocation->given = false;
  invocation->deadline.cancel();
  queue.push_front(invocation);
  match();
}

// By value: whoever calls may have it from a list that it is taken from here.
void LocalApi::Impl::finish(InvocationPtr invocation,
                            InvocationOutcome outcome) {  // NOLINT(performance-unnecessary-value-param)
  const std::string& id = invocation->options.request_id;
  running.erase(id);
  {
    const std::lock_guard lock(mutex);
    ids.erase(id);
  }
  invocation->deadline.cancel();
  outcome.request_id = id;
  outcome.given = invocation->given;
  if (invocation->given) outcome.took = SteadyClock::now() - invocation->given_at;
  count_lists();
  Callback<void(InvocationOutcome)> done = std::move(invocation->done);
  if (done) done(std::move(outcome));
}

void LocalApi::Impl::died(const std::string& how, Waiting what) {
  std::vector<InvocationPtr> ended;
  ended.reserve(running.size() + queue.size());
  for (const auto& [id, invocation] : running) ended.push_back(invocation);
  const bool untouched = !std::exchange(touched, false);
  if (what == Waiting::end || (what == Waiting::end_if_untouched && untouched)) {
    ended.insert(ended.end(), queue.begin(), queue.end());
    queue.clear();
  }
  const auto open = sessions;
  for (const SessionPtr& session : open) session->close(true);
  held.clear();
  for (const InvocationPtr& invocation : ended) {
    InvocationOutcome outcome;
    outcome.kind = InvocationOutcome::Kind::died;
    outcome.error_message = how;
    finish(invocation, std::move(outcome));
  }
  count_lists();
}

std::optional<ApiFault> LocalApi::Impl::take_fault(ApiCall call) {
  auto& planned = faults[call];
  if (planned.empty()) return std::nullopt;
  const ApiFault fault = planned.front();
  planned.pop_front();
  return fault;
}

// The thread ends by itself when nothing is left to wait for; what was submitted before that is ended, too.
void LocalApi::Impl::stop() {
  asio::post(io, [this] {
    stopped = true;
    error_code ignored;
    acceptor.close(ignored);
    no_room.cancel();
    const auto open = sessions;
    for (const SessionPtr& session : open) session->close();
    waiting.clear();
    held.clear();
    std::vector<InvocationPtr> left(queue.begin(), queue.end());
    left.reserve(queue.size() + running.size());
    for (const auto& [id, invocation] : running) left.push_back(invocation);
    queue.clear();
    for (const InvocationPtr& invocation : left) finish(invocation, InvocationOutcome{});
  });
  thread.join();
}

LocalApi::LocalApi(LocalApiOptions options) : impl_(std::make_shared<Impl>(std::move(options))) { impl_->start(); }

LocalApi::~LocalApi() { impl_->stop(); }

std::string LocalApi::address() const {
  const std::string& host = impl_->options.host;
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]:" : host + ":") + std::to_string(impl_->port);
}

std::uint16_t LocalApi::port() const noexcept { return impl_->port; }

void LocalApi::submit(std::string event, SubmitOptions options, Callback<void(InvocationOutcome)> done) {
  const auto misuse = [](const std::string& text) { return Exception(ErrorKind::misuse, text); };
  if (options.timeout < Millis{1} || options.timeout > std::chrono::hours(24)) {
    throw misuse("an invocation's timeout must be from 1 ms to 24 h");
  }
  if (!plain_id(options.request_id)) {
    throw misuse("a request id has at most 256 letters, digits and -_.; '" + options.request_id + "' is none");
  }
  if (!fits_header(options.function_arn) || !fits_header(options.trace_id) || !fits_header(options.client_context) ||
      !fits_header(options.cognito_identity)) {
    throw misuse("what is told of an invocation has at most 8192 bytes each and no control characters");
  }
  if (options.request_id.empty()) options.request_id = make_request_id(*impl_->options.random);
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->ids.insert(options.request_id).second) {
      throw misuse("an invocation with the request id '" + options.request_id + "' is open already");
    }
  }
  auto invocation = std::make_shared<LocalInvocation>(impl_->io, std::move(event), std::move(options), std::move(done));
  asio::dispatch(impl_->io, [impl = impl_.get(), invocation = std::move(invocation)] { impl->submit(invocation); });
}

std::future<InvocationOutcome> LocalApi::submit(std::string event, SubmitOptions options) {
  auto promise = std::make_shared<std::promise<InvocationOutcome>>();
  std::future<InvocationOutcome> future = promise->get_future();
  submit(std::move(event), std::move(options),
         [promise = std::move(promise)](InvocationOutcome outcome) { promise->set_value(std::move(outcome)); });
  return future;
}

void LocalApi::function_died(const std::string& how, Waiting waiting, Callback<void()> done) {
  asio::dispatch(impl_->io, [impl = impl_.get(), how, waiting, done = std::move(done)]() mutable {
    impl->died(how, waiting);
    if (done) done();
  });
}

void LocalApi::plan(ApiFault fault) {
  asio::dispatch(impl_->io, [impl = impl_.get(), fault] { impl->faults[fault.call].push_back(fault); });
}

void LocalApi::release() {
  asio::dispatch(impl_->io, [impl = impl_.get()] {
    auto held = std::exchange(impl->held, {});
    impl->count_lists();
    for (auto& go_on : held) go_on();
  });
}

LocalApi::Counts LocalApi::counts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counted;
}

bool LocalApi::wait_until(const std::function<bool(const Counts&)>& condition, Millis limit) const {
  std::unique_lock lock(impl_->mutex);
  return impl_->news.wait_for(lock, limit, [&] { return condition(impl_->counted); });
}

InvocationOutcome LocalApi::init_error() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->init_error;
}

}  // namespace once::lambda
