// once mcp: the tools of an agent, each call once.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "commands/commands.hpp"
#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "process/mcp_command.hpp"

namespace once::cli {

namespace {

constexpr const char* mcp_footer = R"(Examples:
  once mcp --suggest -- python3 shop.py >shop.toml
  once mcp --check --config shop.toml -- python3 shop.py
  once mcp --config shop.toml -- python3 shop.py
  once mcp --config shop.toml --run "$JOB" --store postgresql://db/once -- npx shop-server

Put the third form where your agent's configuration starts the server. The
client of the Model Context Protocol talks to once on standard input and output,
and once to the server. A call with a key that was used before gets the stored
result, and the server does not see it. Calls of tools without a rule are
refused. docs/mcp.md lists the settings of the file.

When the client closes standard input, or at SIGTERM, running calls may finish
(stop-within). What was sent and not answered is recorded as unknown.

Exit codes:
    0  the client has closed standard input         126  the server cannot be executed
   64  usage; the rules do not fit the server       127  the server was not found
    1  --check: a tool has changed                  243  the store cannot be used
  249  an internal error of once; any other: the server's, if it ended first)";

struct McpFlags {
  McpOptions options;
  bool check = false;
  bool suggest = false;
};

class McpFormatter final : public CLI::Formatter {
 public:
  McpFormatter() { column_width(30); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: once mcp --config FILE [OPTIONS] -- SERVER [ARGUMENTS...]\n";
  }
};

}  // namespace

void add_mcp(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<McpFlags>();
  CLI::App* const command =
      app.add_subcommand("mcp", "Make an agent's tool calls run once: a server of the Model Context Protocol");
  command->formatter(std::make_shared<McpFormatter>());
  command->add_option("--config", flags->options.config, "The rules for the server's tools, a TOML file");
  CLI::Option* const suggest =
      command->add_flag("--suggest", flags->suggest,
                        "Print a file of rules for the server's tools, for you to edit, and start nothing else");
  command
      ->add_flag("--check", flags->check,
                 "Only compare the file with the server's tools, and print what happens to the calls of each")
      ->excludes(suggest);
  add_store_options(*command, flags->options.store);
  command->add_option(
      "--principal", flags->options.principal,
      "Whose calls these are: each principal has keys of its own (default: principal in the file, else all\n"
      "callers share them)");
  command->add_option(
      "--run", flags->options.run,
      "The run that all calls belong to, for tools with key-run (default: run-meta in the file says it)");
  add_log_flags(*command, flags->options.log, "text");
  command->footer(mcp_footer);
  command->callback([flags, &invocation] {
    invocation.action = [flags, &invocation] {
      if (invocation.command.empty()) {
        say("there is no server: put its command after --, as in `once mcp --config shop.toml -- python3 shop.py`");
        return static_cast<int>(exit_usage);
      }
      if (flags->suggest) return mcp_suggest(invocation.command);
      return flags->check ? mcp_check(flags->options, invocation.command)
                          : mcp_command(flags->options, invocation.command);
    };
  });
}

}  // namespace once::cli
