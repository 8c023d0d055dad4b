// HTTP messages as plain values: what the rules of once::http read and write. No socket, no parser, no server's types.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <once/compiler.hpp>

namespace once::http {

// One header line. Lines of one name may occur more than once, and their order counts.
struct Header {
  std::string name;
  std::string value;

  friend bool operator==(const Header&, const Header&) = default;
};
using Headers = std::vector<Header>;

struct HeaderView {
  std::string_view name;
  std::string_view value;
};

// A request, in views into what the server has read: valid for the call that it is given to, and kept by nobody.
struct Request {
  std::string_view method;          // As on the request line; upper and lower case differ.
  std::string_view target;          // As on the request line: "/charges?currency=eur", or an absolute URI.
  std::vector<HeaderView> headers;  // As they came.
  std::string_view body;            // Whole, without transfer coding.

  // Who asks, where the server knows it: the subject of a checked token, of a client's certificate. Any bytes. Counts
  // where Options::principal is Principal::given().
  std::string_view principal;
};

// An answer. What frames it on the connection (Content-Length, Transfer-Encoding) is up to the server that sends it.
struct Answer {
  unsigned status = 200;  // 100 to 599.
  std::string reason;     // Empty: the server's own.
  Headers headers;
  std::string body;

  friend bool operator==(const Answer&, const Answer&) = default;
};

bool same_letters(std::string_view a, std::string_view b) noexcept;

// Names of headers are compared without regard to upper and lower case (RFC 9110, section 5.1). Most differ in length.
inline bool same_name(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && same_letters(a, b);
}

// The first value of that name, or null.
const std::string* find_header(const Headers& headers, std::string_view name) noexcept;

}  // namespace once::http
