#include "frontends/lambda/handler/http_event.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "frontends/lambda/handler/function.hpp"
#include "text/base64.hpp"
#include "text/hex.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/percent.hpp"
#include "text/utf8.hpp"

namespace once::lambda {

namespace {

using text::json::Kind;
using text::json::Member;
using text::json::Value;

Value parse_event(std::string_view event, text::json::Arena& arena) {
  try {
    // A client's body is compared byte by byte, not as JSON, so it need not follow our rules.
    return text::json::parse(event, {.exact_numbers = false, .lone_surrogates = true}, arena, "the event");
  } catch (const Exception& error) {
    refuse_event(error.what());
  }
}

HttpEvent::Form form_of(const Value& event) {
  const Value context = event.member("requestContext");
  if (!context.member("elb").is_null()) {
    return event.member("multiValueHeaders").is_null() ? HttpEvent::Form::alb : HttpEvent::Form::alb_multi_value;
  }
  if (!context.member("http").is_null()) return HttpEvent::Form::http_api;
  if (event.member("httpMethod").kind() == Kind::string) return HttpEvent::Form::rest;
  if (event.member("method").kind() == Kind::string) {
    if (event.member("raw_path").kind() == Kind::string) return HttpEvent::Form::lattice_v1;
    for (const std::string_view arn : {"targetGroupArn", "serviceArn", "serviceNetworkArn"}) {
      if (context.member(arn).kind() == Kind::string) return HttpEvent::Form::lattice_v2;
    }
  }
  refuse_event(
      "the event is not from API Gateway (REST or HTTP API), a function URL, a load balancer or VPC Lattice: it has "
      "neither requestContext.http nor httpMethod, nor a method and raw_path or a requestContext of VPC Lattice; for "
      "other events use once::lambda::idempotent()");
}

// What the services call the parts of a request.
struct Names {
  std::string_view method;
  std::string_view path;
  std::string_view query;
  std::string_view is_base64;
};

constexpr Names names_of(HttpEvent::Form form) noexcept {
  using Form = HttpEvent::Form;
  switch (form) {
    case Form::lattice_v1:
      return {"method", "raw_path", "query_string_parameters", "is_base64_encoded"};
    case Form::lattice_v2:
      return {"method", "path", "queryStringParameters", "isBase64Encoded"};
    case Form::rest:
    case Form::http_api:
    case Form::alb:
    case Form::alb_multi_value:
      break;
  }
  return {"httpMethod", "path", "queryStringParameters", "isBase64Encoded"};
}

// A field of the header x-amzn-lattice-identity: "Principal=arn:...; SessionName=x; Type=AWS_IAM". Empty if it is
// missing, or there more than once: then a client may have sent one of them.
std::string_view identity_field(std::string_view header, const std::string& field) {
  const std::string named = field + "=";
  const std::size_t at = header.find(named);
  if (at == std::string_view::npos || header.find(named, at + 1) != std::string_view::npos) return {};
  const std::size_t before = header.find_last_not_of(' ', at == 0 ? 0 : at - 1);
  if (at != 0 && before != std::string_view::npos && header[before] != ';') return {};  // The end of another name.
  std::string_view value = header.substr(at + named.size());
  value = value.substr(0, value.find(';'));
  const std::size_t last = value.find_last_not_of(' ');
  return last == std::string_view::npos ? std::string_view() : value.substr(0, last + 1);
}

std::string_view text_of(const Value& value, std::string_view name) {
  if (value.is_null()) return {};
  if (value.kind() != Kind::string) refuse_event("the event's " + std::string(name) + " is not a string");
  return value.text();
}

std::string_view text_member(const Value& object, std::string_view name) { return text_of(object.member(name), name); }

// Calls back for each pair of an object of strings, or of arrays of strings. Null counts as empty.
template <class Use>
void for_each_value(const Value& map, std::string_view name, Use&& use) {
  if (map.is_null()) return;
  if (map.kind() != Kind::object) refuse_event("the event's " + std::string(name) + " is not an object");
  for (const Member& member : map.members()) {
    if (member.value.kind() == Kind::array) {
      for (const Value& value : member.value.elements()) use(member.name, text_of(value, name));
    } else {
      use(member.name, text_of(member.value, name));
    }
  }
}

void append_query_part(std::string_view text, bool encoded, std::string& out) {
  text::append_percent_encoded(out, text, [&](char c) { return encoded || text::is_unreserved(c); });
}

// A header may have almost any bytes, but JSON only UTF-8.
std::string header_json(std::string_view text) {
  return text::json::quoted(text::valid_utf8(text) ? text : std::string_view(text::replace_invalid_utf8(text)));
}

struct HeaderLines {
  std::string_view name;
  std::vector<std::string_view> values;
};

// Groups lines by name, in the order of the first ones, without framing headers.
std::vector<HeaderLines> grouped(const once::http::Headers& headers) {
  std::vector<HeaderLines> out;
  for (const once::http::Header& header : headers) {
    if (once::http::same_name(header.name, "Content-Length") || once::http::same_name(header.name, "Transfer-Encoding"))
      continue;
    const auto same =
        std::ranges::find_if(out, [&](const HeaderLines& o) { return once::http::same_name(o.name, header.name); });
    if (same == out.end()) {
      out.push_back({header.name, {header.value}});
    } else {
      same->values.push_back(header.value);
    }
  }
  return out;
}

std::string joined_values(const std::vector<std::string_view>& values) {
  std::string out;
  for (const std::string_view value : values) {
    if (!out.empty()) out += ", ";
    out += value;
  }
  return out;
}

// The name with other letter cases for each number, so that they are different names in a JSON object.
std::string recased(std::string_view name, std::size_t number) {
  std::string out(name);
  for (char& c : out) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter) continue;
    if ((number & 1U) != 0) c = static_cast<char>(c ^ ' ');
    number >>= 1U;
  }
  return out;
}

// RFC 9110, section 15. A load balancer wants the reason with the status.
std::string_view reason_of(unsigned status) noexcept {
  constexpr std::array<std::pair<unsigned, std::string_view>, 28> reasons{{
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {206, "Partial Content"},
      {301, "Moved Permanently"},
      {302, "Found"},
      {303, "See Other"},
      {304, "Not Modified"},
      {307, "Temporary Redirect"},
      {308, "Permanent Redirect"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {402, "Payment Required"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {409, "Conflict"},
      {410, "Gone"},
      {412, "Precondition Failed"},
      {413, "Content Too Large"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {502, "Bad Gateway"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
  }};
  const auto* const found = std::ranges::find(reasons, status, &std::pair<unsigned, std::string_view>::first);
  return found == reasons.end() ? std::string_view("Unassigned") : found->second;
}

void append_member(std::string_view name, std::string_view json, std::string& out) {
  if (out.back() != '{') out += ',';
  out += header_json(name);
  out += ':';
  out += json;
}

// {"Name":["a","b"]}
std::string multi_value_headers(const once::http::Headers& headers) {
  std::string out = "{";
  for (const HeaderLines& lines : grouped(headers)) {
    std::string values = "[";
    for (const std::string_view value : lines.values) {
      if (values.size() > 1) values += ',';
      values += header_json(value);
    }
    append_member(lines.name, values + "]", out);
  }
  return out + "}";
}

// {"Name":"a, b"}. Cookies cannot be joined (RFC 6265, section 3): they are listed apart, or get different names.
std::string single_headers(const once::http::Headers& headers, bool cookies_apart) {
  std::string out = "{";
  for (const HeaderLines& lines : grouped(headers)) {
    if (!once::http::same_name(lines.name, "Set-Cookie")) {
      append_member(lines.name, header_json(joined_values(lines.values)), out);
    } else if (!cookies_apart) {
      for (std::size_t i = 0; i < lines.values.size(); ++i) {
        append_member(recased(lines.name, i), header_json(lines.values[i]), out);
      }
    }
  }
  return out + "}";
}

// ["a=1","b=2"], or nothing.
std::string cookies(const once::http::Headers& headers) {
  std::string out;
  for (const once::http::Header& header : headers) {
    if (!once::http::same_name(header.name, "Set-Cookie")) continue;
    out += out.empty() ? '[' : ',';
    out += header_json(header.value);
  }
  return out.empty() ? out : out + "]";
}

// "arn:aws:sts::123456789012:assumed-role/ROLE/SESSION" without the session.
std::string_view without_session(std::string_view text) noexcept {
  constexpr std::string_view assumed = ":assumed-role/";
  const auto role = text.starts_with("arn:") ? text.find(assumed) : std::string_view::npos;
  if (role == std::string_view::npos) return text;
  return text.substr(0, text.find('/', role + assumed.size()));
}

void append_principal_text(std::string_view text, char kind, std::string& out) {
  out += std::to_string(text.size());
  out += kind;
  out += text;
}

// Appends the selected texts with their lengths. False: null.
bool append_principal(const Value& value, bool sessions, std::string& out) {
  switch (value.kind()) {
    case Kind::null:
      out += "-";
      return false;
    case Kind::string:
    case Kind::number: {
      append_principal_text(sessions ? value.text() : without_session(value.text()),
                            value.kind() == Kind::string ? 's' : 'n', out);
      return true;
    }
    default:
      refuse_event("the principal expression (HttpOptions::principal) must give strings and numbers only");
  }
}

}  // namespace

std::string target_path(std::string_view path) {
  std::string out;
  out.reserve(path.size() + 8);
  if (!path.starts_with('/')) out += '/';
  for (std::size_t i = 0; i < path.size(); ++i) {
    const char c = path[i];
    // RFC 3986, section 3.3.
    if (text::percent_byte_at(path, i) >= 0 || text::is_unreserved(c) ||
        std::string_view("/!$&'()*+,;=:@").find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += '%';
      text::append_hex(out, c, text::upper_digits);
    }
  }
  return out;
}

HttpEvent::HttpEvent(std::string_view event)
    : arena_(first_.data(), first_.size()), root_(parse_event(event, arena_)), form_(form_of(root_)) {
  request_.method = form_ == Form::http_api ? text_member(root_.member("requestContext").member("http"), "method")
                                            : text_member(root_, names_of(form_).method);
  if (request_.method.empty()) refuse_event("the event has no method");
  read_target();
  read_headers();
  read_body();
}

std::string_view HttpEvent::keep(std::string text) { return texts_.emplace_back(std::move(text)); }

void HttpEvent::read_target() {
  if (form_ == Form::http_api) {
    std::string target = target_path(text_member(root_, "rawPath"));
    const std::string_view query = text_member(root_, "rawQueryString");
    if (!query.empty()) target += '?';
    target += query;
    request_.target = keep(std::move(target));
    return;
  }
  const Names names = names_of(form_);
  std::string_view path = text_member(root_, names.path);
  if (is_lattice()) {
    // VPC Lattice leaves the query on the path. Its parameters have only the last value of a name in version 1.
    if (const std::size_t mark = path.find('?'); mark != std::string_view::npos) {
      request_.target = keep(target_path(path.substr(0, mark)) + std::string(path.substr(mark)));
      return;
    }
  }
  std::string target = target_path(path);
  const Value multiple = is_lattice() ? Value() : root_.member("multiValueQueryStringParameters");
  std::vector<std::pair<std::string_view, std::string_view>> query;
  for_each_value(multiple.is_null() ? root_.member(names.query) : multiple, "query string",
                 [&](std::string_view name, std::string_view value) { query.emplace_back(name, value); });
  // The order of names is lost, and may differ in a retry. The order of a name's values is kept.
  std::ranges::stable_sort(query, {}, &std::pair<std::string_view, std::string_view>::first);
  const bool encoded = form_ == Form::alb || form_ == Form::alb_multi_value;  // They do not decode them.
  char separator = '?';
  for (const auto& [name, value] : query) {
    target += std::exchange(separator, '&');
    append_query_part(name, encoded, target);
    target += '=';
    append_query_part(value, encoded, target);
  }
  request_.target = keep(std::move(target));
}

void HttpEvent::read_headers() {
  const bool once_only = form_ == Form::http_api || is_lattice();
  const Value multiple = once_only ? Value() : root_.member("multiValueHeaders");
  for_each_value(multiple.is_null() ? root_.member("headers") : multiple, "headers",
                 [&](std::string_view name, std::string_view value) {
                   request_.headers.push_back({name, value});
                 });
  if (form_ != Form::http_api) return;
  const Value parts = root_.member("cookies");
  const auto has_cookie = [](const once::http::HeaderView& header) {
    return once::http::same_name(header.name, "Cookie");
  };
  if (parts.kind() != Kind::array || std::ranges::any_of(request_.headers, has_cookie)) return;
  std::string cookie;
  for (const Value& part : parts.elements()) {
    if (!cookie.empty()) cookie += "; ";
    cookie += text_of(part, "cookies");
  }
  if (!cookie.empty()) request_.headers.push_back({"Cookie", keep(std::move(cookie))});
}

void HttpEvent::read_body() {
  request_.body = text_member(root_, "body");
  const Value coded = root_.member(names_of(form_).is_base64);
  if (coded.kind() != Kind::boolean || !coded.truth()) return;
  auto body = text::decode_base64(request_.body);
  if (!body) refuse_event("the event's body should be Base64, but is not");
  request_.body = keep(*std::move(body));
}

std::string HttpEvent::lattice_principal() const {
  std::string out(1, '\0');  // As in principal().
  bool any = false;
  const auto append = [&](std::string_view text) {
    text = without_session(text);
    if (text.empty()) {
      out += '-';
    } else {
      append_principal_text(text, 's', out);
      any = true;
    }
  };
  using Field = std::pair<std::string_view, std::string_view>;  // In version 1 and in version 2.
  constexpr std::array<Field, 6> fields{{{"Principal", "principal"},
                                         {"X509Issuer/OU", "x509IssuerOu"},
                                         {"X509Subject/CN", "x509SubjectCn"},
                                         {"X509SAN/URI", "x509SanUri"},
                                         {"X509SAN/DNS", "x509SanDns"},
                                         {"X509SAN/NameCN", "x509SanNameCn"}}};
  if (form_ == Form::lattice_v2) {
    const Value identity = root_.member("requestContext").member("identity");
    for (const Field& field : fields) append(text_member(identity, field.second));
  } else if (form_ == Form::lattice_v1) {
    std::string header;
    for (const once::http::HeaderView& each : request_.headers) {
      if (once::http::same_name(each.name, "x-amzn-lattice-identity")) header += std::string(each.value) + ";";
    }
    for (const Field& field : fields) append(identity_field(header, std::string(field.first)));
  }
  return any ? out : std::string();
}

std::string HttpEvent::principal(const keys::Selector& expression, bool sessions) {
  Value selected;
  try {
    selected = expression(root_, arena_);
  } catch (const Exception& error) {
    refuse_event(error.what());
  }
  if (selected.is_null()) return {};
  if (selected.kind() == Kind::string) return std::string(selected.text());
  std::string out(1, '\0');  // Differs from every string that could be selected.
  bool any = false;
  if (selected.kind() == Kind::array) {
    for (const Value& value : selected.elements()) any = append_principal(value, sessions, out) || any;
  } else {
    any = append_principal(selected, sessions, out);
  }
  return any ? out : std::string();
}

std::string HttpEvent::response(const once::http::Answer& answer) const {
  std::string out = "{";
  out.reserve(answer.body.size() + answer.body.size() / 8 + 512);
  append_member("statusCode", std::to_string(answer.status), out);
  switch (form_) {
    case Form::rest:
      append_member("multiValueHeaders", multi_value_headers(answer.headers), out);
      break;
    case Form::http_api: {
      append_member("headers", single_headers(answer.headers, true), out);
      const std::string list = cookies(answer.headers);
      if (!list.empty()) append_member("cookies", list, out);
      break;
    }
    case Form::lattice_v1:
    case Form::lattice_v2:
      append_member("headers", single_headers(answer.headers, false), out);
      break;
    case Form::alb:
    case Form::alb_multi_value: {
      const std::string_view reason = answer.reason.empty() ? reason_of(answer.status) : answer.reason;
      append_member("statusDescription", header_json(std::to_string(answer.status) + " " + std::string(reason)), out);
      if (form_ == Form::alb) {
        append_member("headers", single_headers(answer.headers, false), out);
      } else {
        append_member("multiValueHeaders", multi_value_headers(answer.headers), out);
      }
      break;
    }
  }
  const bool text = text::valid_utf8(answer.body);
  append_member("body", text::json::quoted(text ? std::string_view(answer.body) : text::encode_base64(answer.body)),
                out);
  append_member("isBase64Encoded", text ? "false" : "true", out);
  return out + "}";
}

}  // namespace once::lambda
