// The only file of the fake with Asio in it.
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/status.hpp>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include <once/error.hpp>

#include "fake_aws/certificate.hpp"
#include "fake_aws/fake_dynamodb_server.hpp"
#include "fake_aws/http.hpp"
#include "fake_aws/refusal.hpp"
#include "fake_aws/signature_check.hpp"

namespace once::testing {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::beast::http::int_to_status;
using boost::beast::http::obsolete_reason;
using boost::system::error_code;
using TlsStream = asio::ssl::stream<tcp::socket>;

constexpr std::size_t largest_head_bytes = 64 * 1024;
constexpr std::size_t largest_body_bytes = 16 * 1024 * 1024;

std::string http_answer(const FakeAnswer& answer, Time now, bool crc32, std::uint64_t number) {
  std::string out =
      "HTTP/1.1 " + std::to_string(answer.status) + ' ' +
      std::string(obsolete_reason(int_to_status(static_cast<unsigned>(answer.status)))) +
      "\r\nServer: fake-dynamodb\r\nDate: " + fake::date_header(now) +
      "\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: " + std::to_string(answer.body.size()) +
      "\r\nx-amzn-RequestId: FAKE" + std::to_string(number);
  if (crc32) {
    const auto sum =
        ::crc32(0, reinterpret_cast<const Bytef*>(answer.body.data()), static_cast<uInt>(answer.body.size()));
    out += "\r\nx-amz-crc32: " + std::to_string(sum);
  }
  return out + "\r\n\r\n" + answer.body;
}

bool same_text(std::string_view left, std::string_view right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? a + ('a' - 'A') : a) == (b >= 'A' && b <= 'Z' ? b + ('a' - 'A') : b);
  });
}

// The request line and headers; empty if they are malformed.
std::optional<fake::HttpRequest> parse_head(std::string_view head) {
  fake::HttpRequest request;
  const auto line_end = head.find("\r\n");
  const auto line = head.substr(0, line_end);
  const auto first = line.find(' ');
  const auto second = line.rfind(' ');
  if (first == std::string_view::npos || second <= first + 1 || !line.substr(second + 1).starts_with("HTTP/1.")) {
    return std::nullopt;
  }
  request.method = line.substr(0, first);
  request.target = line.substr(first + 1, second - first - 1);
  std::size_t at = line_end + 2;
  while (at < head.size()) {
    const auto end = std::min(head.find("\r\n", at), head.size());
    const auto colon = head.substr(0, end).find(':', at);
    if (colon == std::string_view::npos || colon == at) return std::nullopt;
    std::string name(head.substr(at, colon - at));
    for (char& c : name) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
    }
    auto value = head.substr(colon + 1, end - colon - 1);
    while (value.starts_with(' ') || value.starts_with('\t')) value.remove_prefix(1);
    while (value.ends_with(' ') || value.ends_with('\t')) value.remove_suffix(1);
    request.headers.emplace_back(std::move(name), value);
    at = end + 2;
  }
  return request;
}

}  // namespace

struct FakeDynamoDbServer::State {
  // A connection as the server sees it; what it does is in Session.
  class Connection {
   public:
    virtual ~Connection() = default;
  };

  template <class Stream>
  class Session;

  State(std::shared_ptr<FakeDynamoDb> the_fake, FakeServerOptions the_options)
      : fake(std::move(the_fake)),
        options(std::move(the_options)),
        io(std::make_shared<asio::io_context>(1)),
        acceptor(*io),
        tls(asio::ssl::context::tls_server),
        keys(options.keys) {
    error_code error;
    const tcp::endpoint endpoint(asio::ip::make_address_v4(options.address, error), options.port);
    if (!error) acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      throw Exception(ErrorKind::misuse, "cannot listen on " + options.address + ':' + std::to_string(options.port) +
                                             ": " + error.message() + ". Choose another port, or 0 for any free one");
    }
    port = acceptor.local_endpoint().port();
    if (options.tls) write_ca_file(fake::equip(tls.native_handle(), options.certificate));
    accept();
    thread = std::thread([this] { io->run(); });
  }

  ~State() {
    asio::post(*io, [this] { io->stop(); });
    thread.join();
    connections.clear();
    if (!ca_file.empty()) {
      error_code ignored;
      std::filesystem::remove(ca_file, ignored);
    }
  }

  void write_ca_file(const std::string& pem) {
    std::string name = (std::filesystem::temp_directory_path() / "once-test-ca-XXXXXX").string();
    const int file = ::mkstemp(name.data());
    const bool good = file >= 0 && ::write(file, pem.data(), pem.size()) == static_cast<ssize_t>(pem.size());
    if (file >= 0) ::close(file);
    if (!good) throw Exception(ErrorKind::misuse, "cannot write " + name + ": is the directory of TMPDIR writable?");
    ca_file = name;
  }

  void accept();

  std::vector<FakeAccessKey> current_keys() {
    const std::lock_guard lock(keys_mutex);
    return keys;
  }

  const std::shared_ptr<FakeDynamoDb> fake;
  const FakeServerOptions options;
  const std::shared_ptr<asio::io_context> io;
  tcp::acceptor acceptor;
  asio::ssl::context tls;
  std::uint16_t port = 0;
  std::string ca_file;
  std::mutex keys_mutex;
  std::vector<FakeAccessKey> keys;
  std::set<std::shared_ptr<Connection>> connections;  // Of the server's thread.
  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> open{0};
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> refused{0};
  std::thread thread;
};

// Reads a request, answers it, and reads the next one. All of it on the server's thread.
template <class Stream>
class FakeDynamoDbServer::State::Session final : public Connection,
                                                 public std::enable_shared_from_this<Session<Stream>> {
 public:
  Session(State& server, Stream stream) : server_(server), stream_(std::move(stream)), timer_(*server.io) {}

  void start() {
    error_code ignored;
    stream_.lowest_layer().set_option(tcp::no_delay(true), ignored);
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      stream_.async_handshake(asio::ssl::stream_base::server, [self = this->shared_from_this()](error_code error) {
        if (error) return self->close(false);
        self->read();
      });
    } else {
      read();
    }
  }

 private:
  void read() {
    stream_.async_read_some(asio::buffer(chunk_),
                            [self = this->shared_from_this()](error_code error, std::size_t size) {
                              if (error) return self->close(false);
                              self->buffer_.append(self->chunk_.data(), size);
                              self->look();
                            });
  }

  // Is there a whole request?
  void look() {
    const auto head_end = buffer_.find("\r\n\r\n");
    if (head_end == std::string::npos) {
      if (buffer_.size() > largest_head_bytes) return give_up(400, "the head of the request is too long");
      return read();
    }
    // Again for each piece of a long request, which is short enough for that not to matter.
    auto request = parse_head(std::string_view(buffer_).substr(0, head_end + 2));
    if (!request) return give_up(400, "the request is malformed");
    const std::string* length = request->header("content-length");
    if (length == nullptr && request->method != "GET") return give_up(411, "the request has no Content-Length");
    std::size_t size = 0;
    if (length != nullptr) {
      const auto [end, error] = std::from_chars(length->data(), length->data() + length->size(), size);
      if (error != std::errc() || end != length->data() + length->size()) {
        return give_up(400, "Content-Length is no number");
      }
    }
    if (size > largest_body_bytes) return give_up(413, "the request is larger than 16 MiB");
    const std::size_t whole = head_end + 4 + size;
    if (buffer_.size() < whole) {
      const std::string* expect = request->header("expect");
      if (expect == nullptr || continued_ || !same_text(*expect, "100-continue")) return read();
      continued_ = true;
      return asio::async_write(stream_, asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")),
                               [self = this->shared_from_this()](error_code error, std::size_t) {
                                 if (error) return self->close(false);
                                 self->read();
                               });
    }
    continued_ = false;
    consumed_ = whole;  // What the request's views are of; nothing is read until it was answered.
    request->body = std::string_view(buffer_).substr(head_end + 4, size);
    const std::string* connection = request->header("connection");
    last_ = connection != nullptr && same_text(*connection, "close");
    ++server_.requests;
    answer(*request);
  }

  void answer(const fake::HttpRequest& request) {
    if (!server_.options.fixed_answer.empty()) {
      return write(http_answer({.body = server_.options.fixed_answer}, server_.fake->now(), server_.options.crc32,
                               server_.requests));
    }
    if (request.method != "POST" || request.target != "/") {
      return give({}, {.status = 404, .body = R"({"message":"the fake answers only POST /"})"});
    }
    const auto known = server_.current_keys();
    if (!known.empty()) {
      try {
        fake::check_signature(request, known, server_.options.region, server_.fake->now());
      } catch (const fake::Refusal& refusal) {
        ++server_.refused;
        return give({}, fake::refusal_answer(refusal));
      }
    }
    const std::string* target = request.header("x-amz-target");
    if (target == nullptr || !target->starts_with(fake::target_prefix)) {
      return give({}, fake::refusal_answer({.type = std::string(fake::coral_namespace) + "UnknownOperationException"}));
    }
    // It may come from another thread, at a time when the server is gone. No session holds the io_context: those that
    // wait in it would keep it, and it them.
    server_.fake->receive(target->substr(fake::target_prefix.size()), request.body,
                          [io = server_.io, weak = this->weak_from_this()](FakeFault fault, FakeAnswer answer) {
                            asio::dispatch(*io, [weak, fault = std::move(fault), answer = std::move(answer)] {
                              if (const auto self = weak.lock()) self->give_later(fault, answer);
                            });
                          });
  }

  void give_later(const FakeFault& fault, const FakeAnswer& answer) {
    if (fault.delay <= Millis{0}) return give(fault, answer);
    timer_.expires_after(fault.delay);
    timer_.async_wait([self = this->shared_from_this(), fault, answer](error_code error) {
      if (!error) self->give(fault, answer);
    });
  }

  void give(const FakeFault& fault, const FakeAnswer& answer) {
    using Kind = FakeFault::Kind;
    if (fault.kind == Kind::unreachable || fault.kind == Kind::lost_before || fault.kind == Kind::lost_after) {
      return close(fault.abrupt);
    }
    std::string text =
        http_answer(answer, server_.fake->now() + fault.date_off, server_.options.crc32, server_.requests);
    if (fault.kind == Kind::damaged) text[text.size() - (answer.body.size() + 1) / 2] ^= 1;
    if (fault.kind == Kind::half_answer) {
      text.resize(text.size() - (answer.body.size() + 1) / 2);
      last_ = true;
    }
    write(std::move(text), fault.abrupt);
  }

  void give_up(int status, std::string_view why) {
    last_ = true;
    const nlohmann::json body = {{"message", why}};
    give({}, {.status = status, .body = body.dump()});
  }

  void write(std::string text, bool abrupt = false) {
    answer_ = std::move(text);
    asio::async_write(stream_, asio::buffer(answer_),
                      [self = this->shared_from_this(), abrupt](error_code error, std::size_t) {
                        if (error || self->last_) return self->close(abrupt);
                        self->buffer_.erase(0, std::exchange(self->consumed_, 0));
                        if (self->buffer_.empty()) return self->read();
                        self->look();
                      });
  }

  void close(bool abrupt) {
    auto& socket = stream_.lowest_layer();
    error_code ignored;
    if (abrupt) socket.set_option(asio::socket_base::linger(true, 0), ignored);
    socket.close(ignored);
    timer_.cancel();
    if (server_.connections.erase(this->shared_from_this()) > 0) --server_.open;
  }

  State& server_;
  Stream stream_;
  asio::steady_timer timer_;
  std::array<char, 16 * 1024> chunk_{};
  std::string buffer_;
  std::size_t consumed_ = 0;
  std::string answer_;
  bool continued_ = false;  // Told to send the body.
  bool last_ = false;       // Closed after the answer.
};

void FakeDynamoDbServer::State::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      ++accepted;
      ++open;
      const auto begin = [this](auto session) {
        connections.insert(session);
        session->start();
      };
      if (options.tls) {
        begin(std::make_shared<Session<TlsStream>>(*this, TlsStream(std::move(socket), tls)));
      } else {
        begin(std::make_shared<Session<tcp::socket>>(*this, std::move(socket)));
      }
    }
    accept();
  });
}

FakeDynamoDbServer::FakeDynamoDbServer(std::shared_ptr<FakeDynamoDb> fake, FakeServerOptions options)
    : state_(std::make_unique<State>(std::move(fake), std::move(options))) {}

FakeDynamoDbServer::~FakeDynamoDbServer() = default;

std::string FakeDynamoDbServer::url() const {
  return (state_->options.tls ? "https://" : "http://") + state_->options.address + ':' + std::to_string(state_->port);
}

std::uint16_t FakeDynamoDbServer::port() const noexcept { return state_->port; }

std::string FakeDynamoDbServer::ca_file() const { return state_->ca_file; }

void FakeDynamoDbServer::set_keys(std::vector<FakeAccessKey> keys) {
  const std::lock_guard lock(state_->keys_mutex);
  state_->keys = std::move(keys);
}

FakeDynamoDbServer::Counts FakeDynamoDbServer::counts() const {
  return {
      .connections = state_->accepted, .open = state_->open, .requests = state_->requests, .refused = state_->refused};
}

}  // namespace once::testing
