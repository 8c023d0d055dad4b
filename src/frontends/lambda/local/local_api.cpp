#include "once/frontends/lambda/local_api.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "frontends/lambda/local/impl.hpp"
#include "text/ascii.hpp"
#include "text/hex.hpp"

namespace once::lambda {

namespace {

constexpr Millis no_room_pause{50};  // When no file descriptor is left for another connection.

bool plain_id(std::string_view id) {
  return id.size() <= 256 && std::all_of(id.begin(), id.end(), [](char c) {
           return text::is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
         });
}

bool fits_header(std::string_view text) {
  return text.size() <= 8192 && std::none_of(text.begin(), text.end(), [](char c) {
           return static_cast<unsigned char>(c) < 0x20 || c == '\x7f';
         });
}

}  // namespace

std::string make_request_id(Random& random) {
  std::array<std::uint8_t, 16> bytes{};
  random.fill(bytes);
  bytes[6] = static_cast<std::uint8_t>((bytes[6] & 0x0FU) | 0x40U);  // RFC 9562: version 4 …
  bytes[8] = static_cast<std::uint8_t>((bytes[8] & 0x3FU) | 0x80U);  // … and its variant.
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    text::append_hex(out, static_cast<char>(bytes.at(i)));
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

LocalApi::Impl::Impl(LocalApiOptions the_options) : options(std::move(the_options)), io(1), acceptor(io) {
  if (!options.clock) options.clock = system_clock();
  if (!options.random) options.random = system_random();
  error_code error;
  const auto host = asio::ip::make_address(options.host, error);
  if (error) throw Exception(ErrorKind::misuse, "'" + options.host + "' is not an IP address to listen on");
  const tcp::endpoint endpoint(host, options.port);
  // Asio's own sockets would be inherited by the function's processes.
  const int listener = ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (listener < 0) {
    throw Exception(ErrorKind::unavailable, std::string("cannot create a socket: ") + std::strerror(errno));
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

// Waits before the next accept: the client is still in the kernel's queue, and accept would fail again at once.
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
  add("Lambda-Runtime-Aws-Tenant-Id", of.tenant_id);
  add("Lambda-Runtime-Invocation-Id", invocation->invocation_id);
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

// The client has just disconnected: another one gets the event.
void LocalApi::Impl::not_delivered(const InvocationPtr& invocation) {
  if (running.erase(invocation->options.request_id) == 0) return;
  invocation->given = false;
  invocation->deadline.cancel();
  queue.push_front(invocation);
  match();
}

// By value: the caller's pointer may be in a list from which it is removed here.
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
  paused.clear();
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

// The thread ends when it has no more work; invocations submitted before that are ended too.
void LocalApi::Impl::stop() {
  asio::post(io, [this] {
    stopped = true;
    error_code ignored;
    acceptor.close(ignored);
    no_room.cancel();
    const auto open = sessions;
    for (const SessionPtr& session : open) session->close();
    waiting.clear();
    paused.clear();
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
      !fits_header(options.cognito_identity) || !fits_header(options.tenant_id)) {
    throw misuse("each text of an invocation must have at most 8192 bytes and no control characters");
  }
  if (options.request_id.empty()) options.request_id = make_request_id(*impl_->options.random);
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->ids.insert(options.request_id).second) {
      throw misuse("an invocation with the request id '" + options.request_id + "' is open already");
    }
  }
  auto invocation = std::make_shared<LocalInvocation>(impl_->io, std::move(event), std::move(options), std::move(done));
  invocation->invocation_id = make_request_id(*impl_->options.random);
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

void LocalApi::restore() {
  asio::dispatch(impl_->io, [impl = impl_.get()] {
    impl->is_restored = true;
    const auto restoring = std::exchange(impl->restoring, {});
    impl->count_lists();
    for (const auto& session : restoring) session->send_restored();
  });
}

void LocalApi::plan(ApiFault fault) {
  asio::dispatch(impl_->io, [impl = impl_.get(), fault] { impl->faults[fault.call].push_back(fault); });
}

void LocalApi::continue_paused() {
  asio::dispatch(impl_->io, [impl = impl_.get()] {
    auto paused = std::exchange(impl->paused, {});
    impl->count_lists();
    for (auto& go_on : paused) go_on();
  });
}

LocalApi::Counts LocalApi::counts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counted;
}

bool LocalApi::wait_until(const std::function<bool(const Counts&)>& condition, Millis limit) const {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, limit, [&] { return condition(impl_->counted); });
}

InvocationOutcome LocalApi::init_error() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->init_error;
}

}  // namespace once::lambda
