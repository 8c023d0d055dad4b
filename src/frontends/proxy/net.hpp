// Short names for the parts of Boost.Asio that the proxy uses. Executors are concrete types: the type-erased default
// costs a virtual call and an allocation for each operation.
//
// A rule for every coroutine here: no lambda with captures and no aggregate is made inside a co_await expression. g++
// 12 destroys it twice (GCC bugs 98401, 99576). Name it first.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/error_code.hpp>

namespace once::proxy {

namespace net = boost::asio;
using boost::system::error_code;
using tcp = net::ip::tcp;

using Executor = net::io_context::executor_type;
// Of TCP, or a Unix socket. Options of TCP fail on the latter, which does no harm.
using Stream = net::generic::stream_protocol;
using Socket = net::basic_stream_socket<Stream, Executor>;
using Steady = std::chrono::steady_clock;
using Timer = net::basic_waitable_timer<Steady, net::wait_traits<Steady>, Executor>;

// The time for deadlines: the steady clock at the kernel's last tick, so some milliseconds old, at a tenth of the cost
// (clock_gettime(2), CLOCK_MONOTONIC_COARSE; steady_clock of libstdc++ and libc++ is CLOCK_MONOTONIC).
inline Steady::time_point about_now() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);  // Cannot fail for this clock.
  return Steady::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

template <class T>
using Task = net::awaitable<T, Executor>;
// Two ways to await an operation of Asio: as its own coroutine, or in place, which saves that frame and gives a tuple
// with the error_code first.
inline constexpr net::use_awaitable_t<Executor> use_task{};
inline constexpr net::as_tuple_t<net::deferred_t> in_place{net::deferred};

}  // namespace once::proxy
