// One thread of the proxy: its event loop, the connections that live on it, their deadlines, and the connections to
// the upstream that it keeps. Nothing here is shared with other threads, so nothing is locked.
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

#include <once/callback.hpp>
#include <once/time.hpp>

#include "frontends/proxy/incoming.hpp"
#include "frontends/proxy/net.hpp"
#include "frontends/proxy/read_buffer.hpp"
#include "platform/home.hpp"
#include "tls/stream.hpp"

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

// How other threads reach a loop. Whoever may have something to say to it later shares its mailbox and not the loop:
// once the mailbox is closed, what is posted is dropped on the poster's thread.
class Mailbox final : public Home {
 public:
  explicit Mailbox(net::io_context& io) : io_(&io) {}

  // What is posted until the loop gets to it, it takes at once.
  void post(Callback<void()> handler) { put(handler, true); }
  // The same for what must not be dropped: close() runs what is left.
  bool bring(Callback<void()>& work) override { return put(work, false); }

  void close() {
    std::vector<Letter> left;
    {
      const std::lock_guard lock(mutex_);
      io_ = nullptr;
      left.swap(waiting_);
    }
    for (Letter& letter : left) {
      if (!letter.may_be_dropped) letter.handler();
    }
  }
  // The caller is the loop's thread.
  [[nodiscard]] bool is_here() {
    if (home().get() == this) return true;  // It is run only while it is open.
    const std::lock_guard lock(mutex_);
    return io_ != nullptr && io_->get_executor().running_in_this_thread();
  }

 private:
  struct Letter {
    Callback<void()> handler;
    bool may_be_dropped = true;
  };

  bool put(Callback<void()>& handler, bool may_be_dropped) {
    const std::lock_guard lock(mutex_);  // Held while it is posted, so that close() waits for whoever is at it.
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
    for (Letter& letter : taken_) letter.handler();
    taken_.clear();
  }

  std::mutex mutex_;
  net::io_context* io_;
  std::vector<Letter> waiting_;
  std::vector<Letter> taken_;  // The loop's own.
};

class Loop {
 public:
  // `tick`: how late a deadline may be noticed.
  Loop(Millis tick, std::size_t max_buffer_bytes)
      : tick_(tick), max_buffer_bytes_(max_buffer_bytes), mailbox_(std::make_shared<Mailbox>(io)), timer_(io) {}
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  // Its thread has ended. The mailbox is closed before `io` and the coroutines in it go.
  ~Loop() { mailbox_->close(); }

  void start();  // Before the thread runs.
  void run();    // Is the thread: what is begun on it comes back on it, see Home.
  void set_tick(Millis tick) noexcept { tick_ = tick; }  // On the thread.
  void close_all();                                      // On the thread: closes every connection, now and from now on.
  void close_idle();  // On the thread: those between two requests, now and from now on.
  [[nodiscard]] bool draining() const noexcept { return draining_; }
  [[nodiscard]] bool closing() const noexcept { return closing_; }
  [[nodiscard]] std::size_t max_buffer_bytes() const noexcept { return max_buffer_bytes_; }
  [[nodiscard]] const std::shared_ptr<Mailbox>& mailbox() const noexcept { return mailbox_; }

  // What connections that are to come have in common. Replaced on the thread only.
  std::shared_ptr<http::Endpoints> rules;                 // For requests that begin now.
  std::shared_ptr<const tls::ServerContext> certificate;  // Null: clients speak plainly.
  std::shared_ptr<const tls::ClientContext> trusted;      // Null: the upstream does.
  Handshakes* handshakes = nullptr;                       // Of clients that failed.
  Clients* clients = nullptr;                             // What they hold.
  std::shared_ptr<Services> services;                     // The upstreams, for requests that begin now.
  std::shared_ptr<Names> names;                           // Where those are.
  // Of upstreams with TLS, by their ids. Whoever writes to one shares it, as the upstream may go.
  std::map<std::uint64_t, std::shared_ptr<tls::Ticket>> tickets;
  // On the thread: `services` are these, and what was kept of those that are not among them goes.
  void take_up(std::shared_ptr<Services> others);

 private:
  std::unordered_set<Connection*> connections_;
  std::unordered_set<Timer*> sleepers_;

 public:
  // With it go the coroutines that are suspended in it: what they use stands before it.
  // Not BOOST_ASIO_CONCURRENCY_HINT_UNSAFE_IO: sockets are accepted on the first loop's thread for all of them.
  net::io_context io{1};

  // For a moment, between two waits.
  [[nodiscard]] std::span<char> scratch() noexcept { return scratch_; }

  // The upstream's kept connections. A connection is given back only between two exchanges.
  std::unique_ptr<Connection> take_kept(std::uint64_t service);  // By their ids.
  void keep(std::unique_ptr<Connection> connection, std::uint64_t service, Millis limit, std::size_t at_most);

  Task<void> sleep(Millis limit);  // Less, if the loop is closed.
  Task<void> sleep(Timer& timer);  // Until it ends or somebody cancels it. The same.

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
  Timer timer_;  // Of the sweep.
  bool draining_ = false;
  bool closing_ = false;
  std::vector<Kept> kept_;
  std::array<char, std::size_t{16} * 1024> scratch_{};  // As much as a record of TLS has.
};

// A socket with what was read from it, and two deadlines. When one passes, what waits on the socket is cancelled and
// fails with timed_out; the connection itself stays usable, to say so to the other side.
class Connection {
 public:
  Connection(Loop& loop, Socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  static constexpr std::size_t piece_bytes = std::size_t{16} * 1024;

  // Reads what there is, at least a byte, behind what is in `buffer`. no_buffer_space: it is full.
  Task<error_code> fill(Millis limit, std::size_t at_most = piece_bytes) {
    set_read_deadline(limit);
    return read_some(at_most, true);
  }
  // The same with a deadline that somebody else sets meanwhile (set_read_deadline).
  Task<error_code> fill_without_limit() { return read_some(piece_bytes, false); }
  // Writes as much as the kernel takes without a wait; with TLS nothing. Errors come with the next write().
  std::size_t write_now(std::span<const net::const_buffer> buffers) noexcept;
  // Writes all of it, in pieces, each of which has `limit`. `written` grows by what the kernel has taken (with TLS: of
  // what is sent in place of it). Most of what is written finds room at once.
  Task<error_code> write(std::span<const net::const_buffer> buffers, Millis limit, std::uint64_t& written) {
    const std::size_t taken = write_now(buffers);
    written += taken;
    return write_rest(buffers, taken, limit, written);
  }
  // The same when write_now() has taken so many bytes: for those who go on without a coroutine if that is all.
  Task<error_code> write_rest(std::span<const net::const_buffer> buffers, std::size_t taken, Millis limit,
                              std::uint64_t& written);
  Task<error_code> connect(const tcp::endpoint& endpoint, Millis limit);

  // Begin TLS on a connection that is there. What comes and goes afterwards is what is inside it; the end of the stream
  // is eof only if the other side said so (RFC 8446, section 6.1), and a reset otherwise.
  Task<error_code> accept_tls(const tls::ServerContext& context, Millis limit);
  // Why that gave an error.
  [[nodiscard]] HandshakeFailure handshake_failure(error_code error) const;
  void forget_tls() noexcept { tls_.reset(); }  // After that: what comes now is read as it is.
  // Of a client that had to show one: see tls::Stream. Else empty.
  [[nodiscard]] std::string certificate() const { return tls_ ? tls_->certificate() : std::string(); }
  [[nodiscard]] std::string subject() const { return tls_ ? tls_->subject() : std::string(); }
  // `problem`: what to tell the operator if it failed.
  Task<error_code> connect_tls(const std::string& host, std::shared_ptr<tls::Ticket> ticket, Millis limit,
                               std::string& problem);

  // Why the server has ended TLS, if it is for our certificate. Empty: it is not.
  [[nodiscard]] std::string refusal_of_certificate() const {
    return tls_ && tls_->was_refused() ? tls_->error().message : std::string();
  }

  // One that passes while nobody reads fails the next read.
  void set_read_deadline(Millis limit) { read_until(about_now() + limit); }
  void clear_read_deadline() noexcept { read_until(no_deadline); }
  void cancel();  // What waits on it fails.
  void close();
  void shut_down();  // Says that nothing more will be sent; what was sent arrives.
  void set_idle(bool idle) noexcept { idle_ = idle; }

  // The other side's IP address; empty if it has gone.
  [[nodiscard]] std::optional<net::ip::address> remote() const;
  [[nodiscard]] std::string remote_address() const;

  // A kept connection of which the other side has said nothing: not its end, and no byte that nobody asked for.
  [[nodiscard]] bool is_quiet();

  Socket socket;
  ReadBuffer buffer;
  Incoming message;  // That is read at present, or was last.

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
  std::shared_ptr<tls::Ticket> ticket_;     // That the stream writes to. Null: none.
  std::unique_ptr<tls::SocketStream> tls_;  // Null: plain. One look at it for each call, and none for each byte.
  Steady::time_point read_by_ = no_deadline;
  Steady::time_point write_by_ = no_deadline;
  bool read_late_ = false;  // read_by_ has passed.
  bool write_late_ = false;
  bool idle_ = false;
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
  std::optional<Timer> timer_;  // Made by whoever has to wait.
  bool set_ = false;
};

// Starts a coroutine on its own. What escapes from one is a lack of memory or a bug: the process ends, which claims
// survive as they do kill -9, rather than go on with an exchange that nobody watches any more.
inline void spawn(net::io_context& io, Task<void> task) {
  net::co_spawn(io, std::move(task), [](const std::exception_ptr& error) {
    if (error) std::terminate();
  });
}

// What somebody else will call back with, once, on any thread. What its callback holds is safe to be called and to be
// let go of when the loop is no more; what it points to is this object, which must live until the mailbox is closed or
// the call has come.
template <class T>
class Pending {
 public:
  explicit Pending(Loop& loop) noexcept : loop_(loop), there_(loop) {}
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  [[nodiscard]] Callback<void(T)> callback() {
    return [mailbox = loop_.mailbox(), this](T result) {
      if (mailbox->is_here()) {  // Often before whoever was given it has returned: then nobody waits yet.
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

// start(done) is the beginning of something that calls done(T) once, on any thread; gives T, on this one.
template <class T, class Start>
Task<T> completion(Loop& loop, Start& start) {
  Pending<T> pending(loop);
  start(pending.callback());
  if (!pending.is_there()) co_await pending.wait();
  co_return pending.take();
}

}  // namespace once::proxy
