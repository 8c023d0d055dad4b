#include "settings/proxy_settings.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <ranges>
#include <type_traits>
#include <utility>

#include <once/error.hpp>

#include "operators/store_look.hpp"
#include "output/text.hpp"
#include "settings/access.hpp"
#include "settings/admin_flags.hpp"
#include "text/ascii.hpp"
#include "text/number.hpp"

namespace once::cli {

namespace {

using Words = Setting::Words;

// Which part of the settings a member belongs to.
template <class T>
T& at(ProxySettings& settings, T ProxySettings::*member) {
  return settings.*member;
}
template <class T>
T& at(ProxySettings& settings, T StoreOptions::*member) {
  return settings.store.*member;
}
template <class T>
T& at(ProxySettings& settings, T proxy::ProxyOptions::*member) {
  return settings.proxy.*member;
}
template <class T>
T& at(ProxySettings& settings, T proxy::Timeouts::*member) {
  return settings.proxy.timeouts.*member;
}
template <class T>
T& at(ProxySettings& settings, T proxy::Aside::*member) {
  return settings.proxy.aside.*member;
}
template <class T>
T& at(ProxySettings& settings, T http::Options::*member) {
  return settings.rules.otherwise.*member;
}
template <class T>
T& at(ProxySettings& settings, T http::JwtOptions::*member) {
  return settings.jwt.*member;
}
template <class T>
T& at(ProxySettings& settings, T Policy::*member) {
  return (*settings.rules.otherwise.policy).*member;
}

template <class Part, class T>
constexpr bool belongs_to_rules(T Part::*) {
  return std::is_same_v<Part, http::Options> || std::is_same_v<Part, http::JwtOptions> || std::is_same_v<Part, Policy>;
}

// An entry with its own reading function.
Setting entry(std::string name, std::string usual, std::string help,
              std::function<void(ProxySettings&, const Words&, const std::string&)> apply, bool is_rule) {
  return {.name = std::move(name),
          .usual = std::move(usual),
          .help = std::move(help),
          .apply = std::move(apply),
          .is_rule = is_rule};
}

// Those below write their value into `member`.

template <auto member>
Setting text(std::string name, std::string usual, std::string help) {
  return entry(
      std::move(name), std::move(usual), std::move(help),
      [](ProxySettings& to, const Words& words, const std::string&) { at(to, member) = words.front(); },
      belongs_to_rules(member));
}

template <auto member>
Setting list(std::string name, std::string usual, std::string help) {
  Setting made = entry(
      std::move(name), std::move(usual), std::move(help),
      [](ProxySettings& to, const Words& words, const std::string&) { at(to, member) = words; },
      belongs_to_rules(member));
  made.kind = Setting::Kind::list;
  return made;
}

// `on`: the member's value if the flag is given, otherwise `off`.
template <auto member, auto on, auto off>
Setting toggle(std::string name, std::string help) {
  Setting made = entry(
      std::move(name), {}, std::move(help),
      [](ProxySettings& to, const Words& words, const std::string&) {
        at(to, member) = words.front() == "true" ? on : off;
      },
      belongs_to_rules(member));
  made.kind = Setting::Kind::toggle;
  return made;
}

// The first is the default.
template <auto member, class Value>
Setting choice(std::string name, std::vector<std::pair<std::string, Value>> values, std::string help) {
  Words choices;
  for (const auto& [word, value] : values) choices.push_back(word);
  Setting made = entry(
      std::move(name), choices.front(), std::move(help),
      [values = std::move(values)](ProxySettings& to, const Words& words, const std::string& what) {
        std::string known;
        for (const auto& [word, value] : values) {
          if (word == words.front()) {
            at(to, member) = value;
            return;
          }
          known += (known.empty() ? "" : " or ") + word;
        }
        throw Exception(ErrorKind::misuse, what + " must be " + known + ", not '" + words.front() + "'");
      },
      belongs_to_rules(member));
  made.choices = std::move(choices);
  return made;
}

template <auto member, auto parse = parse_duration>
Setting duration(std::string name, std::string usual, std::string help) {
  return entry(
      std::move(name), std::move(usual), std::move(help),
      [](ProxySettings& to, const Words& words, const std::string& what) {
        at(to, member) = parse(words.front(), what);
      },
      belongs_to_rules(member));
}

template <auto member, unsigned most_gib = 1>
Setting size(std::string name, std::string usual, std::string help) {
  return entry(
      std::move(name), std::move(usual), std::move(help),
      [](ProxySettings& to, const Words& words, const std::string& what) {
        constexpr std::uint64_t most = std::uint64_t{most_gib} << 30U;
        const std::uint64_t bytes = parse_size(words.front(), what);
        if (bytes == 0 || bytes > most) {
          throw Exception(ErrorKind::misuse, what + " must be 1 to " + std::to_string(most_gib) + "GiB");
        }
        at(to, member) = static_cast<std::size_t>(bytes);
      },
      belongs_to_rules(member));
}

template <auto member>
Setting number(std::string name, std::string usual, std::string help) {
  return entry(
      std::move(name), std::move(usual), std::move(help),
      [](ProxySettings& to, const Words& words, const std::string& what) {
        const std::string& digits = words.front();
        auto& number_of = at(to, member);
        const auto told = text::parse_whole<std::remove_reference_t<decltype(number_of)>>(digits);
        if (!told) {
          throw Exception(ErrorKind::misuse, what + " must be a whole number, as in 4, not '" + digits + "'");
        }
        number_of = *told;
      },
      belongs_to_rules(member));
}

// "503=release", "500,501=ambiguous", "400-499=release"
void add_fate(http::Options& rules, const std::string& text, const std::string& what) {
  const auto bad = [&] {
    return Exception(ErrorKind::misuse, what +
                                            " must be statuses, =, and store, release, ambiguous or hold, as in "
                                            "503=release, 500,501=ambiguous or 400-499=release; not '" +
                                            text + "'");
  };
  const auto equals = text.find('=');
  if (equals == std::string::npos) throw bad();
  const std::string word = text.substr(equals + 1);
  constexpr std::array fates{http::Fate::store, http::Fate::release, http::Fate::ambiguous, http::Fate::hold};
  const auto* const fate = std::ranges::find(fates, word, [](http::Fate one) { return to_string(one); });
  if (fate == fates.end()) throw bad();
  const auto status = [&](std::string_view digits) {
    const unsigned value = text::parse_whole<unsigned>(digits).value_or(0);
    if (value < 100 || value > 599) throw bad();
    return value;
  };
  for (const std::string& part : split(text.substr(0, equals), ',')) {
    const auto dash = part.find('-');
    const unsigned first = status(std::string_view(part).substr(0, dash));
    const unsigned last = dash == std::string::npos ? first : status(std::string_view(part).substr(dash + 1));
    if (last < first) throw bad();
    for (unsigned one = first; one <= last; ++one) rules.fates[one] = *fate;
  }
}

void set_fates(ProxySettings& to, const Words& words, const std::string& what) {
  to.rules.otherwise.fates.clear();
  for (const std::string& text : words) add_fate(to.rules.otherwise, text, what);
}

void set_reconcile_not_done(ProxySettings& to, const Words& words, const std::string& what) {
  std::vector<unsigned>& statuses = to.rules.otherwise.reconcile_not_done;
  statuses.clear();
  for (const std::string& word : words) {
    const auto status = text::parse_whole<unsigned>(word);
    if (!status) throw Exception(ErrorKind::misuse, what + " must be statuses, as in 404, not '" + word + "'");
    statuses.push_back(*status);
  }
}

void set_wait(ProxySettings& to, const Words& words, const std::string& what) {
  Policy& policy = *to.rules.otherwise.policy;
  policy.wait = parse_duration(words.front(), what);
  policy.on_conflict = policy.wait > Millis{0} ? OnConflict::wait : OnConflict::fail;
}

void set_answer_timeout(ProxySettings& to, const Words& words, const std::string& what) {
  to.rules.otherwise.answer_timeout = to.proxy.timeouts.answer = parse_duration(words.front(), what);
}

void set_principal_headers(ProxySettings& to, const Words& words, const std::string&) {
  to.rules.otherwise.principal = http::Principal::headers(words);
}

// The words are part of each key: changing them changes the keys.
void set_principal_certificate(ProxySettings& to, const Words& words, const std::string&) {
  if (words.front() == "true")
    to.rules.otherwise.principal = http::Principal::given("the client certificate's subject");
}

void set_no_principal(ProxySettings& to, const Words& words, const std::string&) {
  if (words.front() == "true") to.rules.otherwise.principal = http::Principal::shared();
}

void set_listen(ProxySettings& to, const Words& words, const std::string& what) {
  to.proxy.listen = proxy::parse_listen(words.front(), what);
}

void set_listen_mode(ProxySettings& to, const Words& words, const std::string& what) {
  const std::string& word = words.front();
  const bool is_octal = !word.empty() && word.size() <= 4 && word.find_first_not_of("01234567") == std::string::npos;
  const unsigned long mode = is_octal ? std::stoul(word, nullptr, 8) : 0;
  if (!is_octal || mode > 0777) {
    throw Exception(ErrorKind::misuse, what + " must be the mode of a file, as in 0660, not '" + word + "'");
  }
  to.proxy.listen_mode = static_cast<unsigned>(mode);
}

void set_upstream(ProxySettings& to, const Words& words, const std::string& what) {
  to.proxy.upstreams.clear();
  for (const std::string& word : words) {
    to.proxy.upstreams.push_back(proxy::parse_service(word, what));
    to.upstream_urls += (to.upstream_urls.empty() ? "" : " ") + word;
  }
}

template <auto member>
Setting networks(std::string name, std::string help) {
  Setting made = entry(
      std::move(name), {}, std::move(help),
      [](ProxySettings& to, const Words& words, const std::string& what) {
        at(to, member).clear();
        for (const std::string& word : words) at(to, member).push_back(proxy::parse_network(word, what));
      },
      false);
  made.kind = Setting::Kind::list;
  made.separator = ',';
  return made;
}

Setting in_pair(Setting made) {
  made.in_pair = true;
  return made;
}

// Half of a certificate: its file, or its key's file.
template <auto Which, auto File>
Setting certificate(std::string name, std::string help) {
  return in_pair(entry(
      std::move(name), {}, std::move(help),
      [](ProxySettings& to, const Words& words, const std::string&) {
        auto& whole = to.proxy.*Which;
        (whole ? *whole : whole.emplace()).*File = words.front();
      },
      false));
}

void set_admin(ProxySettings& to, const Words& words, const std::string& what) {
  to.proxy.admin = parse_admin(words.front(), what);
}

Setting keyed(std::string file_key, Setting made) {
  made.file_key = std::move(file_key);
  return made;
}

// A setting with this member set.
template <bool Setting::*member>
Setting with(Setting made) {
  made.*member = true;
  return made;
}

constexpr auto required = with<&Setting::required>;
constexpr auto changing = with<&Setting::can_change>;
constexpr auto adding = with<&Setting::adds>;  // A route with words of its own must not lose the common ones.
constexpr auto saying_who = with<&Setting::is_principal>;
constexpr auto placing_key = with<&Setting::is_key_place>;

Setting in_file(std::string usual, Setting made) {
  made.usual = std::move(usual);
  made.is_flag = false;
  return made;
}

Setting as_list(Setting made, char separator = 0) {
  made.kind = Setting::Kind::list;
  made.separator = separator;
  return made;
}

Setting as_toggle(Setting made) {
  made.kind = Setting::Kind::toggle;
  return made;
}

// What a sender of webhooks needs. It sends an event again until it gets a 2xx, for days, with the same id. So every
// other answer is released, also a redirect, which no sender follows: the next attempt runs. 502 to 504 are not,
// because the event may have been processed.
const std::map<std::string, std::map<std::string, Words>, std::less<>>& presets() {
  static const std::map<std::string, std::map<std::string, Words>, std::less<>> all = [] {
    const std::map<std::string, Words> common{
        {"no-principal", {"true"}}, {"fate", {"300-501=release", "505-599=release"}}, {"retention", {"7d"}}};
    const auto with = [&](std::map<std::string, Words> own) {
      own.insert(common.begin(), common.end());
      return own;
    };
    return std::map<std::string, std::map<std::string, Words>, std::less<>>{
        // pending_webhooks differs between attempts.
        {"stripe",
         with({{"key-field", {"id"}}, {"fingerprint", {"data && [type, created, data] || [type, created]"}}})},
        {"github", with({{"key-header", {"X-GitHub-Delivery"}}})},
        // Some senders put the time of the attempt beside the event.
        {"svix",
         with({{"key-header", {"svix-id, webhook-id"}},
               {"fingerprint", {"type && data && [type, data] || event && payload && [event, payload] || @"}}})},
    };
  }();
  return all;
}

void set_preset(ProxySettings&, const Words& words, const std::string& what) {
  if (presets().contains(words.front())) return;
  throw Exception(ErrorKind::misuse, what + " must be stripe, github or svix, not '" + words.front() + "'");
}

Setting preset() {
  Setting made = entry("preset", {}, "The sender of webhooks: sets key, fingerprint, fates, retention and principal",
                       set_preset, true);
  for (const auto& [name, settings] : presets()) made.choices.push_back(name);
  return made;
}

std::vector<Setting> table() {
  using http::JwtOptions;
  using http::Options;
  using proxy::Aside;
  using proxy::Certificate;
  using proxy::ProxyOptions;
  using proxy::Timeouts;
  return {
      required(entry("listen", {}, "HOST:PORT to accept requests on, or unix:PATH", set_listen, false)),
      entry("listen-mode", "0660", "Mode of the Unix socket's file: who may connect", set_listen_mode, false),
      certificate<&ProxyOptions::certificate, &Certificate::file>(
          "tls-cert", "PEM file: clients must use TLS 1.2 or later; the server's certificate comes first"),
      certificate<&ProxyOptions::certificate, &Certificate::key_file>("tls-key", "PEM file with the certificate's key"),
      in_pair(text<&ProxyOptions::client_ca_file>("client-ca", {},
                                                  "PEM file: clients must show a certificate signed by one of these")),
      networks<&ProxyOptions::trusted_proxies>(
          "trusted-proxy", "ADDRESS or NETWORK/BITS of proxies in front whose X-Forwarded-* are trusted; repeatable"),
      networks<&ProxyOptions::proxy_protocol>(
          "proxy-protocol", "ADDRESS or NETWORK/BITS whose connections begin with the PROXY protocol; repeatable"),
      changing(required(
          as_list(entry("upstream", {}, "http://HOST:PORT of the service, https://HOST[:443] or unix:PATH; repeatable",
                        set_upstream, false)))),
      text<&ProxyOptions::upstream_ca_file>("upstream-ca", {},
                                            "PEM file: the authorities to trust for https:// (default: the system's)"),
      certificate<&ProxyOptions::upstream_certificate, &Certificate::file>(
          "upstream-cert", "PEM file: the certificate that the proxy shows to https:// upstreams"),
      certificate<&ProxyOptions::upstream_certificate, &Certificate::key_file>("upstream-key",
                                                                               "PEM file with that certificate's key"),
      text<&ProxyOptions::health_path>("health-path", {},
                                       "Path to request from each upstream; one without 2xx or 3xx gets no requests"),
      duration<&ProxyOptions::health_interval>("health-interval", "5s",
                                               "How often to request it, and how long the answer may take"),
      number<&Aside::after_failures>(
          "aside-after-failures", "3",
          "After this many failures in a row (no answer, or 502 to 504), put an upstream aside\n"
          "for --aside-time; 0: never"),
      number<&Aside::after_5xx>(
          "aside-after-5xx", "5",
          "The same for failures and other 5xx together, while other upstreams are left; 0: never"),
      number<&Aside::percent>("aside-percent", "50",
                              "Percentage of upstreams that may be aside for 5xx at once; one always may"),
      in_pair(duration<&Aside::time>("aside-time", "1s",
                                     "How long an upstream is aside at first; each further time doubles it")),
      in_pair(duration<&Aside::time_limit>("aside-time-limit", "30s", "The longest time that an upstream is aside")),
      text<&StoreOptions::url>("store", {}, store_help),
      text<&StoreOptions::offload>("offload", {}, offload_help),
      toggle<&ProxySettings::unshared_store, true, false>("unshared-store", unshared_store_help),
      entry("admin", {},
            "[HOST:]PORT for /healthz, /readyz, /metrics, the operators' API and its console; HOST defaults to "
            "127.0.0.1\n"
            "(default: off)",
            set_admin, false),
      certificate<&ProxyOptions::admin_certificate, &Certificate::file>(
          "admin-tls-cert", "PEM file: use TLS for --admin too; may be the same as --tls-cert"),
      certificate<&ProxyOptions::admin_certificate, &Certificate::key_file>("admin-tls-key",
                                                                            "PEM file with that certificate's key"),
      text<&ProxySettings::admin_token_file>(
          "admin-token-file", {},
          "A file with the token that the operators' API requires, or with a line for each\n"
          "token: NAME reader|operator SHA256 (default on a loopback address: a new token, in a file\n"
          "whose path is printed; another HOST needs one)"),
      text<&ProxySettings::metrics_token_file>("metrics-token-file", {},
                                               "A file with another token, which /metrics requires (default: none)"),
      text<&ProxySettings::console_origin>("console-origin", {}, console_origin_help),
      text<&ProxySettings::audit_log>("audit-log", {}, audit_log_help),
      duration<&ProxySettings::stats_interval, parse_interval>("stats-interval", "60s", stats_interval_help),
      duration<&ProxySettings::sweep_interval, parse_interval>("sweep-interval", "60s", sweep_interval_help),
      duration<&ProxySettings::watch_interval, parse_interval>(
          "watch-interval", "10s",
          "How often to look for other contents of the files of certificates, tokens and keys of JWTs, which are then\n"
          "read again; off: at SIGHUP only"),

      in_file("true", toggle<&Options::protect, true, false>("protect", "false: all requests pass through untouched")),
      preset(),
      as_list(list<&Options::methods>("methods", "POST PATCH", "Which requests are protected"), ','),
      toggle<&Policy::on_missing_key, OnMissingKey::run_unprotected, OnMissingKey::refuse>(
          "optional-key", "Pass requests without a key through, unprotected (default: refuse them with 400)"),
      placing_key(text<&Options::key_header>("key-header", "Idempotency-Key",
                                             "The header with the key; several names with commas: it may be in each")),
      placing_key(
          text<&Options::key_field>("key-field", {}, "JMESPath: take the key from the JSON body, not from a header")),
      toggle<&Options::allow_null_parts, true, false>(
          "allow-null-parts", "Accept empty parts of a key that --key-field puts together, as in join('-', [a, b])"),
      placing_key(text<&Options::key_query>("key-query", {}, "Take the key from this parameter of the query")),
      placing_key(text<&Options::key_path>("key-path", {}, "Take the key from the path, as in /orders/{key}/pay")),
      placing_key(text<&Options::key_form>("key-form", {}, "Take the key from this field of a form")),
      text<&Options::key_pattern>("key-pattern", {},
                                  "Refuse keys that this regular expression does not match as a whole"),
      number<&Options::key_min_length>("key-min-length", "1", "Refuse keys with fewer characters"),
      saying_who(as_list(entry("principal-header", {},
                               "Who a client is: the value of this header; repeatable, then all values together",
                               set_principal_headers, true))),
      saying_who(text<&JwtOptions::key_file>(
          "principal-jwt", {}, "Who a client is: a claim of its JWT, verified with this file (PEM, JWK or JWKS)")),
      saying_who(as_toggle(entry("principal-certificate", {},
                                 "Who a client is: the subject of its certificate (needs --client-ca)",
                                 set_principal_certificate, true))),
      saying_who(
          as_toggle(entry("no-principal", {}, "Treat all clients as one: they share keys, and get each other's answers",
                          set_no_principal, true))),
      text<&JwtOptions::claim>("principal-jwt-claim", "sub", "The claim that names the client"),
      text<&JwtOptions::header>("principal-jwt-header", "Authorization", "The header with the JWT"),
      list<&JwtOptions::issuers>("principal-jwt-issuer", {},
                                 "The value that `iss` must have; repeatable (default: any)"),
      list<&JwtOptions::audiences>("principal-jwt-audience", {},
                                   "A value that `aud` must have; repeatable (default: any)"),
      duration<&JwtOptions::leeway>("principal-jwt-leeway", "30s",
                                    "How far clocks may differ when `exp` and `nbf` are checked, up to 5m"),
      text<&Options::challenge>("challenge", {},
                                "Refuse a request without its client's identity with 401 and this WWW-Authenticate\n"
                                "(default: 400; with a JWT: 401 and Bearer)"),
      keyed("operation",
            text<&Options::route>("route", {},
                                  "One name in keys for all paths (default: each path is an operation of its own)")),
      text<&Options::scope>("scope", {}, "Prefix of all keys, as a service's name"),
      list<&Options::fingerprint_headers>("fingerprint-header", {}, "A header that a retry must repeat; repeatable"),
      text<&Options::fingerprint>("fingerprint", {},
                                  "JMESPath: compare only this of the JSON body with the first request's"),
      toggle<&Options::compare_json, true, false>("compare-json",
                                                  "Compare JSON bodies by meaning: blanks and order do not count"),
      toggle<&Options::ignore_host, true, false>("ignore-host", "Allow a retry to name another host"),
      toggle<&Options::ignore_query, true, false>("ignore-query", "Allow a retry to have another query"),
      toggle<&Options::ignore_body, true, false>("ignore-body", "Allow a retry to have another body"),
      duration<&Policy::lease>("lease", "30s", "How long a claim blocks other requests after a crash, 10ms to 24h"),
      duration<&Policy::retention, parse_retention>(
          "retention", "24h", "How long an answer is replayed before it expires; never: it does not expire"),
      duration<&Policy::failure_retention, parse_retention>(
          "failure-retention", {}, "The same for answers with a status of 400 or more (default: as --retention)"),
      duration<&Policy::expected>("expect", {},
                                  "How long a request should take; later it is overdue: see once ls --overdue"),
      entry("wait", {}, "How long a duplicate of a running request waits for its answer (default: 409 at once)",
            set_wait, true),
      choice<&Options::on_ambiguous, OnLapse>(
          "on-ambiguous", {{"hold", OnLapse::hold}, {"takeover", OnLapse::takeover}},
          "After 502, 503, 504, a lost connection or a crash: hold (unknown, an operator decides) or takeover (a\n"
          "retry runs it again)"),
      choice<&Policy::on_store_down, OnStoreDown>(
          "on-store-down", {{"refuse", OnStoreDown::refuse}, {"run-unprotected", OnStoreDown::run_unprotected}},
          "When the store does not answer: refuse with 503, or run-unprotected: run the request without protection"),
      choice<&Policy::on_unrecorded, OnUnrecorded>(
          "on-unrecorded", {{"return", OnUnrecorded::return_result}, {"fail", OnUnrecorded::fail}},
          "When the answer cannot be stored: return it anyway, or fail with 503"),
      choice<&Policy::label, Label>(
          "label", {{"named", Label::named}, {"all", Label::all}, {"none", Label::none}},
          "Which keys are also the record's label, for people: named (of a header), all (--key-field too), none"),
      toggle<&Policy::keep_input, true, false>(
          "keep-input", "Keep the body of each protected request in its record, for people. It may be sensitive"),
      adding(list<&Options::input_without>(
          "input-without", {},
          "A field of JSON bodies to leave out of what --keep-input keeps, as in card.number; repeatable. Routes\n"
          "add to it. A body that is not JSON is then not kept")),
      as_list(
          entry("fate", {},
                "What to do after the statuses listed: 503=release, 500,501=ambiguous, 400-499=release, 429=store;\n"
                "repeatable, and the last one for a status counts",
                set_fates, true)),
      toggle<&Options::service_fate, true, false>(
          "service-fate", "Let the service say what becomes of its answer: Once-Fate: complete, release or hold"),
      toggle<&Options::send_claim, true, false>(
          "send-claim", "Send Once-Attempt, Once-Token and Once-Derived-Key with each request that has a claim"),
      toggle<&Options::service_finish, true, false>(
          "service-finish",
          "Let the service finish a request in its own transaction (PostgreSQL): send Once-Stored-Key and Once-Owner"),
      list<&Options::stream_types>("stream-type", {},
                                   "A content type whose answers reach the client as they come, as text/event-stream\n"
                                   "does: application/x-ndjson; repeatable"),
      list<&Options::cors_origins>("cors-origin", {},
                                   "The origin of pages whose scripts may read the proxy's own errors, as in\n"
                                   "https://shop.example, or *; repeatable"),
      list<&Options::never_store>("never-store", {}, "A header to leave out of replays; repeatable"),
      size<&Options::max_body_bytes>("body-limit", "1MiB",
                                     "Largest body of a request with a key; a larger one gets 413"),
      size<&Options::max_answer_bytes>(
          "answer-limit", "1MiB",
          "Largest answer to store; a larger one streams through once, and its retries get 410"),
      duration<&Options::retry_after>("retry-after", "5s", "The largest Retry-After"),
      entry("answer-timeout", "60s", "How long to wait for the head of the upstream's answer", set_answer_timeout,
            true),
      duration<&Options::client_timeout>(
          "client-timeout", "0s",
          "How long a client waits for the answer to a request with a key: then 409, and the work goes on\n"
          "(0s: as long as --answer-timeout)"),
      text<&Options::reconcile>("reconcile", {},
                                "The request that asks the service about an unknown operation, as in\n"
                                "\"GET /charges?key={key}\" (default: nobody is asked)"),
      as_list(entry("reconcile-not-done", {},
                    "Statuses of its answer that mean: it did not take place, as in 404; repeatable\n"
                    "(default: none does)",
                    set_reconcile_not_done, true),
              ','),
      duration<&Options::reconcile_settle>(
          "reconcile-settle", {},
          "How long after the end of an attempt those begin to count (default: the longest of\n"
          "--lease, --answer-timeout and 1m)"),
      text<&Options::docs_url>("docs-url", {}, "Where docs/http.md is published, for the type of problems"),

      size<&ProxyOptions::max_head_bytes>("head-limit", "32KiB",
                                          "Largest request line and headers, 1KiB to 1MiB; larger ones get 431"),
      duration<&Timeouts::idle>("idle-timeout", "100s",
                                "How long a client's connection may stay idle between two requests; longer than a\n"
                                "balancer in front keeps it"),
      duration<&Timeouts::head>("head-timeout", "10s", "How long a request's head may take"),
      duration<&Timeouts::body>("body-timeout", "30s",
                                "How long a body may make no progress; for a body that is read whole: how long in all"),
      duration<&Timeouts::connect>("connect-timeout", "2s", "How long connecting to the upstream may take"),
      duration<&ProxyOptions::reconcile_interval>("reconcile-interval", "30s",
                                                  "How often to look for unknown operations to ask about"),
      duration<&Timeouts::tunnel>("tunnel-timeout", "5m", "How long a WebSocket may stay silent"),
      duration<&Timeouts::upstream_idle>("upstream-idle", "1s",
                                         "How long to keep idle connections to the upstream; less than it keeps them"),
      number<&ProxyOptions::max_connections>("max-connections", "10000",
                                             "Most connections of clients; more wait until others close"),
      number<&ProxyOptions::max_connections_per_client>(
          "max-connections-per-client", "0", "Most connections of one address; more are closed. 0: no limit"),
      size<&ProxyOptions::max_buffered_bytes, 1024>("buffer-limit", "1GiB",
                                                    "Most memory for all bodies; further requests get 503"),
      size<&ProxyOptions::max_buffered_bytes_per_client, 1024>("buffer-limit-per-client", "256MiB",
                                                               "Most memory for the bodies of one address"),
      number<&ProxyOptions::threads>("threads", "0", "Number of threads; 0: one for each processor"),
      in_file({}, changing(text<&ProxySettings::accepted_key_change>(
                      "accept-key-change", {}, "Lets SIGHUP change what keys are: the word from the refused reload"))),
      changing(text<&ProxySettings::access_log>("access-log", "-", "A file, - for standard error, or none")),
      choice<&ProxySettings::log, std::optional<LogFormat>>(
          "log", {{"json", LogFormat::json}, {"text", LogFormat::text}, {"none", std::nullopt}},
          "A line on standard error for each claim, replay, conflict …"),
      choice<&ProxySettings::log_level, LogLevel>("log-level",
                                                  {{"info", LogLevel::info},
                                                   {"err", LogLevel::err},
                                                   {"warning", LogLevel::warning},
                                                   {"notice", LogLevel::notice},
                                                   {"debug", LogLevel::debug}},
                                                  "The least severe lines of the log"),
      changing(duration<&ProxySettings::stop_within>(
          "stop-within", "30s", "How long running requests have to finish after SIGTERM or SIGINT")),
  };
}

Words usual_words(const Setting& setting) {
  return setting.kind == Setting::Kind::list ? split(setting.usual, ' ') : Words{setting.usual};
}

void check_whole(const ProxySettings& settings) {
  proxy::check(settings.proxy);
  static_cast<void>(http::Rules(settings.rules.otherwise));
}

// Checks combinations of settings.
void check_together(const ProxySettings& settings) {
  check_whole(settings);
  proxy::check(settings.rules, settings.proxy);
  if (const auto& admin = settings.proxy.admin) check_admin(*admin, !settings.admin_token_file.empty());
  static_cast<void>(console_host(settings.console_origin, !settings.admin_token_file.empty()));
}

// Checks one setting with the defaults of all others, so that the error is about this one.
void check_alone(const Setting& setting, const Words& words, const std::string& what) {
  ProxySettings alone;
  alone.rules.otherwise.principal = http::Principal::shared();
  alone.rules.otherwise.policy.emplace();
  alone.proxy.upstreams = {{.address = {.host = "localhost", .port = 1}}};
  setting.apply(alone, words, what);
  try {
    check_whole(alone);
  } catch (const Exception& error) {
    constexpr std::string_view part = "http::Options::";
    std::string_view text = error.what();
    if (text.starts_with(part)) text.remove_prefix(part.size());
    throw Exception(error.kind(), what + ": " + std::string(text));
  }
}

}  // namespace

const std::vector<Setting>& proxy_settings() {
  static const std::vector<Setting> settings = table();
  return settings;
}

std::string to_string(const Complaint& complaint) {
  const Place& place = complaint.place;
  if (place.file.empty()) return complaint.text;
  std::string text = place.file + ":";
  if (place.line != 0) text += std::to_string(place.line) + ":" + std::to_string(place.column) + ":";
  return text + " " + complaint.text;
}

Given given_by_environment() {
  Given given;
  for (const auto& [name, variable] : {std::pair("lease", "ONCE_LEASE"), std::pair("retention", "ONCE_RETENTION"),
                                       std::pair("failure-retention", "ONCE_FAILURE_RETENTION"),
                                       std::pair("expect", "ONCE_EXPECT"), std::pair("wait", "ONCE_WAIT")}) {
    const char* const value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): nothing sets it.
    if (value != nullptr && *value != '\0') given[name] = {.words = {value}, .place = {.file = variable}};
  }
  return given;
}

std::string told_variables(const Given& given) {
  std::string told;
  for (const auto& [name, value] : given) {
    if (!value.place.file.starts_with("ONCE_")) continue;
    told += (told.empty() ? "" : ", ") + value.place.file + "=" + value.words.front();
  }
  return told;
}

Given merged(Given below, const Given& above) {
  // Of settings of which one counts, the upper ones replace all lower ones.
  for (const auto one_of : {&Setting::is_principal, &Setting::is_key_place}) {
    const auto is_given = [&](const Setting& setting) { return setting.*one_of && above.contains(setting.name); };
    if (std::ranges::none_of(proxy_settings(), is_given)) continue;
    for (const Setting& setting : proxy_settings()) {
      if (setting.*one_of) below.erase(setting.name);
    }
  }
  for (const auto& [name, value] : above) {
    const auto setting = std::ranges::find(proxy_settings(), name, &Setting::name);
    Value& into = below[name];
    Words words = value.words;
    if (setting != proxy_settings().end() && setting->adds) {
      std::erase_if(words, [&](const std::string& word) { return std::ranges::count(into.words, word) != 0; });
      words.insert(words.begin(), into.words.begin(), into.words.end());
    }
    into = {.words = std::move(words), .place = value.place};
  }
  return below;
}

Given with_preset(Given given) {
  const auto chosen = given.find("preset");
  if (chosen == given.end()) return given;
  const auto preset = presets().find(chosen->second.words.front());
  if (preset == presets().end()) return given;  // set_preset() complains.
  Given base;
  for (const auto& [name, words] : preset->second) base[name] = {.words = words, .place = chosen->second.place};
  return merged(std::move(base), given);
}

std::optional<Words> words_for(const Setting& setting, const Given& given) {
  const auto found = given.find(setting.name);
  if (found != given.end()) return found->second.words;
  if (setting.usual.empty()) return std::nullopt;
  return usual_words(setting);
}

namespace {

// Applies the given settings to `settings`, and checks those in `own`.
void apply_all(ProxySettings& settings, bool rules_only, const Given& given, const Given& own,
               std::vector<Complaint>& complaints) {
  for (const Setting& setting : proxy_settings()) {
    if (rules_only && !setting.is_rule) continue;
    const auto words = words_for(setting, given);
    const auto found = own.find(setting.name);
    const Place place = found == own.end() ? Place{} : found->second.place;
    const std::string what = place.file.empty() ? "--" + setting.name : setting.key();
    if (!words && setting.required) {
      complaints.push_back({place, what + " is required, as a flag or in a file (--config)"});
    }
    if (!words) continue;
    try {
      setting.apply(settings, *words, what);
      if (found != own.end() && !setting.in_pair) check_alone(setting, *words, what);
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::misuse) throw;
      // Errors of inherited settings were reported there.
      if (!rules_only || found != own.end()) complaints.push_back({place, error.what()});
    }
  }
}

constexpr std::string_view ways_to_say_who =
    "principal-header NAME (a header that differs between clients and stays the same in a retry), principal-jwt FILE "
    "(a verified claim of a JWT; FILE has the keys), principal-certificate (the subject of a client certificate, with "
    "client-ca), or no-principal (all clients are one, and get each other's answers)";

// The principal, which must be set in exactly one of several ways.
class SayingWho {
 public:
  explicit SayingWho(std::vector<Complaint>& complaints) : complaints_(complaints) {}

  // `place`: where it is missing. `given`: including inherited settings. `own`: the settings there.
  void settle(ProxySettings& settings, const Given& given, const Given& own, const Place& place) {
    std::vector<const Setting*> said;
    for (const Setting& setting : proxy_settings()) {
      const auto found = given.find(setting.name);
      if (!setting.is_principal || found == given.end()) continue;
      if (setting.kind != Setting::Kind::toggle || found->second.words.front() == "true") said.push_back(&setting);
    }
    http::Options& rules = settings.rules.otherwise;
    if (said.empty()) {
      if (!rules.protect || told_) return;
      told_ = true;
      return complain(place, "nothing says who a client is, and there is no default. Use one of " +
                                 std::string(ways_to_say_who) + ", as a flag or in a file");
    }
    if (said.size() > 1) {
      return complain(
          place, "only one setting may say who a client is, not two: " + said[0]->key() + " and " + said[1]->key());
    }
    if (settings.jwt.key_file.empty()) return;
    const auto known = std::ranges::find(verified_, settings.jwt, &std::pair<http::JwtOptions, http::Principal>::first);
    if (known != verified_.end()) {
      rules.principal = known->second;
      return;
    }
    try {
      rules.principal = http::jwt_principal(settings.jwt);
      verified_.emplace_back(settings.jwt, rules.principal);  // Routes with the same keys have the same rules.
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::misuse) throw;
      const auto found = own.find("principal-jwt");
      complain(found == own.end() ? place : found->second.place, error.what());
    }
  }

 private:
  void complain(const Place& place, std::string text) { complaints_.push_back({place, std::move(text)}); }

  std::vector<Complaint>& complaints_;
  bool told_ = false;
  std::vector<std::pair<http::JwtOptions, http::Principal>> verified_;
};

// Whoever names fields to leave out wants inputs kept. The settings of the whole proxy may name them for single routes.
void check_inputs(const Given& given, const std::vector<GivenRoute>& routes, const ProxySettings& settings,
                  std::vector<Complaint>& complaints) {
  const auto keeps = [](const http::Options& rules) { return rules.policy->keep_input.value_or(false); };
  const auto complain = [&](const Given& own, const std::string& remedy) {
    const auto found = own.find("input-without");
    if (found == own.end()) return;
    const bool is_flag = found->second.place.file.empty();
    const std::string name = is_flag ? "--input-without" : "input_without";
    const std::string needed = is_flag ? "--keep-input" : "keep_input = true";
    complaints.push_back({found->second.place, name + " leaves fields out of inputs, but no input is kept: " + "add " +
                                                   needed + remedy + ", or remove it"});
  };
  bool any = keeps(settings.rules.otherwise);
  for (std::size_t i = 0; i < routes.size(); ++i) {
    if (keeps(settings.rules.routes[i].options)) {
      any = true;
    } else {
      complain(routes[i].rules, "");
    }
  }
  if (!any) complain(given, " here or in a route");
}

// Whether a path may match both the path of a route and a key-path.
bool may_meet(const std::string& route, const std::string& key_path) {
  const auto segments_of = [](const std::string& path) {
    Words segments = split(path, '/');
    std::erase(segments, "");
    return segments;
  };
  Words at = segments_of(route);
  const Words key = segments_of(key_path);
  const bool has_tail = !at.empty() && at.back() == "*";
  if (has_tail) at.pop_back();
  if (at.size() > key.size() || (at.size() < key.size() && !has_tail)) return false;
  return std::equal(at.begin(), at.end(), key.begin(), [](const std::string& a, const std::string& b) {
    return a.starts_with('{') || b.starts_with('{') || text::same_letters(a, b);
  });
}

// Otherwise no request of the route has a key: with optional-key, all of them would run unprotected.
void check_key_paths(const std::vector<GivenRoute>& routes, std::vector<Complaint>& complaints) {
  for (const GivenRoute& route : routes) {
    const auto found = route.rules.find("key-path");
    if (found == route.rules.end()) continue;
    const std::string& key_path = found->second.words.front();
    if (key_path.empty() || may_meet(route.path, key_path)) continue;
    complaints.push_back({found->second.place, "key-path '" + key_path + "' matches no path of its route '" +
                                                   route.path + "', so no request would have a key"});
  }
}

}  // namespace

ProxySettings settle(const Given& given, const std::vector<GivenRoute>& routes, std::vector<Complaint>& complaints) {
  ProxySettings settings;
  settings.rules.otherwise.policy.emplace();
  apply_all(settings, false, given, given, complaints);
  SayingWho principals(complaints);
  principals.settle(settings, given, given, {});
  for (const GivenRoute& route : routes) {
    ProxySettings own;
    own.rules.otherwise.policy.emplace();
    const Given all = merged(given, route.rules);
    apply_all(own, true, all, route.rules, complaints);
    principals.settle(own, all, route.rules, route.place);
    settings.rules.routes.push_back({.path = route.path, .options = std::move(own.rules.otherwise)});
  }
  check_inputs(given, routes, settings, complaints);
  check_key_paths(routes, complaints);
  for (const auto& [index, text] : http::Router::faults(settings.rules.routes)) {
    complaints.push_back({index < routes.size() ? routes[index].place : routes.back().place, text});
  }
  if (complaints.empty()) {
    try {
      check_together(settings);
    } catch (const Exception& error) {
      complaints.push_back({{}, error.what()});
    }
  }
  return settings;
}

std::vector<std::string> needing_restart(const Given& before, const Given& after) {
  std::vector<std::string> names;
  for (const Setting& setting : proxy_settings()) {
    if (setting.is_rule || setting.can_change) continue;
    if (words_for(setting, before) != words_for(setting, after)) names.push_back(setting.key());
  }
  return names;
}

Given in_force(const Given& before, Given after) {
  for (const Setting& setting : proxy_settings()) {
    if (setting.is_rule || setting.can_change) continue;
    after.erase(setting.name);
    if (const auto found = before.find(setting.name); found != before.end()) after.insert(*found);
  }
  return after;
}

ProxyFlags::ProxyFlags(CLI::App& command) {
  for (const Setting& setting : proxy_settings()) {
    if (!setting.is_flag) continue;
    Flag& flag = flags_.emplace_back();
    flag.setting = &setting;
    const std::string name = "--" + setting.name;
    switch (setting.kind) {
      case Setting::Kind::toggle:
        flag.option = command.add_flag(name, flag.on, setting.help);
        break;
      case Setting::Kind::list: {
        const std::string usual = setting.usual.empty() ? "" : " (default: " + setting.usual + ")";
        flag.option = command.add_option(name, flag.list, setting.help + usual)->allow_extra_args(false);
        if (setting.separator != 0) flag.option->delimiter(setting.separator);
        break;
      }
      case Setting::Kind::text:
        flag.text = setting.usual;
        flag.option = command.add_option(name, flag.text, setting.help);
        if (!setting.choices.empty()) flag.option->type_name("TEXT:{" + CLI::detail::join(setting.choices, ",") + "}");
        break;
    }
  }
}

Given ProxyFlags::given() const {
  Given given;
  for (const Flag& flag : flags_) {
    if (flag.option->count() == 0) continue;
    Words& words = given[flag.setting->name].words;
    switch (flag.setting->kind) {
      case Setting::Kind::toggle:
        words = {flag.on ? "true" : "false"};
        break;
      case Setting::Kind::list:
        words = flag.list;
        break;
      case Setting::Kind::text:
        words = {flag.text};
        break;
    }
  }
  return given;
}

}  // namespace once::cli
