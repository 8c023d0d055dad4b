// The form in which an answer is kept in a record. Text up to the body, so that people can read it (`once show`):
//
//   once-http/1 201 body 15 Created            version, status, bytes of the body, reason if there is one
//   Content-Type: application/json             the headers, in their order, with their repetitions
//   (not stored: Date, Set-Cookie)             names of those that are not kept, if there are any
//                                              an empty line, and the body
//   {"id":"ch_1001"}
//
// Lines end in LF. A tombstone, of an answer that was too large, has `dropped` in place of `body`, the number of bytes
// that there were (0: not known), and ends with the empty line.
//
// Not stored: hop-by-hop headers (RFC 9110, section 7.6.1: Connection and those that it names, Keep-Alive,
// Proxy-Connection, TE, Trailer, Transfer-Encoding, Upgrade), Date, Server, Set-Cookie, WWW-Authenticate,
// Proxy-Authenticate, Idempotent-Replayed; and lines that no HTTP parser would take (a name that is no token; CR, LF or
// NUL in the value), whose name is given as '?'. Content-Length is not stored either, and not listed: the body tells
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <once/frontends/http/message.hpp>
#include <once/result.hpp>

namespace once::http {

// Result::content_type of a stored answer.
inline constexpr std::string_view answer_content_type = "application/vnd.once.http";

struct StoredAnswer {
  Answer answer;                               // Without body if that was dropped.
  std::optional<std::uint64_t> dropped_bytes;  // Set: a tombstone. 0: their number is not known.
  std::string not_stored;                      // Names of headers that were not kept: "Date, Set-Cookie".

  friend bool operator==(const StoredAnswer&, const StoredAnswer&) = default;
};

// `never`: names of further headers not to store. A body of more than `max_body_bytes` is dropped.
// Throws Exception(misuse) for a status outside 100 to 599.
Result encode_answer(const Answer& answer, std::size_t max_body_bytes, std::span<const std::string> never = {});

// A tombstone of an answer whose body is not at hand, or not to be kept. `body_bytes`: 0 if it is not known.
Result encode_tombstone(const Answer& head, std::uint64_t body_bytes, std::span<const std::string> never = {});

// Throws Exception(corrupt) for anything that the two above did not write.
StoredAnswer decode_answer(std::string_view bytes);

}  // namespace once::http
