// once extend: extends a lease or a result's retention, or changes what happens to a lapsed claim.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/change.hpp"
#include "commands/commands.hpp"
#include "output/text.hpp"

namespace once::cli {

namespace {

struct ExtendOptions {
  ChangeOptions change;
  std::string by_time;
  std::string on_lapse;
  std::string retention = "24h";
};

}  // namespace

void add_extend(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<ExtendOptions>();
  CLI::App* const extend =
      app.add_subcommand("extend", "Extend a claim's lease or a result's retention, or change --on-lapse");
  add_change_options(*extend, options->change);
  extend->add_option("--by", options->by_time, "How much longer, as in 10m");
  extend->add_option("--on-lapse", options->on_lapse, "Instead: change the running claim to takeover or hold")
      ->excludes("--by")
      ->check(CLI::IsMember({"takeover", "hold"}));
  extend->add_option("--retention", options->retention,
                     "With --on-lapse takeover: how long the record is kept, or never to let it expire");
  extend->footer(
      "Examples:\n"
      "  once extend --key import-5 --by 2h --reason 'the import is slow today'\n"
      "  once extend --key import-5 --on-lapse takeover --reason 'the importer skips finished rows'");
  extend->callback([options, &invocation] {
    invocation.action = [options] {
      const auto on_lapse = on_lapse_from_string(options->on_lapse);
      if (!on_lapse && options->by_time.empty()) misuse("give --by, as in --by 10m, or --on-lapse");
      const Millis by = on_lapse ? Millis{0} : parse_duration(options->by_time, "--by");
      const Millis retention = parse_retention(options->retention, "--retention");
      return change(options->change,
                    {.planner =
                         [&](const Record& seen, const operate::Reason& reason, Stamp stamp, Millis skew) {
                           return on_lapse ? operate::plan_on_lapse(seen, *on_lapse, retention, reason, stamp, skew)
                                           : operate::plan_extend(seen, by, reason, stamp, skew);
                         },
                     .done = "extended"});
    };
  });
}

}  // namespace once::cli
