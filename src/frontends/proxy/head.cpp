#include "frontends/proxy/head.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <utility>

#include <boost/beast/http/status.hpp>

#include "frontends/http/headers.hpp"
#include "frontends/http/problem.hpp"
#include "text/ascii.hpp"
#include "text/base64.hpp"
#include "text/number.hpp"

namespace once::proxy {

using http::HeaderView;
using http::same_name;

namespace {

// Hop-by-hop headers.
constexpr std::array<std::string_view, 8> of_connection{
    "Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length"};

// RFC 9440: the client certificate that a proxy has verified.
constexpr std::string_view client_cert = "Client-Cert";
constexpr std::string_view client_cert_chain = "Client-Cert-Chain";

text::NameSet named_by_connection(const std::vector<HeaderView>& headers) {
  std::vector<std::string_view> names;  // Usually empty, which costs nothing.
  for (const HeaderView& header : headers) {
    if (!same_name(header.name, "Connection")) continue;
    const auto members = text::list_members(header.value);
    names.insert(names.end(), members.begin(), members.end());
  }
  // A client must not remove Host and the framing headers.
  std::erase_if(names, [](std::string_view name) { return same_name(name, "Host"); });
  return text::NameSet(std::move(names));
}

bool contains(const auto& names, std::string_view name) {
  return std::ranges::any_of(names, [&](std::string_view other) { return same_name(other, name); });
}

std::size_t count(const std::vector<HeaderView>& headers, std::string_view name) {
  return static_cast<std::size_t>(
      std::ranges::count_if(headers, [&](const HeaderView& header) { return same_name(header.name, name); }));
}

std::string_view first(const std::vector<HeaderView>& headers, std::string_view name) {
  const auto at = std::ranges::find_if(headers, [&](const HeaderView& header) { return same_name(header.name, name); });
  return at == headers.end() ? std::string_view() : text::trim(at->value);
}

bool has_prefix(std::string_view name, std::string_view prefix) {
  return same_name(name.substr(0, prefix.size()), prefix);
}

// Equal except for characters that are neither letters nor digits, in the same places.
bool is_look_alike(std::string_view name, std::string_view of) {
  if (name.size() != of.size()) return false;
  bool differs = false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char a = text::lower(name[i]);
    const char b = text::lower(of[i]);
    if (a == b) continue;
    if (text::is_letter_or_digit(a) || text::is_letter_or_digit(b)) return false;
    differs = true;
  }
  return differs;
}

// Like a header that frames a message, or that the proxy sets. `rules`: or that they use. Null: none.
bool looks_like_ours(std::string_view name, const http::Options* rules) {
  static constexpr std::string_view forwarded_for = "X-Forwarded-";
  static constexpr std::array<std::string_view, 4> always{"Content-Length", "Transfer-Encoding", client_cert,
                                                          client_cert_chain};
  // The first letter or the length excludes nearly all.
  if (text::lower(name.front()) == 'x' && is_look_alike(name.substr(0, forwarded_for.size()), forwarded_for))
    return true;
  if (is_look_alike(name.substr(0, http::claim_prefix.size()), http::claim_prefix)) return true;
  const auto looks_like = [&](std::string_view other) { return is_look_alike(name, other); };
  if (std::ranges::any_of(always, looks_like)) return true;
  if (rules == nullptr || !rules->protect) return false;
  return (rules->key_is_in_header() && std::ranges::any_of(text::list_members(rules->key_header), looks_like)) ||
         std::ranges::any_of(rules->principal.reads(), looks_like) ||
         std::ranges::any_of(rules->fingerprint_headers, looks_like);
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// uri-host [":" port] (RFC 3986, section 3.2.2). Like nginx, refuses an empty host and two dots in a row.
bool is_host(std::string_view text) {
  std::string_view host = text.substr(0, text.find(':'));
  if (text.starts_with('[')) {
    host = text.substr(0, std::min(text.find(']'), text.size() - 1) + 1);
    const std::string_view address = host.substr(1, host.size() - 2);
    if (host.size() < 3 || !host.ends_with(']') ||
        address.find_first_not_of("0123456789abcdefABCDEF:.") != std::string_view::npos) {
      return false;
    }
  } else {
    constexpr std::string_view marks = "-._~%!$&'()*+,;=";
    const auto fits = [&](char c) { return text::is_letter_or_digit(c) || marks.find(c) != std::string_view::npos; };
    if (host.empty() || host == "." || host.find("..") != std::string_view::npos || !std::ranges::all_of(host, fits)) {
      return false;
    }
  }
  const std::string_view port = text.substr(host.size());
  return port.empty() || port == ":" || (port.starts_with(':') && is_digits(port.substr(1)));
}

void append(std::string& out, std::string_view name, std::string_view value) {
  constexpr std::string_view between = ": ";
  constexpr std::string_view end = "\r\n";
  out.append(name).append(between).append(value).append(end);
}

void append(std::string& out, const Framing& framing) {
  if (framing.kind == Framing::Kind::length) append(out, "Content-Length", std::to_string(framing.length));
  if (framing.kind == Framing::Kind::chunked) append(out, "Transfer-Encoding", "chunked");
  if (framing.kind == Framing::Kind::chunked && !framing.trailers.empty()) append(out, "Trailer", framing.trailers);
  if (framing.kind == Framing::Kind::tunnel) out += "Connection: Upgrade\r\nUpgrade: websocket\r\n";
}

void append_status_line(std::string& out, unsigned status, std::string_view reason) {
  out += "HTTP/1.1 ";
  out += std::to_string(status);
  out += ' ';
  if (reason.empty()) {
    const auto usual = boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(status));
    out.append(usual.data(), usual.size());
  } else {
    out += reason;
  }
  out += "\r\n";
}

// RFC 9110, section 5.6.7. In English, in every locale.
std::string http_date(std::time_t now) {
  static constexpr const char* days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                           "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&now, &utc);
  const auto two = [](int number) { return (number < 10 ? "0" : "") + std::to_string(number); };
  return std::string(days[utc.tm_wday]) + ", " + two(utc.tm_mday) + ' ' + months[utc.tm_mon] + ' ' +
         std::to_string(1900 + utc.tm_year) + ' ' + two(utc.tm_hour) + ':' + two(utc.tm_min) + ':' + two(utc.tm_sec) +
         " GMT";
}

// Whether the request line of a complete head has another HTTP version than 1.x.
bool is_other_http(std::string_view head) {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  constexpr std::string_view http = " HTTP/";
  if (line.size() < http.size() + 3) return false;
  const std::string_view version = line.substr(line.size() - 3);
  return line.substr(line.size() - 3 - http.size()).starts_with(http) && is_digits(version.substr(0, 1)) &&
         version[1] == '.' && is_digits(version.substr(2)) && version[0] != '1';
}

// Cached for this second, because many answers use it.
const std::string& date_of_now() {
  struct Known {
    std::time_t second = -1;
    std::string text;
  };
  thread_local Known known;
  const std::time_t now = std::time(nullptr);
  if (known.second != now) known = {now, http_date(now)};
  return known.text;
}

}  // namespace

HeadScan scan_head(std::string_view bytes, std::size_t from) {
  using Kind = HeadScan::Kind;
  // Everything before `from` is valid; `from` is the beginning of a line or of a line end.
  std::size_t at = from;
  while (at < bytes.size()) {
    const bool begins_line = at >= 2 && bytes[at - 1] == '\n';
    if (begins_line && (bytes[at] == ' ' || bytes[at] == '\t')) return {Kind::malformed, at};
    const std::string_view line = bytes.substr(at, bytes.find('\r', at) - at);
    const std::size_t bad = std::min(line.find('\n'), line.find('\0'));
    if (bad != std::string_view::npos) return {Kind::malformed, at + bad};
    at += line.size();
    if (at + 1 >= bytes.size()) return {Kind::incomplete, at};
    if (bytes[at + 1] != '\n') return {Kind::malformed, at};
    at += 2;
    if (begins_line && line.empty()) return {Kind::complete, at};
  }
  return {Kind::incomplete, at};
}

std::optional<Refusal> read_request(std::string_view bytes, Incoming& message, RequestHead& head) {
  head.method = {};
  head.target.clear();
  head.host.clear();
  head.version = 11;
  head.headers.clear();
  if (!message.read_request(bytes)) {
    if (message.has_too_many())
      return Refusal{431, "The request has too many headers, or too many names in one of them."};
    if (is_other_http(bytes)) return Refusal{505, "Only HTTP/1.0 and HTTP/1.1 are supported."};
    return Refusal{400, "The request line or a header cannot be read."};
  }
  head.method = message.method();
  head.target.assign(message.target());
  head.version = message.version();
  head.headers.assign(message.headers().begin(), message.headers().end());
  if (!message.is_framed_well()) return Refusal{400, message.framing_fault()};
  const std::size_t hosts = count(head.headers, "Host");
  if (hosts > 1 || (hosts == 0 && head.version == 11))
    return Refusal{400, "The request must have exactly one Host header."};
  if (hosts == 1 && !is_host(first(head.headers, "Host"))) return Refusal{400, "The Host header does not name a host."};
  if (head.method == "CONNECT") return Refusal{501, "CONNECT is not supported."};
  if (head.target.starts_with('/')) return std::nullopt;
  if (head.target == "*" && head.method == "OPTIONS") return std::nullopt;
  // RFC 9112, section 3.2.2: the authority replaces Host.
  const auto slashes = head.target.find("://");
  const std::string_view scheme = std::string_view(head.target).substr(0, slashes);
  if (slashes == std::string::npos || !(same_name(scheme, "http") || same_name(scheme, "https"))) {
    return Refusal{400, "The request target is neither a path nor an http URI."};
  }
  const auto end = head.target.find_first_of("/?#", slashes + 3);
  head.host = head.target.substr(slashes + 3, end == std::string::npos ? end : end - slashes - 3);
  std::string path = end == std::string::npos ? std::string() : head.target.substr(end);
  if (!is_host(head.host)) {
    return Refusal{400, "The request target has no host, or contains a user."};
  }
  if (!path.starts_with('/')) path.insert(0, 1, '/');
  head.target = std::move(path);
  // All that reads the headers must see the host that the service gets: keys, principals, fingerprints.
  std::erase_if(head.headers, [](const HeaderView& header) { return same_name(header.name, "Host"); });
  head.headers.push_back({"Host", message.target().substr(slashes + 3, head.host.size())});
  return std::nullopt;
}

bool expects_continue(const std::vector<HeaderView>& headers) {
  return std::ranges::any_of(headers, [](const HeaderView& header) {
    return same_name(header.name, "Expect") && same_name(header.value, "100-continue");
  });
}

bool has_look_alike(const std::vector<HeaderView>& headers, const http::Options& rules) {
  return std::ranges::any_of(headers, [&](const HeaderView& header) { return looks_like_ours(header.name, &rules); });
}

std::vector<std::string> announced_trailers(const std::vector<HeaderView>& headers, const http::Options* rules) {
  static constexpr std::array<std::string_view, 22> only_in_heads{"Host",
                                                                  client_cert,
                                                                  client_cert_chain,
                                                                  "Authorization",
                                                                  "Proxy-Authorization",
                                                                  "Proxy-Authenticate",
                                                                  "WWW-Authenticate",
                                                                  "Cookie",
                                                                  "Set-Cookie",
                                                                  "Content-Encoding",
                                                                  "Content-Type",
                                                                  "Content-Range",
                                                                  "Cache-Control",
                                                                  "Expect",
                                                                  "Max-Forwards",
                                                                  "Range",
                                                                  "Via",
                                                                  "Age",
                                                                  "Date",
                                                                  "Expires",
                                                                  "Location",
                                                                  "Vary"};
  if (count(headers, "Trailer") == 0) return {};
  std::vector<std::string_view> present;
  present.reserve(headers.size());
  for (const HeaderView& header : headers) present.push_back(header.name);
  const text::NameSet in_head(std::move(present));
  const auto says_whose = [&](std::string_view name) {
    return rules != nullptr && (contains(text::list_members(rules->key_header), name) ||
                                contains(rules->principal.reads(), name) || contains(rules->fingerprint_headers, name));
  };
  std::vector<std::string> names;
  for (const HeaderView& header : headers) {
    if (!same_name(header.name, "Trailer")) continue;
    for (const std::string_view name : text::list_members(header.value)) {
      const bool good = text::is_token(name) && !contains(of_connection, name) && !contains(only_in_heads, name) &&
                        !has_prefix(name, "X-Forwarded-") && !http::is_about_claim(name) &&
                        !looks_like_ours(name, rules) && !same_name(name, "Idempotency-Key") && !says_whose(name) &&
                        !in_head.contains(name);
      if (good) names.emplace_back(name);
    }
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

std::string trailer_lines(const http::Headers& trailers, const std::vector<std::string>& announced) {
  std::string out;
  const text::NameSet names({announced.begin(), announced.end()});
  for (const http::Header& field : trailers) {
    if (names.contains(field.name)) append(out, field.name, field.value);
  }
  return out;
}

bool takes_trailers(const std::vector<HeaderView>& headers) {
  return std::ranges::any_of(headers, [](const HeaderView& header) {
    return same_name(header.name, "TE") && contains(text::list_members(header.value), "trailers");
  });
}

std::string_view websocket_key(const RequestHead& head) {
  constexpr std::size_t key_characters = 24;  // 16 bytes in base64.
  const auto& headers = head.headers;
  const std::string_view key = first(headers, "Sec-WebSocket-Key");
  const bool asks = head.method == "GET" && head.version == 11 && count(headers, "Upgrade") == 1 &&
                    same_name(first(headers, "Upgrade"), "websocket") &&
                    named_by_connection(headers).contains("Upgrade") && count(headers, "Content-Length") == 0 &&
                    count(headers, "Transfer-Encoding") == 0 && count(headers, "Sec-WebSocket-Key") == 1 &&
                    key.size() == key_characters;
  return asks ? key : std::string_view();
}

bool accepts_websocket(const std::vector<HeaderView>& headers, std::string_view key) {
  const std::string text = std::string(key) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  if (EVP_Digest(text.data(), text.size(), digest.data(), &bytes, EVP_sha1(), nullptr) != 1) return false;
  return first(headers, "Sec-WebSocket-Accept") ==
             text::encode_base64({reinterpret_cast<const char*>(digest.data()), bytes}) &&
         count(headers, "Upgrade") == 1 && same_name(first(headers, "Upgrade"), "websocket") &&
         named_by_connection(headers).contains("Upgrade") && count(headers, "Content-Length") == 0 &&
         count(headers, "Transfer-Encoding") == 0;
}

Forwarding::Forwarding(const std::vector<HeaderView>& headers) : named_(named_by_connection(headers)) {}

bool Forwarding::takes(const HeaderView& header) const {
  return !contains(of_connection, header.name) && !named_.contains(header.name);
}

std::vector<HeaderView> forwarded(const std::vector<HeaderView>& headers) {
  const Forwarding forwarding(headers);
  std::vector<HeaderView> out;
  out.reserve(headers.size());
  for (const HeaderView& header : headers) {
    if (forwarding.takes(header) && !http::is_about_claim(header.name)) out.push_back(header);
  }
  return out;
}

Millis kept_for(const std::vector<HeaderView>& headers, Millis limit) {
  for (const http::HeaderView& header : headers) {
    if (!same_name(header.name, "Keep-Alive")) continue;
    for (const std::string_view member : text::list_members(header.value)) {
      const auto equals = member.find('=');
      if (equals == std::string_view::npos || !same_name(text::trim(member.substr(0, equals)), "timeout")) {
        continue;
      }
      const auto seconds = text::parse_whole<std::uint64_t>(text::trim(member.substr(equals + 1), " \t\""));
      constexpr std::uint64_t day = 24 * 60 * 60;
      if (seconds && *seconds < day) limit = std::min(limit, Millis(*seconds * 500));
    }
  }
  return limit;
}

TraceParent trace_of(const std::vector<HeaderView>& headers) {
  if (count(headers, "traceparent") != 1) return {};
  return TraceParent::from_text(first(headers, "traceparent")).value_or(TraceParent());
}

std::string write_request_head(const RequestHead& head, const Framing& framing, const Arrival& arrival) {
  std::string out;
  out.reserve(1024);
  out += head.method;
  out += ' ';
  if (head.target.starts_with('/')) out += arrival.path;  // Not before "*".
  out += head.target;
  out += " HTTP/1.1\r\n";
  if (!head.host.empty()) append(out, "Host", head.host);
  std::string clients;
  std::string via;
  constexpr std::string_view forwarded_proto = "X-Forwarded-Proto";
  std::string_view proto = arrival.tls ? "https" : "http";
  if (arrival.is_trusted && count(head.headers, forwarded_proto) == 1) {
    const std::string_view told = first(head.headers, forwarded_proto);
    if (same_name(told, "http") || same_name(told, "https")) proto = told;
  }
  // Headers in which a client could lie about its address or scheme, and those that are replaced.
  const auto is_hearsay = [&](std::string_view name) {
    if (!arrival.certificate.empty() && (same_name(name, client_cert) || same_name(name, client_cert_chain)))
      return true;
    if (!arrival.traceparent.empty() && (same_name(name, "traceparent") || same_name(name, "tracestate"))) return true;
    if (http::is_about_claim(name)) return true;
    return !arrival.is_trusted && (same_name(name, "Forwarded") || has_prefix(name, "X-Forwarded-"));
  };
  const auto join = [](std::string& list, std::string_view value) {
    if (!list.empty()) list += ", ";
    list += value;
  };
  const Forwarding forwarding(head.headers);
  for (const HeaderView& header : head.headers) {
    if (!forwarding.takes(header)) continue;
    if (same_name(header.name, "X-Forwarded-For")) {
      join(clients, header.value);
    } else if (same_name(header.name, "Via")) {
      join(via, header.value);
    } else if (!same_name(header.name, "Expect") && !same_name(header.name, forwarded_proto) &&
               !is_hearsay(header.name) && !(same_name(header.name, "Host") && !head.host.empty())) {
      append(out, header.name, header.value);
    }
  }
  join(clients, arrival.address);
  join(via, head.version == 11 ? "1.1 once" : "1.0 once");
  append(out, "X-Forwarded-For", clients);
  append(out, forwarded_proto, proto);
  append(out, "Via", via);
  for (const http::Header& header : arrival.of_claim) append(out, header.name, header.value);
  if (!arrival.traceparent.empty()) append(out, "traceparent", arrival.traceparent);
  if (!arrival.tracestate.empty()) append(out, "tracestate", arrival.tracestate);
  if (!arrival.certificate.empty()) append(out, client_cert, ':' + text::encode_base64(arrival.certificate) + ':');
  if (arrival.takes_trailers) out += "TE: trailers\r\nConnection: TE\r\n";
  append(out, framing);
  out += "\r\n";
  return out;
}

template <class Lines>
std::string write_answer_head(unsigned status, std::string_view reason, const Lines& headers, const Framing& framing,
                              unsigned version, bool keep_alive) {
  std::string out;
  out.reserve(512);
  append_status_line(out, status, reason);
  bool has_date = false;
  for (const auto& header : headers) {
    append(out, header.name, header.value);
    has_date = has_date || same_name(header.name, "Date");
  }
  if (!has_date) append(out, "Date", date_of_now());
  append(out, framing);
  if (!keep_alive) append(out, "Connection", "close");
  if (keep_alive && version == 10) append(out, "Connection", "keep-alive");
  out += "\r\n";
  return out;
}
template std::string write_answer_head(unsigned, std::string_view, const http::Headers&, const Framing&, unsigned,
                                       bool);
template std::string write_answer_head(unsigned, std::string_view, const std::vector<HeaderView>&, const Framing&,
                                       unsigned, bool);

std::string write_interim_head(unsigned status, std::string_view reason, const std::vector<HeaderView>& headers) {
  std::string out;
  append_status_line(out, status, reason);
  for (const HeaderView& header : headers) append(out, header.name, header.value);
  out += "\r\n";
  return out;
}

std::string chunk_head(std::size_t bytes) {
  std::array<char, 2 * sizeof bytes> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), bytes, 16).ptr;
  return std::string(digits.data(), end) + "\r\n";
}

http::Answer problem(std::string_view name, unsigned status, std::string_view title, std::string_view detail) {
  return http::problem_answer({.name = name, .status = status, .title = title, .detail = detail}, {});
}

}  // namespace once::proxy
