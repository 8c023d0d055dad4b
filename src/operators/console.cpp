#include "operators/console.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

#include "operators/answers.hpp"
#include "operators/console_files.hpp"
#include "operators/requests.hpp"
#include "operators/words.hpp"
#include "text/ascii.hpp"

namespace once::operators {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view folder = "/console";
constexpr std::string_view session_path = "/v1/session";

std::string_view path_of(const http::Request& request) { return request.target.substr(0, request.target.find('?')); }

const char* role_of(const Identity& identity) { return identity.reads_only ? "reader" : "operator"; }

http::Answer forbidden(std::string_view title, std::string_view detail) {
  return operators_problem("forbidden", 403, title, detail);
}

// A page of another origin, even on another port of this host, has another word here, and no page can change it.
// https://www.w3.org/TR/fetch-metadata/
std::optional<http::Answer> refuse_site(const http::Request& request) {
  const auto sites = values_of(request, "Sec-Fetch-Site");
  if (sites.size() == 1 && sites[0] == "same-origin") return std::nullopt;
  return forbidden("Only from the console's own page",
                   "The browser must say Sec-Fetch-Site: same-origin. Nothing was changed.");
}

// The values of all cookies of this name: another server of this host may have set one, too.
std::vector<std::string_view> cookies_of(const http::Request& request, const std::string& name) {
  std::vector<std::string_view> found;
  for (std::string_view line : values_of(request, "Cookie")) {
    while (!line.empty()) {
      std::string_view one = line.substr(0, line.find(';'));
      line.remove_prefix(std::min(line.size(), one.size() + 1));
      one.remove_prefix(std::min(one.size(), one.find_first_not_of(' ')));
      const auto equals = one.find('=');
      if (equals != std::string_view::npos && one.substr(0, equals) == name) found.push_back(one.substr(equals + 1));
    }
  }
  constexpr std::size_t most = 8;
  found.resize(std::min(found.size(), most));
  return found;
}

std::string_view half_of(const http::Request& request) {
  const auto halves = values_of(request, "Once-Session");
  return halves.size() == 1 ? halves.front() : std::string_view();
}

// The host and the port that the browser uses. "[::1]:9100" has "9100"; without one it is empty.
std::optional<std::string_view> port_in(std::string_view host) {
  const auto colon = host.find(':', host.starts_with('[') ? host.find(']') : 0);
  if (colon == std::string_view::npos) return std::string_view();
  const std::string_view port = host.substr(colon + 1);
  const bool is_number = !port.empty() && port.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? std::optional(port) : std::nullopt;
}

// "once.example.com", "10.0.0.7:8443", "[2001:db8::1]:8443": what a browser may show between https:// and the path.
bool is_host_and_port(std::string_view text) {
  const auto port = port_in(text);
  if (!port) return false;
  std::string_view host = text;
  if (!port->empty()) {
    unsigned number = 0;
    const auto [end, error] = std::from_chars(port->data(), port->data() + port->size(), number);
    if (error != std::errc() || number == 0 || number > 65'535) return false;
    host.remove_suffix(port->size() + 1);
  }
  if (host.starts_with('[')) {
    std::array<std::uint8_t, 16> address{};
    if (!host.ends_with(']')) return false;
    return inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), address.data()) == 1;
  }
  constexpr std::size_t max_label_bytes = 63;
  return std::ranges::all_of(split(host, '.'), [](const std::string& label) {
    return !label.empty() && label.size() <= max_label_bytes && label.front() != '-' && label.back() != '-' &&
           std::ranges::all_of(label, [](char c) { return c == '-' || text::is_letter_or_digit(c); });
  });
}

// So that hosts can be compared: browsers leave out the port of https.
std::string plain_host(std::string_view host) {
  std::string plain = text::lower(host);
  if (port_in(plain) == "443") plain.resize(plain.size() - 4);
  return plain;
}

const char* media_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/plain; charset=utf-8";
}

http::Answer page_answer(unsigned status, const char* type, std::string_view body, std::string cache) {
  return {.status = status,
          .reason = {},
          .headers = {{"Content-Type", type},
                      {"Cache-Control", std::move(cache)},
                      {"Content-Security-Policy",
                       "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
                       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
                       "'script'; trusted-types 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}},
          .body = std::string(body)};
}

// `name`: of the path, behind "/console/".
http::Answer file_answer(const http::Request& request, std::string_view name) {
  if (name.empty()) name = "index.html";
  const auto files = console_files();
  const auto found = std::ranges::find(files, name, &ConsoleFile::name);
  if (found == files.end()) return page_answer(404, media_type(""), "The console has no such file.\n", "no-store");
  if (name == "index.html") return page_answer(200, media_type(name), found->bytes, "no-store");
  const std::string tag = '"' + to_hex(sha256(found->bytes)).substr(0, 32) + '"';
  const std::string_view* const known = header_of(request, "If-None-Match");
  const bool is_known = known != nullptr && *known == tag;
  http::Answer answer =
      page_answer(is_known ? 304 : 200, media_type(name), is_known ? std::string_view() : found->bytes, "no-cache");
  answer.headers.push_back({"ETag", tag});
  return answer;
}

}  // namespace

std::optional<http::Answer> refuse_reader(const http::Request& request, const Caller& caller) {
  if (is_read(request) || !caller.session || !caller.session->reads_only) return std::nullopt;
  return operators_problem("role", 403, "A reader changes nothing",
                           "This session or token has the role reader. Nothing was changed.");
}

bool Caller::note(Json line) const {
  if (notes == nullptr) return true;
  if (session) {
    line["who"] = session->name;
  } else if (!line.contains("who")) {
    line["who"] = "";
  }
  line["role"] = session ? Json(role_of(*session)) : Json(nullptr);
  return notes->write(line);
}

std::string console_host(std::string_view origin, bool can_sign_in) {
  if (origin.empty()) return {};
  constexpr std::string_view scheme = "https://";
  const std::string_view host = origin.substr(std::min(origin.size(), scheme.size()));
  if (!http::same_name(origin.substr(0, scheme.size()), scheme) || !is_host_and_port(host)) {
    throw Exception(ErrorKind::misuse,
                    "console-origin must be https://HOST[:PORT], without a path: " + std::string(origin));
  }
  if (!can_sign_in) {
    throw Exception(ErrorKind::misuse,
                    "console-origin: nobody could sign in. Name a file with a token (admin-token-file)");
  }
  return plain_host(host);
}

Console::Console(const AdminToken& token, ConsoleOptions options)
    : token_(token), options_(std::move(options)), notes_(options_.audit), sessions_(options_.clock) {}

std::optional<http::Answer> Console::refuse_host(const http::Request& request) const {
  const auto hosts = values_of(request, "Host");
  if (hosts.size() == 1 && is_loopback_host(hosts[0]) && port_in(hosts[0])) return std::nullopt;
  if (hosts.size() == 1 && !options_.host.empty() && plain_host(hosts[0]) == options_.host) return std::nullopt;
  return forbidden("Not under this host name",
                   options_.host.empty() ? "The console is at localhost and at loopback addresses only."
                                         : "The console is at https://" + options_.host + ", and at localhost.");
}

bool Console::is_secure(const http::Request& request) const {
  if (options_.by_tls) return true;
  const auto hosts = values_of(request, "Host");
  return hosts.size() == 1 && !options_.host.empty() && plain_host(hosts[0]) == options_.host;
}

// Browsers send a cookie to all ports of a host, so its name has the port.
std::string Console::cookie_name(const http::Request& request) const {
  const auto hosts = values_of(request, "Host");
  const std::string_view port = hosts.size() == 1 ? port_in(hosts[0]).value_or("") : "";
  const bool secure = is_secure(request);
  const std::string name = "once-" + std::string(port.empty() ? (secure ? "443" : "80") : port);
  return secure ? "__Host-" + name : name;
}

std::vector<std::string_view> Console::cookies(const http::Request& request) const {
  return cookies_of(request, cookie_name(request));
}

std::optional<http::Answer> Console::answer(const http::Request& request) {
  const std::string_view path = path_of(request);
  const bool is_session = path == session_path;
  const bool is_file = path == folder || (path.starts_with(folder) && path[folder.size()] == '/');
  if (!is_session && !is_file) return std::nullopt;
  if (auto refused = refuse_host(request)) return refused;
  const bool may_write = is_session && (request.method == "POST" || request.method == "DELETE");
  if (!is_read(request) && !may_write) return not_allowed(is_session ? "GET, HEAD, POST, DELETE" : "GET, HEAD");
  if (!options_.by_links && !token_.is_set()) {
    return forbidden("The console is off", "Start this program with --admin-token-file to use the console.");
  }
  if (is_session) {
    Query(request.target.substr(path.size() + (path.size() < request.target.size() ? 1 : 0))).end();
    return session(request);
  }
  if (path != folder) return file_answer(request, path.substr(folder.size() + 1));
  http::Answer answer = page_answer(308, media_type(""), "The console is at console/\n", "no-store");
  answer.headers.push_back({"Location", "console/"});
  return answer;
}

bool Console::decides(const http::Request& request) const {
  if (options_.by_links || !values_of(request, "Once-Session").empty()) return true;
  return token_.is_set() && values_of(request, "Authorization").empty() && !cookies(request).empty();
}

std::optional<http::Answer> Console::admit(const http::Request& request, Caller& caller) {
  if (auto refused = refuse_host(request)) return refused;
  end_changed();  // Also one that signed in while the token was read again.
  caller.notes = &notes_;
  for (const std::string_view cookie : cookies(request)) {
    const auto found = sessions_.find(cookie, half_of(request));
    if (!found) continue;
    caller.session = found->identity;
    caller.number = found->number;
    break;
  }
  if (!caller.session) return unauthorized("There is no such session", "Sign in: the session has ended, or never was.");
  if (is_read(request)) return std::nullopt;
  if (auto refused = refuse_site(request)) return refused;
  return path_of(request) == session_path ? std::nullopt : refuse_reader(request, caller);
}

Identity Console::named(Identity identity) const {
  if (identity.name.empty()) identity.name = options_.name;
  return identity;
}

void Console::end_changed() {
  sessions_.end_unless([&](const Sha256& credential, const Identity& identity) {
    return token_.has({.digest = credential, .identity = identity}) ||
           (identity == named({}) && token_.has({.digest = credential, .identity = {}}));
  });
}

bool Console::still_admits(std::uint64_t number) {
  end_changed();
  return sessions_.use(number);
}

http::Answer Console::session(const http::Request& request) {
  if (request.method == "POST") return sign_in(request);
  Caller caller;
  if (auto refused = admit(request, caller)) return std::move(*refused);
  if (is_read(request)) {
    return json_answer(200, {{"name", caller.session->name}, {"role", role_of(*caller.session)}});
  }
  for (const std::string_view cookie : cookies(request)) sessions_.end(cookie, half_of(request));
  static_cast<void>(caller.note({{"event", "sign-out"}}));  // The session has ended in any case.
  return {.status = 204, .reason = {}, .headers = {{"Cache-Control", "no-store"}}, .body = {}};
}

http::Answer Console::sign_in(const http::Request& request) {
  if (auto refused = refuse_site(request)) return std::move(*refused);
  if (auto refused = refuse_other_than_json(request)) return std::move(*refused);
  refuse_long(request);
  Members members(request.body);
  const auto link = members.text("link");
  const auto token = members.text("token");
  members.end();
  if (link.has_value() == token.has_value()) throw wrong("give link or token, and not both");
  Caller caller{.session = std::nullopt, .notes = &notes_};
  std::optional<Sha256> credential;
  if (link) {
    caller.session = sessions_.take_link(*link);
  } else if (const auto known = token_.find(*token)) {
    credential = known->digest;
    caller.session = named(known->identity);
  }
  const Json line{{"event", caller.session ? "sign-in" : "sign-in-refused"}, {"by", link ? "link" : "token"}};
  // What is right is never barred: whoever guesses could keep the others out.
  if (!caller.session && !sessions_.count_failure(request.principal)) {
    http::Answer answer =
        operators_problem("too-many-attempts", 429, "Too many attempts to sign in failed", "Try again in a minute.");
    answer.headers.push_back({"Retry-After", "60"});
    return answer;
  }
  if (!caller.note(line)) return not_audited();
  if (!caller.session) {
    return link ? unauthorized("Not signed in", "This link was used, or is older than 60 s.")
                : unauthorized("Not signed in", token_.is_set() ? "The token is wrong."
                                                                : "There is no token here. Use a link: `once console` "
                                                                  "prints one.");
  }
  const Sessions::Halves halves = sessions_.open(*caller.session, credential);
  http::Answer answer =
      json_answer(200, {{"name", caller.session->name}, {"role", role_of(*caller.session)}, {"half", halves.header}});
  answer.headers.push_back({"Set-Cookie", cookie_name(request) + "=" + halves.cookie +
                                              "; Path=/; HttpOnly; SameSite=Strict" +
                                              (is_secure(request) ? "; Secure" : "")});
  return answer;
}

}  // namespace once::operators
