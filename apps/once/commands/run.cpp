// once run: runs a command once for its key.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "commands/commands.hpp"
#include "import/fallback.hpp"
#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "process/run_command.hpp"
#include "serve/place.hpp"

namespace once::cli {

namespace {

constexpr const char* footer = R"(Examples:
  once run --key backup-2026-05-17 -- pg_dump -f /backup/db.sql db
  once run --key order-17 --scope payments --wait 30s -- ./charge 17
  once run --key sync --if-running skip --expect 10m --retention 1ms -- ./sync
  once run --key report --on-failure release --on-exit 2=store -- ./report
  once run --key order-17 --on-lapse hold --reconcile './find-charge "$ONCE_DERIVED_KEY"' -- ./charge 17

The first caller runs the command; later callers get the same output and exit
code. The command finds ONCE_KEY, ONCE_SCOPE, ONCE_ATTEMPT, ONCE_TOKEN, ONCE_OWNER,
ONCE_DERIVED_KEY and (on SQLite, PostgreSQL) ONCE_STORED_KEY_HEX in its environment.

Exit codes of once itself (all others are the command's):
   64  usage: wrong flags or an invalid key           243  the store cannot be used
   74  the output could not be written                244  the record cannot be read
  126  the command cannot be executed                 245  the claim was lost, no result is stored
  127  the command was not found                      246  it ran before, its output was not kept
  240  conflict: another caller runs it now           247  it ran, not stored (--on-unrecorded fail)
  241  mismatch: the key was used for something else  248  it ran too late: another result counts
  242  unknown: it started, its outcome is not known  249  an internal error of once)";

class RunFormatter final : public CLI::Formatter {
 public:
  RunFormatter() { column_width(30); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: once run --key KEY [OPTIONS] -- COMMAND [ARGUMENTS...]\n";
  }
};

}  // namespace

void add_run(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* const run = app.add_subcommand("run", "Run a command once per key, and replay its result to later callers");
  run->formatter(std::make_shared<RunFormatter>());
  run->footer(std::string(footer) + "\n\n" + importing::fallback_help);
  add_store_options(*run, options->store);
  add_key_options(*run, options->key);
  add_work_options(*run, *options,
                   "When the command exits with a code other than 0: store (replay the failure), release (the next\n"
                   "caller runs the command again), hold (unknown, an operator decides) (default: store)",
                   "as --lease, at least 1m");
  run->add_option("--wait", options->wait,
                  "How long to wait for another caller that runs the command (default: not at all, exit 240)")
      ->envname("ONCE_WAIT");
  run->add_option(
         "--if-running", options->if_running,
         "When another caller runs the command: fail with 240, or skip it and end quietly with 0, unless that\n"
         "run is overdue (see --expect)")
      ->check(CLI::IsMember({"fail", "skip"}));
  run->add_option("--on-stored-failure", options->on_stored_failure,
                  "When the stored result is a failure: replay it, or execute the command again")
      ->check(CLI::IsMember({"replay", "execute"}));
  run->add_option(
         "--on-store-down", options->on_store_down,
         "When the store does not answer: refuse to run the command, or run it without protection (run-unprotected)")
      ->check(CLI::IsMember({"refuse", "run-unprotected"}));
  run->add_option("--on-lost", options->on_lost,
                  "When the claim is lost while the command runs: kill the command, or let it continue")
      ->check(CLI::IsMember({"kill", "continue"}));
  run->add_option("--on-unrecorded", options->on_unrecorded,
                  "When the result cannot be stored: return the command's exit code anyway, or fail with 247")
      ->check(CLI::IsMember({"return", "fail"}));
  run->add_option("--label", options->label, "Keep the key as the record's label too: named, or none")
      ->check(CLI::IsMember({"named", "none"}));
  run->add_option("--keep-input", options->keep_input,
                  "Keep in the record, for people: args (the command line, with every secret on it) or stdin (what\n"
                  "--fingerprint stdin has read) (default: neither)")
      ->check(CLI::IsMember({"args", "stdin"}));
  run->add_option("--input-without", options->input_without,
                  "With --keep-input stdin: a field of the JSON to leave out of it, as in card.number; repeatable.\n"
                  "Input that is not JSON is then not kept")
      ->allow_extra_args(false);
  run->add_option("--fingerprint", options->fingerprint,
                  "What a retry must repeat: a list of args, stdin and env:NAME, as in args,env:USER; or none");
  run->add_flag("--allow-null-parts", options->allow_null_parts,
                "Accept parts of --fingerprint that select nothing: unset variables, empty standard input");
  run->add_option("--output-limit", options->output_limit, "Keep output up to this size in the store");
  run->add_option("--offload-limit", options->offload_limit,
                  "Keep output up to this size outside the store; larger output is not kept");
  run->add_option("--input-limit", options->input_limit,
                  "With --fingerprint stdin: the largest standard input to read");
  run->add_flag(
      "--drain-input", options->drain_input,
      "When the command does not run, as for a replay, read standard input to its end, so that a program that\n"
      "writes to it does not end by SIGPIPE");
  run->add_flag("--no-sweep", options->no_sweep,
                "Leave expired records to `once sweep`: do not remove some of them after the run (SQLite)");
  run->add_flag("--no-output", options->no_output, "Keep the exit code only: a replay prints nothing");
  run->add_option("--output-wait", options->output_wait,
                  "How long to wait for more output from processes that outlive the command");
  run->add_option("--derive-name", options->derive_name,
                  "A name that makes ONCE_DERIVED_KEY differ from keys derived with other names");
  run->add_flag("--survive", options->survive, "Let the command keep running if once is killed with SIGKILL");
  run->add_flag(
      "--tty", options->terminal,
      "Give the command a terminal for its output, as it has without once: colours, progress, lines at once.\n"
      "Its standard error is kept and replayed as part of standard output then");
  add_unshared_store(*run, options->unshared_store);
  run->add_option("--metrics-file", options->metrics_file,
                  "Write how this run ended to a file for node_exporter's textfile collector, as in run.prom");
  add_log_flags(*run, options->log, "none");
  run->add_flag("-v,--verbose", options->verbose, "Report what happens on standard error");
  run->callback([options, &invocation] {
    invocation.action = [options, &invocation] {
      if (!invocation.has_command || invocation.command.empty()) {
        say("there is no command: put it after --, as in `once run --key order-17 -- ./charge 17`");
        return static_cast<int>(exit_usage);
      }
      options->store.likely_socket = likely_socket(named_store(options->store));
      return run_command(*options, invocation.command);
    };
  });
}

}  // namespace once::cli
