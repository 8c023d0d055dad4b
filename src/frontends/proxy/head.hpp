// Heads of messages: checks before and after parsing, and writing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>
#include <once/frontends/http/rules.hpp>
#include <once/time.hpp>
#include <once/trace.hpp>

#include "frontends/proxy/incoming.hpp"
#include "text/header.hpp"

namespace once::proxy {

// Request smuggling needs two parsers that disagree about where a message ends. So the raw bytes of a head must follow
// the strict grammar (RFC 9112, sections 2.2 and 5): lines end in CR LF, without a single CR or LF, NUL, or folded line
// (one that begins with a blank).
struct HeadScan {
  enum class Kind : std::uint8_t { incomplete, complete, malformed };
  Kind kind = Kind::incomplete;
  std::size_t bytes = 0;  // complete: up to the end of the empty line. incomplete: where to continue.
};
// `from`: `bytes` of the earlier call for the same head, 0 at first.
HeadScan scan_head(std::string_view bytes, std::size_t from = 0);

// What is wrong with a request.
struct Refusal {
  unsigned status = 400;
  std::string_view detail;  // Plain ASCII without quotes.
};
// A request to forward. Views into the message that was read.
struct RequestHead {
  std::string_view method;
  // In origin form, or "*". An absolute URI is converted: its authority is `host`, and in the line of Host.
  std::string target;
  std::string host;  // Empty: use the Host line.
  unsigned version = 11;
  std::vector<http::HeaderView> headers;
};
// Begins `message` with a complete head, and checks it, for clients and operators: its lines, its framing, its host.
// 505: not HTTP/1.x. After a refusal `head` has the parts that could be read.
std::optional<Refusal> read_request(std::string_view bytes, Incoming& message, RequestHead& head);

bool expects_continue(const std::vector<http::HeaderView>& headers);  // Expect: 100-continue

// Whether servers may take one header for another. Those that make variables of headers (CGI, WSGI, PHP) read
// "X_Forwarded_Proto" as X-Forwarded-Proto, and a few also "X.Forwarded.Proto". Checks headers that the proxy sets
// (X-Forwarded-*), headers that its rules use, and framing headers.
bool has_look_alike(const std::vector<http::HeaderView>& headers, const http::Options& rules);

// Which lines are forwarded: all except hop-by-hop headers (RFC 9110, section 7.6.1) and Content-Length, which the
// writer adds.
class Forwarding {
 public:
  explicit Forwarding(const std::vector<http::HeaderView>& headers);  // Of the message.
  [[nodiscard]] bool takes(const http::HeaderView& header) const;

 private:
  text::NameSet named_;  // By Connection.
};
std::vector<http::HeaderView> forwarded(const std::vector<http::HeaderView>& headers);

// How the end of a body is found.
struct Framing {
  enum class Kind : std::uint8_t {
    none,
    length,
    chunked,
    until_close,
    tunnel,  // WebSocket follows, not HTTP.
  };
  Kind kind = Kind::none;
  std::uint64_t length = 0;
  std::string trailers = {};  // chunked: the names of allowed trailer fields, for a Trailer line.
};

// Trailer fields after a chunked body (RFC 9110, section 6.5): the names that the head announces in Trailer and that
// may be forwarded. Not allowed: fields for framing, routing, authentication or the content's form, fields that are in
// the head, and for a request all fields that its `rules` use (key, principal, fingerprint).
std::vector<std::string> announced_trailers(const std::vector<http::HeaderView>& headers,
                                            const http::Options* rules = nullptr);
std::string joined(const std::vector<std::string>& names);
// The lines of those fields, from all trailers.
std::string trailer_lines(const http::Headers& trailers, const std::vector<std::string>& announced);
bool takes_trailers(const std::vector<http::HeaderView>& headers);  // TE: trailers

// The Sec-WebSocket-Key of a request for a tunnel: a GET of HTTP/1.1 without a body, with only Upgrade: websocket,
// named in Connection (RFC 6455, section 4.1). Empty: no such request; its upgrade headers are dropped.
std::string_view websocket_key(const RequestHead& head);
// Whether a 101 answers that key, and nothing else (section 4.2.2).
bool accepts_websocket(const std::vector<http::HeaderView>& headers, std::string_view key);

// The trace of a request's sender. Empty: none that is valid, or several: nobody knows which counts (W3C Trace Context,
// section 3.2).
TraceParent trace_of(const std::vector<http::HeaderView>& headers);

// How the request came, for the upstream.
struct Arrival {
  std::string_view address;  // The sender's.
  bool tls = false;
  bool is_trusted = false;  // A trusted proxy: its forwarding headers are used.
  bool takes_trailers = false;
  std::string traceparent = {};  // With tracestate, instead of the sender's. Empty: the sender's, as they came.
  std::string tracestate = {};
  std::string certificate = {};  // The client's verified certificate in DER. Empty: none was required.
  std::string_view path = {};    // Of the upstream: comes before the target.
  http::Headers of_claim = {};   // Once-Attempt and others. Such headers of the sender are always dropped.
};

// The head for the upstream, with X-Forwarded-For (the address is appended), X-Forwarded-Proto and Via. From untrusted
// senders, Forwarded and other X-Forwarded- headers are dropped. From trusted ones they are forwarded, and their
// X-Forwarded-Proto is kept if it is one line with http or https. A certificate is sent in Client-Cert (RFC 9440); then
// the sender's own Client-Cert and Client-Cert-Chain are dropped.
std::string write_request_head(const RequestHead& head, const Framing& framing, const Arrival& arrival);

// How long to keep the connection of a response, at most `limit`. An upstream that announces its own limit
// ("Keep-Alive: timeout=5") closes the connection then, perhaps just when the next request is on its way: so half of
// that.
Millis kept_for(const std::vector<http::HeaderView>& headers, Millis limit);

// The head for the client. `version`: the client's. Adds Date if it is missing. `Lines` is http::Headers, or
// std::vector<http::HeaderView> for forwarded lines.
template <class Lines = http::Headers>
std::string write_answer_head(unsigned status, std::string_view reason, const Lines& headers, const Framing& framing,
                              unsigned version, bool keep_alive);
std::string write_interim_head(unsigned status, std::string_view reason, const std::vector<http::HeaderView>& headers);

// The line before a chunk, followed by CR LF. `bytes` 0 ends the body.
std::string chunk_head(std::size_t bytes);

// The proxy's own answers: application/problem+json. `name` is a heading of docs/proxy.md.
http::Answer problem(std::string_view name, unsigned status, std::string_view title, std::string_view detail);

}  // namespace once::proxy
