// once proxy: endpoints of a service that is reached through it run once for each key.
#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
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
#include "proxy_settings.hpp"
#include "report.hpp"
#include "text.hpp"

namespace once::cli {

namespace {

// Without a place for what is large, the record is that place, as far as the store lets it.
http::Options with_records_for(http::Options rules, bool has_offload) {
  if (!has_offload) rules.policy->max_inline_bytes = rules.max_answer_bytes;
  return rules;
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

int run_proxy(const Given& given) {
  const sigset_t signals = take_signals();
  std::vector<std::string> complaints;
  ProxySettings settings = settle(given, complaints);
  for (const std::string& complaint : complaints) say(complaint);
  if (!complaints.empty()) return exit_usage;
  const http::Rules checked(settings.rules);  // What is wrong with a rule is said before a store is made.
  AccessLog log(settings.access_log);
  settings.proxy.on_served = [&log](const proxy::Served& served) { log.write(served); };
  settings.proxy.on_notice = [](std::string_view text) { say(std::string(text)); };
  const StoreAccess access = open_access(settings.store, Missing::create);
  settings.proxy.metrics = std::make_shared<proxy::Metrics>();
  Engine engine({.store = access.store,
                 .observer = [metrics = settings.proxy.metrics](const Event& event) { metrics->count(event); },
                 .offload = access.offload});
  auto proxy = std::make_unique<proxy::Proxy>(engine, with_records_for(settings.rules, access.offload != nullptr),
                                              std::move(settings.proxy));
  say("listening on port " + std::to_string(proxy->port()) + ", for " + settings.upstream_url);
  if (proxy->admin_port() != 0) say("operators on port " + std::to_string(proxy->admin_port()));
  int signal = 0;
  sigwait(&signals, &signal);
  say("ending: no new connections, up to " + show_duration(settings.drain) + " for " +
      std::to_string(proxy->connections()) + " that are open");
  if (!drain(*proxy, settings.drain, signals)) {
    say("closing " + std::to_string(proxy->connections()) +
        " connections; operations under way are recorded as ambiguous");
  }
  proxy.reset();
  return exit_ok;
}

}  // namespace

void add_proxy(CLI::App& app, Invocation& invocation) {
  CLI::App* const command = app.add_subcommand(
      "proxy", "Stand in front of an HTTP service, whose requests run once for each Idempotency-Key");
  const auto flags = std::make_shared<ProxyFlags>(*command);
  command->footer(
      "Examples:\n"
      "  once proxy --listen 127.0.0.1:8080 --upstream http://127.0.0.1:9000\n"
      "  once proxy --listen 0.0.0.0:80 --upstream http://pay:9000 --require-key --wait 10s \\\n"
      "             --store sqlite:/var/lib/once/once.db --access-log /var/log/once.log\n"
      "\n"
      "SIGTERM and SIGINT let what runs come to its end; a second one does not. Exit\n"
      "codes: 0 ended by a signal, 64 wrong flags, 243 the store, the port or the log\n"
      "cannot be used.");
  command->callback([flags, &invocation] { invocation.action = [flags] { return run_proxy(flags->given()); }; });
}

}  // namespace once::cli
