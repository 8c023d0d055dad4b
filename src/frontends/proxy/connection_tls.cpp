// The parts of a connection that differ with TLS.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/redirect_error.hpp>

#include "frontends/proxy/handshakes.hpp"
#include "frontends/proxy/loop.hpp"

namespace once::proxy {

namespace {

constexpr auto broken_off = net::error::connection_reset;

// The bytes from `at` that fit into one record: in place if they are contiguous, otherwise copied to `scratch`.
std::string_view gather(std::span<const net::const_buffer> buffers, std::size_t at, std::span<char> scratch) {
  std::size_t filled = 0;
  for (const net::const_buffer& buffer : buffers) {
    if (at >= buffer.size()) {
      at -= buffer.size();
      continue;
    }
    const std::string_view rest(static_cast<const char*>(buffer.data()) + at, buffer.size() - at);
    at = 0;
    if (filled == 0 && (rest.size() >= scratch.size() || &buffer == &buffers.back())) return rest;
    const std::size_t count = std::min(rest.size(), scratch.size() - filled);
    std::memcpy(scratch.data() + filled, rest.data(), count);
    filled += count;
  }
  return {scratch.data(), filled};
}

}  // namespace

Task<error_code> Connection::accept_tls(const tls::ServerContext& context, Millis limit) {
  tls_ = std::make_unique<tls::SocketStream>(socket.native_handle(), context);
  co_return co_await shake_hands(limit);
}

HandshakeFailure Connection::handshake_failure(error_code error) const {
  HandshakeFailure failure{.said_something = tls_->has_read()};
  if (error == net::error::timed_out) {
    failure.fault = HandshakeFault::timeout;
  } else {
    failure.openssl_code = tls_->error_code();
    failure.verdict = tls_->verdict();
    failure.fault = handshake_fault(failure.openssl_code, failure.verdict);
  }
  return failure;
}

Task<error_code> Connection::connect_tls(const std::string& host, std::shared_ptr<tls::Ticket> ticket, Millis limit,
                                         std::string& problem) {
  ticket_ = std::move(ticket);
  tls_ = std::make_unique<tls::SocketStream>(socket.native_handle(), *loop_.trusted, host, *ticket_);
  const error_code error = co_await shake_hands(limit);
  if (error) problem = error == broken_off ? tls_->error().message : error.message();
  co_return error;
}

Task<error_code> Connection::wait_for(tls::Step step) {
  error_code error;
  const auto what = step == tls::Step::room ? Socket::wait_write : Socket::wait_read;
  co_await socket.async_wait(what, net::redirect_error(use_task, error));
  co_return error;
}

Task<error_code> Connection::shake_hands(Millis limit) {
  set_read_deadline(limit);
  error_code error;
  tls::Step step = tls_->handshake();
  while (!error && (step == tls::Step::more || step == tls::Step::room)) {
    error = co_await wait_for(step);
    if (!error) step = tls_->handshake();
  }
  const bool late = error && read_late_;
  clear_read_deadline();
  if (late) co_return net::error::timed_out;
  if (!error && step != tls::Step::done) co_return broken_off;
  co_return error;
}

Task<error_code> Connection::read_tls(std::size_t at_most) {
  for (;;) {
    const auto space = buffer.prepare(at_most);
    std::size_t got = 0;
    const tls::Step step = tls_->read(space.data(), space.size(), got);
    buffer.commit(got);
    if (step == tls::Step::done) co_return error_code();
    if (step == tls::Step::closed) co_return net::error::eof;
    if (step == tls::Step::failed) co_return broken_off;
    buffer.release();  // The wait may be long.
    const error_code error = co_await wait_for(step);
    if (error && read_late_) co_return net::error::timed_out;
    if (error) co_return error;
  }
}

Task<error_code> Connection::write_tls(std::span<const net::const_buffer> buffers, Millis limit,
                                       std::uint64_t& written) {
  const std::size_t all = net::buffer_size(buffers);
  std::size_t done = 0;
  while (done < all) {
    write_by_ = about_now() + limit;
    std::size_t count = 0;
    const std::uint64_t before = tls_->sent_bytes();
    const tls::Step step = tls_->write(gather(buffers, done, loop_.scratch()), count);
    written += tls_->sent_bytes() - before;
    done += count;
    error_code error;
    if (step == tls::Step::failed || step == tls::Step::closed) error = broken_off;
    if (step == tls::Step::more || step == tls::Step::room) error = co_await wait_for(step);
    if (!error) continue;
    write_by_ = no_deadline;
    if (write_late_) co_return net::error::timed_out;
    co_return error;
  }
  write_by_ = no_deadline;
  co_return error_code();
}

}  // namespace once::proxy
