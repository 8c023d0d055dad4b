// The subcommands: each has one file, and one function here. The function adds the subcommand to the parser, and sets
// Invocation::action in its callback. The action does the work and returns the exit code. It may throw once::Exception:
// main() prints it and turns its kind into an exit code (output/exit_codes.hpp).
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace once::cli {

struct Invocation {
  std::vector<std::string> command;  // The words after the first "--", which the parser does not read.
  bool has_command = false;          // There was a "--".
  std::function<int()> action;
};

void add_run(CLI::App& app, Invocation& invocation);
void add_proxy(CLI::App& app, Invocation& invocation);
void add_ls(CLI::App& app, Invocation& invocation);
void add_find(CLI::App& app, Invocation& invocation);
void add_show(CLI::App& app, Invocation& invocation);
void add_resolve(CLI::App& app, Invocation& invocation);
void add_release(CLI::App& app, Invocation& invocation);
void add_extend(CLI::App& app, Invocation& invocation);
void add_rm(CLI::App& app, Invocation& invocation);
void add_sweep(CLI::App& app, Invocation& invocation);
void add_stats(CLI::App& app, Invocation& invocation);
void add_console(CLI::App& app, Invocation& invocation);
void add_copy(CLI::App& app, Invocation& invocation);
void add_import(CLI::App& app, Invocation& invocation);
void add_doctor(CLI::App& app, Invocation& invocation);
void add_key(CLI::App& app, Invocation& invocation);     // key.cpp
void add_lambda(CLI::App& app, Invocation& invocation);  // lambda.cpp
void add_mcp(CLI::App& app, Invocation& invocation);
void add_seal_key(CLI::App& app, Invocation& invocation);
void add_serve(CLI::App& app, Invocation& invocation);
void add_sqs(CLI::App& app, Invocation& invocation);    // Not in a build without ONCE_AWS.
void add_table(CLI::App& app, Invocation& invocation);  // Not without ONCE_AWS or ONCE_POSTGRESQL.

}  // namespace once::cli
