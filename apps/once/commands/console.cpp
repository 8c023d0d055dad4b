// once console: the operators' API of a store, and a page for browsers that uses it, on this host.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <once/engine/engine.hpp>
#include <once/error.hpp>
#include <once/frontends/admin.hpp>
#include <once/reconcile.hpp>

#include "commands/commands.hpp"
#include "operators/admin_token.hpp"
#include "operators/answers.hpp"
#include "operators/audit_log.hpp"
#include "operators/console.hpp"
#include "operators/operators.hpp"
#include "operators/overview.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "process/ask_command.hpp"
#include "process/signals.hpp"
#include "process/upkeep.hpp"
#include "settings/access.hpp"
#include "settings/admin_flags.hpp"
#include "settings/filters.hpp"

namespace once::cli {

namespace {

struct ConsoleFlags {
  StoreOptions store;
  std::string listen = "0";
  std::string who;
  std::string stats_interval = "60s";
  std::string sweep_interval = "60s";
  std::string audit_log;       // Empty: none.
  std::string console_origin;  // See console_host().
  bool read_only = false;
  std::string reconcile;  // Empty: no service is asked.
  FilterOptions reconcile_scope;
  std::string derive_name = "command";
  std::string reconcile_settle = "5m";
  std::string reconcile_timeout = "30s";
  std::string reconcile_retention = "24h";
};

// Of a command's output, so that its record has room for the rest.
std::uint64_t most_output(const Store& store) {
  constexpr std::uint64_t usual = std::uint64_t{1} << 20U;
  return std::min<std::uint64_t>(usual, usable_bytes(store));
}

// Asks --reconcile about the scope's unknown operations, when an operator wants it. The questions use it until they
// have ended.
std::unique_ptr<Asking> asking_of(const ConsoleFlags& flags, const StoreAccess& access) {
  if (flags.reconcile.empty()) return nullptr;
  return std::make_unique<Asking>(
      AskCommand{.command = flags.reconcile,
                 .timeout = parse_duration(flags.reconcile_timeout, "--reconcile-timeout"),
                 .output_limit = most_output(*access.store),
                 .derive_name = flags.derive_name},
      ReconcileOptions{.store = access.store,
                       .settle = parse_duration(flags.reconcile_settle, "--reconcile-settle"),
                       .key_prefix = filter_of(flags.reconcile_scope, Time{}, access.raw_scopes).key_prefix,
                       .retention = parse_retention(flags.reconcile_retention, "--reconcile-retention")});
}

// They tell the scopes' names, and here everybody needs a session.
http::Answer no_metrics() {
  return operators_problem("not-found", 404, "There is nothing at this path", "once console has no metrics.");
}

// Until a signal to end comes. Calls `enter` for each line that is typed at a terminal.
void wait_for_end(const Fd& signals, const std::function<void()>& enter) {
  std::array<pollfd, 2> ready{{{.fd = signals.get(), .events = POLLIN, .revents = 0},
                               {.fd = isatty(STDIN_FILENO) != 0 ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}}};
  for (;;) {
    if (poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) return;
    if (ready[0].revents != 0) {
      signalfd_siginfo taken{};
      static_cast<void>(read(signals.get(), &taken, sizeof taken));  // Else it would come again when it may end us.
      return;
    }
    if (ready[1].revents == 0) continue;
    std::array<char, 256> typed{};
    if (read(STDIN_FILENO, typed.data(), typed.size()) > 0) {
      enter();
    } else {
      ready[1].fd = -1;  // The terminal is gone, or another job's.
    }
  }
}

int console(const ConsoleFlags& flags) {
  const Millis interval = parse_interval(flags.stats_interval, "--stats-interval");
  const Millis sweeps = parse_interval(flags.sweep_interval, "--sweep-interval");
  const proxy::Address address = parse_admin(flags.listen, "--listen");
  if (!proxy::is_loopback(address)) {
    throw Exception(ErrorKind::misuse,
                    "--listen: the console is for browsers on this host, so it listens on 127.0.0.1, "
                    "[::1] or localhost only, not on " +
                        address.host);
  }
  const std::string host = console_host(flags.console_origin, true);  // By the link.
  const Identity identity{.name = flags.who.empty() ? who() : flags.who, .reads_only = flags.read_only};
  if (identity.name.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw Exception(ErrorKind::misuse, "--who is empty: say who changes the records, or leave it out");
  }
  if (!flags.reconcile.empty() && !flags.reconcile_scope.has_scope) {
    misuse(
        "--reconcile needs --reconcile-scope: name the --scope of the work, '' for none; of once sqs it is by default "
        "the queue's name. The command is not asked about other scopes: it would not find their operations, and "
        "say that they did not take place");
  }
  std::signal(SIGTTIN, SIG_IGN);
  const sigset_t end_signals = block_end_signals({});
  const Fd signals(signalfd(-1, &end_signals, SFD_CLOEXEC));
  const StoreAccess access =
      open_to_look(flags.store, flags.read_only ? Missing::read : Missing::refuse, IfFallback::refuse);
  std::optional<AuditLog> audit;
  if (!flags.audit_log.empty()) audit.emplace(flags.audit_log);
  const AdminToken no_token("", "--admin-token-file");
  Console console(no_token, {.by_links = true, .audit = audit ? &*audit : nullptr, .host = host});
  Upkeep upkeep(access, interval, flags.read_only ? Millis{0} : sweeps,
                flags.read_only ? std::string() : who() + " once console");
  // The questions of `operators` use it, and end with them.
  const std::unique_ptr<Asking> asking = asking_of(flags, access);
  Operators operators(access, no_token, overview_sources(upkeep.look(), nullptr), &console);
  if (asking) operators.ask_by(asking->reconciler());
  Engine engine({.store = access.store});
  const proxy::AdminServer server(engine,
                                  {.listen = address,
                                   .metrics = [] { return std::string(); },
                                   .unready = {},
                                   .probes_writes = false,
                                   .operators =
                                       [&](const http::Request& request, Callback<void(proxy::OperatorsAnswer)> done) {
                                         operators.answer_later(request, std::move(done));
                                       },
                                   .refuse_metrics = [](const http::Request&) { return no_metrics(); }});
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  const std::string here =
      "http://" + (is_ipv6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(server.port());
  const std::string page = (host.empty() ? here : "https://" + host) + "/console/#link=";
  int code = exit_ok;
  const auto show_link = [&] { code = print(page + console.new_link(identity) + "\n"); };
  show_link();
  if (code != exit_ok) return code;
  if (!host.empty()) say("for https://" + host + ": pass its requests on to " + here + ", with their Host");
  say("open this link within 60 s; it works once." +
      std::string(isatty(STDIN_FILENO) != 0 ? " Press Enter for another one." : ""));
  wait_for_end(signals, show_link);
  pthread_sigmask(SIG_UNBLOCK, &end_signals, nullptr);  // A second one does not wait for a store.
  if (asking) asking->end();
  operators.stop();
  return exit_ok;
}

}  // namespace

void add_console(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<ConsoleFlags>();
  CLI::App* const command = app.add_subcommand("console", "See and settle a store's records in a browser on this host");
  add_store_options(*command, flags->store);
  command
      ->add_option("--listen", flags->listen,
                   "[HOST:]PORT of the page; HOST is a loopback address, by default 127.0.0.1\n"
                   "(default: a free port)")
      ->default_str("");
  command->add_option("--who", flags->who, "Who changes records in the page; kept in them (default: USER@HOST)");
  command->add_flag("--read-only", flags->read_only, "The page changes nothing");
  command->add_option("--stats-interval", flags->stats_interval, stats_interval_help);
  command->add_option("--sweep-interval", flags->sweep_interval, sweep_interval_help);
  command->add_option("--console-origin", flags->console_origin, console_origin_help);
  command->add_option("--audit-log", flags->audit_log, audit_log_help);
  command->add_option(
      "--reconcile", flags->reconcile,
      "A shell command that says what became of an unknown operation: as for once run. The page asks it\n"
      "when you do (default: none)");
  command->add_option_function<std::string>(
      "--reconcile-scope",
      [flags](const std::string& scope) {
        flags->reconcile_scope.scope = scope;
        flags->reconcile_scope.has_scope = true;
      },
      "The scope of the operations that it is asked about: the --scope of the work, '' for none; of once sqs\n"
      "by default the queue's name. --reconcile needs it");
  command->add_option("--derive-name", flags->derive_name,
                      "The name that its ONCE_DERIVED_KEY is derived from, as of the work; post for once sqs --post");
  command->add_option(
      "--reconcile-settle", flags->reconcile_settle,
      "How long after the end of an attempt its exit code 100 begins to count: the longest of all programs\n"
      "that work on the scope");
  command->add_option("--reconcile-timeout", flags->reconcile_timeout, "How long that command may take");
  command->add_option("--reconcile-retention", flags->reconcile_retention,
                      "How long its answer is replayed before it expires, as --retention of the work; never: it does\n"
                      "not expire");
  command->footer(
      "Prints a link that signs one browser in, once and within 60 s. Enter at a terminal prints another one. Ends "
      "with\n"
      "SIGINT or SIGTERM.\n\n"
      "Examples:\n"
      "  once console --store sqlite:/var/lib/once/once.db\n"
      "  once console --read-only --who alice --audit-log console.log\n"
      "  once console --reconcile './find-charge \"$ONCE_DERIVED_KEY\"' --reconcile-scope payments\n\n"
      "Exit codes: 0 ended by a signal; 64 wrong options; 243 the store, the port or the audit log cannot be used.");
  command->callback([flags, &invocation] { invocation.action = [flags] { return console(*flags); }; });
}

}  // namespace once::cli
