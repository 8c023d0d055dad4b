#include "once/frontends/lambda/runtime.hpp"

#include <cxxabi.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "keys/decode.hpp"
#include "keys/text.hpp"

namespace once::lambda {

namespace {

namespace bhttp = boost::beast::http;
using ProblemKind = RuntimeProblem::Kind;
using BeastError = boost::system::error_code;
using AnswerParser = bhttp::response_parser<bhttp::string_body>;
using ApiAnswer = bhttp::response<bhttp::string_body>;

constexpr std::string_view base_path = "/2018-06-01/runtime/";
constexpr unsigned max_concurrency = 1024;
constexpr unsigned max_attempts = 100;
constexpr std::size_t read_bytes = 16384;
constexpr std::size_t max_head_bytes = 65536;
constexpr std::size_t max_answer_bytes = 65536;  // Of a post; what it says is a sentence.
constexpr std::size_t max_message_bytes = 32768;
constexpr std::size_t max_trailer_message_bytes = 4096;  // Trailers are a kind of headers, which servers limit.
constexpr std::size_t max_type_bytes = 256;
constexpr std::string_view error_type_header = "Lambda-Runtime-Function-Error-Type";
constexpr std::string_view error_body_header = "Lambda-Runtime-Function-Error-Body";
constexpr std::string_view too_large_type = "Function.ResponseSizeTooLarge";  // As the platform names it.

// --- texts ---

void append_json_string(std::string& out, std::string_view text) {
  static constexpr std::string_view hex = "0123456789abcdef";
  out += '"';
  for (const char c : keys::replace_invalid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += hex[byte >> 4U];
      out += hex[byte & 0xFU];
    } else {
      out += c;
    }
  }
  out += '"';
}

// For a header, or a line of a log.
std::string printable(std::string_view text, std::size_t limit) {
  std::string out(text.substr(0, limit));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

// An answer to the caller in place of a response.
struct ErrorAnswer {
  std::string type;
  std::string message;

  [[nodiscard]] std::string header() const { return printable(type, max_type_bytes); }
  [[nodiscard]] std::string body(std::size_t limit = max_message_bytes) const {
    std::string out = R"({"errorMessage":)";
    append_json_string(out, message.size() <= limit ? message : message.substr(0, limit) + "...");
    out += R"(,"errorType":)";
    append_json_string(out, std::string_view(type).substr(0, max_type_bytes));
    return out += R"(,"stackTrace":[]})";
  }
};

std::string type_name(const std::type_info* type) {
  if (type == nullptr) return "unknown";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type->name(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : type->name();
}

// Of the exception that is being handled.
ErrorAnswer describe_exception() {
  try {
    throw;
  } catch (const FunctionError& error) {
    return {error.type().empty() ? "FunctionError" : error.type(), error.what()};
  } catch (const std::exception& error) {
    const char* const what = error.what();
    return {type_name(&typeid(error)), what == nullptr ? "" : what};
  } catch (...) {
    std::string type = type_name(abi::__cxa_current_exception_type());
    std::string message = "an exception of type " + type + ", which tells no more";
    return {std::move(type), std::move(message)};
  }
}

// The platform's word for it: {"errorMessage":"...","errorType":"InvalidStateTransition"}. Nothing else of the body is
// told: who knows what is in it.
std::string said(const ApiAnswer& answer) {
  std::string out = "status " + std::to_string(answer.result_int());
  const std::string_view body = answer.body();
  constexpr std::string_view name = "\"errorType\"";
  auto at = body.find(name);
  if (at == std::string_view::npos) return out;
  at = body.find_first_not_of(" :", at + name.size());
  if (at == std::string_view::npos || body[at] != '"') return out;
  const std::string_view type = body.substr(at + 1, 64);
  const auto end = type.find('"');
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.';
  };
  if (end == std::string_view::npos || end == 0 || !std::all_of(type.begin(), type.begin() + end, plain)) return out;
  return out + " " + std::string(type.substr(0, end));
}

std::string system_error_text(int error) { return std::generic_category().message(error); }

// --- stopping ---

// Set once; every thread that waits sees it.
class StopFlag {
 public:
  StopFlag() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "cannot make an event descriptor");
  }
  StopFlag(const StopFlag&) = delete;
  StopFlag& operator=(const StopFlag&) = delete;
  ~StopFlag() { close(fd_); }

  [[nodiscard]] int fd() const noexcept { return fd_; }
  void set() const noexcept { set(fd_); }
  static void set(int fd) noexcept {
    const std::uint64_t one = 1;
    // Fails only when it is set 2^64 - 2 times over.
    [[maybe_unused]] const ssize_t count = write(fd, &one, sizeof one);
  }
  [[nodiscard]] bool is_set() const noexcept { return wait(Millis{0}); }
  [[nodiscard]] bool wait(Millis limit) const noexcept {
    pollfd poll_fd{.fd = fd_, .events = POLLIN, .revents = 0};
    int count = 0;
    do {  // The signal that ended a wait may be the one that has set it.
      count = poll(&poll_fd, 1, static_cast<int>(limit.count()));
    } while (count < 0 && errno == EINTR);
    return count > 0;
  }

 private:
  const int fd_;
};

std::atomic<int> sigterm_target{-1};
std::atomic<int> sigterm_handlers{0};                  // That run now, on whatever threads.
static_assert(std::atomic<int>::is_always_lock_free);  // A signal's handler reads it.

extern "C" void once_lambda_on_sigterm(int) {
  const int error = errno;
  ++sigterm_handlers;
  const int target = sigterm_target;
  if (target >= 0) StopFlag::set(target);
  --sigterm_handlers;
  errno = error;
}

class SigtermWatch {
 public:
  SigtermWatch(bool wanted, const StopFlag& flag) {
    if (!wanted || sigaction(SIGTERM, nullptr, &old_) != 0) return;
    if ((old_.sa_flags & SA_SIGINFO) != 0 || old_.sa_handler != SIG_DFL) return;  // The program's own affair.
    sigterm_target = flag.fd();
    struct sigaction ours {};
    ours.sa_handler = once_lambda_on_sigterm;
    ours.sa_flags = SA_RESTART;  // The handler's system calls are not to notice.
    active_ = sigaction(SIGTERM, &ours, nullptr) == 0;
  }
  SigtermWatch(const SigtermWatch&) = delete;
  SigtermWatch& operator=(const SigtermWatch&) = delete;
  ~SigtermWatch() {
    if (!active_) return;
    sigaction(SIGTERM, &old_, nullptr);
    sigterm_target = -1;
    while (sigterm_handlers != 0) std::this_thread::yield();  // The descriptor is about to be closed.
  }

 private:
  struct sigaction old_ {};
  bool active_ = false;
};

// _X_AMZN_TRACE_ID, in memory of our own that is entered into the environment once. setenv() would move the table of
// the environment at each invocation, under the eyes of any other thread's getenv().
class TraceVariable {
 public:
  static void enter() {
    value(std::string_view());
    putenv(buffer_.data());
  }
  static void value(std::string_view trace_id) {
    if (name.size() + trace_id.size() >= buffer_.size()) trace_id = {};
    std::copy(name.begin(), name.end(), buffer_.begin());
    const auto end = std::copy(trace_id.begin(), trace_id.end(), buffer_.begin() + name.size());
    *end = '\0';
  }

 private:
  static constexpr std::string_view name = "_X_AMZN_TRACE_ID=";
  static inline std::array<char, 1024> buffer_{};
};

// --- the connection ---

struct ApiAddress {
  std::string host;
  std::string port;
};

std::optional<ApiAddress> parse_api(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return std::nullopt;
  }
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (host.empty() || host.find_first_of("/ \r\n") != std::string_view::npos || error != std::errc() ||
      end != port.data() + port.size() || number == 0) {
    return std::nullopt;
  }
  return ApiAddress{std::string(host), std::string(port)};
}

// What may happen to an exchange.
enum class Trouble : std::uint8_t {
  none,
  stopped,    // Told to, while waiting.
  lost,       // Could not connect, or the connection ended: see problem().
  too_large,  // The head of the answer is there, its body is over the limit.
};

// One connection to the Runtime API, kept alive, blocking. A thread's own.
class ApiConnection {
 public:
  explicit ApiConnection(const ApiAddress& address) : address_(address) {}
  ApiConnection(const ApiConnection&) = delete;
  ApiConnection& operator=(const ApiConnection&) = delete;
  ~ApiConnection() { disconnect(); }

  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  void disconnect() noexcept {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
    buffer_.clear();
    broken_ = false;
  }

  // A connection that the other side has closed meanwhile is replaced: what is posted must not be lost for that.
  bool connect_if_needed() {
    if (fd_ >= 0) {
      char byte = 0;
      const ssize_t count = recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
      disconnect();  // Closed, or it says what nobody asked for.
    }
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    addrinfo* list = nullptr;
    if (const int error = getaddrinfo(address_.host.c_str(), address_.port.c_str(), &hints, &list); error != 0) {
      return fail("its address cannot be found: " + std::string(gai_strerror(error)));
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(list, &freeaddrinfo);
    int error = ENOENT;
    for (const addrinfo* found = list; found != nullptr; found = found->ai_next) {
      fd_ = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
      if (fd_ >= 0 && connect_to(*found)) {
        const int yes = 1;
        setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        return true;
      }
      error = errno;
      disconnect();
    }
    return fail("cannot connect: " + system_error_text(error));
  }

  // All of it, or false: then an answer may be there all the same, by which the other side refused the rest. Blocks.
  bool send_all(std::span<const std::string_view> parts) {
    std::array<iovec, 4> vectors{};
    std::size_t count = 0;
    for (const std::string_view part : parts) {
      if (!part.empty()) vectors.at(count++) = {.iov_base = const_cast<char*>(part.data()), .iov_len = part.size()};
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    while (message.msg_iovlen > 0) {
      const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) {
        problem_ = "connection lost while sending: " + system_error_text(errno);
        broken_ = true;
        return false;
      }
      auto left = static_cast<std::size_t>(sent);
      while (message.msg_iovlen > 0 && left >= message.msg_iov->iov_len) {
        left -= message.msg_iov->iov_len;
        ++message.msg_iov;
        --message.msg_iovlen;
      }
      if (message.msg_iovlen > 0) {
        message.msg_iov->iov_base = static_cast<char*>(message.msg_iov->iov_base) + left;
        message.msg_iov->iov_len -= left;
      }
    }
    return true;
  }

  // Reads an answer. With `stop` its first byte is waited for only until that is set. too_large: `answer` has the head.
  Trouble read_answer(ApiAnswer& answer, std::size_t body_limit, const StopFlag* stop) {
    AnswerParser parser;
    parser.header_limit(static_cast<std::uint32_t>(max_head_bytes));
    parser.body_limit(body_limit);
    parser.eager(true);
    for (;;) {
      while (buffer_.size() > 0 && !parser.is_done()) {
        BeastError error;
        const std::size_t used = parser.put(buffer_.data(), error);
        buffer_.consume(used);
        if (error == bhttp::error::need_more) break;
        if (error == bhttp::error::body_limit) {
          answer = std::move(parser.get());
          disconnect();
          return Trouble::too_large;
        }
        if (error) {
          fail("its answer is no HTTP: " + error.message());
          return Trouble::lost;
        }
        if (used == 0) break;
      }
      if (parser.is_done()) break;
      if (stop != nullptr && !parser.got_some()) {
        const Trouble trouble = wait_readable(*stop);
        if (trouble != Trouble::none) return trouble;
      }
      if (const Trouble trouble = receive(parser); trouble != Trouble::none) return trouble;
      if (parser.is_done()) break;
    }
    const bool keep = parser.keep_alive() && !broken_;
    answer = parser.release();
    if (!keep || buffer_.size() > 0) disconnect();
    return Trouble::none;
  }

 private:
  bool connect_to(const addrinfo& to) const {
    if (connect(fd_, to.ai_addr, to.ai_addrlen) == 0) return true;
    if (errno != EINTR) return false;
    // Interrupted by a signal, it goes on by itself (connect(2)).
    pollfd wait{.fd = fd_, .events = POLLOUT, .revents = 0};
    while (poll(&wait, 1, -1) < 0) {
      if (errno != EINTR) return false;
    }
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return false;
    errno = error;
    return error == 0;
  }

  bool fail(std::string problem) {
    if (!broken_) problem_ = std::move(problem);  // The first one counts.
    disconnect();
    return false;
  }

  Trouble wait_readable(const StopFlag& stop) {
    std::array<pollfd, 2> waits{
        {{.fd = fd_, .events = POLLIN, .revents = 0}, {.fd = stop.fd(), .events = POLLIN, .revents = 0}}};
    while (poll(waits.data(), waits.size(), -1) < 0) {
      if (errno == EINTR) continue;
      fail("cannot wait: " + system_error_text(errno));
      return Trouble::lost;
    }
    if (waits[0].revents != 0) return Trouble::none;  // An event that came is handled.
    disconnect();
    return Trouble::stopped;
  }

  Trouble receive(AnswerParser& parser) {
    const auto space = buffer_.prepare(read_bytes);
    ssize_t count = 0;
    do {
      count = recv(fd_, space.data(), space.size(), 0);
    } while (count < 0 && errno == EINTR);
    if (count > 0) {
      buffer_.commit(static_cast<std::size_t>(count));
      return Trouble::none;
    }
    BeastError error;
    if (count == 0 && parser.got_some()) parser.put_eof(error);
    if (count == 0 && !error && parser.is_done()) return Trouble::none;  // A body that ends with the connection.
    fail(count < 0
             ? "connection lost: " + system_error_text(errno)
             : (parser.got_some() ? "connection closed within an answer" : "connection closed without an answer"));
    return Trouble::lost;
  }

  const ApiAddress& address_;
  int fd_ = -1;
  bool broken_ = false;  // Nothing can be sent any more.
  boost::beast::flat_buffer buffer_;
  std::string problem_;
};

// --- the runtime ---

struct NextEvent {
  Invocation invocation;
  std::string body;
};

bool fit_for_path(std::string_view id) {
  return !id.empty() && id.size() <= 256 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_' ||
           c == '.';
  });
}

std::string header_of(const ApiAnswer& answer, std::string_view name) {
  const auto found = answer.find(boost::beast::string_view(name.data(), name.size()));
  return found == answer.end() ? std::string() : std::string(found->value());
}

Invocation invocation_of(const ApiAnswer& answer) {
  Invocation invocation;
  invocation.request_id = header_of(answer, "Lambda-Runtime-Aws-Request-Id");
  invocation.function_arn = header_of(answer, "Lambda-Runtime-Invoked-Function-Arn");
  invocation.trace_id = header_of(answer, "Lambda-Runtime-Trace-Id");
  invocation.client_context = header_of(answer, "Lambda-Runtime-Client-Context");
  invocation.cognito_identity = header_of(answer, "Lambda-Runtime-Cognito-Identity");
  const std::string deadline = header_of(answer, "Lambda-Runtime-Deadline-Ms");
  std::int64_t deadline_ms = 0;
  const auto [end, error] = std::from_chars(deadline.data(), deadline.data() + deadline.size(), deadline_ms);
  if (error == std::errc() && end == deadline.data() + deadline.size() && deadline_ms > 0) {
    invocation.deadline = Time(Millis{deadline_ms});
  }
  return invocation;
}

// What the threads share.
struct Shared {
  Shared(const RuntimeOptions& the_options, ApiAddress the_address)
      : options(the_options), address(std::move(the_address)) {}

  const RuntimeOptions& options;
  const ApiAddress address;
  StopFlag stop;
  std::atomic<bool> failed{false};

  void report(ProblemKind kind, std::string request_id, const std::string& message) const {
    if (!options.on_problem) return;
    options.on_problem({.kind = kind, .request_id = std::move(request_id), .message = printable(message, 1000)});
  }
  void fail(const std::string& request_id, const std::string& message) {
    failed = true;
    stop.set();
    report(ProblemKind::fatal, request_id, message);
  }
};

using AnyHandler = std::variant<Handler, StreamingHandler>;

// One thread's loop.
class Worker {
 public:
  explicit Worker(Shared& shared) : shared_(shared), connection_(shared.address) {}

  void serve(const AnyHandler& handler) {
    while (!shared_.stop.is_set()) {
      std::optional<NextEvent> event = ask();
      if (!event) return;
      if (traces()) TraceVariable::value(event->invocation.trace_id);
      if (const auto* const whole = std::get_if<Handler>(&handler)) {
        handle(*whole, *event);
      } else {
        handle(std::get<StreamingHandler>(handler), *event);
      }
      if (traces()) TraceVariable::value({});
    }
  }

  void post_init_error(const ErrorAnswer& failure) { post_failure("", failure); }

 private:
  class Stream;

  [[nodiscard]] bool traces() const { return shared_.options.trace_in_environment && shared_.options.concurrency == 1; }
  [[nodiscard]] Millis pause_after(unsigned attempt) const {
    return shared_.options.pause * (std::int64_t{1} << std::min(attempt - 1, 10U));
  }

  std::optional<NextEvent> ask() {
    const std::string request = "GET " + std::string(base_path) + "invocation/next HTTP/1.1\r\nHost: " + host() +
                                "\r\nUser-Agent: once\r\n\r\n";
    for (unsigned attempt = 1;; ++attempt) {
      ApiAnswer answer;
      Trouble trouble = Trouble::lost;
      if (connection_.connect_if_needed()) {
        connection_.send_all(std::array{std::string_view(request)});
        trouble = connection_.read_answer(answer, shared_.options.max_event_bytes, &shared_.stop);
      }
      if (trouble == Trouble::stopped) return std::nullopt;
      std::string problem = connection_.problem();
      if (trouble != Trouble::lost) {
        const unsigned status = answer.result_int();
        NextEvent event{.invocation = invocation_of(answer), .body = {}};
        const std::string& id = event.invocation.request_id;
        if (status >= 500) {
          shared_.fail("",
                       "the Runtime API answered with " + said(answer) + " when asked for an event; the runtime ends");
          return std::nullopt;
        }
        if (status == 200 && fit_for_path(id)) {
          if (trouble == Trouble::none) {
            event.body = std::move(answer.body());
            return event;
          }
          refuse_event(id);
          if (shared_.stop.is_set()) return std::nullopt;
          attempt = 0;
          continue;
        }
        problem = status == 200 ? "its event has no request id" : "it answered with " + said(answer);
        connection_.disconnect();
      }
      if (attempt >= shared_.options.attempts) {
        shared_.fail("", "the Runtime API gives no event, " + std::to_string(attempt) + " times in a row: " + problem +
                             "; the runtime ends");
        return std::nullopt;
      }
      shared_.report(ProblemKind::connection_lost, "",
                     "asking the Runtime API for an event failed: " + problem + "; asking again");
      if (shared_.stop.wait(pause_after(attempt))) return std::nullopt;
    }
  }

  void refuse_event(const std::string& id) {
    const std::string limit = std::to_string(shared_.options.max_event_bytes);
    shared_.report(ProblemKind::event_refused, id,
                   "the event is larger than " + limit + " bytes; it gets an error answer");
    post_failure(id, {"Runtime.EventTooLarge", "the event is larger than " + limit + " bytes"});
  }

  void handle(const Handler& handler, const NextEvent& event) {
    const std::string& id = event.invocation.request_id;
    std::string response;
    try {
      response = handler(event.body, event.invocation);
    } catch (const abi::__forced_unwind&) {
      throw;  // Somebody ends this thread.
    } catch (...) {
      return answer_failure(id, describe_exception());
    }
    const std::size_t limit = shared_.options.max_response_bytes;
    if (response.size() > limit) return answer_too_large(id, response.size());
    post_response(id, response);
  }

  void handle(const StreamingHandler& handler, const NextEvent& event);

  void answer_failure(const std::string& id, const ErrorAnswer& failure) {
    shared_.report(ProblemKind::handler_failed, id,
                   "the handler threw " + failure.header() + "; its caller gets an error answer");
    post_failure(id, failure);
  }

  void answer_too_large(const std::string& id, std::size_t size) {
    const std::string limit = std::to_string(shared_.options.max_response_bytes);
    const std::string sizes =
        "the response has " + std::to_string(size) + " bytes, more than the " + limit + " allowed";
    shared_.report(ProblemKind::response_refused, id, sizes + "; its caller gets an error answer");
    post_failure(id, {std::string(too_large_type), sizes});
  }

  void answer_unsent(const std::string& id) {
    shared_.report(
        ProblemKind::response_refused, id,
        "a streamed response could not be begun: " + connection_.problem() + "; its caller gets an error answer");
    post_failure(id, {"Runtime.ResponseNotSent", "no connection could be made for the response"});
  }

  void post_response(const std::string& id, std::string_view response) {
    ApiAnswer answer;
    if (!post("invocation/" + id + "/response", "Content-Type: application/json\r\n", response, id, answer)) return;
    judge_response(id, answer, response.size());
  }

  // The platform answered, and not with 5xx.
  void judge_response(const std::string& id, const ApiAnswer& answer, std::size_t size) {
    if (answer.result_int() / 100 == 2) return;
    const std::string what =
        "the platform did not take the response of " + std::to_string(size) + " bytes: " + said(answer);
    if (answer.result_int() != 413)
      return shared_.report(ProblemKind::response_refused, id, what + "; its caller sees a failure");
    shared_.report(ProblemKind::response_refused, id, what + ", it is too large; its caller gets an error answer");
    // AWS has told the caller so by itself and refuses this; others may not have.
    const ErrorAnswer failure{std::string(too_large_type),
                              "the response of " + std::to_string(size) + " bytes is too large"};
    ApiAnswer ignored;
    post("invocation/" + id + "/error", failure_headers(failure), failure.body(), id, ignored);
  }

  // The caller has a part of it already; what the platform does with the rest is its affair.
  void judge_stream(const std::string& id, const ApiAnswer& answer, std::size_t size) {
    if (answer.result_int() / 100 == 2) return;
    shared_.report(ProblemKind::response_refused, id,
                   "the platform did not take a streamed response, of which " + std::to_string(size) +
                       " bytes were sent: " + said(answer));
  }

  // `id` empty: at init.
  void post_failure(const std::string& id, const ErrorAnswer& failure) {
    ApiAnswer answer;
    const std::string path = id.empty() ? "init/error" : "invocation/" + id + "/error";
    if (!post(path, failure_headers(failure), failure.body(), id, answer)) return;
    if (answer.result_int() / 100 != 2) {
      shared_.report(ProblemKind::response_refused, id, "the platform did not take the error answer: " + said(answer));
    }
  }

  static std::string failure_headers(const ErrorAnswer& failure) {
    return "Content-Type: application/vnd.aws.lambda.error+json\r\n" + std::string(error_type_header) + ": " +
           failure.header() + "\r\n";
  }

  [[nodiscard]] std::string host() const {
    const bool v6 = shared_.address.host.find(':') != std::string::npos;
    return (v6 ? "[" + shared_.address.host + "]" : shared_.address.host) + ":" + shared_.address.port;
  }
  [[nodiscard]] std::string post_head(std::string_view path, std::string_view headers) const {
    std::string head = "POST ";
    head.append(base_path).append(path).append(" HTTP/1.1\r\nHost: ").append(host());
    return head.append("\r\nUser-Agent: once\r\n").append(headers);
  }

  // A post may be sent again: its path names the invocation, of which the platform takes one answer and refuses any
  // other. False: there is no answer to judge, and whoever has to know was told.
  bool post(const std::string& path, const std::string& headers, std::string_view body, const std::string& id,
            ApiAnswer& answer) {
    const std::string head = post_head(path, headers) + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
    bool may_have_arrived = false;
    for (unsigned attempt = 1;; ++attempt) {
      answer = {};
      if (connection_.connect_if_needed()) {
        connection_.send_all(std::array{std::string_view(head), body});
        if (connection_.read_answer(answer, max_answer_bytes, nullptr) == Trouble::none) {
          if (answer.result_int() >= 500) {
            shared_.fail(id, "the Runtime API answered with " + said(answer) + " to " + path + "; the runtime ends");
            return false;
          }
          if (!may_have_arrived || answer.result_int() / 100 == 2) return true;
          shared_.report(ProblemKind::response_in_doubt, id,
                         "the connection was lost while an answer was posted, and the platform refuses it now with " +
                             said(answer) + ", as it does when it has one already");
          return false;
        }
        may_have_arrived = true;
      }
      if (attempt >= shared_.options.attempts) {
        shared_.report(may_have_arrived ? ProblemKind::response_in_doubt : ProblemKind::response_refused, id,
                       "posting " + path + " failed " + std::to_string(attempt) + " times: " + connection_.problem() +
                           (may_have_arrived ? "; whether it arrived is not known" : "; it did not arrive"));
        return false;
      }
      pollfd none{.fd = -1, .events = 0, .revents = 0};
      poll(&none, 1, static_cast<int>(pause_after(attempt).count()));
    }
  }

  Shared& shared_;
  ApiConnection connection_;
};

// Sends chunks as the handler writes them.
class Worker::Stream final : public ResponseStream {
 public:
  Stream(Worker& worker, const std::string& id) : worker_(worker), id_(id) {}

  void content_type(std::string_view type) override {
    require_unstarted("content_type()");
    type_ = printable(type, max_type_bytes);
  }

  void http_head(std::string_view json) override {
    require_unstarted("http_head()");
    type_ = "application/vnd.awslambda.http-integration-response";
    prelude_.assign(json).append(8, '\0');  // What divides it from the body.
  }

  void write(std::string_view bytes) override {
    if (bytes.empty()) return;
    if (broken_) throw_broken();
    const std::string head = started_ ? std::string() : start();
    const std::string size = chunk_size(bytes.size());
    if (!sent({head, size, bytes, "\r\n"})) throw_broken();
    written_ += bytes.size();
  }

  [[nodiscard]] bool started() const noexcept { return started_; }

  // After the handler, whatever it did.
  void finish(const std::optional<ErrorAnswer>& failure) {
    if (!broken_) {
      std::string end = started_ ? std::string() : start();
      end += "0\r\n";
      if (failure) {
        end.append(error_type_header).append(": ").append(failure->header()).append("\r\n");
        end.append(error_body_header).append(": ");
        end.append(keys::encode_base64(failure->body(max_trailer_message_bytes))).append("\r\n");
      }
      end += "\r\n";
      if (sent({end})) {
        ApiAnswer answer;
        if (worker_.connection_.read_answer(answer, max_answer_bytes, nullptr) == Trouble::none) {
          answer_ = std::move(answer);
        } else {
          broken_ = true;
        }
      }
    }
    if (answer_ && answer_->result_int() >= 500) {
      return worker_.shared_.fail(
          id_, "the Runtime API answered with " + said(*answer_) + " to a streamed response; the runtime ends");
    }
    if (answer_) return worker_.judge_stream(id_, *answer_, written_);
    if (!started_) return worker_.answer_unsent(id_);
    worker_.shared_.report(ProblemKind::response_in_doubt, id_,
                           "the connection was lost with " + std::to_string(written_) +
                               " bytes of a streamed response sent: " + worker_.connection_.problem());
  }

 private:
  void require_unstarted(const std::string& call) const {
    if (started_) throw Exception(ErrorKind::misuse, call + " comes before the first write()");
  }
  [[noreturn]] static void throw_broken() {
    throw Exception(ErrorKind::unavailable, "the Runtime API takes no more of this response");
  }
  static std::string chunk_size(std::size_t size) {
    std::array<char, 20> hex{};
    const auto end = std::to_chars(hex.data(), hex.data() + hex.size(), size, 16).ptr;
    return std::string(hex.data(), end) + "\r\n";
  }

  // Its head, which is still to be sent. Empty: there is no connection that could take it.
  std::string start() {
    started_ = worker_.connection_.connect_if_needed();
    broken_ = !started_;
    if (broken_) return {};
    std::string head =
        worker_.post_head("invocation/" + id_ + "/response",
                          "Content-Type: " + type_ + "\r\nLambda-Runtime-Function-Response-Mode: streaming\r\n" +
                              "Transfer-Encoding: chunked\r\nTrailer: " + std::string(error_type_header) + ", " +
                              std::string(error_body_header) + "\r\n\r\n");
    if (!prelude_.empty()) head += chunk_size(prelude_.size()) + prelude_ + "\r\n";
    return head;
  }

  bool sent(std::initializer_list<std::string_view> parts) {
    if (broken_) return false;
    if (worker_.connection_.send_all({parts.begin(), parts.size()})) return true;
    broken_ = true;
    ApiAnswer answer;  // Perhaps it says why.
    if (worker_.connection_.read_answer(answer, max_answer_bytes, nullptr) == Trouble::none) {
      answer_ = std::move(answer);
    }
    return false;
  }

  Worker& worker_;
  const std::string& id_;
  std::string type_ = "application/octet-stream";
  std::string prelude_;
  bool started_ = false;
  bool broken_ = false;
  std::size_t written_ = 0;
  std::optional<ApiAnswer> answer_;
};

void Worker::handle(const StreamingHandler& handler, const NextEvent& event) {
  const std::string& id = event.invocation.request_id;
  Stream stream(*this, id);
  std::optional<ErrorAnswer> failure;
  try {
    handler(event.body, event.invocation, stream);
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    failure = describe_exception();
  }
  if (failure && !stream.started()) return answer_failure(id, *failure);
  if (failure) {
    shared_.report(ProblemKind::handler_failed, id,
                   "the handler threw " + failure->header() + " after a part of its response was sent");
  }
  stream.finish(failure);
}

// --- run() ---

// What is wrong with them, or nothing.
std::string wrong_with(const RuntimeOptions& options) {
  if (!parse_api(options.api)) {
    return "the address of the Runtime API must be HOST:PORT, as in 127.0.0.1:9001, and not '" +
           printable(options.api, 100) +
           "'. On Lambda AWS_LAMBDA_RUNTIME_API has it; on a laptop start the function "
           "with `once lambda invoke`";
  }
  if (options.concurrency < 1 || options.concurrency > max_concurrency) {
    return "concurrency must be from 1 to 1024, and not " + std::to_string(options.concurrency);
  }
  if (options.attempts < 1 || options.attempts > max_attempts) {
    return "attempts must be from 1 to 100, and not " + std::to_string(options.attempts);
  }
  if (options.pause < Millis{0} || options.pause > Millis{10'000}) return "pause must be from 0 to 10 s";
  return {};
}

void report_init(const RuntimeOptions& options, const std::string& message) {
  if (!options.on_problem) return;
  options.on_problem({.kind = ProblemKind::init_failed, .request_id = {}, .message = printable(message, 1000)});
}

// Tells the platform as well, if it can be reached.
int fail_init(const RuntimeOptions& options, const ErrorAnswer& failure, const std::string& message) {
  report_init(options, message);
  if (auto address = parse_api(options.api)) {
    RuntimeOptions usable = options;
    usable.concurrency = 1;
    if (!wrong_with(usable).empty()) usable = {.api = options.api, .on_problem = options.on_problem};
    Shared shared(usable, *std::move(address));
    Worker(shared).post_init_error(failure);
  }
  return 1;
}

int serve(const AnyHandler& handler, const RuntimeOptions& options) {
  Shared shared(options, *parse_api(options.api));
  const SigtermWatch sigterm(options.end_at_sigterm, shared.stop);
  const std::stop_callback on_stop(options.stop, [&shared] { shared.stop.set(); });
  std::vector<std::thread> threads;
  try {
    for (unsigned i = 1; i < options.concurrency; ++i) {
      threads.emplace_back([&] { Worker(shared).serve(handler); });
    }
  } catch (const std::system_error& error) {
    shared.fail("", std::string("cannot start ") + std::to_string(options.concurrency) + " threads: " + error.what());
  }
  Worker(shared).serve(handler);
  for (std::thread& thread : threads) thread.join();
  return shared.failed ? 1 : 0;
}

}  // namespace

std::string_view to_string(RuntimeProblem::Kind kind) noexcept {
  switch (kind) {
    case ProblemKind::handler_failed:
      return "handler_failed";
    case ProblemKind::response_refused:
      return "response_refused";
    case ProblemKind::response_in_doubt:
      return "response_in_doubt";
    case ProblemKind::event_refused:
      return "event_refused";
    case ProblemKind::connection_lost:
      return "connection_lost";
    case ProblemKind::init_failed:
      return "init_failed";
    case ProblemKind::fatal:
      return "fatal";
  }
  return "?";
}

void log_problem(const RuntimeProblem& problem) {
  std::string line = "once: " + std::string(to_string(problem.kind)) + ": " + problem.message;
  if (!problem.request_id.empty()) line += " (request " + printable(problem.request_id, 256) + ")";
  line += '\n';
  // A log that takes nothing is nothing that anybody could be told of.
  [[maybe_unused]] const ssize_t count = write(STDERR_FILENO, line.data(), line.size());
}

RuntimeOptions runtime_options_from_environment() {
  RuntimeOptions options;
  const char* const api = std::getenv("AWS_LAMBDA_RUNTIME_API");
  if (api == nullptr || *api == '\0') {
    throw Exception(ErrorKind::misuse,
                    "AWS_LAMBDA_RUNTIME_API is not set: this program is a Lambda function. On a laptop start it with "
                    "`once lambda invoke`");
  }
  options.api = api;
  if (const char* const concurrency = std::getenv("AWS_LAMBDA_MAX_CONCURRENCY"); concurrency != nullptr) {
    const std::string_view text = concurrency;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), options.concurrency);
    if (error != std::errc() || end != text.data() + text.size() || options.concurrency < 1 ||
        options.concurrency > max_concurrency) {
      throw Exception(ErrorKind::misuse, "AWS_LAMBDA_MAX_CONCURRENCY must be a number from 1 to 1024, and not '" +
                                             printable(text, 100) + "'");
    }
  }
  return options;
}

int run(Function function) {
  RuntimeOptions options;
  try {
    options = runtime_options_from_environment();
  } catch (const Exception& error) {
    const char* const api = std::getenv("AWS_LAMBDA_RUNTIME_API");
    if (api != nullptr) options.api = api;
    return fail_init(options, {"Runtime.InvalidEnvironment", error.what()}, error.what());
  }
  return run(std::move(function), options);
}

int run(Function function, const RuntimeOptions& options) {
  if (const std::string wrong = wrong_with(options); !wrong.empty()) {
    return fail_init(options, {"Runtime.InvalidOptions", wrong}, wrong);
  }
  if (options.trace_in_environment && options.concurrency == 1) TraceVariable::enter();
  AnyHandler handler;
  try {
    if (auto* const whole = std::get_if<Handler>(&function)) {
      handler = std::move(*whole);
    } else if (auto* const streaming = std::get_if<StreamingHandler>(&function)) {
      handler = std::move(*streaming);
    } else if (const auto* const make = std::get_if<std::function<Handler()>>(&function)) {
      handler = (*make)();
    } else {
      handler = std::get<std::function<StreamingHandler()>>(function)();
    }
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    const ErrorAnswer failure = describe_exception();
    return fail_init(options, failure, "the handler could not be made: " + failure.header() + ": " + failure.message);
  }
  if (!std::visit([](const auto& callable) { return static_cast<bool>(callable); }, handler)) {
    return fail_init(options, {"Runtime.NoHandler", "there is no handler"}, "there is no handler");
  }
  return serve(handler, options);
}

}  // namespace once::lambda
