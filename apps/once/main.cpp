// The program `once`: parses the command line, runs a subcommand, and turns errors into exit codes.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "commands/commands.hpp"
#include "operators/reporter.hpp"
#include "output/command_tree.hpp"
#include "output/exit_codes.hpp"
#include "output/nearest.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/look_up.hpp"
#include "process/signals.hpp"

namespace {

// If one of them is closed at start, our files or the command's pipes must not get its number.
void have_standard_streams() {
  for (;;) {
    const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd > STDERR_FILENO || fd < 0) {
      if (fd >= 0) close(fd);
      return;
    }
    fcntl(fd, F_SETFD, 0);
  }
}

// The innermost subcommand of the command line, or the program itself.
const CLI::App& asked_for(const CLI::App& app) {
  const auto below = app.get_subcommands();
  return below.empty() ? app : asked_for(*below.front());
}

// "once table create"
std::string full_name(const CLI::App& command) {
  const CLI::App* const above = command.get_parent();
  return above == nullptr ? command.get_name() : full_name(*above) + " " + command.get_name();
}

// Reports a mistyped word and the likely one. `arguments`: as given, up to "--". Empty: no suggestion.
std::string mistake(const CLI::App& app, const std::vector<std::string>& arguments, bool has_command) {
  using once::cli::escaped;
  using once::cli::nearest;
  const CLI::App& command = asked_for(app);
  const CLI::App* at = &command;  // Whose words some are not known: the command, or what stands above it.
  for (const CLI::App* above = command.get_parent(); above != nullptr; above = above->get_parent()) {
    if (above->remaining_size() != 0) at = above;
  }
  const std::vector<std::string> unknown = at->remaining();
  const auto first = std::find_first_of(arguments.begin(), arguments.end(), unknown.begin(), unknown.end());
  if (first == arguments.end()) return {};
  const std::string word = first->substr(0, first->find('='));
  const auto with_hint = [&](std::string text, const std::vector<std::string>& known) {
    const std::string meant = nearest(word, known);
    return text + (meant.empty() ? "." : ". Did you mean " + meant + "?");
  };
  if (at != &command) {
    return "'" + escaped(word) + "' stands before the command. Write options after it, as in `" + full_name(command) +
           " " + escaped(word) + "`.";
  }
  if (word.starts_with('-')) {
    std::vector<std::string> known;
    for (const CLI::Option* const option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
    return with_hint("`" + full_name(command) + "` has no option " + escaped(word), known);
  }
  std::vector<std::string> known;
  for (const CLI::App* const below : command.get_subcommands({})) known.push_back(below->get_name());
  if (!known.empty()) return with_hint("there is no command `" + full_name(command) + " " + escaped(word) + "`", known);
  if (!has_command && (command.get_name() == "run" || command.get_name() == "sqs" || command.get_name() == "mcp")) {
    return "'" + escaped(word) + "' is not an option. Put -- before the command, as in `" + full_name(command) +
           " ... -- " + escaped(word) + "`.";
  }
  return "`" + full_name(command) + "` does not take the argument '" + escaped(word) + "'.";
}

// ONCE_STOER=postgresql://... would be a store that nobody else uses: the default one, a file on this host.
void warn_of_mistyped_variables() {
  using once::cli::escaped;
  using once::cli::nearest;
  static const std::vector<std::string> settings{"STORE",  "LEASE", "RETENTION", "FAILURE_RETENTION",
                                                 "EXPECT", "WAIT",  "DISABLED",  "METRICS"};
  constexpr std::string_view prefix = "ONCE_";
  constexpr std::array<std::string_view, 14> set_for_commands{
      "KEY",    "SCOPE",      "LABEL",       "ATTEMPT", "TOKEN",   "OWNER",   "STORED_KEY_HEX",
      "HOLDER", "CREATED_MS", "DERIVED_KEY", "QUEUE",   "COMMAND", "OPTIONS", "URL"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!text.starts_with(prefix)) continue;
    const std::string_view name = text.substr(prefix.size(), text.find('=') - prefix.size());
    if (std::ranges::find(settings, name) != settings.end()) continue;
    if (std::ranges::find(set_for_commands, name) != set_for_commands.end()) continue;
    const std::string meant = nearest(name, settings);
    if (meant.empty()) continue;
    once::cli::say(
        "ONCE_" + escaped(name) + " is set, but once knows no such variable. Did you mean ONCE_" + meant + "?",
        once::LogLevel::warning);
  }
}

// How this process speaks: as the log that its arguments ask for, also if they turn out to be wrong. The proxy's file
// may say otherwise later.
once::LogFormat log_format_of(const std::vector<std::string>& arguments) {
  const auto has = [&](std::string_view word) { return std::ranges::find(arguments, word) != arguments.end(); };
  constexpr std::string_view flag = "--log";
  bool json = !arguments.empty() && arguments.front() == "proxy" && !has("--check");
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    const std::string_view argument = arguments[at];
    if (!argument.starts_with(flag)) continue;
    if (argument == flag && at + 1 < arguments.size()) json = arguments[at + 1] == "json";
    if (argument.substr(flag.size()).starts_with('=')) json = argument.substr(flag.size() + 1) == "json";
  }
  return json ? once::LogFormat::json : once::LogFormat::text;
}

// Empty: enough. A thread takes some 40 MiB of addresses, and one that is needed in the middle of an operation cannot
// be refused without ending the program. So a low limit is refused before a claim.
std::string too_few_addresses(const std::string& command) {
  constexpr rlim_t mib = 1 << 20;
  const bool serves =
      command == "sqs" || command == "proxy" || command == "serve" || command == "console" || command == "mcp";
  if (!serves && command != "run") return {};
  const rlim_t needed = serves ? 512 * mib : 192 * mib;
  rlimit found{};
  if (getrlimit(RLIMIT_AS, &found) != 0 || found.rlim_cur >= needed) return {};
  return "this process may have " + std::to_string(found.rlim_cur / mib) +
         " MiB of addresses (RLIMIT_AS, as by ulimit -v), and `once " + command + "` needs " +
         std::to_string(needed / mib) + " MiB: raise the limit. Nothing was run.";
}

// A list that is empty has no default to show.
void hide_empty_lists(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    if (option->get_default_str() == "[]") option->default_str("");
  }
  for (CLI::App* const command : app.get_subcommands([](const CLI::App*) { return true; })) hide_empty_lists(*command);
}

int once_main(int argc, char** argv) {
  using namespace once::cli;
  using once::LogLevel;
  Invocation invocation;
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  // What follows "--" is the command's own: the parser must not look at it.
  if (const auto dashes = std::find(arguments.begin(), arguments.end(), "--"); dashes != arguments.end()) {
    invocation.has_command = true;
    invocation.command.assign(dashes + 1, arguments.end());
    arguments.erase(dashes, arguments.end());
  }

  say_as(log_format_of(arguments));
  once::operators::set_reporter([](std::string_view text, LogLevel level) { say(text, level); });
  CLI::App app("Runs an operation once and gives every caller its result.", "once");
  app.get_formatter()->column_width(30);
  app.option_defaults()->always_capture_default();  // The help of an option shows its default.
  app.set_version_flag("--version", "once " ONCE_VERSION);
  app.require_subcommand(1);
  app.footer("Run `once COMMAND --help` for options, examples and exit codes.");
  add_run(app, invocation);
#if ONCE_AWS
  add_sqs(app, invocation);
#endif
  add_proxy(app, invocation);
  add_ls(app, invocation);
  add_find(app, invocation);
  add_show(app, invocation);
  add_resolve(app, invocation);
  add_release(app, invocation);
  add_extend(app, invocation);
  add_rm(app, invocation);
  add_sweep(app, invocation);
  add_stats(app, invocation);
  add_console(app, invocation);
  add_serve(app, invocation);
  add_mcp(app, invocation);
  add_copy(app, invocation);
  add_import(app, invocation);
  add_doctor(app, invocation);
  add_key(app, invocation);
  add_seal_key(app, invocation);
  add_lambda(app, invocation);
#if ONCE_AWS || ONCE_POSTGRESQL
  add_table(app, invocation);
#endif

  hide_empty_lists(app);
  if (arguments.empty()) return print(app.help(), exit_usage);
  if (arguments.front() == "--command-tree") return print(json_text(command_tree(app)));  // For tools/manual.
  if (arguments.front() == "help") {  // `once help table create` is `once table create --help`.
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // Reversed, as CLI11 wants them.
  } catch (const CLI::CallForVersion& version) {
    return print(std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& error) {
    const bool help = dynamic_cast<const CLI::Success*>(&error) != nullptr;  // Of the program or of a subcommand.
    std::string why = mistake(app, arguments, invocation.has_command);
    // Without a mistake in it: `once run --key k echo --help` must not look like a run that succeeded.
    if (help && why.empty()) return print(app.help());  // Of what was asked for, with the names before it.
    if (why.empty()) why = std::string(error.what()) + ".";
    say(why + " Nothing was run. See `" + full_name(asked_for(app)) + " --help`.", LogLevel::err);
    return exit_usage;
  }
  const std::string& asked = app.get_subcommands().front()->get_name();
  if (invocation.has_command && asked != "run" && asked != "sqs" && asked != "mcp") {
    say("only `once run`, `once sqs` and `once mcp` take a command after --. Nothing was run.", LogLevel::err);
    return exit_usage;
  }
  warn_of_mistyped_variables();
  if (const std::string why = too_few_addresses(asked); !why.empty()) {
    say(why, LogLevel::err);
    return exit_unavailable;
  }
  return invocation.action();
}

// From a place where nothing can be allocated. Claims of this process lapse.
[[noreturn]] void end_with(std::string_view text) noexcept {
  once::cli::say_at_the_end(text);
  _exit(once::cli::exit_internal);
}

// SQLite maps the store's -shm file. If another program cuts it, to touch it raises SIGBUS. The store looks at its
// length before each transaction; this is for the moments between (docs/decisions/sqlite-disks.md).
extern "C" void on_bus_error(int /*signal*/) {
  end_with(
      "a file that is mapped into memory was cut, or its disk is full or broken (SIGBUS); most likely the "
      "store's -shm file. If a command ran, its result is not stored, and its claim lapses. Stop all programs that use "
      "the store, and start them again");
}

// Threads that cannot report an exception would end the program by a signal, without saying why.
void on_no_memory() {
  end_with(
      "out of memory. If a command ran, its result is not stored, and its claim lapses. Raise the limit of this "
      "process (ulimit -v, ulimit -d, MemoryMax=)");
}

// What the library did not foresee: this process has no more threads, or there is a bug.
int failed(const std::exception& error) {
  using namespace once::cli;
  using once::LogLevel;
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    say("cannot start a thread: " + system->code().message() +
            ": raise the limit of processes and threads (ulimit -u, TasksMax=, a container's limit of pids) or of "
            "memory",
        LogLevel::err);
    return exit_unavailable;
  }
  say(std::string("internal error: ") + error.what(), LogLevel::err);
  return exit_internal;
}

}  // namespace

int main(int argc, char** argv) {
  have_standard_streams();
  once::prepare_lookups();
  once::cli::Signals::ignore_file_size_limit();
  struct sigaction bus {};
  bus.sa_handler = on_bus_error;
  sigaction(SIGBUS, &bus, nullptr);  // execve() resets it for commands.
  std::set_new_handler(on_no_memory);
  int code = once::cli::exit_internal;
  try {
    code = once_main(argc, argv);
  } catch (const once::Exception& error) {
    code = once::cli::fail_with(error.error());
  } catch (const std::exception& error) {
    code = failed(error);
  }
  // Threads of the store may still run, so nothing is destroyed. All output is written already.
  _exit(code);
}
