// An upstream's answer, from the first byte to the head for the client.
// - What follows the head is the same body, however it comes in pieces; so is what the end of the connection ends.
// - What is forwarded has one reading: it is taken as well, with the same status, framing and body, and has no line
// that
//   is of a connection.
// - Boost.Beast's parser, if it takes the answer as well, reads the same, up to the same byte.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <boost/beast/http/string_body.hpp>

#include "frontends/proxy/answers.hpp"
#include "frontends/proxy/head.hpp"
#include "frontends/proxy/incoming.hpp"
#include "incoming_body.hpp"

namespace {

using namespace once::proxy;
using namespace once::fuzz;

// The bytes of the head. Empty: the answer is refused, as Exchange does.
std::optional<std::size_t> take(std::string_view bytes, bool to_head, Incoming& message) {
  const HeadScan scan = scan_head(bytes);
  if (scan.kind != HeadScan::Kind::complete) return std::nullopt;
  if (!message.read_answer(bytes.substr(0, scan.bytes), to_head) || !message.is_framed_well()) return std::nullopt;
  expect(message.status() >= 100 && message.status() <= 999);
  return scan.bytes;
}

Body read_whole(Incoming& message, std::string_view bytes, std::size_t step) {
  Body body = read_body(message, bytes, step);
  if (!body.malformed && !body.done) body.done = message.end_with_connection();
  return body;
}

void compare_with_beast(std::string_view bytes, const Incoming& answer, const Body& body, std::size_t used) {
  boost::beast::http::response_parser<boost::beast::http::string_body> parser;
  const std::optional<std::size_t> theirs = read_by_beast(parser, bytes);
  if (!theirs || !body.done) return;  // Not taken or not whole; ours is stricter.
  expect(parser.get().result_int() == answer.status() && parser.get().version() == answer.version());
  expect(*theirs == used);
  expect_same(parser.get(), answer, body);
}

}  // namespace

// The first byte says whether it answers a HEAD.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool to_head = data[0] % 2 == 1;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Incoming answer;
  const auto head_bytes = take(bytes, to_head, answer);
  if (!head_bytes) return 0;
  const std::string_view behind = bytes.substr(*head_bytes);
  const Body whole = read_whole(answer, behind, behind.size() + 1);
  if (!to_head) compare_with_beast(bytes, answer, whole, *head_bytes + whole.used);
  for (const std::size_t step : {std::size_t{1}, std::size_t{5}}) {
    Incoming again;
    expect(take(bytes, to_head, again).has_value());
    const Body pieces = read_whole(again, behind, step);
    // A malformed chunk may be refused before it is complete.
    expect(pieces.malformed == whole.malformed && (whole.malformed || pieces == whole));
  }
  if (whole.malformed || !whole.done || answer.status() < 200) return 0;

  const once::http::Answer kept = head_of(answer);
  for (const auto& line : kept.headers) {
    expect(!once::http::same_name(line.name, "Connection") && !once::http::same_name(line.name, "Transfer-Encoding"));
  }
  Framing framing{.kind = Framing::Kind::length, .length = whole.bytes.size()};
  if (to_head || answer.status() == 204 || answer.status() == 304) framing = {};
  const std::string written = write_answer_head(kept.status, kept.reason, kept.headers, framing, 11, true);
  Incoming second;
  const auto second_bytes = take(written, to_head, second);
  expect(second_bytes == written.size());
  expect(second.status() == answer.status() && (answer.reason().empty() || second.reason() == answer.reason()));
  const Body same = read_whole(second, whole.bytes, whole.bytes.size() + 1);
  expect(to_head || framing.kind == Framing::Kind::none || (same.done && same.bytes == whole.bytes));
  return 0;
}
