// The program `once`: reads the command line, hands over to a subcommand, turns failures into exit codes.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "commands.hpp"
#include "exit_codes.hpp"
#include "report.hpp"

namespace {

// Whoever starts us without one of them must not find our files, or the command's pipes, in its place.
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

// The subcommand that was asked for, the innermost of several; the program itself if none was.
const CLI::App& asked_for(const CLI::App& app) {
  const auto below = app.get_subcommands();
  return below.empty() ? app : asked_for(*below.front());
}

// "once table create"
std::string full_name(const CLI::App& command) {
  const CLI::App* const above = command.get_parent();
  return above == nullptr ? command.get_name() : full_name(*above) + " " + command.get_name();
}

int once_main(int argc, char** argv) {
  using namespace once::cli;
  Invocation invocation;
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  // What follows "--" is the command's own: the parser must not look at it.
  if (const auto dashes = std::find(arguments.begin(), arguments.end(), "--"); dashes != arguments.end()) {
    invocation.has_command = true;
    invocation.command.assign(dashes + 1, arguments.end());
    arguments.erase(dashes, arguments.end());
  }

  CLI::App app("Runs an operation once, and gives everybody its result.", "once");
  app.get_formatter()->column_width(30);
  app.set_version_flag("--version", "once " ONCE_VERSION);
  app.require_subcommand(1);
  app.footer("`once COMMAND --help` tells more, with examples and exit codes.");
  add_run(app, invocation);
#if ONCE_AWS
  add_sqs(app, invocation);
#endif
  add_proxy(app, invocation);
  add_ls(app, invocation);
  add_show(app, invocation);
  add_resolve(app, invocation);
  add_release(app, invocation);
  add_extend(app, invocation);
  add_sweep(app, invocation);
  add_stats(app, invocation);
  add_doctor(app, invocation);
  add_key(app, invocation);
  add_lambda(app, invocation);
#if ONCE_AWS
  add_table(app, invocation);
#endif

  if (arguments.empty()) return print(app.help(), exit_usage);
  std::reverse(arguments.begin(), arguments.end());  // As CLI11 wants them.
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForVersion& version) {
    return print(std::string(version.what()) + "\n");
  } catch (const CLI::Success&) {  // --help, of the program or of a subcommand.
    return print(asked_for(app).help());
  } catch (const CLI::ParseError& error) {
    say(std::string(error.what()) + ". See `" + full_name(asked_for(app)) + " --help`.");
    return exit_usage;
  }
  const std::string& asked = app.get_subcommands().front()->get_name();
  if (invocation.has_command && asked != "run" && asked != "sqs") {
    say("only `once run` and `once sqs` take a command after --");
    return exit_usage;
  }
  return invocation.action();
}

}  // namespace

int main(int argc, char** argv) {
  have_standard_streams();
  int code = once::cli::exit_internal;
  try {
    code = once_main(argc, argv);
  } catch (const once::Exception& error) {
    code = once::cli::fail_with(error.error());
  } catch (const std::exception& error) {
    once::cli::say(std::string("internal error: ") + error.what());
  }
  // Threads of the store may still run: nothing is taken from under them. All output is written already.
  _exit(code);
}
