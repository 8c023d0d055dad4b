#include "process/proxy_command.hpp"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/frontends/proxy.hpp>
#include <once/stores/sqlite.hpp>

#include "import/fallback.hpp"
#include "operators/admin_port.hpp"
#include "operators/admin_token.hpp"
#include "operators/audit_log.hpp"
#include "operators/console.hpp"
#include "operators/operators.hpp"
#include "operators/overview.hpp"
#include "operators/recent_events.hpp"
#include "output/access_log.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "process/file_limit.hpp"
#include "process/signals.hpp"
#include "process/upkeep.hpp"
#include "settings/access.hpp"
#include "settings/key_change.hpp"
#include "settings/log.hpp"
#include "settings/proxy_check.hpp"
#include "settings/proxy_file.hpp"
#include "settings/reload_changes.hpp"
#include "settings/spans.hpp"

namespace once::cli {

namespace {

// Without an offload, answers must fit into the record, up to the store's limit: with a head, which takes less room
// stored than sent, and the first line.
http::Routes with_records_for(http::Routes rules, bool has_offload, std::size_t max_head_bytes) {
  const auto keep = [&](http::Options& options) {
    constexpr std::size_t first_line = 64;
    const std::size_t body = options.max_answer_bytes;
    if (!has_offload) options.policy->max_inline_bytes = std::max(body, body + max_head_bytes + first_line);
  };
  keep(rules.otherwise);
  for (http::Route& route : rules.routes) keep(route.options);
  return rules;
}

bool fails_open(const http::Routes& rules) {
  const auto does = [](const http::Options& options) {
    return effective(*options.policy).on_store_down == OnStoreDown::run_unprotected;
  };
  return does(rules.otherwise) ||
         std::ranges::any_of(rules.routes, [&](const http::Route& route) { return does(route.options); });
}

// False: the time was over, or another signal to end came.
bool stop(proxy::Proxy& proxy, Millis limit, const sigset_t& signals) {
  constexpr Millis glance{50};
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!proxy.stop(glance)) {
    constexpr timespec at_once{};
    if (std::chrono::steady_clock::now() >= until) return false;
    const int signal = sigtimedwait(&signals, nullptr, &at_once);
    if (signal > 0 && signal != SIGHUP) return false;
  }
  return true;
}

// A proxy allocates similar memory again and again. glibc returns it to the system in between (in threads from 128 KiB
// on), which costs a tenth of all time.
void keep_memory() {
#ifdef __GLIBC__
  constexpr int mib = 1 << 20;
  mallopt(M_TRIM_THRESHOLD, 16 * mib);
  mallopt(M_MMAP_THRESHOLD, mib);
#endif
}

std::optional<LogOptions> log_options(const ProxySettings& settings) {
  if (!settings.log) return std::nullopt;
  return LogOptions{.format = *settings.log, .level = settings.log_level};
}

// The combined settings of the file and the flags.
struct Reading {
  ReloadInputs inputs;
  ProxySettings settings;
  std::vector<Complaint> complaints;  // Not empty: the settings must not be used.
};

Reading read_proxy(const ProxyCommand& command) {
  Reading reading;
  ProxyFile file;
  if (!command.config.empty()) file = read_proxy_file(command.config, reading.complaints);
  // Missing settings of an unreadable file are not reported.
  if (file.read) {
    ReloadInputs& inputs = reading.inputs;
    inputs.given = with_preset(merged(given_by_environment(), merged(std::move(file.settings), command.flags.given())));
    inputs.routes = std::move(file.routes);
    for (GivenRoute& route : inputs.routes) route.rules = with_preset(std::move(route.rules));
    // Before they are read to be used: what changes in between is found by the next reload.
    inputs.files = digests_of_files(inputs.given, inputs.routes);
    reading.settings = settle(inputs.given, inputs.routes, reading.complaints);
  }
  std::ranges::stable_sort(reading.complaints, {}, &Complaint::place);
  return reading;
}

// The file of fallback=. Its table is not asked.
void check_fallback(const ProxySettings& settings, std::vector<Complaint>& complaints) {
  StoreOptions store = settings.store;
  try {
    const std::string file = take_fallback(store);
    if (file.empty()) return;
    const importing::Fallback fallback(file, false);
    if (fails_open(settings.rules)) misuse(importing::fails_open_with_fallback);
  } catch (const Exception& error) {
    complaints.push_back({.place = {}, .text = error.what()});
  }
}

int check_settings(const ProxyCommand& command) {
  Reading reading = read_proxy(command);
  if (!reading.inputs.given.empty() && !command.no_files) {
    check_files(reading.inputs.given, reading.settings, reading.complaints);
    check_fallback(reading.settings, reading.complaints);
    std::ranges::stable_sort(reading.complaints, {}, &Complaint::place);
  }
  const int code = reading.complaints.empty() ? exit_ok : exit_usage;
  if (command.json) return print(settings_json(reading.inputs.given, reading.inputs.routes, reading.complaints), code);
  for (const Complaint& complaint : reading.complaints) say(to_string(complaint));
  return code == exit_ok ? print(settings_text(reading.inputs.given, reading.inputs.routes)) : code;
}

// SIGHUP: wrong settings change nothing. If a file that they name cannot be read, its earlier contents stay, and so do
// the rules, which change last.
class Reloading {
 public:
  // `rules`: the present ones. `complete`: applied to rules before they are used.
  Reloading(const ProxyCommand& command, ReloadInputs inputs, http::Routes rules, proxy::Proxy& proxy,
            std::vector<AdminToken*> tokens, Console& console, AuditLog* audit, AccessLog& log,
            std::function<http::Routes(http::Routes)> complete)
      : command_(command),
        started_with_(inputs.given),
        inputs_(std::move(inputs)),
        rules_(std::move(rules)),
        proxy_(proxy),
        tokens_(std::move(tokens)),
        console_(console),
        audit_(audit),
        log_(log),
        complete_(std::move(complete)) {}

  static void tell(const proxy::UpstreamChange& change) {
    if (change.added.empty() && change.removed.empty()) return;
    std::string text = "upstreams:";
    const auto list = [&](std::string_view word, const std::vector<std::string>& urls) {
      if (urls.empty()) return;
      text += ' ' + std::string(word);
      for (const std::string& url : urls) text += ' ' + url;
      text += ';';
    };
    list("added", change.added);
    list("removed", change.removed);
    say(text + " " + std::to_string(change.kept) + " kept");
  }

  // At SIGHUP. False: it has reported why.
  bool reload(Millis& stop_within) {
    Reading reading = read_proxy(command_);
    if (!reading.complaints.empty()) {
      for (const Complaint& complaint : reading.complaints) say(to_string(complaint), LogLevel::err);
      say("not reloaded: the settings are wrong. The old ones stay in force.", LogLevel::err);
      return false;
    }
    const ProxySettings& settings = reading.settings;
    if (!accepts_keys(key_change(rules_, settings.rules), settings.accepted_key_change)) return false;
    std::string kept;
    for (const std::string& name : needing_restart(started_with_, reading.inputs.given)) {
      kept += (kept.empty() ? "" : ", ") + name;
    }
    reading.inputs.given = in_force(started_with_, std::move(reading.inputs.given));
    if (!kept.empty()) reading.inputs.files = digests_of_files(reading.inputs.given, reading.inputs.routes);
    if (!apply(settings, true)) return false;
    stop_within = settings.stop_within;
    if (!kept.empty()) say("restart the proxy to change " + kept, LogLevel::warning);
    report("reloaded", std::move(reading.inputs));
    return true;
  }

  // Now and then: whether a file of certificates, tokens or keys holds something else than what is in force. Then reads
  // these files again, and no settings. It must have held it at the last look too: a file may be half written, and a
  // certificate comes before its key. Empty: nothing to do. False: as of reload(); these contents are not tried again.
  std::optional<bool> look() {
    ReloadInputs inputs = inputs_;
    inputs.files = digests_of_files(inputs.given, inputs.routes);
    const bool rests = inputs.files == std::exchange(seen_, inputs.files);
    if (!rests || inputs.files == inputs_.files || inputs.files == refused_) return std::nullopt;
    refused_ = inputs.files;
    std::vector<Complaint> complaints;
    const ProxySettings settings = settle(inputs.given, inputs.routes, complaints);
    for (const Complaint& complaint : complaints) {
      say("files changed, and the old contents stay in force: " + to_string(complaint), LogLevel::err);
    }
    if (!complaints.empty() || !apply(settings, false)) return false;
    report("files read again", std::move(inputs));
    return true;
  }

 private:
  // `all`: not only what comes from files of certificates, tokens and keys.
  bool apply(const ProxySettings& settings, bool all) {
    try {
      for (AdminToken* const token : tokens_) token->reload();
      console_.end_changed();
      proxy_.reload_certificates();
      if (all) {
        log_.reopen(settings.access_log);
        if (audit_ != nullptr) audit_->reopen();
        tell(proxy_.set_upstreams(settings.proxy.upstreams));
      }
      proxy_.set_rules(complete_(settings.rules));
      rules_ = settings.rules;
    } catch (const Exception& error) {
      say("not reloaded, the old rules stay in force: " + std::string(error.what()), LogLevel::err);
      return false;
    }
    return true;
  }

  void report(const std::string& what, ReloadInputs inputs) {
    const std::string changed = changes(inputs_, inputs);
    const std::size_t routes = inputs.routes.size();
    say(what + ", with " + std::to_string(routes) + (routes == 1 ? " route; " : " routes; ") +
        (changed.empty() ? "nothing changed" : "changed: " + changed));
    inputs_ = std::move(inputs);
  }

  // If keys change, a retry of a request from before the reload runs again. Reports each part that differs.
  static bool accepts_keys(const KeyChange& change, const std::string& accepted) {
    if (change.lines.empty()) return true;
    const bool accepts = accepted == change.word;
    for (const std::string& line : change.lines)
      say((accepts ? "keys change, " : "keys would change, ") + line, LogLevel::warning);
    if (accepts) {
      say("the file accepts this (accept-key-change): retries of operations that ran before the reload run again",
          LogLevel::warning);
    } else {
      say("not reloaded, the old settings stay in force: retries of operations that ran before would run again. To "
          "accept exactly this change, write accept-key-change = \"" +
              change.word + "\" into the file",
          LogLevel::err);
    }
    return accepts;
  }

  const ProxyCommand& command_;
  const Given started_with_;
  ReloadInputs inputs_;  // In force.
  FileDigests seen_;     // At the last look.
  FileDigests refused_;  // Of the last look that led to reading.
  http::Routes rules_;   // The present rules, as read.
  proxy::Proxy& proxy_;
  const std::vector<AdminToken*> tokens_;
  Console& console_;
  AuditLog* const audit_;  // Null: none.
  AccessLog& log_;
  const std::function<http::Routes(http::Routes)> complete_;
};

int run_proxy(const ProxyCommand& command) {
  keep_memory();
  stores::stop_counting_sqlite_memory();
  const sigset_t signals = block_end_signals({SIGHUP});
  const std::uint64_t files = raise_file_limit();
  auto [inputs, settings, complaints] = read_proxy(command);
  // Not even the settings could be read: then as the flags have it.
  if (!inputs.given.empty()) say_as(settings.log == LogFormat::json ? LogFormat::json : LogFormat::text);
  for (const Complaint& complaint : complaints) say(to_string(complaint), LogLevel::err);
  if (!complaints.empty()) return exit_usage;
  if (const std::string told = told_variables(inputs.given); !told.empty()) say("from the environment: " + told);
  std::optional<MadeTokenFile> made_token;
  if (settings.proxy.admin && settings.admin_token_file.empty()) {  // check_together(): on a loopback address.
    settings.admin_token_file = made_token.emplace().path();
  }
  AdminToken token(settings.admin_token_file, "--admin-token-file");
  AdminToken metrics_token(settings.metrics_token_file, "--metrics-token-file");
  AccessLog log(settings.access_log);
  settings.proxy.on_served = [&log](const proxy::Served& served) { log.write(served); };
  settings.proxy.on_notice = [](std::string_view text) { say(std::string(text)); };
  const importing::FallbackAccess opened = importing::open_with_fallback(settings.store, Missing::create, {});
  const StoreAccess& access = opened.access;
  if (opened.fallback) say(opened.fallback->examine());
  require_shared(*access.store, settings.unshared_store);
  // No scopes here and below: they tell who the client is.
  Upkeep upkeep(access, settings.proxy.admin ? settings.stats_interval : Millis{0}, settings.sweep_interval,
                who() + " once proxy", 0);
  settings.proxy.more_metrics = [&upkeep, &opened] { return upkeep.text() + opened.metrics(); };
  RecentEvents recent;
  std::optional<AuditLog> audit;
  if (!settings.audit_log.empty()) audit.emplace(settings.audit_log);
  Console console(token, {.by_tls = settings.proxy.admin_certificate.has_value(),
                          .audit = audit ? &*audit : nullptr,
                          .host = console_host(settings.console_origin, token.is_set())});
  Operators operators(access, token, overview_sources(upkeep.look(), &recent), &console);
  settings.proxy.operators = [&operators](const http::Request& request, Callback<void(proxy::OperatorsAnswer)> done) {
    operators.answer_later(request, std::move(done));
  };
  if (settings.proxy.admin) settings.proxy.refuse_metrics = metrics_guard(metrics_token, *settings.proxy.admin);
  const auto metrics = settings.proxy.metrics = std::make_shared<proxy::Metrics>();
  const auto observe = [metrics, &recent, log_event = service_log_observer(log_options(settings))](const Event& event) {
    metrics->count(event);
    recent.count(event);
    log_event(event);
  };
  TracingOptions tracing = span_options(SpanKind::server, SpanKind::client);
  tracing.scopes = false;
  const Spans spans(std::move(tracing));
  Engine engine({.store = access.store, .observer = observe, .offload = access.offload, .tracer = spans.tracer()});
  const auto complete = [has_offload = access.offload != nullptr, looks = opened.fallback != nullptr,
                         head = settings.proxy.max_head_bytes](auto rules) {
    if (looks && fails_open(rules)) throw Exception(ErrorKind::misuse, importing::fails_open_with_fallback);
    return with_records_for(std::move(rules), has_offload, head);
  };
  const std::size_t clients = settings.proxy.max_connections;
  const std::string socket = settings.proxy.listen.socket;
  auto proxy = std::make_unique<proxy::Proxy>(engine, complete(settings.rules), std::move(settings.proxy));
  operators.ask_by(proxy->reconciler());
  say("listening on " + (socket.empty() ? "port " + std::to_string(proxy->port()) : "unix:" + socket) +
      ", forwarding to " + settings.upstream_urls);
  if (proxy->admin_port() != 0) say("operators on port " + std::to_string(proxy->admin_port()));
  if (made_token) say(made_token->note());
  if (clients > files / 2) {  // Each has a second connection, to the service.
    say("--max-connections is " + std::to_string(clients) + ", but this process may open only " +
            std::to_string(files) + " files (ulimit -Hn), enough for " + std::to_string(files / 2) +
            " connections: raise the limit, or lower --max-connections",
        LogLevel::warning);
  }
  Reloading reloading(command, std::move(inputs), settings.rules, *proxy, {&token, &metrics_token}, console,
                      audit ? &*audit : nullptr, log, complete);
  const Millis watch_interval = settings.watch_interval;
  for (;;) {
    const int signal = next_signal(signals, watch_interval);
    if (signal == 0) {
      if (const auto done = reloading.look()) metrics->count_reload(*done);
    } else if (signal == SIGHUP) {
      metrics->count_reload(reloading.reload(settings.stop_within));
    } else {
      break;
    }
  }
  say("ending: no new connections; " + std::to_string(proxy->connections()) + " open connections have up to " +
      show_duration(settings.stop_within) + " to finish");
  operators.stop_bulk();
  if (!stop(*proxy, settings.stop_within, signals)) {
    say("closing " + std::to_string(proxy->connections()) +
        " connections; the outcomes of running operations are recorded as ambiguous");
  }
  operators.stop();  // What waits for the store is answered, and not carried out: the proxy waits for every answer.
  proxy.reset();
  return exit_ok;
}

}  // namespace

int proxy_command(const ProxyCommand& command) { return command.check ? check_settings(command) : run_proxy(command); }

}  // namespace once::cli
