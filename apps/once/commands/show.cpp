// once show: one record with everything in it.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>

#include "commands/commands.hpp"
#include "commands/find_record.hpp"
#include "output/report.hpp"
#include "settings/access.hpp"
#include "settings/key_options.hpp"

namespace once::cli {

namespace {

struct ShowOptions {
  StoreOptions store;
  KeyOptions key;
  bool json = false;
};

int show(const ShowOptions& options) {
  const RecordName name = name_of(options.key);
  const StoreAccess access = open_to_look(options.store);
  const std::string key = find_record(access, name, options.key).key;
  Answer answer = blocking::get(*access.store, key);
  if (answer.status == AnswerStatus::failed) return fail_with(answer.error);
  if (!answer.record) {
    say("there is no record for " + quoted_stored(key));
    return exit_no_record;
  }
  Record record = *answer.record;
  for (const std::string& problem : fetch_result(access, record)) say(problem);
  const Time now = operate::now(*access.store, *system_clock());
  return print(options.json ? json_text(record_json(record, now, true)) : record_text(record, now));
}

}  // namespace

void add_show(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<ShowOptions>();
  CLI::App* const command = app.add_subcommand("show", "Show one record and its result");
  add_store_options(*command, options->store);
  add_stored_key_options(*command, options->key);
  command->add_flag("--json", options->json, "Write JSON, with every byte of the result and the steps");
  command->footer(
      "Examples:\n"
      "  once show order-17 --scope payments\n"
      "  once show order-17               (also a label, if only one record has it)\n"
      "  once show --key -17              (a key that begins with a dash)\n"
      "  once show order-17 --json | jq -r .result.run.stdout");
  command->callback([options, &invocation] { invocation.action = [options] { return show(*options); }; });
}

}  // namespace once::cli
