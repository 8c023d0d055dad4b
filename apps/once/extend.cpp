// once extend: prolongs a lease, or keeps a result longer.
#include <CLI/CLI.hpp>
#include <memory>

#include "changes.hpp"
#include "commands.hpp"
#include "text.hpp"

namespace once::cli {

namespace {

struct ExtendOptions {
  ChangeOptions change;
  std::string by_time;
};

}  // namespace

void add_extend(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<ExtendOptions>();
  CLI::App* const extend = app.add_subcommand("extend", "Prolong a claim's lease, or keep a result longer");
  add_change_options(*extend, options->change);
  extend->add_option("--by", options->by_time, "How much longer, as in 10m")->required();
  extend->footer(
      "Examples:\n"
      "  once extend --key import-5 --by 2h --reason 'the import is slow today'");
  extend->callback([options, &invocation] {
    invocation.action = [options] {
      const Millis by = parse_duration(options->by_time, "--by");
      return change(options->change, [&](const Record& seen, const operate::Reason& reason, Time now) {
        return operate::plan_extend(seen, by, reason, now);
      });
    };
  });
}

}  // namespace once::cli
