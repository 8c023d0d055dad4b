// One thread of the proxy: its event loop, its connections and their deadlines, and its kept connections to the
// upstream. It shares nothing with other threads, so it needs no locks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>

#include <once/callback.hpp>
#include <once/error.hpp>
#include <once/time.hpp>

#include "frontends/proxy/incoming.hpp"
#include "frontends/proxy/net.hpp"
#include "frontends/proxy/read_buffer.hpp"
#include "platform/completion_loop.hpp"
#include "tls/stream.hpp"

namespace once {
class Reconciler;
}
namespace once::http {
class Endpoints;
}

namespace once::proxy {

class Clients;
class Connection;
class Handshakes;
class Names;
class Services;
struct HandshakeFailure;

// How other threads reach a loop. They share its mailbox, not the loop. After the mailbox was closed, posted handlers
// are dropped on the posting thread.
class Mailbox final : public CompletionLoop {
 public:
  explicit Mailbox(net::io_context& io) : io_(&io) {}

  // The loop takes everything that was posted until then at once.
  void post(Callback<void()> handler) { put(handler, true); }
  // The same for work that must not be dropped: close() runs the rest.
  bool try_post(Callback<void()>& work) override { return put(work, false); }

  void close() {
    std::vector<Posted> left;
    {
      const std::lock_guard lock(mutex_);
      io_ = nullptr;
      left.swap(waiting_);
    }
    for (Posted& posted : left) {
      if (!posted.may_be_dropped) posted.handler();
    }
  }
  // Whether the caller is the loop's thread.
  [[nodiscard]] bool is_here() {
    if (completion_loop().get() == this) return true;  // The loop runs only while its mailbox is open.
    const std::lock_guard lock(mutex_);
    return io_ != nullptr && io_->get_executor().running_in_this_thread();
  }

 private:
  struct Posted {
    Callback<void()> handler;
    bool may_be_dropped = true;
  };

  bool put(Callback<void()>& handler, bool may_be_dropped) {
    const std::lock_guard lock(mutex_);  // Held while posting, so that close() waits for it.
    if (io_ == nullptr) return false;
    waiting_.push_back({std::move(handler), may_be_dropped});
    if (waiting_.size() == 1) net::post(*io_, [this] { empty(); });
    return true;
  }

  // On the loop's thread.
  void empty() {
    {
      const std::lock_guard lock(mutex_);
      taken_.swap(waiting_);
    }
    for (Posted& posted : taken_) posted.handler();
    taken_.clear();
  }

  std::mutex mutex_;
  net::io_context* io_;
  std::vector<Posted> waiting_;
  std::vector<Posted> taken_;  // The loop's own.
};

// make(), which makes loops. Throws Exception(unavailable) if the system gives no descriptor for one.
template <class Make>
auto with_descriptors(Make make) {
  try {
    return make();
  } catch (const boost::system::system_error& error) {
    throw Exception(ErrorKind::unavailable, std::string("cannot start a server: ") + error.what() +
                                                ": raise the limit of open files (ulimit -n, LimitNOFILE=)");
  }
}

class Loop {
 public:
  // `tick`: how late a deadline may be noticed.
  Loop(Millis tick, std::size_t max_buffer_bytes)
      : tick_(tick), max_buffer_bytes_(max_buffer_bytes), mailbox_(std::make_shared<Mailbox>(io)), timer_(io) {}
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  // Call it after its thread has ended. Closes the mailbox before `io` and its coroutines are destroyed.
  ~Loop() { mailbox_->close(); }

  void start();  // Before the thread runs.
  void run();    // The thread's body. Operations begun on it complete on it: see CompletionLoop.
  void set_tick(Millis tick) noexcept { tick_ = tick; }  // On the thread.
  void close_all();                                      // On the thread: closes every connection, also later ones.
  void close_idle();  // On the thread: closes idle connections, also when they become idle later.
  [[nodiscard]] bool stopping() const noexcept { return stopping_; }
  [[nodiscard]] bool closing() const noexcept { return closing_; }
  [[nodiscard]] std::size_t max_buffer_bytes() const noexcept { return max_buffer_bytes_; }
  [[nodiscard]] const std::shared_ptr<Mailbox>& mailbox() const noexcept { return mailbox_; }

  // Shared by later connections. Replaced on the thread only.
  std::shared_ptr<http::Endpoints> rules;                 // For requests that begin now.
  std::shared_ptr<const tls::ServerContext> certificate;  // Null: no TLS with clients.
  std::shared_ptr<const tls::ClientContext> trusted;      // Null: no TLS with the upstream.
  Handshakes* handshakes = nullptr;                       // Failed handshakes of clients.
  Clients* clients = nullptr;                             // What they hold.
  Reconciler* reconciler = nullptr;                       // Who asks the upstreams about unknown operations.
  std::shared_ptr<Services> services;                     // The upstreams, for requests that begin now.
  std::shared_ptr<Names> names;                           // The addresses of upstreams.
  // For upstreams with TLS, by id. Writers share a ticket, because the upstream may be removed.
  std::map<std::uint64_t, std::shared_ptr<tls::Ticket>> tickets;
  // On the thread: replaces `services`, and drops connections and tickets of removed ones.
  void take_up(std::shared_ptr<Services> others);

 private:
  std::unordered_set<Connection*> connections_;
  std::unordered_set<Timer*> sleepers_;

 public:
  // Its destructor destroys suspended coroutines, so the members that they use come before it. Not
  // BOOST_ASIO_CONCURRENCY_HINT_UNSAFE_IO, because the first loop's thread accepts sockets for all loops.
  net::io_context io{1};

  // Memory for use between two waits.
  [[nodiscard]] std::span<char> scratch() noexcept { return scratch_; }

  // Kept connections to the upstreams. Give one back only between two exchanges.
  std::unique_ptr<Connection> take_kept(std::uint64_t service);  // By their ids.
  void keep(std::unique_ptr<Connection> connection, std::uint64_t service, Millis limit, std::size_t at_most);

  Task<void> sleep(Millis limit);  // Shorter if the loop is closed.
  Task<void> sleep(Timer& timer);  // Until the timer ends or is cancelled. The same.

 private:
  friend class Connection;
  Task<void> sweep();

  struct Kept {
    std::unique_ptr<Connection> connection;
    std::uint64_t service;
    Steady::time_point until;
  };

  Millis tick_;
  const std::size_t max_buffer_bytes_;
  const std::shared_ptr<Mailbox> mailbox_;
  Timer timer_;  // For the sweep.
  bool stopping_ = false;
  bool closing_ = false;
  std::vector<Kept> kept_;
  std::array<char, std::size_t{16} * 1024> scratch_{};  // The size of a TLS record.
};

// A socket with its read buffer and two deadlines. When one passes, the waiting operation fails with timed_out. The
// connection stays usable, to report that to the other side.
class Connection {
 public:
  Connection(Loop& loop, Socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  static constexpr std::size_t piece_bytes = std::size_t{16} * 1024;

  // Reads at least one byte, and appends it to `buffer`. no_buffer_space: it is full.
  Task<error_code> fill(Millis limit, std::size_t at_most = piece_bytes) {
    set_read_deadline(limit);
    return read_some(at_most, true);
  }
  // The same, with a deadline set by set_read_deadline().
  Task<error_code> fill_without_limit() { return read_some(piece_bytes, false); }
  // Writes as much as the kernel takes at once; with TLS nothing. The next write() reports errors.
  std::size_t write_now(std::span<const net::const_buffer> buffers) noexcept;
  // Writes everything, in pieces, each within `limit`. `written` grows by the bytes that the kernel has taken (with
  // TLS: encrypted bytes). Usually there is room at once.
  Task<error_code> write(std::span<const net::const_buffer> buffers, Millis limit, std::uint64_t& written) {
    const std::size_t taken = write_now(buffers);
    written += taken;
    return write_rest(buffers, taken, limit, written);
  }
  // The rest after write_now(), for callers that need no coroutine if write_now() wrote everything.
  Task<error_code> write_rest(std::span<const net::const_buffer> buffers, std::size_t taken, Millis limit,
                              std::uint64_t& written);
  Task<error_code> connect(const Stream::endpoint& endpoint, Millis limit);

  // Begin TLS on an open connection. Afterwards reads and writes are of its contents. The end of the stream is eof only
  // if the other side announced it (RFC 8446, section 6.1), otherwise a reset.
  Task<error_code> accept_tls(const tls::ServerContext& context, Millis limit);
  // Why accept_tls() failed.
  [[nodiscard]] HandshakeFailure handshake_failure(error_code error) const;
  void forget_tls() noexcept { tls_.reset(); }  // After a failed handshake: reads the raw bytes from now on.
  // The client's certificate, if one was required: see tls::Stream. Otherwise empty.
  [[nodiscard]] std::string certificate() const { return tls_ ? tls_->certificate() : std::string(); }
  [[nodiscard]] std::string subject() const { return tls_ ? tls_->subject() : std::string(); }
  // `problem`: what to report to the operator if it failed.
  Task<error_code> connect_tls(const std::string& host, std::shared_ptr<tls::Ticket> ticket, Millis limit,
                               std::string& problem);

  // Why the server rejected our certificate. Empty: it did not.
  [[nodiscard]] std::string refusal_of_certificate() const {
    return tls_ && tls_->was_refused() ? tls_->error().message : std::string();
  }

  // If it passes while no read waits, the next read fails.
  void set_read_deadline(Millis limit) { read_until(about_now() + limit); }
  void clear_read_deadline() noexcept { read_until(no_deadline); }
  void cancel();  // Waiting operations fail.
  void close();
  void shut_down();  // Ends our direction; sent bytes arrive.
  // Whether it waits for a message to begin. After a while it then gives its read buffer back.
  void set_idle(bool idle) noexcept {
    idle_ = idle;
    if (idle) idle_since_ = about_now();
  }

  // The other side's IP address; empty if it has disconnected.
  [[nodiscard]] std::optional<net::ip::address> remote() const;
  [[nodiscard]] std::string remote_address() const;

  // Whether a kept connection is still open, and has no unexpected byte.
  [[nodiscard]] bool is_quiet();
  // Whether the other side has closed both directions, or was reset. Of a TCP connection that is known late: the end of
  // its sending does not say that it does not read.
  [[nodiscard]] bool is_gone();

  Socket socket;
  ReadBuffer buffer;
  Incoming message;  // The present or last message.

 private:
  friend class Loop;
  static constexpr auto no_deadline = Steady::time_point::max();
  void expire(Steady::time_point now);
  void read_until(Steady::time_point when) noexcept {
    read_by_ = when;
    read_late_ = false;
  }
  Task<error_code> read_some(std::size_t at_most, bool end_deadline);
  Task<error_code> read_tls(std::size_t at_most);
  Task<error_code> write_tls(std::span<const net::const_buffer> buffers, Millis limit, std::uint64_t& written);
  Task<error_code> shake_hands(Millis limit);
  Task<error_code> wait_for(tls::Step step);

  Loop& loop_;
  std::shared_ptr<tls::Ticket> ticket_;     // The stream writes it. Null: none.
  std::unique_ptr<tls::SocketStream> tls_;  // Null: no TLS. Checked once per call, not per byte.
  Steady::time_point read_by_ = no_deadline;
  Steady::time_point write_by_ = no_deadline;
  bool read_late_ = false;  // read_by_ has passed.
  bool write_late_ = false;
  bool idle_ = false;
  Steady::time_point idle_since_{};  // Of the last set_idle(true).
  bool rests_ = false;               // The read was cancelled, to wait without a buffer.
};

// Something that happens once, on the same thread.
class Event {
 public:
  explicit Event(Loop& loop) noexcept : loop_(loop) {}
  void set() {
    set_ = true;
    if (timer_) timer_->cancel();
  }
  [[nodiscard]] bool is_set() const noexcept { return set_; }
  Task<void> wait();

 private:
  Loop& loop_;
  std::optional<Timer> timer_;  // Made by the waiting coroutine.
  bool set_ = false;
};

// Starts a detached coroutine. An exception that escapes it is a lack of memory or a bug. Then the process ends, which
// claims survive like kill -9, instead of leaving an exchange without its coroutine.
inline void spawn(net::io_context& io, Task<void> task) {
  net::co_spawn(io, std::move(task), [](const std::exception_ptr& error) {
    if (error) std::terminate();
  });
}

// Waits for a callback that is called once, on any thread. The callback may be called or destroyed after the loop. It
// points to this object, which must live until the call has come or the mailbox is closed.
template <class T>
class Pending {
 public:
  explicit Pending(Loop& loop) noexcept : loop_(loop), there_(loop) {}
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  [[nodiscard]] Callback<void(T)> callback() {
    return [mailbox = loop_.mailbox(), this](T result) {
      if (mailbox->is_here()) {  // Often called before the operation has returned: then no coroutine waits yet.
        give(std::move(result));
        return;
      }
      mailbox->post([this, result = std::move(result)]() mutable { give(std::move(result)); });
    };
  }
  [[nodiscard]] bool is_there() const noexcept { return there_.is_set(); }
  Task<void> wait() { return there_.wait(); }
  [[nodiscard]] T take() { return std::move(*value_); }

 private:
  void give(T result) {
    value_.emplace(std::move(result));
    there_.set();
  }

  Loop& loop_;
  Event there_;
  std::optional<T> value_;
};

// start(done) begins an operation that calls done(T) once, on any thread. Returns T on this thread.
template <class T, class Start>
Task<T> completion(Loop& loop, Start& start) {
  Pending<T> pending(loop);
  start(pending.callback());
  if (!pending.is_there()) co_await pending.wait();
  co_return pending.take();
}

}  // namespace once::proxy
