// Short names for what the proxy uses of Boost.Asio. Executors are concrete types: the type-erased
// default costs a virtual call and an allocation for each operation.
//
// A rule for every coroutine here: no lambda with captures and no aggregate is made inside a co_await expression. g++
// 12 destroys it twice (GCC bugs 98401, 99576). Name it first.
#pragma once

#include <chrono>
#include <cstdint>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/error_code.hpp>

namespace once::proxy {

namespace net = boost::asio;
using boost::system::error_code;
using tcp = net::ip::tcp;

using Executor = net::io_context::executor_type;
using Socket = net::basic_stream_socket<tcp, Executor>;
using Steady = std::chrono::steady_clock;
using Timer = net::basic_waitable_timer<Steady, net::wait_traits<Steady>, Executor>;
template <class T>
using Task = net::awaitable<T, Executor>;
inline constexpr net::use_awaitable_t<Executor> use_task{};  // As a coroutine of its own,
inline constexpr net::as_tuple_t<net::deferred_t> in_place{net::deferred};  // and within the one that awaits it: without another frame.

}  // namespace once::proxy
