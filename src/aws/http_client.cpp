#include "aws/http_client.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <once/error.hpp>

#include "aws/http_reader.hpp"
#include "aws/signer.hpp"
#include "platform/forks.hpp"
#include "platform/look_up.hpp"
#include "platform/shared_loop.hpp"
#include "platform/snapshots.hpp"
#include "text/ascii.hpp"
#include "text/header.hpp"
#include "tls/stream.hpp"

namespace once::aws {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Steady = std::chrono::steady_clock;
using Address = asio::generic::stream_protocol::endpoint;
// Concrete executor types: the type-erased default sometimes allocates.
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, asio::io_context::executor_type>;
using Timer = asio::basic_waitable_timer<Steady, asio::wait_traits<Steady>, asio::io_context::executor_type>;

constexpr Millis busy_tick{25};                    // How late a timeout may be noticed.
constexpr std::chrono::seconds addresses_last{5};  // The TTL of AWS's own endpoints.
constexpr std::size_t buffer_bytes = 16 * 1024;    // A TLS record.

struct Exchange {
  std::string wire;      // Head and body, as they are sent.
  bool written = false;  // At least one byte of it.
  Millis timeout{};
  Steady::time_point deadline;
  Callback<void(HttpAnswer)> done;
};

struct Finished {
  Callback<void(HttpAnswer)> done;
  HttpAnswer answer;
};

HttpAnswer failure(ErrorKind kind, std::string message) {
  HttpAnswer answer;
  answer.error = Error{kind, std::move(message)};
  return answer;
}

class Host;
class Io;

// One connection. Everything here runs on the thread with the loop's turn.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  enum class Stage : std::uint8_t {
    waiting,     // For the host's addresses.
    connecting,  // Until `deadline`, as the next.
    handshake,
    idle,
    busy,  // With `exchange`.
    closed,
  };

  Connection(Io& io, Host& host);

  void connect();  // To the host's next address.
  // Must be idle. Afterwards busy, or closed, with a failed exchange.
  void run(std::unique_ptr<Exchange> next);
  // Whether an idle connection is still open at the other end.
  [[nodiscard]] bool alive();
  void expired();                        // The deadline of its present stage has passed.
  void fail_exchange(std::string what);  // Also closes.
  void close() noexcept;

  Stage stage = Stage::waiting;
  Steady::time_point deadline;
  Steady::time_point idle_since;
  std::unique_ptr<Exchange> exchange;
  const unsigned made_at = snapshots();  // After another one, another copy of the process may have it too.

 private:
  void on_connected(error_code error);
  void on_read(error_code error, std::size_t count);
  void shake_hands();
  void start_read();
  void decrypt();
  void flush();
  void conclude();
  void broken(std::string what);
  void could_not_connect(const Error& error);

  Io& io_;
  Host& host_;
  Socket socket_;
  std::optional<tls::BufferedStream> tls_;
  HttpReader reader_;
  std::unique_ptr<char[]> buffer_;  // Bytes from the network.
  std::size_t next_address_ = 0;
  std::size_t sent_ = 0;  // Of exchange->wire. Without TLS only.
  bool waiting_to_write_ = false;
};

// The connections to one host, and the waiting exchanges.
class Host {
 public:
  Host(Io& io, const HttpRequest& request);

  [[nodiscard]] bool is(const HttpRequest& request) const noexcept {
    return port == request.port && tls == request.tls && name == request.host && socket == request.socket;
  }
  void add(std::unique_ptr<Exchange> exchange);
  void pump();                           // Gives waiting exchanges to idle connections, or makes new ones.
  void release(Connection& connection);  // It is set up, or idle again.
  void drop(Connection& connection);     // It is closed.
  void could_not_connect(Connection& connection, const Error& error);
  void resolved(std::vector<Address> found, const std::string& problem);
  void sweep(Steady::time_point now);
  void stop();
  [[nodiscard]] bool busy() const noexcept { return !queue_.empty() || idle_.size() < connections_.size(); }
  [[nodiscard]] bool empty() const noexcept { return queue_.empty() && connections_.empty(); }

  const std::string name;
  const std::uint16_t port;
  const bool tls;
  const std::string socket;
  const std::string url;
  std::vector<Address> addresses;
  once::tls::Ticket ticket;

 private:
  bool resolve();  // False: the addresses will come later.
  [[nodiscard]] std::size_t count(std::initializer_list<Connection::Stage> stages) const noexcept;

  Io& io_;
  std::deque<std::unique_ptr<Exchange>> queue_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;  // The last used one is taken first, so that unneeded ones time out.
  bool literal_ = false;           // `name` is an address.
  bool resolving_ = false;
  std::optional<Steady::time_point> resolved_at_;
  unsigned snapshots_ = snapshots();  // When the addresses were asked for.
};

// The loop's side of the client. Shared by the client, the loop's own thread and waiting callers; the last owner
// destroys it.
class Io final : public SharedLoop {
 public:
  explicit Io(HttpClientOptions given) : options(std::move(given)), timer_(context), work_(context.get_executor()) {}

  // From any thread.
  void submit(const HttpRequest& request, std::unique_ptr<Exchange> exchange);
  void nudge() noexcept override {
    asio::post(context, [this] { arrive(); });
  }

  // The following functions are called with the turn.
  void finish(std::unique_ptr<Exchange> exchange, HttpAnswer answer) {
    finished_.push_back({std::move(exchange->done), std::move(answer)});
  }
  // Calls the completions. Each handler does this last, in a consistent state: a completion may destroy the client, or
  // block and run the loop from inside.
  void flush();
  const tls::ClientContext& trusted();  // Throws Exception.
  [[nodiscard]] std::shared_ptr<Io> shared() { return std::static_pointer_cast<Io>(shared_from_this()); }

  asio::io_context context;
  const HttpClientOptions options;
  std::array<char, buffer_bytes> scratch{};  // Bytes between TLS and a reader.

 private:
  struct Arrival {
    Host* host;
    std::unique_ptr<Exchange> exchange;
  };

  void arrive() noexcept override;
  bool run_one() noexcept override { return context.run_one() > 0; }
  void run_ready() noexcept override { context.poll(); }
  void shut() noexcept override;
  bool busy() noexcept override;
  std::optional<Steady::time_point> due() noexcept override { return next_sweep_; }

  bool take_arrivals();
  void schedule_sweep(Steady::time_point now, Steady::duration tick);
  void sweep();

  std::mutex mutex_;
  std::vector<std::unique_ptr<Host>> hosts_;  // Few, and never removed.
  std::vector<Arrival> arrivals_;
  bool stopped_ = false;

  std::vector<Host*> known_;  // hosts_, for the thread with the turn.
  std::vector<Arrival> taken_;
  std::deque<Finished> finished_;
  std::optional<tls::ClientContext> tls_;
  Timer timer_;
  std::optional<Steady::time_point> next_sweep_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
};

// ---- Connection

Connection::Connection(Io& io, Host& host)
    : io_(io),
      host_(host),
      socket_(io.context.get_executor()),
      reader_(io.options.max_head_bytes, io.options.max_body_bytes) {}

void Connection::connect() {
  error_code ignored;
  socket_.close(ignored);
  tls_.reset();
  stage = Stage::connecting;
  deadline = Steady::now() + io_.options.connect_timeout;
  const Address address = host_.addresses[next_address_++];
  // Sockets of Asio's open() would be inherited by started programs.
  const int made = ::socket(address.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0)
    return could_not_connect({ErrorKind::unavailable, error_code(errno, asio::error::get_system_category()).message()});
  error_code error;
  socket_.assign(address.protocol(), made, error);
  if (!error) socket_.non_blocking(true, error);
  if (error) {
    if (!socket_.is_open()) ::close(made);
    return could_not_connect({ErrorKind::unavailable, error.message()});
  }
  socket_.async_connect(address, [self = shared_from_this(), attempt = next_address_](const error_code& result) {
    // Abandoned attempts complete too.
    if (self->stage == Stage::connecting && self->next_address_ == attempt) self->on_connected(result);
    self->io_.flush();
  });
}

void Connection::on_connected(error_code error) {
  if (error) return could_not_connect({ErrorKind::unavailable, error.message()});
  error_code ignored;
  if (host_.socket.empty()) {
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  } else if (io_.options.check_peer) {
    if (const auto refused = io_.options.check_peer(socket_.native_handle(), host_.socket)) {
      return could_not_connect(*refused);
    }
  }
  buffer_ = std::make_unique_for_overwrite<char[]>(buffer_bytes);
  if (!host_.tls) return host_.release(*this);
  try {
    tls_.emplace(io_.trusted(), host_.name, host_.ticket);
  } catch (const Exception& exception) {
    return could_not_connect(exception.error());
  }
  stage = Stage::handshake;
  shake_hands();
}

void Connection::shake_hands() {
  const tls::Step step = tls_->handshake();
  const Error error = tls_->error();
  flush();  // After a failure this sends an alert that says why.
  if (stage != Stage::handshake) return;
  if (step == tls::Step::done) {
    host_.release(*this);
  } else if (step == tls::Step::more) {
    start_read();
  } else {
    could_not_connect(error);
  }
}

void Connection::could_not_connect(const Error& error) {
  if (next_address_ < host_.addresses.size() && error.kind == ErrorKind::unavailable) return connect();
  close();
  host_.could_not_connect(*this, error);
}

void Connection::expired() {
  if (stage == Stage::busy) {
    fail_exchange("no answer within " + std::to_string(exchange->timeout.count()) + " ms");
  } else {
    could_not_connect({ErrorKind::unavailable,
                       "no connection within " + std::to_string(io_.options.connect_timeout.count()) + " ms"});
  }
}

void Connection::run(std::unique_ptr<Exchange> next) {
  exchange = std::move(next);
  stage = Stage::busy;
  sent_ = 0;
  reader_.begin();
  std::size_t taken = 0;
  if (tls_ && tls_->write(exchange->wire, taken) != tls::Step::done) return fail_exchange(tls_->error().message);
  flush();
  if (stage == Stage::busy) start_read();
}

// Sends as much as the network takes.
void Connection::flush() {
  while (!waiting_to_write_) {
    std::string_view bytes;
    if (tls_) {
      bytes = tls_->outgoing();
    } else if (exchange) {
      bytes = std::string_view(exchange->wire).substr(sent_);
    }
    if (bytes.empty()) return;
    error_code error;
    const std::size_t count = socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
    if (error == asio::error::would_block) {
      waiting_to_write_ = true;
      return socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code&) {
        self->waiting_to_write_ = false;
        if (self->stage != Stage::closed) self->flush();
        self->io_.flush();
      });
    }
    if (error) return broken(error.message());
    if (exchange) exchange->written = true;
    if (tls_) {
      tls_->sent(count);
    } else {
      sent_ += count;
    }
  }
}

void Connection::start_read() {
  socket_.async_read_some(asio::buffer(buffer_.get(), buffer_bytes),
                          [self = shared_from_this()](const error_code& error, std::size_t count) {
                            self->on_read(error, count);
                            self->io_.flush();
                          });
}

void Connection::on_read(error_code error, std::size_t count) {
  if (stage != Stage::handshake && stage != Stage::busy) return;
  if (error == asio::error::eof && stage == Stage::busy && !tls_) {
    reader_.end();
    return conclude();
  }
  if (error) return broken(error == asio::error::eof ? "the server closed the connection" : error.message());
  const std::string_view bytes(buffer_.get(), count);
  if (!tls_) {
    reader_.feed(bytes);
  } else {
    tls_->incoming(bytes);
    if (stage == Stage::handshake) return shake_hands();
    decrypt();
    if (stage != Stage::busy) return;
  }
  if (reader_.status() == HttpReader::Status::more) {
    start_read();
  } else {
    conclude();
  }
}

void Connection::decrypt() {
  while (reader_.status() == HttpReader::Status::more) {
    std::size_t count = 0;
    switch (tls_->read(io_.scratch.data(), io_.scratch.size(), count)) {
      case tls::Step::done:
        reader_.feed({io_.scratch.data(), count});
        break;
      case tls::Step::more:
      case tls::Step::room:
        return flush();  // TLS may have its own bytes to send.
      case tls::Step::closed:
        reader_.end();
        return;
      case tls::Step::failed:
        return broken(tls_->error().message);
    }
  }
}

// The answer is complete, or has failed.
void Connection::conclude() {
  if (reader_.status() == HttpReader::Status::failed) {
    return fail_exchange(reader_.begun() ? "the answer " + reader_.problem()
                                         : "the server closed the connection without an answer");
  }
  // A server may answer before a too large request was sent completely.
  const bool all_sent = tls_ ? tls_->outgoing().empty() : sent_ == exchange->wire.size();
  const bool keep = all_sent && reader_.reusable();
  io_.finish(std::move(exchange), reader_.take());
  if (keep) return host_.release(*this);
  close();
  host_.drop(*this);
  host_.pump();
}

void Connection::broken(std::string what) {
  if (stage == Stage::busy) return fail_exchange(std::move(what));
  if (stage == Stage::handshake) return could_not_connect({ErrorKind::unavailable, std::move(what)});
  close();
}

void Connection::fail_exchange(std::string what) {
  const bool written = exchange->written;
  const bool refused = tls_ && tls_->was_refused();  // Then the server has read nothing of it.
  const ErrorKind kind = refused ? ErrorKind::misuse : written ? ErrorKind::in_doubt : ErrorKind::unavailable;
  what = host_.url + ": " + what;
  if (!refused) what += written ? ". The request may have been carried out" : ". Nothing was sent";
  HttpAnswer failed = failure(kind, std::move(what));
  failed.refused_certificate = refused;
  io_.finish(std::move(exchange), std::move(failed));
  close();
  host_.drop(*this);
  host_.pump();
}

bool Connection::alive() {
  while (true) {
    const ssize_t peeked = ::recv(socket_.native_handle(), buffer_.get(), buffer_bytes, MSG_PEEK | MSG_DONTWAIT);
    if (peeked < 0) return errno == EAGAIN;
    if (peeked == 0 || !tls_) return false;  // Closed, or unexpected bytes.
    // TLS has its own messages, such as new session tickets, or close_notify.
    const ssize_t count = ::recv(socket_.native_handle(), buffer_.get(), buffer_bytes, MSG_DONTWAIT);
    if (count <= 0) return false;
    tls_->incoming({buffer_.get(), static_cast<std::size_t>(count)});
    std::size_t unasked = 0;
    if (tls_->read(io_.scratch.data(), io_.scratch.size(), unasked) != tls::Step::more) return false;
  }
}

void Connection::close() noexcept {
  if (stage == Stage::closed) return;
  error_code ignored;
  if ((stage == Stage::idle || stage == Stage::busy) && tls_) {
    tls_->close();  // Without close_notify its session would not be resumed.
    const std::string_view goodbye = tls_->outgoing();
    socket_.write_some(asio::buffer(goodbye.data(), goodbye.size()), ignored);
  }
  stage = Stage::closed;
  socket_.close(ignored);
}

// ---- Host

std::string url_of(const HttpRequest& request) {
  if (!request.socket.empty()) return "unix:" + request.socket;
  const bool v6 = request.host.find(':') != std::string::npos;
  return std::string(request.tls ? "https://" : "http://") + (v6 ? "[" : "") + request.host + (v6 ? "]" : "") + ':' +
         std::to_string(request.port);
}

Host::Host(Io& io, const HttpRequest& request)
    : name(request.host), port(request.port), tls(request.tls), socket(request.socket), url(url_of(request)), io_(io) {
  if (!socket.empty()) {
    literal_ = true;
    addresses.emplace_back(asio::local::stream_protocol::endpoint(socket));
    return;
  }
  error_code error;
  const auto literal = asio::ip::make_address(name, error);
  literal_ = !error;
  if (literal_) addresses.emplace_back(asio::ip::tcp::endpoint(literal, port));
}

std::size_t Host::count(std::initializer_list<Connection::Stage> stages) const noexcept {
  return static_cast<std::size_t>(std::count_if(connections_.begin(), connections_.end(), [&](const auto& connection) {
    return std::find(stages.begin(), stages.end(), connection->stage) != stages.end();
  }));
}

void Host::add(std::unique_ptr<Exchange> exchange) {
  queue_.push_back(std::move(exchange));
  pump();
}

void Host::pump() {
  using Stage = Connection::Stage;
  while (!queue_.empty() && !idle_.empty()) {
    const auto connection = idle_.back()->shared_from_this();
    idle_.pop_back();
    if (connection->made_at != snapshots() || !connection->alive()) {
      connection->close();
      drop(*connection);
      continue;
    }
    auto next = std::move(queue_.front());
    queue_.pop_front();
    connection->run(std::move(next));
  }
  while (connections_.size() < io_.options.max_connections &&
         queue_.size() > count({Stage::waiting, Stage::connecting, Stage::handshake})) {
    const auto connection = connections_.emplace_back(std::make_shared<Connection>(io_, *this));
    if (resolve()) connection->connect();
    // Failed at once, for example without file descriptors: the next would fail too. Waiting exchanges get a busy
    // connection later, or time out.
    if (connection->stage == Stage::closed) break;
  }
}

void Host::release(Connection& connection) {
  connection.stage = Connection::Stage::idle;
  connection.idle_since = Steady::now();
  idle_.push_back(&connection);
  pump();
}

void Host::drop(Connection& connection) {
  std::erase(idle_, &connection);
  std::erase_if(connections_, [&](const auto& each) { return each.get() == &connection; });
}

void Host::could_not_connect(Connection& connection, const Error& error) {
  using Stage = Connection::Stage;
  drop(connection);
  resolved_at_.reset();  // The name may have another address now.
  // Working connections can still serve the waiting exchanges. If none works, this failure ends one request while
  // others are being tried, or all if it was the last.
  if (count({Stage::idle, Stage::busy}) > 0) return;
  const bool last = connections_.empty();
  while (!queue_.empty()) {
    io_.finish(std::move(queue_.front()), failure(error.kind, "cannot connect to " + url + ": " + error.message));
    queue_.pop_front();
    if (!last) break;
  }
}

bool Host::resolve() {
  if (literal_) return true;
  const unsigned now = snapshots();
  if (std::exchange(snapshots_, now) != now) resolved_at_.reset();
  if (resolved_at_ && Steady::now() - *resolved_at_ < addresses_last) return true;
  if (resolving_) return false;
  resolving_ = true;
  auto done = [io = std::weak_ptr(io_.shared()), host = this](NameAddresses told) {  // Io outlives this host.
    std::vector<Address> found;
    for (const NameAddress& each : told.found) {
      Address& address = found.emplace_back();
      address.resize(each.size);
      std::memcpy(address.data(), &each.bytes, each.size);
    }
    if (const auto still = io.lock()) {
      asio::post(still->context, [host, found = std::move(found), problem = std::move(told.problem)]() mutable {
        host->resolved(std::move(found), problem);
      });
      static_cast<void>(still->want());  // Posting has nudged it.
    }
  };
  try {
    look_up(name, port, std::move(done));
  } catch (const std::system_error& error) {
    asio::post(io_.context, [this, problem = std::string(error.what())] { resolved({}, problem); });
  }
  return false;
}

void Host::resolved(std::vector<Address> found, const std::string& problem) {
  resolving_ = false;
  addresses = std::move(found);
  if (!addresses.empty()) resolved_at_ = Steady::now();
  const auto connections = connections_;
  for (const auto& connection : connections) {
    if (connection->stage != Connection::Stage::waiting) continue;
    if (!addresses.empty()) {
      connection->connect();
    } else {
      connection->close();
      could_not_connect(*connection, {ErrorKind::unavailable, "the name cannot be resolved: " + problem});
    }
  }
  io_.flush();
}

void Host::sweep(Steady::time_point now) {
  using Stage = Connection::Stage;
  for (auto at = queue_.begin(); at != queue_.end();) {
    if ((*at)->deadline > now) {
      ++at;
      continue;
    }
    std::string text = url + ": not sent within " + std::to_string((*at)->timeout.count()) + " ms: ";
    text += count({Stage::busy}) > 0 ? "all connections are busy" : "there is no connection yet";
    io_.finish(std::move(*at), failure(ErrorKind::unavailable, std::move(text)));
    at = queue_.erase(at);
  }
  std::vector<std::shared_ptr<Connection>> due;
  for (const auto& connection : connections_) {
    switch (connection->stage) {
      case Stage::busy:
        if (connection->exchange->deadline <= now) due.push_back(connection);
        break;
      case Stage::connecting:
      case Stage::handshake:
        if (connection->deadline <= now) due.push_back(connection);
        break;
      case Stage::idle:
        if (connection->idle_since + io_.options.idle_limit <= now) due.push_back(connection);
        break;
      default:
        break;
    }
  }
  for (const auto& connection : due) {
    if (connection->stage == Stage::idle) {
      connection->close();
      drop(*connection);
    } else if (connection->stage != Stage::closed) {
      connection->expired();
    }
  }
}

void Host::stop() {
  while (!queue_.empty()) {
    io_.finish(std::move(queue_.front()), failure(ErrorKind::unavailable, url + ": the client was closed"));
    queue_.pop_front();
  }
  const auto connections = std::exchange(connections_, {});
  idle_.clear();
  for (const auto& connection : connections) {
    if (connection->stage == Connection::Stage::busy) {
      connection->fail_exchange("the client was closed");
    } else {
      connection->close();
    }
  }
}

// ---- Io

void Io::submit(const HttpRequest& request, std::unique_ptr<Exchange> exchange) {
  std::unique_lock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    exchange->done(failure(ErrorKind::unavailable, url_of(request) + ": the client was closed"));
    return;
  }
  auto found = std::find_if(hosts_.begin(), hosts_.end(), [&](const auto& host) { return host->is(request); });
  if (found == hosts_.end()) found = hosts_.insert(found, std::make_unique<Host>(*this, request));
  const bool first = arrivals_.empty();
  arrivals_.push_back({found->get(), std::move(exchange)});
  lock.unlock();
  // If there are others already, want() was called for them.
  if (want() && first) nudge();
}

void Io::arrive() noexcept {
  if (!take_arrivals()) return;
  for (Arrival& arrival : taken_) arrival.host->add(std::move(arrival.exchange));
  taken_.clear();
  schedule_sweep(Steady::now(), busy_tick);
  flush();
}

bool Io::take_arrivals() {
  const std::lock_guard lock(mutex_);
  taken_.swap(arrivals_);
  for (std::size_t at = known_.size(); at < hosts_.size(); ++at) known_.push_back(hosts_[at].get());
  return !taken_.empty();
}

bool Io::busy() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!arrivals_.empty()) return true;
  }
  return std::any_of(known_.begin(), known_.end(), [](const Host* host) { return host->busy(); });
}

void Io::flush() {
  while (!finished_.empty()) {
    Finished finished = std::move(finished_.front());
    finished_.pop_front();
    finished.done(std::move(finished.answer));
  }
}

void Io::schedule_sweep(Steady::time_point now, Steady::duration tick) {
  if (next_sweep_ && *next_sweep_ <= now + tick) return;
  next_sweep_ = now + tick;
  timer_.expires_at(*next_sweep_);
  timer_.async_wait([this](const error_code& error) {
    if (!error) sweep();
  });
}

void Io::sweep() {
  next_sweep_.reset();
  const auto now = Steady::now();
  for (Host* host : known_) host->sweep(now);
  const bool all_empty = std::all_of(known_.begin(), known_.end(), [](const Host* host) { return host->empty(); });
  if (busy()) {
    schedule_sweep(now, busy_tick);
  } else if (!all_empty) {
    schedule_sweep(now, std::clamp<Steady::duration>(options.idle_limit / 4, busy_tick, std::chrono::seconds(1)));
  }
  flush();
}

void Io::shut() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
  }
  take_arrivals();
  for (Arrival& arrival : std::exchange(taken_, {})) {
    finish(std::move(arrival.exchange), failure(ErrorKind::unavailable, arrival.host->url + ": the client was closed"));
  }
  for (Host* host : known_) host->stop();
  timer_.cancel();
  next_sweep_.reset();
  work_.reset();
  flush();
}

const tls::ClientContext& Io::trusted() {
  if (!tls_) {
    tls::Trust trust{.file = options.ca_file, .origin = "the option ca_file", .option = options.ca_variable};
    if (const char* const bundle = std::getenv(options.ca_variable.c_str()); trust.file.empty() && bundle != nullptr) {
      trust.file = bundle;
      trust.origin = trust.option;
    }
    trust.certificate_option = options.certificate_option;
    tls::ClientContext made(std::move(trust));
    if (!options.certificate_file.empty()) made.show_certificate(options.certificate_file, options.key_file);
    tls_.emplace(std::move(made));
  }
  return *tls_;
}

// ---- The client

bool is_host(std::string_view text) noexcept {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c < 0x7f && std::string_view("/?#@[]\\").find(c) == std::string_view::npos;
  });
}

bool is_target(std::string_view text) noexcept {
  return text.starts_with('/') && std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// The request's bytes. Empty: it is malformed.
std::string serialize(const HttpRequest& request) {
  if (!text::is_token(request.method) || !is_host(request.host) || !is_target(request.target)) return {};
  std::string wire;
  std::size_t size = request.method.size() + request.target.size() + request.host.size() + request.body.size() + 100;
  for (const auto& [name, value] : request.headers) size += name.size() + value.size() + 4;
  wire.reserve(size);
  wire.append(request.method).append(" ").append(request.target).append(" HTTP/1.1\r\n");
  bool has_host = false;
  for (const auto& [name, value] : request.headers) {
    if (!text::is_token(name) || !text::is_field_text(value)) return {};
    has_host = has_host || text::same_letters(name, "host");
    wire.append(name).append(": ").append(value).append("\r\n");
  }
  if (!has_host) wire.append("Host: ").append(host_header(request)).append("\r\n");
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    wire.append("Content-Length: ").append(std::to_string(request.body.size())).append("\r\n");
  }
  return wire.append("\r\n").append(request.body);
}

class AsioHttpClient final : public HttpClient {
 public:
  explicit AsioHttpClient(HttpClientOptions options)
      : io_(std::make_unique<std::shared_ptr<Io>>(std::make_shared<Io>(std::move(options)))) {
    (*io_)->start();
  }

  AsioHttpClient(const AsioHttpClient&) = delete;
  AsioHttpClient& operator=(const AsioHttpClient&) = delete;

  ~AsioHttpClient() override {
    if (!is_forked()) {
      (*io_)->close();
    } else {
      static_cast<void>(
          io_.release());  // In the child of a fork: the connections are the parent's, and the thread does not exist.
    }
  }

  void send(HttpRequest request, Callback<void(HttpAnswer)> done) override {
    if (is_forked()) {
      done(failure(ErrorKind::misuse, url_of(request) +
                                          ": this process is a fork of the one that made the client: make "
                                          "another here"));
      return;
    }
    auto exchange = std::make_unique<Exchange>();
    exchange->wire = serialize(request);
    if (exchange->wire.empty()) {
      done(failure(ErrorKind::misuse,
                   "the request cannot be sent: its method, host, target or a header has bytes that "
                   "do not belong there"));
      return;
    }
    exchange->timeout = request.timeout;
    exchange->deadline = Steady::now() + request.timeout;
    exchange->done = std::move(done);
    (*io_)->submit(request, std::move(exchange));
  }

 private:
  [[nodiscard]] bool is_forked() const noexcept { return forks() != forks_; }

  std::unique_ptr<std::shared_ptr<Io>> io_;  // A pointer, so that it can be left after a fork.
  const unsigned forks_ = forks();
};

}  // namespace

std::shared_ptr<HttpClient> make_http_client(HttpClientOptions options) {
  if (options.max_connections == 0 || options.idle_limit <= Millis{0} || options.connect_timeout <= Millis{0}) {
    throw Exception(ErrorKind::misuse, "max_connections, idle_limit and connect_timeout must be above 0");
  }
  try {
    return std::make_shared<AsioHttpClient>(std::move(options));
  } catch (const boost::system::system_error& error) {
    throw Exception(ErrorKind::unavailable, std::string("cannot start an HTTP client: ") + error.what() +
                                                ": raise the limit of open files (ulimit -n, LimitNOFILE=)");
  }
}

}  // namespace once::aws
