// The Runtime API on loopback: its invocations (local_api.cpp), and its connections (session.cpp).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <once/frontends/lambda/local_api.hpp>

#include "platform/thread.hpp"

namespace once::lambda {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

struct LocalInvocation {
  LocalInvocation(asio::io_context& io, std::string the_event, SubmitOptions the_options,
                  Callback<void(InvocationOutcome)> on_done)
      : event(std::move(the_event)), options(std::move(the_options)), done(std::move(on_done)), deadline(io) {}

  std::string event;
  SubmitOptions options;
  std::string invocation_id;
  Callback<void(InvocationOutcome)> done;
  asio::steady_timer deadline;
  SteadyClock::time_point given_at{};
  bool given = false;
};
using InvocationPtr = std::shared_ptr<LocalInvocation>;

// The route of a request.
struct ApiRoute {
  ApiCall call = ApiCall::next;
  std::string id;
};

// Everything except the counts belongs to the thread of `io`.
class LocalApi::Impl {
 public:
  class Session;
  using SessionPtr = std::shared_ptr<Session>;

  explicit Impl(LocalApiOptions the_options);

  void start() {
    accept();
    thread = start_thread([this] { io.run(); });
  }
  void stop();

  template <class Change>
  void count(Change&& change) {
    {
      const std::lock_guard lock(mutex);
      change(counted);
    }
    changed.notify_all();
  }
  void count_lists() {
    count([&](Counts& c) {
      c.waiting = waiting.size();
      c.restoring = restoring.size();
      c.queued = queue.size();
      c.running = running.size();
      c.paused = paused.size() + stuck;
    });
  }

  bool see(LocalApiOptions::Point point, const std::string& id) const {
    return !options.on_point || options.on_point(point, id);
  }

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
  std::vector<SessionPtr> restoring;  // They wait for restore().
  bool is_restored = false;
  std::deque<InvocationPtr> queue;
  std::map<std::string, InvocationPtr, std::less<>> running;
  std::map<ApiCall, std::deque<ApiFault>> faults;
  std::vector<Callback<void()>> paused;
  std::size_t stuck = 0;
  bool touched = false;  // An event was given since the function died.
  bool stopped = false;

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  Counts counted;
  InvocationOutcome init_error;
  std::set<std::string, std::less<>> ids;  // Of open invocations.
};

// A connection: one request after the other.
class LocalApi::Impl::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Impl& server, tcp::socket socket) : server_(server), socket_(std::move(socket)) {}

  void start();
  void close(bool reset = false);

  // Notices a client that disconnects while it waits for an event.
  void watch();
  void send_event(const InvocationPtr& invocation, const std::optional<ApiFault>& fault, const std::string& head);
  void send(unsigned status, std::string body, Callback<void()> sent = nullptr);
  void send_restored();

 private:
  static bool after(const ApiFault& fault);
  void next_request();
  void read();

  // Reads only as much of the request as needed for the answer to arrive.
  void refuse(unsigned status, std::string_view type, std::string_view message);
  void on_head();
  void too_large();

  // The connection ended in a body. The caller has the first part of a streamed response; any other is ignored.
  void cut_off();
  // The open invocation that the request answers. Null: none, or it is a later attempt with the same request id. A
  // request that names no attempt is taken, as on the platform.
  [[nodiscard]] InvocationPtr of_this_attempt() const;
  void count_call();
  void on_request();
  void carry_out();
  void read_trailers(InvocationOutcome& outcome);

  // The longest waiting invocation fails with it, as on the platform.
  void take_init_error(InvocationOutcome& outcome);
  [[nodiscard]] std::string header(const char* name) const;

  // Reads the rest, so that a client that still sends gets the answer and not a reset.
  void discard(std::size_t left);

  Impl& server_;
  tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  std::optional<ApiFault> fault_;
  ApiRoute route_;
  std::size_t limit_ = 0;
  bool streamed_ = false;
  bool discard_ = false;  // The rest of the request is dropped; the connection ends after the answer.
  bool stuck_ = false;    // on_point refused its answer.
  std::string answer_head_;
  std::vector<char> discarded_;
};

}  // namespace once::lambda
