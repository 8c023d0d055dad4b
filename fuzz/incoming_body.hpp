// The body of a message of HTTP, as the proxy reads it, and as Boost.Beast's parser does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>

#include "frontends/proxy/incoming.hpp"

namespace once::fuzz {

inline void expect(bool what) {
  if (!what) std::abort();
}

struct Body {
  std::string bytes;
  bool malformed = false;
  bool done = false;
  std::size_t used = 0;
  http::Headers trailers;
  bool operator==(const Body&) const = default;
};

// `step` bytes more at a time.
inline Body read_body(proxy::Incoming& message, std::string_view bytes, std::size_t step) {
  Body body;
  for (std::size_t end = std::min(step, bytes.size());; end = std::min(end + step, bytes.size())) {
    for (;;) {
      const proxy::Incoming::Step taken = message.take(bytes.substr(body.used, end - body.used));
      body.used += taken.skipped + taken.piece.size();
      expect(body.used <= end);
      body.bytes += taken.piece;
      body.malformed = taken.malformed;
      if (body.malformed || taken.piece.empty()) break;
    }
    if (body.malformed || message.is_done() || end == bytes.size()) break;
  }
  body.done = message.is_done();
  body.trailers = message.trailers();
  return body;
}

// What it used of `bytes`. Empty: not taken, or not whole.
template <class Parser>
std::optional<std::size_t> read_by_beast(Parser& parser, std::string_view bytes) {
  parser.eager(true);
  boost::system::error_code error;
  std::size_t used = 0;
  while (!parser.is_done()) {
    const std::size_t some = parser.put(boost::asio::buffer(bytes.substr(used)), error);
    used += some;
    if (error || (some == 0 && !parser.is_done())) return std::nullopt;
  }
  return used;
}

// The same lines and body.
template <class Message>
void expect_same(const Message& theirs, const proxy::Incoming& ours, const Body& body) {
  using Lines = std::vector<std::pair<std::string, std::string>>;
  expect(theirs.body() == body.bytes);
  Lines of_theirs;
  Lines of_ours;
  for (const auto& field : theirs) of_theirs.emplace_back(field.name_string(), field.value());
  for (const auto& field : ours.headers()) of_ours.emplace_back(field.name, field.value);
  for (const auto& field : body.trailers) of_ours.emplace_back(field.name, field.value);
  std::ranges::sort(of_theirs);  // It puts lines of one name together.
  std::ranges::sort(of_ours);
  expect(of_theirs == of_ours);
}

}  // namespace once::fuzz
