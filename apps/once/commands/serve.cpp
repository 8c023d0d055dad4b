// once serve: claims for programs in any language, over HTTP on a Unix socket, or an address with TLS.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <once/engine/engine.hpp>
#include <once/engine/metrics.hpp>
#include <once/error.hpp>
#include <once/frontends/admin.hpp>
#include <once/platform/environment.hpp>

#include "commands/commands.hpp"
#include "operators/overview.hpp"
#include "operators/recent_events.hpp"
#include "operators/requests.hpp"
#include "operators/store_look.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "process/file_limit.hpp"
#include "process/signals.hpp"
#include "process/sweeper.hpp"
#include "serve/claims.hpp"
#include "serve/entrance.hpp"
#include "serve/on_demand.hpp"
#include "serve/place.hpp"
#include "serve/sessions.hpp"
#include "settings/access.hpp"
#include "settings/admin_flags.hpp"
#include "settings/log.hpp"
#include "stores/url.hpp"

namespace once::cli {

namespace {

constexpr Millis idle_limit{600'000};  // Of a connection.
constexpr Millis least_idle{100};      // Of a server: its starter's client must have the time to connect.

struct ServeFlags {
  StoreOptions store;
  bool unshared_store = false;
  EntranceFlags entrance;
  std::size_t max_claims = ClaimsOptions().most_open;
  std::string sweep_interval = "60s";
  LogFlags log;
  AdminFlags admin;
  bool on_demand = false;
  bool print_socket = false;
  std::string idle_timeout = "10m";
};

// Of a server that is started on demand.
struct OnDemand {
  ServerPlace place;
  Millis idle;
  Starting& starting;
};

int serve(const ServeFlags& flags, const OnDemand* on_demand = nullptr) {
  Entrance entrance(on_demand == nullptr ? flags.entrance
                                         : EntranceFlags{.listen = "unix:" + on_demand->place.socket()});
  const Millis stats_interval = parse_interval(flags.admin.stats_interval, "--stats-interval");
  const Millis sweeps = parse_interval(flags.sweep_interval, "--sweep-interval");
  if (is_disabled_by_environment()) {
    misuse(
        "ONCE_DISABLED is set: the claims of this server would protect nothing. Set it where the work runs, and call "
        "no server there");
  }
  const sigset_t signals = block_end_signals({SIGHUP});
  // A claim's client has a connection, and so has each session; the store and the console need some files.
  constexpr std::uint64_t others = 64;
  const std::uint64_t files = raise_file_limit();
  if (files < 2 * others) {
    throw Exception(ErrorKind::unavailable, "this process may open only " + std::to_string(files) +
                                                " files: raise the limit (ulimit -n, LimitNOFILE=)");
  }
  const std::uint64_t sessions = std::min<std::uint64_t>(flags.max_claims, ClaimSessionsOptions().most_open);
  const std::uint64_t connections = std::min(flags.max_claims + sessions + others, files - others);
  const StoreAccess access = open_access(flags.store, Missing::create);
  require_bytes(access.url);
  require_shared(*access.store, flags.unshared_store);
  const Metrics metrics;
  const auto recent = std::make_shared<RecentEvents>();
  EngineOptions options;
  options.store = access.store;
  options.offload = access.offload;
  // What fits into a record is not dropped only because there is no other place.
  if (!access.offload) options.policy.max_inline_bytes = usable_bytes(*access.store);
  options.holder = who() + ":" + std::to_string(getpid()) + " once serve";
  options.observer = [metrics, recent, log = service_log_observer(log_options(flags.log))](const Event& event) {
    metrics(event);
    recent->count(event);
    log(event);
  };
  const auto engine = std::make_shared<Engine>(std::move(options));
  ClaimsOptions claims_options{.most_open = flags.max_claims};
  if (on_demand != nullptr) {
    claims_options.idle = on_demand->idle;
    // Not where the store may have moved away from its file.
    if (const stores::Url url(access.url); url.scheme() == "sqlite" && !url.has("moves_to")) {
      const auto file = [path = url.path()] {
        struct stat found {};
        return stat(path.c_str(), &found) == 0 ? std::pair(found.st_dev, found.st_ino) : std::pair<dev_t, ino_t>();
      };
      claims_options.is_store_gone = [file, opened = file()] { return file() != opened; };
    }
    claims_options.on_end = [](std::string_view why) {
      say(std::string(why) + ": ending");
      kill(getpid(), SIGTERM);  // It waits for that.
    };
  }
  Claims claims(engine, std::move(claims_options));
  std::optional<StoreLook> look;
  if (!flags.admin.address.empty() && stats_interval > Millis{0}) {
    look.emplace(StoreLookOptions{.store = access.store,
                                  .interval = stats_interval,
                                  .size = size_of_server(access.url),
                                  .probes_as = who() + " once serve"});
  }
  std::optional<Sweeper> sweeper;
  if (sweeps > Millis{0}) {
    sweeper.emplace(SweeperOptions{.store = access.store, .offload = access.offload, .interval = sweeps});
  }
  std::atomic<bool> is_stopping{false};
  const auto unready = [&] { return is_stopping ? std::string("stopping") : std::string(); };
  const auto page = [&] {
    return metrics.text() + claims.metrics() + process_metrics() + (look ? look->text() : std::string()) +
           (sweeper ? sweeper->text() : std::string());
  };
  const AdminPort admin(flags.admin, access, *engine, page, unready,
                        overview_sources(look ? &*look : nullptr, recent.get()));
  if (admin.port() != 0) say("operators on port " + std::to_string(admin.port()));
  if (admin.made_token() != nullptr) say(admin.made_token()->note());
  proxy::AdminOptions server_options;
  entrance.set(server_options);
  server_options.idle = idle_limit;
  server_options.most_connections = connections;
  server_options.metrics = page;
  server_options.unready = unready;
  server_options.operators = [&](const http::Request& request, Callback<void(proxy::OperatorsAnswer)> done) {
    ClaimsClient client;
    if (auto refused = entrance.refuse(request, client)) return done(std::move(*refused));
    claims.answer(request, std::move(client), std::move(done));
  };
  server_options.refuse_metrics = [&](const http::Request& request) { return entrance.refuse_metrics(request); };
  if (on_demand != nullptr) {
    server_options.only_user = geteuid();
    Starting::await_end_of_last(on_demand->place);
  }
  proxy::AdminServer server(*engine, std::move(server_options));
  say("listening on " + entrance.where(server.port()));
  if (entrance.made_token() != nullptr) say("the token is in " + entrance.made_token()->path());
  if (on_demand != nullptr) on_demand->starting.up();
  for (;;) {
    const int signal = next_signal(signals, entrance.watch_interval());
    if (signal == 0) {
      entrance.look(server);
    } else if (signal == SIGHUP) {
      entrance.reload(server);
    } else {
      break;
    }
  }
  is_stopping = true;
  claims.stop();
  return exit_ok;
}

// Returns in the starter, and at the end of the server that it starts.
int serve_on_demand(ServeFlags flags) {
  const Millis idle = parse_duration(flags.idle_timeout, "--idle-timeout");
  if (idle < least_idle) misuse("--idle-timeout must be at least " + std::to_string(least_idle.count()) + "ms");
  umask(umask(0) & 077);  // The next process must be able to open what this one makes.
  // Before a server is started, whose error would be in its log.
  if (!take_fallback(flags.store).empty()) refuse_fallback();
  flags.store.url = store_url(flags.store);
  const ServerPlace place = place_of(flags.store.url, flags.store.offload);
  const std::string line = json_line(nlohmann::ordered_json{{"socket", place.socket()}}) + "\n";
  if (flags.print_socket) return print(line);
  std::optional<Starting> starting = start_unless_up(place);
  if (!starting) return print(line);
  flags.log.level = "warning";  // Nobody empties the file.
  const OnDemand on_demand{.place = place, .idle = idle, .starting = *starting};
  try {
    return serve(flags, &on_demand);
  } catch (const Exception& error) {
    starting->failed(error.error());
    throw;
  }
}

}  // namespace

void add_serve(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<ServeFlags>();
  CLI::App* const command =
      app.add_subcommand("serve", "Claims for programs in any language, over HTTP on a Unix socket");
  add_store_options(*command, flags->store);
  add_unshared_store(*command, flags->unshared_store);
  add_entrance_flags(*command, flags->entrance);
  command->add_option("--max-claims", flags->max_claims, "How many claims may be open at a time")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--sweep-interval", flags->sweep_interval, sweep_interval_help)->capture_default_str();
  add_log_flags(*command, flags->log, "text");
  add_admin_flags(*command, flags->admin);
  CLI::Option* const on_demand = command->add_flag(
      "--on-demand", flags->on_demand,
      "Start a server for this user and this store in the background, unless there is one, and print its\n"
      "socket as {\"socket\": \"PATH\"} when it answers. It ends when nobody uses it");
  CLI::Option* const print_socket =
      command->add_flag("--print-socket", flags->print_socket, "Print what --on-demand would print, and start nothing");
  command
      ->add_option("--idle-timeout", flags->idle_timeout,
                   "How long a server that is started on demand stays without a request and an open claim")
      ->needs(on_demand)
      ->capture_default_str();
  // What is chosen by others would count only for the first one, without a word to the rest.
  for (CLI::Option* const option : command->get_options()) {
    constexpr std::array<std::string_view, 6> both{"--help",      "--store",        "--offload",
                                                   "--on-demand", "--print-socket", "--idle-timeout"};
    if (std::ranges::find(both, option->get_name()) != both.end()) continue;
    option->excludes(on_demand);
    option->excludes(print_socket);
  }
  print_socket->excludes(on_demand);
  command->footer(
      "docs/serve.md describes the requests.\n\n"
      "Examples:\n"
      "  once serve --store sqlite:/var/lib/once/once.db --listen unix:/run/once/serve.sock\n"
      "  curl --unix-socket /run/once/serve.sock http://once/v1/claims \\\n"
      "    --json '{\"scope\": \"orders\", \"key\": \"order-17\", \"lease_ms\": 30000}'\n"
      "  once serve --on-demand --store sqlite:/var/lib/pay/once.db\n"
      "  once serve --store postgresql://db/once --listen 0.0.0.0:7117 --tls-cert serve.pem --tls-key serve.key \\\n"
      "    --token-file /etc/once/serve-tokens\n\n"
      "Exit codes: 0 ended by a signal, or a server is up on demand; 64 wrong options; 243 the store or the address "
      "cannot be used.");
  command->callback([flags, &invocation] {
    invocation.action = [flags] {
      return flags->on_demand || flags->print_socket ? serve_on_demand(*flags) : serve(*flags);
    };
  });
}

}  // namespace once::cli
