// once doctor: is the store sound, and what waits for an operator?
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/commands.hpp"
#include "process/examination.hpp"

namespace once::cli {

void add_doctor(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* const command = app.add_subcommand("doctor", "Check a store, and list what needs an operator");
  add_store_options(*command, options->store);
  command->add_flag("--probe", options->probe, "Also write, read and remove a record of its own");
  command->add_flag("--quick", options->quick,
                    "In a file, check only the newest 20000 records; in a DynamoDB table, count only records in\n"
                    "progress or unknown, by the index");
  command->add_flag("--mixed", options->mixed,
                    "Sealed records and records in the clear are expected side by side, as while sealing begins");
  command->add_flag("--json", options->json, "Write JSON");
  command->footer(
      "Changes nothing without --probe. Exits with 1 if something needs an operator.\n\n"
      "Examples:\n"
      "  once doctor --probe");
  command->callback([options, &invocation] { invocation.action = [options] { return examine(*options); }; });
}

}  // namespace once::cli
