// once proxy: endpoints of a service that is reached through it run once for each key.
#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/frontends/proxy.hpp>

#include "access.hpp"
#include "access_log.hpp"
#include "commands.hpp"
#include "report.hpp"
#include "text.hpp"

namespace once::cli {

namespace {

struct ProxyCommand {
  StoreOptions store;
  std::string listen;
  std::string upstream;
  std::string admin;
  std::vector<std::string> methods;
  std::string route;
  std::string scope;
  bool require_key = false;
  std::string key_header = "Idempotency-Key";
  std::string key_field;
  std::vector<std::string> principal_headers;
  bool no_principal = false;
  std::vector<std::string> compare_headers;
  bool ignore_query = false;
  bool ignore_body = false;
  std::string lease = "30s";
  std::string retention = "24h";
  std::string wait;
  std::string on_ambiguous = "hold";
  std::string on_store_down = "refuse";
  std::string on_unrecorded = "return";
  std::vector<std::string> fates;
  std::vector<std::string> never_store;
  std::string body_limit = "1MiB";
  std::string answer_limit = "1MiB";
  std::string head_limit = "32KiB";
  std::string retry_after = "5s";
  std::string docs_url;
  std::string idle_timeout = "60s";
  std::string head_timeout = "10s";
  std::string body_timeout = "30s";
  std::string connect_timeout = "2s";
  std::string answer_timeout = "60s";
  std::string upstream_idle = "4s";
  unsigned threads = 0;
  std::string access_log = "-";
  std::string drain = "30s";
};

std::size_t size_of(const std::string& text, std::string_view what) {
  constexpr std::uint64_t most = std::uint64_t{1} << 30U;
  const std::uint64_t size = parse_size(text, what);
  if (size == 0 || size > most) throw Exception(ErrorKind::misuse, std::string(what) + " must be 1 to 1GiB");
  return static_cast<std::size_t>(size);
}

// "502=release", "500,501=ambiguous"
void add_fate(http::Options& rules, const std::string& text) {
  const auto bad = [&] {
    return Exception(ErrorKind::misuse,
                     "--fate must be as in 502=release or 500,501=ambiguous: a list of statuses, and "
                     "store, release or ambiguous; not '" +
                         text + "'");
  };
  const auto equals = text.find('=');
  if (equals == std::string::npos) throw bad();
  const std::string word = text.substr(equals + 1);
  http::Fate fate = http::Fate::store;
  if (word == to_string(http::Fate::release)) {
    fate = http::Fate::release;
  } else if (word == to_string(http::Fate::ambiguous)) {
    fate = http::Fate::ambiguous;
  } else if (word != to_string(http::Fate::store)) {
    throw bad();
  }
  for (const std::string& digits : split(text.substr(0, equals), ',')) {
    unsigned status = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), status);
    if (error != std::errc() || end != digits.data() + digits.size() || status < 100 || status > 599) throw bad();
    rules.fates[status] = fate;
  }
}

http::Options rules_of(const ProxyCommand& command, bool has_offload) {
  http::Options rules;
  if (!command.methods.empty()) rules.methods = command.methods;
  rules.route = command.route;
  rules.scope = command.scope;
  rules.key_header = command.key_header;
  rules.key_field = command.key_field;
  if (!command.principal_headers.empty()) rules.principal_headers = command.principal_headers;
  if (command.no_principal) rules.principal_headers.clear();
  rules.compare_headers = command.compare_headers;
  rules.compare_query = !command.ignore_query;
  rules.compare_body = !command.ignore_body;
  rules.max_body_bytes = size_of(command.body_limit, "--body-limit");
  rules.max_answer_bytes = size_of(command.answer_limit, "--answer-limit");
  rules.ambiguous = command.on_ambiguous == "hold" ? OnLapse::hold : OnLapse::takeover;
  for (const std::string& text : command.fates) add_fate(rules, text);
  rules.never_store = command.never_store;
  rules.retry_after = parse_duration(command.retry_after, "--retry-after");
  rules.docs_url = command.docs_url;
  Policy& policy = rules.policy.emplace();
  policy.lease = parse_duration(command.lease, "--lease");
  policy.retention = parse_duration(command.retention, "--retention");
  if (!command.wait.empty()) {
    policy.on_conflict = OnConflict::wait;
    policy.wait = parse_duration(command.wait, "--wait");
  }
  if (command.require_key) policy.on_missing_key = OnMissingKey::refuse;
  if (command.on_store_down == "run") policy.on_store_down = OnStoreDown::run_unprotected;
  if (command.on_unrecorded == "fail") policy.on_unrecorded = OnUnrecorded::raise;
  // Without a place for what is large, the record is that place, as far as the store lets it.
  if (!has_offload) policy.max_inline_bytes = rules.max_answer_bytes;
  return rules;
}

// A port alone is one that only this host reaches.
std::string with_loopback(const std::string& address) {
  return address.find_first_not_of("0123456789") == std::string::npos ? "127.0.0.1:" + address : address;
}

proxy::ProxyOptions options_of(const ProxyCommand& command) {
  constexpr std::string_view scheme = "http://";
  std::string_view upstream = command.upstream;
  if (!upstream.starts_with(scheme)) {
    throw Exception(ErrorKind::misuse,
                    "--upstream must be http://HOST:PORT (no https, no path), and not '" + command.upstream + "'");
  }
  upstream.remove_prefix(scheme.size());
  if (upstream.ends_with('/')) upstream.remove_suffix(1);
  proxy::ProxyOptions options;
  options.listen = proxy::parse_address(command.listen, "--listen");
  options.upstream = proxy::parse_address(upstream, "--upstream");
  if (!command.admin.empty()) options.admin = proxy::parse_address(with_loopback(command.admin), "--admin");
  options.timeouts = {.idle = parse_duration(command.idle_timeout, "--idle-timeout"),
                      .head = parse_duration(command.head_timeout, "--head-timeout"),
                      .body = parse_duration(command.body_timeout, "--body-timeout"),
                      .connect = parse_duration(command.connect_timeout, "--connect-timeout"),
                      .answer = parse_duration(command.answer_timeout, "--answer-timeout"),
                      .upstream_idle = parse_duration(command.upstream_idle, "--upstream-idle")};
  options.threads = command.threads;
  options.max_head_bytes = size_of(command.head_limit, "--head-limit");
  return options;
}

// Signals that end the program, for sigwait(): blocked before any thread is there, so that none of them gets one.
sigset_t take_signals() {
  std::signal(SIGPIPE, SIG_IGN);  // A reader of the access log that goes away is not our end.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// False: the time was up, or another signal came.
bool drain(proxy::Proxy& proxy, Millis limit, const sigset_t& signals) {
  constexpr Millis glance{50};
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!proxy.drain(glance)) {
    constexpr timespec at_once{};
    if (std::chrono::steady_clock::now() >= until) return false;
    if (sigtimedwait(&signals, nullptr, &at_once) > 0) return false;
  }
  return true;
}

int run_proxy(const ProxyCommand& command) {
  const sigset_t signals = take_signals();
  const Millis drain_limit = parse_duration(command.drain, "--drain");
  proxy::ProxyOptions options = options_of(command);
  const http::Rules checked(rules_of(command, false));  // What is wrong with a flag is said before a store is made.
  AccessLog log(command.access_log);
  options.on_served = [&log](const proxy::Served& served) { log.write(served); };
  const StoreAccess access = open_access(command.store, Missing::create);
  options.metrics = std::make_shared<proxy::Metrics>();
  Engine engine({.store = access.store,
                 .observer = [metrics = options.metrics](const Event& event) { metrics->count(event); },
                 .offload = access.offload});
  auto proxy = std::make_unique<proxy::Proxy>(engine, rules_of(command, access.offload != nullptr), std::move(options));
  say("listening on port " + std::to_string(proxy->port()) + ", for " + command.upstream);
  if (proxy->admin_port() != 0) say("operators on port " + std::to_string(proxy->admin_port()));
  int signal = 0;
  sigwait(&signals, &signal);
  say("ending: no new connections, up to " + command.drain + " for " + std::to_string(proxy->connections()) +
      " that are open");
  if (!drain(*proxy, drain_limit, signals)) {
    say("closing " + std::to_string(proxy->connections()) +
        " connections; operations under way are recorded as ambiguous");
  }
  proxy.reset();
  return exit_ok;
}

}  // namespace

void add_proxy(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<ProxyCommand>();
  CLI::App* const command = app.add_subcommand(
      "proxy", "Stand in front of an HTTP service, whose requests run once for each Idempotency-Key");
  const auto one_of = [](std::vector<std::string> words) { return CLI::IsMember(std::move(words)); };
  command->add_option("--listen", options->listen, "HOST:PORT to take requests on")->required();
  command->add_option("--upstream", options->upstream, "http://HOST:PORT of the service")->required();
  add_store_options(*command, options->store);
  command->add_option("--admin", options->admin,
                      "[HOST:]PORT for /healthz, /readyz and /metrics, without authentication; HOST is 127.0.0.1\n"
                      "unless given (default: nowhere)");
  command->add_option("--methods", options->methods, "Which requests are protected (default: POST PATCH)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_flag("--require-key", options->require_key, "Refuse requests without a key, with 400");
  command->add_option("--key-header", options->key_header, "The header that has the key")->capture_default_str();
  command->add_option("--key-field", options->key_field, "JMESPath: the key is in the JSON body, not in a header");
  command
      ->add_option("--principal-header", options->principal_headers,
                   "Whose key it is; repeatable (default: Authorization)")
      ->allow_extra_args(false);
  command->add_flag("--no-principal", options->no_principal, "All clients share one set of keys");
  command->add_option("--route", options->route, "One name for all paths, in keys (default: each path is its own)");
  command->add_option("--scope", options->scope, "What all keys begin with");
  command
      ->add_option("--compare-header", options->compare_headers,
                   "A header that a retry must have in common with the first request; repeatable")
      ->allow_extra_args(false);
  command->add_flag("--ignore-query", options->ignore_query, "A retry may have another query");
  command->add_flag("--ignore-body", options->ignore_body, "A retry may have another body");
  command->add_option("--lease", options->lease, "How long a claim is respected after a crash, 10ms to 24h")
      ->capture_default_str();
  command->add_option("--retention", options->retention, "How long an answer is replayed")->capture_default_str();
  command->add_option("--wait", options->wait, "Duplicates of a running request wait so long (default: 409 at once)");
  command
      ->add_option("--on-ambiguous", options->on_ambiguous,
                   "502, 504, a lost connection, a crash: hold (unknown: nobody runs it again) or takeover")
      ->check(one_of({"hold", "takeover"}))
      ->capture_default_str();
  command
      ->add_option("--on-store-down", options->on_store_down,
                   "The store cannot be used: refuse with 503, or run without protection")
      ->check(one_of({"refuse", "run"}))
      ->capture_default_str();
  command
      ->add_option("--on-unrecorded", options->on_unrecorded,
                   "The answer cannot be stored: return it all the same, or fail with 503")
      ->check(one_of({"return", "fail"}))
      ->capture_default_str();
  command
      ->add_option("--fate", options->fates,
                   "What becomes of single statuses: 502=release, 500,501=ambiguous, 429=store; repeatable")
      ->allow_extra_args(false);
  command->add_option("--never-store", options->never_store, "A header that is not replayed; repeatable")
      ->allow_extra_args(false);
  command->add_option("--body-limit", options->body_limit, "Of a request that has a key; more is 413")
      ->capture_default_str();
  command
      ->add_option("--answer-limit", options->answer_limit,
                   "Answers up to this size are stored. More streams through once, and is 410 later")
      ->capture_default_str();
  command->add_option("--head-limit", options->head_limit, "Of request line and headers, 1KiB to 1MiB; more is 431")
      ->capture_default_str();
  command->add_option("--retry-after", options->retry_after, "The most that Retry-After says")->capture_default_str();
  command->add_option("--docs-url", options->docs_url, "Where docs/http.md is published, for a problem's type");
  command->add_option("--idle-timeout", options->idle_timeout, "A client's connection between two requests")
      ->capture_default_str();
  command->add_option("--head-timeout", options->head_timeout, "For a request's head")->capture_default_str();
  command
      ->add_option("--body-timeout", options->body_timeout,
                   "Without progress on either side; in all, for a body that is read whole")
      ->capture_default_str();
  command->add_option("--connect-timeout", options->connect_timeout, "To the upstream")->capture_default_str();
  command->add_option("--answer-timeout", options->answer_timeout, "For the head of the upstream's answer")
      ->capture_default_str();
  command
      ->add_option("--upstream-idle", options->upstream_idle,
                   "How long connections to the upstream are kept: less than it keeps them")
      ->capture_default_str();
  command->add_option("--threads", options->threads, "0: one for each processor")->capture_default_str();
  command->add_option("--access-log", options->access_log, "A file, - for standard error, or none")
      ->capture_default_str();
  command->add_option("--drain", options->drain, "How long requests under way have at SIGTERM and SIGINT")
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  once proxy --listen 127.0.0.1:8080 --upstream http://127.0.0.1:9000\n"
      "  once proxy --listen 0.0.0.0:80 --upstream http://pay:9000 --require-key --wait 10s \\\n"
      "             --store sqlite:/var/lib/once/once.db --access-log /var/log/once.log\n"
      "\n"
      "SIGTERM and SIGINT let what runs come to its end; a second one does not. Exit\n"
      "codes: 0 ended by a signal, 64 wrong flags, 243 the store, the port or the log\n"
      "cannot be used.");
  command->callback([options, &invocation] { invocation.action = [options] { return run_proxy(*options); }; });
}

}  // namespace once::cli
