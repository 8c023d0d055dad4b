// Heads of messages: what is refused before it is parsed, what is refused after, and how they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>
#include <once/frontends/http/rules.hpp>

#include "frontends/proxy/incoming.hpp"
#include "text/header.hpp"

namespace once::proxy {

// Two parsers on the way that disagree about where a message ends are what request smuggling is made of. So the raw
// bytes of a head are held to the grammar that everybody agrees on (RFC 9112, sections 2.2 and 5): lines end in CR LF,
// no CR or LF stands alone, no NUL, no line is folded (begins with a blank).
struct HeadScan {
  enum class Kind : std::uint8_t { incomplete, complete, malformed };
  Kind kind = Kind::incomplete;
  std::size_t bytes = 0;  // complete: up to the end of the empty line. incomplete: where to go on.
};
// `from`: what an earlier call for the same head has said, 0 at first.
HeadScan scan_head(std::string_view bytes, std::size_t from = 0);

// What is wrong with a request.
struct Refusal {
  unsigned status = 400;
  std::string_view detail;  // Plain ASCII without quotes.
};
// A request, as it goes on. Views are into the message that was read.
struct RequestHead {
  std::string_view method;
  std::string target;  // In origin form, or "*". An absolute URI is made that, and its authority is in `host`.
  std::string host;    // Empty: as the Host line has it.
  unsigned version = 11;
  std::vector<http::HeaderView> headers;
};
// Begins `message` with a complete head. The one check of requests, for clients' and operators': its lines, how its
// body ends, whom it is for. 505: it is one of another HTTP than 1.x. `head` is as far as could be read.
std::optional<Refusal> read_request(std::string_view bytes, Incoming& message, RequestHead& head);

bool expects_continue(const std::vector<http::HeaderView>& headers);  // Expect: 100-continue

// Whether there is a header that servers may take for another. Those that make variables of headers (CGI, WSGI, PHP)
// read "X_Forwarded_Proto" as X-Forwarded-Proto, and a few do so with "X.Forwarded.Proto". It matters for what the
// proxy says itself (X-Forwarded-*), for what it goes by, and for what frames a message.
bool has_look_alike(const std::vector<http::HeaderView>& headers, const http::Options& rules);

// Which lines go on to the other side: all but those of this connection (RFC 9110, section 7.6.1), and but
// Content-Length, which whoever writes the message adds.
class Forwarding {
 public:
  explicit Forwarding(const std::vector<http::HeaderView>& headers);  // Of the message.
  [[nodiscard]] bool takes(const http::HeaderView& header) const;

 private:
  text::NameSet named_;  // By Connection.
};
std::vector<http::HeaderView> forwarded(const std::vector<http::HeaderView>& headers);

// How a body is told from what follows it.
struct Framing {
  enum class Kind : std::uint8_t {
    none,
    length,
    chunked,
    until_close,
    tunnel,  // What follows is WebSocket, and no HTTP.
  };
  Kind kind = Kind::none;
  std::uint64_t length = 0;
  std::string trailers = {};  // chunked: the names of fields that may follow the body, for a Trailer line.
};

// Fields behind a chunked body (RFC 9110, section 6.5): the names that the head announces in Trailer and that may go
// on. Those that frame or route a message, say who asks, or how it is to be read belong into a head and nowhere else;
// and so do what the head has already, and of a request what its `rules` go by: its key, a principal, what is compared.
std::vector<std::string> announced_trailers(const std::vector<http::HeaderView>& headers,
                                            const http::Options* rules = nullptr);
std::string joined(const std::vector<std::string>& names);
// The lines of those fields, from all that came behind the body.
std::string trailer_lines(const http::Headers& trailers, const std::vector<std::string>& announced);
bool takes_trailers(const std::vector<http::HeaderView>& headers);  // TE: trailers

// The Sec-WebSocket-Key of a request that asks for a tunnel in the only way that is understood here: a GET of HTTP/1.1
// without a body, Upgrade: websocket and nothing else, Connection names it (RFC 6455, section 4.1). Empty: it does not,
// and what it says of an upgrade is dropped.
std::string_view websocket_key(const RequestHead& head);
// Whether a 101 is the answer to that key, and nothing else is in it (section 4.2.2).
bool accepts_websocket(const std::vector<http::HeaderView>& headers, std::string_view key);

// How the request came, for those behind us.
struct Arrival {
  std::string_view address;  // Of whoever has sent it.
  bool tls = false;
  bool is_trusted = false;  // Its word about the way that the request took counts.
  bool takes_trailers = false;
  std::string certificate = {};  // The client's, verified, in DER. Empty: none was required.
};

// As the upstream gets it: with X-Forwarded-For, to which the address is appended, X-Forwarded-Proto, and Via. Of those
// who are not trusted, Forwarded and all other X-Forwarded- are dropped; of those who are, they go on, and so does
// their X-Forwarded-Proto if it is one line with http or https. A certificate is told in Client-Cert (RFC 9440), and
// what anybody sends by that name, or as Client-Cert-Chain, is dropped then.
std::string write_request_head(const RequestHead& head, const Framing& framing, const Arrival& arrival);

// As the client gets it. `version`: the client's. Adds Date if there is none. The lines are http::Headers, or
// std::vector<http::HeaderView> if they were read and go on.
template <class Lines = http::Headers>
std::string write_answer_head(unsigned status, std::string_view reason, const Lines& headers, const Framing& framing,
                              unsigned version, bool keep_alive);
std::string write_interim_head(unsigned status, std::string_view reason, const std::vector<http::HeaderView>& headers);

// The line before a chunk. CR LF follow it, and end the body if `bytes` is 0.
std::string chunk_head(std::size_t bytes);

// What the proxy itself answers: application/problem+json. `name` is a heading of docs/proxy.md.
http::Answer problem(std::string_view name, unsigned status, std::string_view title, std::string_view detail);

}  // namespace once::proxy
