#include "frontends/proxy/tunnel.hpp"

#include <array>
#include <utility>

namespace once::proxy {

namespace {

struct Tunnel {
  Connection& client;
  Connection& upstream;
  Millis idle;
  Millis write_limit;
  TunnelEnd end;
  Event one_is_over;

  // A byte was sent: restarts both deadlines.
  void moved() {
    client.set_read_deadline(idle);
    upstream.set_read_deadline(idle);
  }
  void break_off(TunnelEnd::Kind kind) {
    if (end.kind == TunnelEnd::Kind::ended) end.kind = kind;
    client.close();
    upstream.close();
  }
};

Task<void> carry(Tunnel& tunnel, Connection& from, Connection& to, std::uint64_t& count) {
  for (;;) {
    if (from.buffer.size() > 0) {
      const std::array<net::const_buffer, 1> out{net::buffer(from.buffer.view())};
      std::uint64_t written = 0;
      if (co_await to.write(out, tunnel.write_limit, written)) co_return tunnel.break_off(TunnelEnd::Kind::broken);
      count += from.buffer.size();
      from.buffer.clear();
      tunnel.moved();
    }
    const error_code error = co_await from.fill_without_limit();
    if (error == net::error::eof) co_return to.shut_down();
    if (error == net::error::timed_out) co_return tunnel.break_off(TunnelEnd::Kind::idle);
    if (error) co_return tunnel.break_off(TunnelEnd::Kind::broken);
    tunnel.moved();
  }
}

Task<void> carry_up(Tunnel& tunnel) {
  co_await carry(tunnel, tunnel.client, tunnel.upstream, tunnel.end.up_bytes);
  tunnel.one_is_over.set();
}

}  // namespace

Task<TunnelEnd> run_tunnel(Loop& loop, Connection& client, Connection& upstream, Millis idle, Millis write_limit) {
  Tunnel tunnel{client, upstream, idle, write_limit, {}, Event(loop)};
  tunnel.moved();
  Task<void> up = carry_up(tunnel);
  spawn(loop.io, std::move(up));
  co_await carry(tunnel, upstream, client, tunnel.end.down_bytes);
  co_await tunnel.one_is_over.wait();  // It uses this function's variables.
  client.clear_read_deadline();
  upstream.clear_read_deadline();
  co_return tunnel.end;
}

}  // namespace once::proxy
