// HTTP messages as plain values, for the rules of once::http. No socket, no parser, no types of a server.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <once/compiler.hpp>

namespace once::http {

// One header line. A name may occur several times, and the order matters.
struct Header {
  std::string name = {};   // In any case: see same_name().
  std::string value = {};  // Without line breaks.

  friend bool operator==(const Header&, const Header&) = default;
};
using Headers = std::vector<Header>;  // In the order of the message.

// A header line in the server's memory.
struct HeaderView {
  std::string_view name = {};   // In any case: see same_name().
  std::string_view value = {};  // As received.
};

// A request: views into the server's memory. Valid during the call that gets it; never kept.
struct Request {
  std::string_view method = {};          // As on the request line; case-sensitive.
  std::string_view target = {};          // As on the request line: "/charges?currency=eur", or an absolute URI.
  std::vector<HeaderView> headers = {};  // As received.
  std::string_view body = {};            // The whole body, without transfer coding.

  // The client, if the server knows it: for example the subject of a verified token or of a certificate. Any bytes.
  // Used if Options::principal is Principal::given().
  std::string_view principal = {};
};

// An answer. The server that sends it adds the framing (Content-Length, Transfer-Encoding).
struct Answer {
  unsigned status = 200;    // 100 to 599.
  std::string reason = {};  // Empty: the server's own.
  Headers headers = {};     // Those of the framing do not count.
  std::string body = {};    // The whole body, without transfer coding.
  bool is_problem = false;  // Made here, for a request that is not answered by the service. It is never stored.

  friend bool operator==(const Answer&, const Answer&) = default;
};

// Whether two texts differ in nothing but the case of ASCII letters.
bool same_letters(std::string_view a, std::string_view b) noexcept;

// Compares header names, case-insensitively (RFC 9110, section 5.1). Most differ in length.
inline bool same_name(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && same_letters(a, b);
}

// The first value of that name, or null.
const std::string* find_header(const Headers& headers, std::string_view name) noexcept;

}  // namespace once::http
