// once rm: removes a record and its result.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/change.hpp"
#include "commands/commands.hpp"

namespace once::cli {

namespace {

struct RmOptions {
  ChangeOptions change;
  bool force = false;
};

}  // namespace

void add_rm(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<RmOptions>();
  CLI::App* const rm = app.add_subcommand("rm", "Remove a record and its result: the operation can run again");
  add_change_options(*rm, options->change, "Why you remove it; must be given, but nothing keeps it",
                     "Who removes it; nothing keeps it (default: USER@HOST)");
  rm->add_flag("--force", options->force,
               "Also remove a live claim (its holder's writes are refused from then on, but its work goes on)");
  rm->footer(
      "Examples:\n"
      "  once rm --key order-17 --scope payments --reason 'the customer asked for it'\n"
      "  once rm --all --scope trial --older-than 7d --reason 'the trial is over' --dry-run");
  rm->callback([options, &invocation] {
    invocation.action = [options] {
      return change(options->change,
                    {.planner = [&](const Record& seen, const operate::Reason& reason, Stamp stamp,
                                    Millis) { return operate::plan_remove(seen, options->force, reason, stamp.now); },
                     .done = "removed",
                     .removes = true});
    };
  });
}

}  // namespace once::cli
