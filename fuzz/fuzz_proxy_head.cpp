// What the proxy does with the head of a request, from the first byte to what goes on to the upstream.
// - Looking at the bytes piece by piece comes to what looking at all of them at once does.
// - What is taken has one reading: the head that is written is taken as well, has the same framing, one Host, and no
// line
//   that is of a connection; writing that again changes nothing but what is appended.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/proxy/head.hpp"
#include "frontends/proxy/net.hpp"

namespace {

using namespace once::proxy;

void expect(bool what) {
  if (!what) std::abort();
}

std::size_t lines_named(const RequestHead& head, std::string_view name) {
  std::size_t count = 0;
  for (const auto& header : head.headers) count += once::http::same_name(header.name, name) ? 1 : 0;
  return count;
}

// As a session reads it.
struct Taken {
  RequestParser parser;
  RequestHead head;
  Framing framing;
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
  taken.parser.header_limit(static_cast<std::uint32_t>(scan.bytes));
  taken.parser.body_limit(boost::none);
  error_code error;
  taken.parser.put(net::buffer(bytes.data(), bytes.size()), error);
  if ((error && error != bhttp::error::need_more && error != bhttp::error::need_buffer) ||
      !taken.parser.is_header_done()) {
    return false;
  }
  const auto method = taken.parser.get().method_string();
  const auto target = taken.parser.get().target();
  taken.head.method = {method.data(), method.size()};
  taken.head.target.assign(target.data(), target.size());
  taken.head.version = taken.parser.get().version();
  taken.head.headers = views_of(taken.parser.get());
  if (check_request(taken.head)) return false;
  if (taken.parser.chunked()) {
    taken.framing.kind = Framing::Kind::chunked;
  } else if (const auto length = taken.parser.content_length()) {
    taken.framing = {Framing::Kind::length, *length};
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Taken first;
  if (!take(bytes, first)) return 0;
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
