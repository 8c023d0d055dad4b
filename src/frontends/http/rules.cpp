#include <once/frontends/http/rules.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <memory_resource>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/keys/input_filter.hpp>
#include <once/keys/key_deriver.hpp>

#include "core/digest.hpp"
#include "frontends/http/body.hpp"
#include "frontends/http/client_key.hpp"
#include "frontends/http/headers.hpp"
#include "frontends/http/key_pattern.hpp"
#include "frontends/http/problem.hpp"
#include "frontends/http/stored_answer.hpp"
#include "frontends/http/target.hpp"
#include "frontends/http/unstable.hpp"
#include "text/ascii.hpp"
#include "text/header.hpp"
#include "text/percent.hpp"

namespace once::http {

namespace {

constexpr std::size_t max_route_bytes = 128;
constexpr std::size_t max_scope_bytes = 128;  // In stored form. With these limits a key always fits into max_key_bytes.
constexpr std::size_t cut_route_bytes = 64;
constexpr std::size_t digest_digits = 64;

[[noreturn]] void refuse_option(const std::string& what) {
  throw Exception(ErrorKind::misuse, "http::Options::" + what);
}

// https://www.iana.org/assignments/http-methods without PRI and *; PURGE of caches, and those of UPnP.
constexpr std::array<std::string_view, 44> known_methods{"ACL",
                                                         "BASELINE-CONTROL",
                                                         "BIND",
                                                         "CHECKIN",
                                                         "CHECKOUT",
                                                         "CONNECT",
                                                         "COPY",
                                                         "DELETE",
                                                         "GET",
                                                         "HEAD",
                                                         "LABEL",
                                                         "LINK",
                                                         "LOCK",
                                                         "MERGE",
                                                         "MKACTIVITY",
                                                         "MKCALENDAR",
                                                         "MKCOL",
                                                         "MKREDIRECTREF",
                                                         "MKWORKSPACE",
                                                         "MOVE",
                                                         "OPTIONS",
                                                         "ORDERPATCH",
                                                         "PATCH",
                                                         "POST",
                                                         "PROPFIND",
                                                         "PROPPATCH",
                                                         "PUT",
                                                         "QUERY",
                                                         "REBIND",
                                                         "REPORT",
                                                         "SEARCH",
                                                         "TRACE",
                                                         "UNBIND",
                                                         "UNCHECKOUT",
                                                         "UNLINK",
                                                         "UNLOCK",
                                                         "UPDATE",
                                                         "UPDATEREDIRECTREF",
                                                         "VERSION-CONTROL",
                                                         "PURGE",
                                                         "M-SEARCH",
                                                         "NOTIFY",
                                                         "SUBSCRIBE",
                                                         "UNSUBSCRIBE"};

std::string in_capitals(std::string text) {
  std::ranges::transform(text, text.begin(), text::upper);
  return text;
}

void check_names(const std::vector<std::string>& names, const char* member) {
  for (const std::string& name : names) {
    if (!text::is_token(name))
      refuse_option(std::string(member) + " has an invalid name of a header or method: '" + name + "'");
  }
}

// As browsers send it: RFC 6454, section 6.2.
bool is_origin(std::string_view text) noexcept {
  if (text == "*") return true;
  const auto scheme = text.find("://");
  if (scheme == std::string_view::npos || scheme == 0) return false;
  const std::string_view host = text.substr(scheme + 3);
  return !host.empty() &&
         std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7F && (c < 'A' || c > 'Z'); }) &&
         host.find_first_of("/?#@,*") == std::string_view::npos;
}

Fate default_fate(unsigned status) noexcept {
  switch (status) {
    case 401:  // These four: the client needs other credentials, or another connection.
    case 403:
    case 407:
    case 421:
    case 408:
    case 409:
    case 425:
    case 429:
      return Fate::release;
    case 500:
    case 501:
    case 505:
      return Fate::store;
    default:
      return status >= 200 && status <= 499 ? Fate::store : Fate::ambiguous;
  }
}

constexpr std::string_view why_short = "The idempotency key is shorter than this operation allows.";
constexpr std::string_view why_pattern = "The idempotency key does not have the form that this operation asks for.";
constexpr std::string_view why_nothing_compared =
    "The service compares a part of the body with earlier requests of the same key, but the body is not JSON, or does "
    "not have that part. Nothing was carried out.";

constexpr std::string_view key_place = "{key}";
constexpr std::string_view reconcile_method = "GET ";

void check_reconcile(const Options& options) {
  const std::string& request = options.reconcile;
  for (const unsigned status : options.reconcile_not_done) {
    switch (default_fate(status)) {
      case Fate::store:
        if (status >= 400 && status <= 499) continue;
        break;
      case Fate::release:
      case Fate::ambiguous:
      case Fate::hold:
        break;
    }
    refuse_option("reconcile_not_done has " + std::to_string(status) +
                  ", which says nothing about the operation: name the 4xx with which the service says that there is "
                  "none, as in 404");
  }
  if (options.reconcile_settle &&
      (*options.reconcile_settle < Millis{0} || *options.reconcile_settle > std::chrono::hours(24 * 30))) {
    refuse_option("reconcile_settle must be 0 to 30 days");
  }
  if (request.empty()) return;
  const auto bad = [&](const std::string& what) {
    refuse_option("reconcile " + what + ": write it as in \"GET /charges?key={key}\", not '" + request + "'");
  };
  if (!request.starts_with(reconcile_method)) bad("must be a GET");
  std::string_view target = std::string_view(request).substr(reconcile_method.size());
  if (!target.starts_with('/')) bad("must have a path that begins with a slash");
  if (target.find(key_place) == std::string_view::npos) bad("must have {key}, or every key would get one answer");
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target.substr(i).starts_with(key_place)) {
      i += key_place.size() - 1;
    } else if (target[i] == '{' || target[i] == '}') {
      bad("has a placeholder that is not {key}");
    } else if (target[i] <= 0x20 || target[i] >= 0x7F || target[i] == '#') {
      bad("has a character that must be percent-encoded");
    }
  }
}

constexpr std::string_view key_segment = "{key}";

bool is_any_segment(std::string_view segment) noexcept {
  return segment.size() > 2 && segment.starts_with('{') && segment.ends_with('}');
}

std::vector<std::string_view> segments_of(std::string_view path) {
  if (path.starts_with('/')) path.remove_prefix(1);
  if (path.ends_with('/')) path.remove_suffix(1);
  std::vector<std::string_view> segments;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    segments.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  return segments;
}

void check_key(const Options& options) {
  const auto places = {&options.key_field, &options.key_query, &options.key_path, &options.key_form};
  if (std::ranges::count_if(places, [](const std::string* place) { return !place->empty(); }) > 1) {
    refuse_option("key_field, key_query, key_path and key_form: only one may say where the key is");
  }
  if (options.key_min_length < 1 || options.key_min_length > max_client_key_bytes) {
    refuse_option("key_min_length must be 1 to 255");
  }
  if (options.key_path.empty()) return;
  const std::vector<std::string_view> segments = segments_of(options.key_path);
  const bool has_bad = std::ranges::any_of(segments, [](std::string_view segment) {
    return segment.empty() || (!is_any_segment(segment) && segment.find_first_of("{}*?#% ") != segment.npos);
  });
  if (!options.key_path.starts_with('/') || has_bad || std::ranges::count(segments, key_segment) != 1) {
    refuse_option("key_path must be a path with the segment {key}, as in \"/orders/{key}/pay\", not '" +
                  options.key_path + "'");
  }
}

// The key in a path. A path of another form has none.
ClientKey key_from_path(std::string_view pattern, std::string_view path) {
  const std::vector<std::string_view> wanted = segments_of(pattern);
  const std::vector<std::string_view> given = segments_of(path);
  if (wanted.size() != given.size()) return {};
  ClientKey key;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::string segment = text::percent_decoded(given[i], [](char) { return true; });
    if (wanted[i] == key_segment) {
      key = key_from_text(std::move(segment));
    } else if (!is_any_segment(wanted[i]) && !text::same_letters(wanted[i], segment)) {
      return {};
    }
  }
  return key;
}

// "/orders/{key}/pay" for "/Orders/o%2D1/pay/", which matches it. So a key is one operation however its path is
// written.
std::string path_without_key(std::string_view pattern, std::string_view path) {
  const std::vector<std::string_view> wanted = segments_of(pattern);
  const std::vector<std::string_view> given = segments_of(path);
  std::string out;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const bool is_free = is_any_segment(wanted[i]) && wanted[i] != key_segment;
    out += '/';
    out += is_free ? text::percent_decoded(given[i], text::is_unreserved) : std::string(wanted[i]);
  }
  return out;
}

void check(const Options& options) {
  check_names(options.methods, "methods");
  if (options.protect && !options.principal.is_said()) {
    refuse_option("principal is missing: say what tells clients apart, or use Principal::shared()");
  }
  check_names({options.principal.reads().begin(), options.principal.reads().end()}, "principal");
  for (const std::string& name : options.principal.reads()) {
    if (is_unstable_name(name)) {
      refuse_option("principal has '" + name +
                    "', which is new in each request, so a retry would run again: use a header that stays "
                    "the same, or a verified claim (jwt_principal)");
    }
  }
  if (!text::is_field_text(options.challenge)) refuse_option("challenge has a character that no header can have");
  check_names(options.fingerprint_headers, "fingerprint_headers");
  check_names(options.never_store, "never_store");
  for (const std::string& type : options.stream_types) {
    const auto slash = type.find('/');
    if (slash == std::string::npos || !text::is_token(type.substr(0, slash)) ||
        !text::is_token(type.substr(slash + 1)) || type.find('*') != std::string::npos) {
      refuse_option("stream_types has '" + type + "': write a content type as in application/x-ndjson");
    }
  }
  for (const std::string& origin : options.cors_origins) {
    if (!is_origin(origin)) {
      refuse_option("cors_origins has '" + origin + "': write an origin as in https://shop.example, or *");
    }
  }
  for (const std::string& method : options.methods) {
    if (const std::string capitals = in_capitals(method); capitals != method) {
      refuse_option("methods has '" + method + "': methods are case-sensitive (RFC 9110, section 9.1): write " +
                    capitals);
    }
    // A mistyped method protects nothing, and nobody would notice.
    if (std::ranges::find(known_methods, method) == known_methods.end()) {
      refuse_option(
          "methods has '" + method +
          "', which is no known method: write GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS, QUERY, or another "
          "one of IANA's HTTP Method Registry");
    }
  }
  if (options.methods.empty()) refuse_option("methods is empty, so nothing would be protected");
  const std::vector<std::string_view> key_names = text::list_members(options.key_header);
  if (options.key_is_in_header() && (key_names.empty() || !std::ranges::all_of(key_names, text::is_token))) {
    refuse_option("key_header is not a valid header name: '" + options.key_header + "'");
  }
  check_key(options);
  if (!options.fingerprint.empty() && options.ignore_body) {
    refuse_option("fingerprint selects what of the body is compared, but ignore_body compares nothing of it");
  }
  if (options.route.size() > max_route_bytes) refuse_option("route is longer than 128 bytes");
  if (options.route.find(' ') != std::string::npos) refuse_option("route contains a space");
  if (scope_prefix(options.scope).size() > max_scope_bytes + 1) {
    refuse_option("scope (or EngineOptions::scope) is longer than 128 bytes, with '%' and '#' counted three times");
  }
  for (const auto& [status, fate] : options.fates) {
    if (status < 100 || status > 599)
      refuse_option("fates has the status " + std::to_string(status) + ", but a status is 100 to 599");
  }
  if (options.retry_after < Millis{1'000} || options.retry_after > std::chrono::hours(24)) {
    refuse_option("retry_after must be 1 s to 24 h");
  }
  for (const auto& [name, limit] :
       {std::pair{"answer_timeout", options.answer_timeout}, {"client_timeout", options.client_timeout}}) {
    if (limit < Millis{0} || limit > std::chrono::hours(24)) {
      refuse_option(std::string(name) + " must be 1 ms to 24 h, or 0");
    }
  }
  check_reconcile(options);
  if (!std::ranges::all_of(options.docs_url,
                           [](char c) { return c > 0x20 && c < 0x7F && c != '"' && c != '\\' && c != '#'; })) {
    refuse_option("docs_url must be a URI without fragment, quotes and spaces");
  }
  once::check(options.policy.value_or(Policy{}));
}

// Room for a short-lived text: most need no allocation.
struct Room {
  std::array<char, 512> bytes;
  std::pmr::monotonic_buffer_resource memory{bytes.data(), bytes.size()};
};

// Joins texts with their lengths, so that different lists differ.
class Joined {
 public:
  explicit Joined(std::string_view tag) {
    bytes_.reserve(usual);
    bytes_ = tag;
  }

  void add(std::string_view part) {
    add(part.size());
    bytes_ += part;
  }
  void add(std::uint64_t number) {
    std::array<char, sizeof number> digits{};
    for (std::size_t i = digits.size(); i-- > 0; number >>= 8U) digits[i] = static_cast<char>(number & 0xFFU);
    bytes_.append(digits.data(), digits.size());
  }
  // All values of one name, in their order.
  void add_values(const Request& request, std::string_view name) {
    const auto is_named = [&](const HeaderView& header) { return same_name(header.name, name); };
    add(static_cast<std::uint64_t>(std::ranges::count_if(request.headers, is_named)));
    for (const HeaderView& header : request.headers) {
      if (is_named(header)) add(text::trim(header.value));
    }
  }
  [[nodiscard]] std::string_view bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::size_t usual = 256;
  Room room_;
  std::pmr::string bytes_{&room_.memory};
};

// Of a second traceparent nobody knows which counts (W3C Trace Context, section 3.2). Null: none.
TracePtr trace_of(const Request& request) {
  std::string_view parent;
  std::string state;
  for (const HeaderView& header : request.headers) {
    if (same_name(header.name, "traceparent")) {
      if (!parent.empty()) return nullptr;
      parent = header.value;
    } else if (same_name(header.name, "tracestate")) {
      state.append(state.empty() ? "" : ",").append(header.value);
    }
  }
  return parent.empty() ? nullptr : trace_from(parent, state);
}

// A path as a part of a key: readable, without spaces, not too long. A cut path is longer than any uncut one, so the
// two never collide.
std::string route_of_path(std::string_view path) {
  std::string route;
  if (path.size() <= max_route_bytes) {
    route = path;
  } else {
    route = std::string(path.substr(0, cut_route_bytes)) + "~" + to_hex(sha256(path));
  }
  std::ranges::replace(route, ' ', '+');  // No parser accepts a space. The fingerprint has the unchanged path.
  return route;
}

// "shop.example" of "Shop.Example:8080": a service may have several ports.
std::string without_port(std::string_view authority) {
  const auto digits = authority.find_last_not_of("0123456789");
  if (digits != std::string_view::npos && authority[digits] == ':') authority = authority.substr(0, digits);
  return text::lower(authority);
}

// The request's host: in the target, or in Host (RFC 9112, section 3.2.2).
std::string host_of(const Request& request) {
  if (const std::string_view authority = authority_of(request.target); !authority.empty()) {
    return without_port(authority);
  }
  std::string hosts;
  for (const HeaderView& header : request.headers) {
    if (same_name(header.name, "Host")) (hosts += hosts.empty() ? "" : ", ") += without_port(text::trim(header.value));
  }
  return hosts;
}

std::optional<std::uint64_t> content_length(const Request& request) noexcept {
  for (const HeaderView& header : request.headers) {
    if (!same_name(header.name, "Content-Length")) continue;
    const std::string_view text = text::trim(header.value);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) return ~std::uint64_t{0};
    if (error == std::errc() && end == text.data() + text.size()) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(Fate fate) noexcept {
  switch (fate) {
    case Fate::store:
      return "store";
    case Fate::release:
      return "release";
    case Fate::ambiguous:
      return "ambiguous";
    case Fate::hold:
      return "hold";
  }
  return "?";
}

struct Rules::Parts {
  explicit Parts(Options given) : options(std::move(given)), input(options.input_without) {
    check(options);
    for (const std::string_view name : text::list_members(options.key_header)) key_names.emplace_back(name);
    // Clients retry themselves, so a conflict need not wait.
    policy = fill_in(options.policy.value_or(Policy{}),
                     {.on_conflict = OnConflict::fail, .on_missing_key = OnMissingKey::refuse});
    policy.on_lapse = options.on_ambiguous;
    if (!options.key_field.empty()) {
      // Only the key's text is used, so the scope does not matter. The body is compared byte by byte, so its other
      // numbers need not be exact.
      field.emplace(keys::Recipe{.scope = "http",
                                 .expression = options.key_field,
                                 .allow_null_parts = options.allow_null_parts,
                                 .only_selected_exact = true});
    }
    if (!options.key_pattern.empty()) pattern.emplace(options.key_pattern);
    if (!options.fingerprint.empty()) {
      compared.emplace(keys::Recipe{.scope = "http", .fingerprint = options.fingerprint, .require_key = true});
    }
  }

  [[nodiscard]] Examination refused(Problem which, std::string_view detail = {}) const {
    Examination out;
    out.answer = problem_answer(which, options.docs_url, detail);
    return out;
  }

  [[nodiscard]] Examination without_key() const {
    if (policy.on_missing_key == OnMissingKey::refuse) return refused(Problem::key_missing);
    Examination out;
    out.kind = Examination::Kind::no_key;
    return out;
  }

  // The verdict by the method alone. Empty: a protected method.
  [[nodiscard]] std::optional<Examination> verdict(std::string_view method) const {
    if (options.protect && std::ranges::find(options.methods, method) != options.methods.end()) return std::nullopt;
    // For some servers "patch" is PATCH, for others an unknown method.
    if (options.protect && names_contain(options.methods, method)) return refused(Problem::method_unclear);
    Examination out;
    out.kind = Examination::Kind::pass;
    return out;
  }

  // A key with what these rules ask of it besides.
  [[nodiscard]] ClientKey wanted(ClientKey key) const {
    if (key.kind != ClientKey::Kind::found) return key;
    if (key.key.size() < options.key_min_length) {
      return {.kind = ClientKey::Kind::invalid, .key = {}, .why = why_short};
    }
    if (pattern && !pattern->matches(key.key)) {
      return {.kind = ClientKey::Kind::invalid, .key = {}, .why = why_pattern};
    }
    return key;
  }

  [[nodiscard]] bool key_is_in_body() const noexcept { return field.has_value() || !options.key_form.empty(); }

  // The key, unless it is in the body.
  [[nodiscard]] ClientKey head_key(const Request& request) const {
    if (!options.key_query.empty()) {
      std::string_view query = query_of(request.target);
      query = query.substr(0, query.find('#'));
      return wanted(
          key_from_values(pair_values(query.substr(std::min<std::size_t>(1, query.size())), options.key_query)));
    }
    if (!options.key_path.empty()) return wanted(key_from_path(options.key_path, path_of(request.target)));
    return wanted(header_key(request));
  }

  // The key in a body that has `content`. Empty: the body cannot be read.
  [[nodiscard]] std::optional<ClientKey> body_key(const Request& request, std::string_view content) const {
    if (content.empty()) return ClientKey();
    if (!field) {
      const std::optional<MediaType> type = media_type_of(request);
      auto values = type ? form_values(*type, content, options.key_form) : std::nullopt;
      if (!values) return std::nullopt;
      return wanted(key_from_values(*std::move(values)));
    }
    try {
      const keys::Derived derived = field->derive(content);
      return derived.key ? wanted(key_from_json(derived.key_text)) : ClientKey();
    } catch (const Exception& error) {
      // Not JSON, or the expression fails on it. All other errors are not the client's.
      if (error.kind() != ErrorKind::misuse) throw;
      return std::nullopt;
    }
  }

  [[nodiscard]] ClientKey header_key(const Request& request) const {
    const auto is_key = [&](const HeaderView& header) { return names_contain(key_names, header.name); };
    const auto first = std::ranges::find_if(request.headers, is_key);
    if (first == request.headers.end()) return {};
    if (std::none_of(first + 1, request.headers.end(), is_key)) return key_from_lines({&first->value, 1});
    std::vector<std::string_view> lines;
    for (const HeaderView& header : request.headers) {
      if (is_key(header)) lines.push_back(header.value);
    }
    return key_from_lines(lines);
  }

  // Empty: an operation so far.
  [[nodiscard]] std::optional<Examination> verdict(const ClientKey& key) const {
    switch (key.kind) {
      case ClientKey::Kind::missing:
        return without_key();
      case ClientKey::Kind::invalid:
        return refused(Problem::key_invalid, key.why);
      case ClientKey::Kind::differ:
        return refused(Problem::keys_differ);
      case ClientKey::Kind::found:
        return std::nullopt;
    }
    return std::nullopt;
  }

  // Empty: the principal is known.
  [[nodiscard]] std::optional<Examination> verdict(const Who& who) const {
    std::string_view challenge = who.challenge;
    Problem which = Problem::principal_unstable;
    switch (who.kind) {
      case Who::Kind::known:
        return std::nullopt;
      case Who::Kind::missing:
        which = Problem::principal_missing;
        if (!options.challenge.empty()) challenge = options.challenge;
        break;
      case Who::Kind::invalid:
        which = Problem::principal_invalid;
        break;
      case Who::Kind::unstable:
        return refused(which, who.why);
    }
    Examination out;
    out.answer = problem_answer(which, options.docs_url, who.why, {}, challenge.empty() ? 0 : 401);
    if (!challenge.empty()) out.answer.headers.push_back({"WWW-Authenticate", std::string(challenge)});
    return out;
  }

  [[nodiscard]] std::string principal_digest(std::string_view name) const {
    Joined principal("once-http-principal");
    principal.add(told_by);
    principal.add(name);
    return to_hex(sha256(principal.bytes()));
  }

  [[nodiscard]] Key key(const Request& request, const Who& who, std::string_view route, std::string_view name) const {
    // Unambiguous when read from the right: the digest has a fixed length, the route no space, the method no '/'.
    Room room;
    std::pmr::string scope(&room.memory);
    scope.reserve(options.scope.size() + request.method.size() + route.size() + digest_digits + 3);
    scope = options.scope;
    if (!scope.empty()) scope += '/';
    scope += request.method;
    scope += ' ';
    scope += route;
    scope += ' ';
    scope += who.name.empty() ? everyone : principal_digest(who.name);
    return {std::string_view(scope), name};
  }

  // What is compared of a body, and how. Empty: `fingerprint` cannot be read from it, or selects nothing.
  struct Compared {
    std::string_view tag;  // Of the digest, so that a body in one form is never another in another form.
    std::string text;      // If `bytes` is not of the request.
    std::string_view bytes;
    bool is_without_boundary = false;
  };
  [[nodiscard]] std::optional<Compared> compared_body(const Request& request, std::string_view content) const {
    Compared out{.tag = "once-http-request", .text = {}, .bytes = {}};
    if (options.ignore_body) return out;
    if (compared) {
      try {
        const Fingerprint selected = compared->fingerprint(content);
        out.text.assign(selected.bytes().begin(), selected.bytes().end());
      } catch (const Exception& error) {
        if (error.kind() != ErrorKind::misuse) throw;
        return std::nullopt;
      }
      out.tag = "once-http-request selected";
      return out;
    }
    out.bytes = content;
    if (const std::optional<MediaType> type = media_type_of(request)) {
      if (std::optional<std::string> parts = parts_text(*type, content)) {
        out.tag = "once-http-request parts";
        out.text = *std::move(parts);
        out.is_without_boundary = true;
        return out;
      }
    }
    if (options.compare_json && !content.empty()) {
      try {
        out.text = keys::canonical_text(content);
        out.tag = "once-http-request json";
      } catch (const Exception& error) {
        if (error.kind() != ErrorKind::misuse) throw;  // Not JSON: its bytes count.
      }
    }
    return out;
  }

  [[nodiscard]] Fingerprint fingerprint(const Request& request, std::string_view route, const Compared& body) const {
    Joined what(body.tag);
    what.add(request.method);
    what.add(route);
    what.add(path_of(request.target));
    if (!options.ignore_host) what.add(host_of(request));
    if (!options.ignore_query) what.add(query_of(request.target));
    for (const std::string& header : options.fingerprint_headers) {
      // The parts' text has the type without its boundary, which is new in each request.
      if (body.is_without_boundary && same_name(header, "Content-Type")) continue;
      what.add_values(request, header);
    }
    // Last, so that it needs no separator after it.
    const std::string_view bytes = body.text.empty() ? body.bytes : std::string_view(body.text);
    what.add(bytes.size());
    return Fingerprint(sha256_joined({what.bytes(), bytes}));
  }

  Options options;
  Policy policy;
  std::vector<std::string> key_names;  // Of the headers.
  std::optional<keys::KeyDeriver> field;
  std::optional<keys::KeyDeriver> compared;
  std::optional<KeyPattern> pattern;
  keys::InputFilter input;
  std::string told_by =
      options.principal.what();  // Distinguishes clients with the same name from different kinds of principal.
  std::string everyone = principal_digest({});  // Made once for clients that share their keys.
};

Rules::Rules(Options options) : parts_(std::make_unique<const Parts>(std::move(options))) {}
Rules::Rules(Rules&&) noexcept = default;
Rules& Rules::operator=(Rules&&) noexcept = default;
Rules::~Rules() = default;

const Options& Rules::options() const noexcept { return parts_->options; }

namespace {

bool says_json(const Request& request) {
  const auto is_encoded = [](const HeaderView& line) { return same_name(line.name, "Content-Encoding"); };
  if (std::ranges::any_of(request.headers, is_encoded)) return false;
  const std::optional<MediaType> type = media_type_of(request);
  return type && (type->name == "application/json" || type->name.ends_with("+json"));
}

}  // namespace

Examination Rules::examine_head(const Request& request) const {
  const Parts& parts = *parts_;
  Examination out;
  if (auto end = parts.verdict(request.method)) return std::move(*end);
  if (!parts.key_is_in_body()) {
    if (auto end = parts.verdict(parts.head_key(request))) return std::move(*end);
    if (!parts.options.principal.is_costly()) {
      if (auto end = parts.verdict(parts.options.principal.who(request))) return std::move(*end);
    }
  }
  if (content_length(request).value_or(0) > parts.options.max_body_bytes) return parts.refused(Problem::body_too_large);
  out.kind = Examination::Kind::operation;
  return out;
}

Examination Rules::examine(const Request& request) const {
  const Parts& parts = *parts_;
  Examination out;
  if (auto end = parts.verdict(request.method)) return std::move(*end);
  const bool too_large = request.body.size() > parts.options.max_body_bytes;
  ClientKey key;
  std::optional<std::string> inflated;
  std::string_view content = request.body;
  const auto inflate = [&] {
    inflated = inflated_body(request, parts.options.max_body_bytes);
    if (inflated) content = *inflated;
  };
  if (parts.key_is_in_body()) {
    if (too_large) return parts.refused(Problem::body_too_large);
    inflate();
    std::optional<ClientKey> found = parts.body_key(request, content);
    if (!found) return parts.refused(Problem::body_unreadable);
    key = *std::move(found);
  } else {
    key = parts.head_key(request);
  }
  if (auto end = parts.verdict(key)) return std::move(*end);
  const Who who = parts.options.principal.who(request);
  if (auto end = parts.verdict(who)) return std::move(*end);
  if (too_large) return parts.refused(Problem::body_too_large);
  if (!parts.key_is_in_body()) inflate();
  const std::optional<Parts::Compared> body = parts.compared_body(request, content);
  if (!body) return parts.refused(Problem::body_unreadable, why_nothing_compared);
  std::string from_path;
  std::string_view route = parts.options.route;
  if (route.empty()) {
    const std::string_view path = path_of(request.target);
    const std::string& pattern = parts.options.key_path;
    route = from_path = route_of_path(pattern.empty() ? path : path_without_key(pattern, path));
  }
  out.kind = Examination::Kind::operation;
  out.operation.emplace(once::Request{.key = parts.key(request, who, route, key.key),
                                      .fingerprint = parts.fingerprint(request, route, *body),
                                      .policy = parts.policy,
                                      .holder = {},
                                      .label = std::move(key.key),
                                      .label_from_payload = parts.key_is_in_body(),
                                      .trace = trace_of(request)});
  if (parts.policy.keep_input.value_or(false) && !request.body.empty()) {
    out.operation->input = parts.input(request.body);
  }
  out.is_json = says_json(request);
  return out;
}

Fate Rules::fate_of(unsigned status) const noexcept {
  const auto own = parts_->options.fates.find(status);
  return own == parts_->options.fates.end() ? default_fate(status) : own->second;
}

Fate Rules::fate_of(const Answer& answer) const noexcept {
  if (!parts_->options.service_fate) return fate_of(answer.status);
  const Header* told = nullptr;
  for (const Header& header : answer.headers) {
    if (!same_name(header.name, fate_header)) continue;
    if (told != nullptr) return Fate::hold;
    told = &header;
  }
  if (told == nullptr) return fate_of(answer.status);
  const std::string_view word = text::trim(told->value);
  if (word == "complete") return Fate::store;
  if (word == "release") return Fate::release;
  return Fate::hold;
}

std::string Rules::reconcile_target(std::string_view name) const {
  const std::string_view target = std::string_view(parts_->options.reconcile).substr(reconcile_method.size());
  const bool is_in_path = target.find(key_place) < target.find('?');
  // Many servers decode a path before they split it, and resolve dots: "a%2F..%2Fb" would ask about something else.
  const bool is_plain = std::ranges::all_of(name, text::is_unreserved) && name.find_first_not_of('.') != name.npos;
  if (is_in_path && !is_plain) return {};
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t place = target.find(key_place, at);
    out += target.substr(at, place - at);
    if (place == std::string_view::npos) return out;
    text::append_percent_encoded(out, name, text::is_unreserved);
    at = place + key_place.size();
  }
}

bool Rules::is_shared_key(const Key& key, std::string_view method, std::string_view route) const {
  const Options& own = parts_->options;
  if (own.principal != Principal::shared() || std::ranges::find(own.methods, method) == own.methods.end()) return false;
  Request request;
  request.method = method;
  return parts_->key(request, own.principal.who(request), route, key.name()) == key;
}

Answer Rules::problem(Problem problem, Millis retry_after) const {
  Answer answer = problem_answer(problem, parts_->options.docs_url);
  switch (problem) {
    case Problem::in_progress:
    case Problem::store_unavailable:
    case Problem::claim_lost:
    case Problem::not_recorded: {
      const Millis most = parts_->options.retry_after;
      const Millis wait = retry_after <= Millis{0} ? most : std::min(retry_after, most);
      answer.headers.push_back({"Retry-After", std::to_string(std::chrono::ceil<std::chrono::seconds>(wait).count())});
      break;
    }
    default:
      break;
  }
  return answer;
}

Answer Rules::answer_for(const Begin& begin) const {
  switch (begin.kind) {
    case Begin::Kind::claimed:
      throw Exception(ErrorKind::misuse, "a claim has no answer yet: run the operation");
    case Begin::Kind::replayed:
    case Begin::Kind::stored_failure:
      return replay(*begin.record);
    case Begin::Kind::conflict:
      return problem(Problem::in_progress, begin.retry_after);
    case Begin::Kind::mismatch:
      return problem(Problem::key_reused);
    case Begin::Kind::unknown:
      return problem(Problem::outcome_unknown);
    case Begin::Kind::error:
      break;
  }
  // A store that refuses (no permission, no table, a move) said nothing about this key. A retry may run after an
  // operator has fixed that.
  const bool unreadable = begin.is_unreadable || begin.error.kind == ErrorKind::corrupt;
  return problem(unreadable ? Problem::record_unreadable : Problem::store_unavailable);
}

namespace {

// Without the headers that are not to be stored, if another program has written it: finish_or_raise(), an import.
StoredAnswer stored_answer(const Result& result, const Options& options) {
  StoredAnswer stored = decode_answer(result.bytes);
  if (stored.answer.status < 200) {
    throw Exception(ErrorKind::corrupt, "the stored status " + std::to_string(stored.answer.status) + " is not final");
  }
  Headers headers;
  headers.reserve(stored.answer.headers.size());
  for (const HeaderView& header : storable(stored.answer.headers, options.never_store).headers) {
    headers.push_back({std::string(header.name), std::string(header.value)});
  }
  stored.answer.headers = std::move(headers);
  return stored;
}

// Nothing: it cannot be read.
std::optional<Answer> read_answer(const Record& record, const Options& options) {
  const std::string& docs_url = options.docs_url;
  if (record.state == State::failed) return problem_answer(Problem::operation_failed, docs_url);
  const Result& result = record.result;
  if (result.placement == Placement::dropped) return problem_answer(Problem::answer_not_kept, docs_url);
  if (result.content_type != answer_content_type) {
    Answer answer;
    if (!result.content_type.empty() && text::is_field_text(result.content_type)) {
      answer.headers.push_back({"Content-Type", result.content_type});
    }
    answer.body = result.bytes;
    return answer;
  }
  try {
    StoredAnswer stored = stored_answer(result, options);
    if (!stored.dropped_bytes) return std::move(stored.answer);
    std::string members = ",\"original_status\":" + std::to_string(stored.answer.status);
    if (*stored.dropped_bytes != 0) members += ",\"original_bytes\":" + std::to_string(*stored.dropped_bytes);
    Answer answer = problem_answer(Problem::answer_not_kept, docs_url, {}, members);
    // Headers with the location of the created resource, and those for CORS.
    for (Header& header : stored.answer.headers) {
      if (same_name(header.name, "Location") || same_name(header.name, "Access-Control-Allow-Origin") ||
          same_name(header.name, "Access-Control-Allow-Credentials") ||
          same_name(header.name, "Access-Control-Expose-Headers")) {
        answer.headers.push_back(std::move(header));
      }
    }
    return answer;
  } catch (const Exception&) {  // Corrupt. The reason is for the operator, not for the client.
    return std::nullopt;
  }
}

}  // namespace

Answer Rules::replay(const Record& record) const {
  std::optional<Answer> answer = read_answer(record, parts_->options);
  if (!answer) return problem(Problem::record_unreadable);
  mark_replayed(answer->headers);
  return *std::move(answer);
}

Answer Rules::answer_of(const Record& record) const {
  std::optional<Answer> answer = read_answer(record, parts_->options);
  return answer ? *std::move(answer) : problem(Problem::record_unreadable);
}

Result Rules::encode(const Answer& answer) const {
  return encode_answer(answer, parts_->options.max_answer_bytes, parts_->options.never_store);
}

Result Rules::encode_tombstone(const Answer& head, std::uint64_t body_bytes) const {
  return http::encode_tombstone(head, body_bytes, parts_->options.never_store);
}

}  // namespace once::http
