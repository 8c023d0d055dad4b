// once lambda invoke: runs a Lambda function on this machine, against our own Runtime API.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/commands.hpp"
#include "process/lambda_invoke.hpp"

namespace once::cli {

namespace {

constexpr const char* invoke_footer = R"(Examples:
  once lambda invoke ./bootstrap event.json
  echo '{"order":17}' | once lambda invoke --repeat 2 ./bootstrap -
  once lambda invoke --repeat 2 --kill-at answering ./bootstrap event.json
  once lambda invoke --repeat 1000 --concurrency 8 --json ./bootstrap a.json b.json

The function is a program for provided.al2023. It starts in this folder, with the
environment that Lambda gives (AWS_LAMBDA_RUNTIME_API and so on), and stays for
the events that follow. Responses go to standard output, both streams of the
function to standard error. If it times out, it is killed, and started again for
the remaining events.

--kill-at kills it with SIGKILL: `given`, when it has received the event;
`answering`, when its work is done but its answer is not taken yet; `answered`,
when its answer is taken; `200ms`, this long after it received the event. This
holds for the first invocation, or with POINT@3 for the third. A second attempt
(--repeat 2) shows what a retry does. The function's store (ONCE_STORE) must
outlive the function, so not memory:.

Exit codes: 0 all invocations were answered, 237 an answer was an error, 238 an
invocation timed out or got no answer, 126 and 127 the program cannot be executed
or does not exist, 64 usage. An invocation that --kill-at kills does not count.)";

}  // namespace

void add_lambda(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<InvokeOptions>();
  CLI::App* const lambda = app.add_subcommand("lambda", "Run a Lambda function on this machine");
  lambda->require_subcommand(1);
  lambda->footer(
      "Examples:\n"
      "  once lambda invoke ./bootstrap event.json\n"
      "  once lambda invoke --help");
  CLI::App* const invoke = lambda->add_subcommand("invoke", "Send events to a function, and show its responses");
  invoke->add_option("PROGRAM", options->program, "The function's program; for one in this folder, ./bootstrap")
      ->required();
  invoke->add_option("EVENT", options->events, "Files with one event each; - is standard input")->required();
  invoke->add_option("--repeat", options->repeat, "How often to send all events, one after the other");
  invoke->add_option("--concurrency", options->concurrency,
                     "Number of processes of the function, each with one invocation at a time, as on Lambda");
  invoke->add_option("--threads", options->threads,
                     "Number of invocations at a time in each process (AWS_LAMBDA_MAX_CONCURRENCY of Lambda Managed\n"
                     "Instances)");
  invoke->add_option("--timeout", options->timeout, "How long an invocation may take; then the function is killed");
  invoke->add_option("--init-timeout", options->init_timeout,
                     "How long the program may take from its start until it asks for an event");
  invoke->add_option(
      "--kill-at", options->kill_at,
      "Kill the function once: given, answering, answered or a duration; POINT@N for the Nth invocation");
  invoke->add_option("--freeze", options->freeze,
                     "Stop the process for this long between two invocations, as Lambda freezes it (SIGSTOP, SIGCONT)");
  invoke->add_option("--env", options->environment, "NAME=VALUE in the function's environment; repeatable")
      ->allow_extra_args(false);
  invoke->add_option("--name", options->name, "AWS_LAMBDA_FUNCTION_NAME");
  invoke->add_option("--handler", options->handler, "_HANDLER");
  invoke->add_option("--memory", options->memory, "AWS_LAMBDA_FUNCTION_MEMORY_SIZE; limits nothing");
  invoke->add_option("--tenant-id", options->tenant_id,
                     "The tenant whose events these are, for a function with tenant isolation");
  invoke->add_flag("--json", options->json, "Write one line of JSON for each invocation");
  invoke->footer(invoke_footer);
  invoke->callback([options, &invocation] { invocation.action = [options] { return lambda_invoke(*options); }; });
}

}  // namespace once::cli
