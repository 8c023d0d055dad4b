// once release: releases a claim, so that the next caller runs the operation.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/change.hpp"
#include "commands/commands.hpp"
#include "output/text.hpp"

namespace once::cli {

namespace {

struct ReleaseOptions {
  ChangeOptions change;
  std::string retention = "24h";
  bool any_payload = false;
  bool force = false;
};

}  // namespace

void add_release(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<ReleaseOptions>();
  CLI::App* const release =
      app.add_subcommand("release", "Release a claim, so that the next caller runs the operation");
  add_change_options(*release, options->change);
  release->add_option("--retention", options->retention,
                      "How long to keep the released record and its steps, or never to let it expire");
  release->add_flag("--any-payload", options->any_payload,
                    "Let the next caller send another payload, such as a corrected command (default: the same only)");
  release->add_flag("--force", options->force,
                    "Also release a live claim (its holder's writes are refused from then on, but its work goes on),\n"
                    "and a record with a result (which is lost)");
  release->footer(
      "Examples:\n"
      "  once release --key order-17 --scope payments --reason 'not in the ledger'\n"
      "  once release --all --state unknown --scope payments --reason 'the bank was down' --dry-run");
  release->callback([options, &invocation] {
    invocation.action = [options] {
      const operate::Resolution resolution{.as = operate::As::released,
                                           .retention = parse_retention(options->retention, "--retention"),
                                           .any_payload = options->any_payload,
                                           .force = options->force};
      return change(
          options->change,
          {.planner = [&](const Record& seen, const operate::Reason& reason, Stamp stamp,
                          Millis) { return operate::plan_release(seen, resolution, reason, fresh_owner(), stamp); },
           .done = "released"});
    };
  });
}

}  // namespace once::cli
