#include "frontends/proxy/loop.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/write.hpp>

#include "frontends/proxy/networks.hpp"
#include "frontends/proxy/services.hpp"

namespace once::proxy {

namespace {

constexpr std::size_t write_bytes = 64 * 1024;  // Written under one deadline.
constexpr std::size_t most_buffers = 4;
constexpr Millis rest_after{1'000};    // Longer than a busy client's pauses: it costs three system calls.
constexpr Millis full_queue_pause{5};  // Between two tries to connect to a Unix socket.

}  // namespace

void Loop::start() { spawn(io, sweep()); }

void Loop::run() {
  const CompletionLoopScope scope(mailbox_);
  io.run();
  // From now on try_post() fails, and its caller runs the work: another loop may wait for its result.
  mailbox_->close();
}

Task<void> Loop::sweep() {
  error_code ignored;
  while (!closing_ || !connections_.empty()) {
    timer_.expires_after(closing_ ? Millis{1} : tick_);
    co_await timer_.async_wait(net::redirect_error(use_task, ignored));
    const auto now = Steady::now();
    std::erase_if(kept_, [&](const Kept& kept) { return closing_ || kept.until <= now; });
    for (Connection* const connection : connections_) connection->expire(now);
  }
}

void Loop::close_all() {
  closing_ = true;
  stopping_ = true;
  kept_.clear();
  timer_.cancel();
  for (Timer* const sleeper : sleepers_) sleeper->cancel();
  for (Connection* const connection : connections_) connection->close();
}

void Loop::close_idle() {
  stopping_ = true;
  for (Connection* const connection : connections_) {
    if (!connection->idle_) continue;
    connection->shut_down();
    connection->close();
  }
}

void Loop::take_up(std::shared_ptr<Services> others) {
  services = std::move(others);
  std::erase_if(kept_, [&](const Kept& kept) { return !services->find(kept.service); });
  std::erase_if(tickets, [&](const auto& ticket) { return !services->find(ticket.first); });
}

std::unique_ptr<Connection> Loop::take_kept(std::uint64_t service) {
  const auto now = about_now();
  for (std::size_t i = kept_.size(); i-- > 0;) {  // The most recently used first.
    if (kept_[i].service != service) continue;
    Kept kept = std::move(kept_[i]);
    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
    if (kept.until > now && kept.connection->is_quiet()) return std::move(kept.connection);
  }
  return nullptr;
}

Task<void> Loop::sleep(Millis limit) {
  Timer timer(io, limit);
  co_await sleep(timer);
}

Task<void> Loop::sleep(Timer& timer) {
  if (closing_) co_return;
  sleepers_.insert(&timer);
  error_code ignored;
  co_await timer.async_wait(net::redirect_error(use_task, ignored));
  sleepers_.erase(&timer);
}

void Loop::keep(std::unique_ptr<Connection> connection, std::uint64_t service, Millis limit, std::size_t at_most) {
  if (stopping_ || kept_.size() >= at_most) return;
  kept_.push_back({std::move(connection), service, about_now() + limit});
}

Connection::Connection(Loop& loop, Socket taken)
    : socket(std::move(taken)), buffer(loop.max_buffer_bytes()), loop_(loop) {
  loop_.connections_.insert(this);
  if (loop_.closing_) close();
}

Connection::~Connection() { loop_.connections_.erase(this); }

void Connection::expire(Steady::time_point now) {
  bool late = false;
  if (read_by_ <= now) {
    read_by_ = no_deadline;
    read_late_ = late = true;
  }
  if (write_by_ <= now) {
    write_by_ = no_deadline;
    write_late_ = late = true;
  }
  // An idle connection should cost little, and its buffer is more than half of it.
  if (!late && idle_ && !tls_ && buffer.capacity() != 0 && idle_since_ + rest_after <= now) rests_ = late = true;
  if (late) cancel();
}

void Connection::cancel() {
  error_code ignored;
  socket.cancel(ignored);
}

void Connection::close() {
  error_code ignored;
  if (tls_) tls_->detach();  // The socket's number may soon be reused.
  socket.close(ignored);
}

void Connection::shut_down() {
  error_code ignored;
  if (tls_) tls_->close();
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

Task<error_code> Connection::read_some(std::size_t at_most, bool end_deadline) {
  const std::size_t room = std::min(at_most, buffer.max_size() - buffer.size());
  error_code error;
  if (read_late_) {
    error = net::error::timed_out;
  } else if (room == 0) {
    error = net::error::no_buffer_space;
  } else if (tls_) {
    error = co_await read_tls(room);
  } else {
    do {
      const std::span<char> space = buffer.prepare(room);
      const auto into = net::buffer(space.data(), space.size());
      const auto [failed, got] = co_await socket.async_read_some(into, in_place);
      buffer.commit(got);
      error = failed;
      if (!error || read_late_ || !rests_) break;
      rests_ = false;
      buffer.release();
      error = co_await wait_for(tls::Step::more);
    } while (!error);
    rests_ = false;
    if (error && read_late_) error = net::error::timed_out;
  }
  if (end_deadline) clear_read_deadline();
  co_return error;
}

std::size_t Connection::write_now(std::span<const net::const_buffer> buffers) noexcept {
  if (tls_ || !socket.is_open() || net::buffer_size(buffers) == 0) return 0;
  std::array<iovec, most_buffers> parts{};
  const std::size_t count = std::min(buffers.size(), parts.size());
  for (std::size_t i = 0; i < count; ++i) parts[i] = {const_cast<void*>(buffers[i].data()), buffers[i].size()};
  msghdr all{};
  all.msg_iov = parts.data();
  all.msg_iovlen = count;
  const ssize_t sent = ::sendmsg(socket.native_handle(), &all, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent < 0 ? 0 : static_cast<std::size_t>(sent);
}

Task<error_code> Connection::write_rest(std::span<const net::const_buffer> buffers, std::size_t skip, Millis limit,
                                        std::uint64_t& written) {
  error_code error;
  write_late_ = false;
  if (tls_) co_return co_await write_tls(buffers, limit, written);
  std::size_t at = 0;
  while (at < buffers.size() && skip >= buffers[at].size()) skip -= buffers[at++].size();
  // A small head and body are sent in one piece; there are at most four buffers.
  std::array<net::const_buffer, most_buffers> piece;
  while (at < buffers.size() && !error) {
    std::size_t room = write_bytes;
    std::size_t count = 0;
    while (at < buffers.size() && room > 0 && count < piece.size()) {
      const net::const_buffer rest = buffers[at] + skip;
      piece[count] = net::buffer(rest, room);
      room -= piece[count].size();
      skip += piece[count].size();
      ++count;
      if (skip == buffers[at].size()) {
        ++at;
        skip = 0;
      }
    }
    const std::span<const net::const_buffer> now(piece.data(), count);
    write_by_ = about_now() + limit;
    const auto [failed, count_written] = co_await net::async_write(socket, now, in_place);
    error = failed;
    written += count_written;
    write_by_ = no_deadline;
  }
  if (error && write_late_) co_return net::error::timed_out;
  co_return error;
}

Task<error_code> Connection::connect(const Stream::endpoint& endpoint, Millis limit) {
  error_code error;
  write_late_ = false;
  write_by_ = about_now() + limit;
  for (;;) {
    co_await socket.async_connect(endpoint, net::redirect_error(use_task, error));
    if (error || endpoint.protocol().family() != AF_UNIX) break;
    // If the queue of a Unix socket is full, connect(2) gives EAGAIN, and nothing says when there is room. Asio takes
    // it for a connection that is on its way.
    error_code is_none;
    static_cast<void>(socket.remote_endpoint(is_none));
    if (!is_none) break;
    co_await loop_.sleep(full_queue_pause);
    if (!socket.is_open()) error = net::error::operation_aborted;
    if (write_late_) error = net::error::timed_out;
    if (error) break;
  }
  write_by_ = no_deadline;
  if (error && write_late_) co_return net::error::timed_out;
  if (!error) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
  }
  co_return error;
}

std::optional<net::ip::address> Connection::remote() const {
  error_code error;
  const auto remote = socket.remote_endpoint(error);
  if (error) return std::nullopt;
  switch (remote.data()->sa_family) {
    case AF_INET:
    case AF_INET6: {
      tcp::endpoint peer;
      std::memcpy(peer.data(), remote.data(), std::min<std::size_t>(remote.size(), peer.capacity()));
      return plain_address(peer.address());
    }
    default:  // Of a Unix socket: it is on this host.
      return net::ip::address(net::ip::address_v4::loopback());
  }
}

std::string Connection::remote_address() const {
  const auto address = remote();
  return address ? address->to_string() : std::string();
}

bool Connection::is_quiet() {
  if (buffer.size() != 0 || !socket.is_open()) return false;
  char byte = 0;
  if (tls_) {  // TLS messages, such as new tickets, do not count as data.
    std::size_t count = 0;
    return tls_->read(&byte, 1, count) == tls::Step::more;
  }
  const auto got = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got < 0 && errno == EAGAIN;
}

bool Connection::is_gone() {
  if (!socket.is_open()) return true;
  pollfd wait{.fd = socket.native_handle(), .events = 0, .revents = 0};
  return ::poll(&wait, 1, 0) > 0 && (wait.revents & (POLLHUP | POLLERR)) != 0;
}

Task<void> Event::wait() {
  if (!timer_) timer_.emplace(loop_.io, Steady::time_point::max());
  while (!set_) co_await timer_->async_wait(in_place);
}

}  // namespace once::proxy
