#include "frontends/proxy/health.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "frontends/proxy/upstream.hpp"

namespace once::proxy {

namespace {

// Returns what is wrong, or an empty text.
Task<std::string> look(Loop& loop, const ProxyOptions& options, const Services& services, std::size_t index,
                       Millis limit) {
  std::unique_ptr<Connection> connection;
  std::string problem;
  const Trouble trouble = co_await open_connection(loop, services, index, limit, connection, problem);
  if (trouble != Trouble::none) co_return problem;
  const std::string& host = services.at(index).address.host;
  const std::string request = "GET " + services.path() + options.health_path +
                              " HTTP/1.1\r\nHost: " + (host.empty() ? "localhost" : host) +
                              "\r\nUser-Agent: once\r\nConnection: close\r\n\r\n";
  const std::array<net::const_buffer, 1> out{net::buffer(request)};
  std::uint64_t written = 0;
  if (const error_code error = co_await connection->write(out, limit, written)) co_return error.message();
  const auto until = Steady::now() + limit;
  constexpr std::string_view start = "HTTP/1.1 200";
  std::string_view seen;
  while (seen.size() < start.size()) {
    const auto left = std::chrono::duration_cast<Millis>(until - Steady::now());
    if (const error_code error = co_await connection->fill(std::max(left, Millis{1}))) {
      co_return "no answer to the health check: " + error.message();
    }
    seen = connection->buffer.view();
  }
  const char first = seen.starts_with("HTTP/1.") ? seen[start.size() - 3] : '0';
  if (first == '2' || first == '3') co_return std::string();
  co_return "the health check was answered with '" + std::string(seen.substr(0, seen.find("\r\n")).substr(0, 80)) + "'";
}

}  // namespace

Task<void> watch_health(Loop& loop, const ProxyOptions& options, std::uint64_t id) {
  const Millis limit = std::min(options.health_interval, options.timeouts.answer);
  while (!loop.closing()) {
    const std::shared_ptr<Services> services = loop.services;
    const auto index = services->find(id);
    if (!index) break;
    const std::string problem = co_await look(loop, options, *services, *index, limit);
    if (loop.closing() || !loop.services->find(id)) break;
    services->checked(*index, problem);
    co_await loop.sleep(options.health_interval);
  }
}

}  // namespace once::proxy
