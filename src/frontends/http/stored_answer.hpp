// How an answer is kept in a record. Everything before the body is text, for people to read (`once show`):
//
//   once-http/1 201 body 15 Created            version, status, bytes of the body, reason if there is one
//   Content-Type: application/json             the headers, in their order, with their repetitions
//   (not stored: Date, Set-Cookie)             names of those that are not kept, if there are any
//                                              an empty line, and the body
//   {"id":"ch_1001"}
//
// Lines end in LF. The tombstone of an answer that was too large has `dropped` instead of `body`, the body's size (0:
// not known), and ends with the empty line.
//
// Not stored:
// - hop-by-hop headers (RFC 9110, section 7.6.1: Connection and those that it names, Keep-Alive, Proxy-Connection, TE,
//   Trailer, Transfer-Encoding, Upgrade)
// - Date, Server, Set-Cookie, WWW-Authenticate, Proxy-Authenticate, Idempotent-Replayed
// - lines that no HTTP parser accepts (a name that is not a token; CR, LF or NUL in the value), listed as '?'
// - Content-Length, which is not listed: it follows from the body
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
  Answer answer;                               // Without its body if that was dropped.
  std::optional<std::uint64_t> dropped_bytes;  // Set: a tombstone. 0: size not known.
  std::string not_stored;                      // Names of headers that were not kept: "Date, Set-Cookie".

  friend bool operator==(const StoredAnswer&, const StoredAnswer&) = default;
};

// `never`: names of further headers not to store. A body over `max_body_bytes` is dropped. Throws Exception(misuse) for
// a status outside 100 to 599.
Result encode_answer(const Answer& answer, std::size_t max_body_bytes, std::span<const std::string> never = {});

// The tombstone of an answer whose body is not available, or must not be kept. `body_bytes`: 0 if not known.
Result encode_tombstone(const Answer& head, std::uint64_t body_bytes, std::span<const std::string> never = {});

// Throws Exception(corrupt) for bytes that neither of the two above wrote.
StoredAnswer decode_answer(std::string_view bytes);

// The reverse of decode_answer(), without the rules about what is stored: returns exactly the bytes that it was given.
std::string to_bytes(const StoredAnswer& stored);

}  // namespace once::http
