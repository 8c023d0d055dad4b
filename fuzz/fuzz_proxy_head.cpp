// The proxy's handling of a request's head, from the first byte to the head for the upstream.
// - Looking at the bytes piece by piece comes to what looking at all of them at once does.
// - What is taken has one reading: the head that is written is taken as well, has the same framing, one Host, and no
//   line that is of a connection; writing that again changes nothing but what is appended.
// - What follows the head is the same body, however it comes in pieces.
// - No head costs more than a multiple of linear work. Those that are known as dear are tried at the start.
// - Boost.Beast's parser, if it takes a message as well, reads the same: it ends at the same byte, and has the same
//   lines and the same body.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "../bench/heads.hpp"
#include "frontends/proxy/head.hpp"
#include "frontends/proxy/incoming.hpp"
#include "incoming_body.hpp"

namespace {

using namespace once::proxy;
using namespace once::fuzz;

std::size_t lines_named(const RequestHead& head, std::string_view name) {
  std::size_t count = 0;
  for (const auto& header : head.headers) count += once::http::same_name(header.name, name) ? 1 : 0;
  return count;
}

// As a session reads it.
struct Taken {
  Incoming message;
  RequestHead head;
  Framing framing;
  std::size_t head_bytes = 0;
};

HeadScan scan_in_pieces(std::string_view bytes, std::size_t step) {
  HeadScan scan;
  for (std::size_t end = step; scan.kind == HeadScan::Kind::incomplete; end += step) {
    scan = scan_head(bytes.substr(0, end), scan.bytes);
    if (end >= bytes.size()) break;
  }
  return scan;
}

bool take(std::string_view bytes, Taken& taken) {
  const HeadScan scan = scan_head(bytes);
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}}) {
    const HeadScan again = scan_in_pieces(bytes, step);
    expect(again.kind == scan.kind && (scan.kind != HeadScan::Kind::complete || again.bytes == scan.bytes));
  }
  if (scan.kind != HeadScan::Kind::complete) return false;
  if (read_request(bytes.substr(0, scan.bytes), taken.message, taken.head)) return false;
  taken.head_bytes = scan.bytes;
  if (taken.message.chunked()) {
    taken.framing.kind = Framing::Kind::chunked;
  } else if (const auto length = taken.message.content_length()) {
    taken.framing = {Framing::Kind::length, *length};
  }
  return true;
}

void compare_with_beast(std::string_view bytes, const Taken& taken, const Body& body) {
  boost::beast::http::request_parser<boost::beast::http::string_body> parser;
  const std::optional<std::size_t> used = read_by_beast(parser, bytes);
  if (!used || !body.done) return;  // Not taken or not whole; ours is stricter.
  const auto& message = parser.get();
  expect(message.method_string() == taken.message.method() && message.target() == taken.message.target());
  expect(message.version() == taken.message.version());
  expect(*used == taken.head_bytes + body.used);
  expect_same(message, taken.message, body);
}

constexpr std::size_t dear_bytes = 31 * 1024;

// What a byte of linear work costs here: with the sanitizers 30 ns if the compiler optimises, and 120 ns otherwise.
double linear_ns() {
  const auto heads = dear_heads(dear_bytes);
  const auto lines = std::ranges::find(heads, "short lines", [](const auto& each) { return each.first; });
  expect(lines != heads.end());
  return HeadWork().ns_per_byte(lines->second, 20);
}

// Times that of linear work. The square of the length took more than 100 times. The readings of a path, which are
// bounded for all lengths together, have a separate limit: the dearest that was found took 1.1 million.
constexpr double most_per_byte = 70;
constexpr double most_for_path = 2'500'000;

bool is_cheap(std::string_view bytes) {
  static HeadWork work;
  static const double unit = linear_ns();
  const double most = unit * (most_per_byte + most_for_path / static_cast<double>(bytes.size()));
  // Once to see that it is. What is not may have been interrupted.
  return work.ns_per_byte(bytes, 1) < most || work.ns_per_byte(bytes, 5) < most;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  for (const auto& [name, head] : dear_heads(dear_bytes)) expect(is_cheap(head));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (size > 0) expect(is_cheap(bytes));
  Taken first;
  if (!take(bytes, first)) return 0;
  const std::string_view behind = bytes.substr(first.head_bytes);
  const Body whole = read_body(first.message, behind, behind.size() + 1);
  compare_with_beast(bytes, first, whole);
  for (const std::size_t step : {std::size_t{1}, std::size_t{5}}) {
    Taken again;
    expect(take(bytes, again));
    const Body pieces = read_body(again.message, behind, step);
    // A malformed head may be refused before it is complete.
    expect(pieces.malformed == whole.malformed && (whole.malformed || pieces == whole));
  }
  if (lines_named(first.head, "Host") == 0 && first.head.host.empty()) first.head.host = "upstream";
  const bool is_chunked = first.framing.kind == Framing::Kind::chunked;
  if (is_chunked) first.framing.trailers = joined(announced_trailers(first.head.headers));
  const std::string_view key = websocket_key(first.head);
  expect(key.empty() || first.framing.kind == Framing::Kind::none);
  const Arrival arrival{.address = "10.0.0.1", .tls = false, .takes_trailers = takes_trailers(first.head.headers)};
  const std::string written = write_request_head(first.head, first.framing, arrival);
  Taken second;
  expect(take(written, second));
  expect(second.head.method == first.head.method && second.head.target == first.head.target);
  expect(second.framing.kind == first.framing.kind && second.framing.length == first.framing.length);
  expect(lines_named(second.head, "Host") == 1 && lines_named(second.head, "Upgrade") == 0);
  expect(lines_named(second.head, "X-Forwarded-Proto") == 1 && lines_named(second.head, "Via") == 1);
  expect(takes_trailers(second.head.headers) == arrival.takes_trailers);
  expect(joined(announced_trailers(second.head.headers)) == first.framing.trailers);
  return 0;
}
