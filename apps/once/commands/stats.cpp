// once stats: how many records are in which state, and what waits for an operator.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "commands/commands.hpp"
#include "operators/store_metrics.hpp"
#include "output/exit_codes.hpp"
#include "output/metrics_file.hpp"
#include "output/progress.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "settings/access.hpp"
#include "settings/filters.hpp"
#include "text/prometheus.hpp"
#include "text/utf8.hpp"

namespace once::cli {

namespace {

struct StatsOptions {
  StoreOptions store;
  FilterOptions filter;
  std::string metrics_file;  // Empty: none.
  bool json = false;
  bool prometheus = false;
  bool by_scope = false;
};

int stats(const StatsOptions& options) {
  const StoreAccess access = open_to_look(options.store);
  const Time now = operate::learn_now(*access.store, *system_clock()).now;
  operate::Counts counts;
  StoreCounts shown(options.by_scope ? StoreCounts::usual_scopes : 0, text::replace_invalid_utf8(options.filter.scope));
  Progress progress("counted");
  const auto error = operate::for_each(*access.store, filter_of(options.filter, now, access.raw_scopes), now,
                                       [&](const Record& record) {
                                         operate::count(record, now, counts);
                                         if (options.prometheus) shown.add(record, now);
                                         progress.tell(counts.records);
                                         return true;
                                       });
  progress.end();
  if (error && error->kind != ErrorKind::corrupt) return fail_with(*error);
  const int code = error ? fail_with(*error) : exit_ok;  // The others are counted.
  if (options.prometheus) {
    text::Exposition out;
    shown.write(out, now);
    const std::string page = std::move(out).take();
    if (options.metrics_file.empty()) return print(page, code);
    return write_metrics_file(options.metrics_file, page) ? code : static_cast<int>(exit_output);
  }
  if (options.json) return print(json_text(counts_json(counts)), code);
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) {
    text += name;
    text.append(name.size() < 18 ? 18 - name.size() : 1, ' ');
    text += value + "\n";
  };
  line("store", access.store->name());
  line("records", std::to_string(counts.records) + " (" + show_size(counts.bytes) + ")");
  for (const operate::Standing standing : all_standings) {
    line("  " + std::string(operate::to_string(standing)), std::to_string(counts.of(standing)));
  }
  if (counts.overdue > 0) {
    line("overdue", std::to_string(counts.overdue) + ", the first since " + relative(*counts.oldest_overdue, now));
  }
  if (counts.offloaded > 0) {
    line("results outside", std::to_string(counts.offloaded) + " (" + show_size(counts.offloaded_bytes) + ")");
  }
  if (counts.dropped > 0) line("results not kept", std::to_string(counts.dropped));
  if (counts.oldest_created) line("oldest record", relative(*counts.oldest_created, now));
  if (counts.oldest_lapsed) line("oldest lapsed", relative(*counts.oldest_lapsed, now));
  if (counts.oldest_unknown) line("oldest unknown", relative(*counts.oldest_unknown, now));
  return print(text, code);
}

}  // namespace

void add_stats(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<StatsOptions>();
  CLI::App* const command = app.add_subcommand("stats", "Count records by state");
  add_store_options(*command, options->store);
  add_filter_options(*command, options->filter);
  CLI::Option* const json = command->add_flag("--json", options->json, "Write JSON");
  CLI::Option* const prometheus =
      command->add_flag("--prometheus", options->prometheus, "Write metrics in Prometheus' text format")
          ->excludes(json);
  command->add_flag("--by-scope", options->by_scope, "With --prometheus: count each of the first 100 scopes apart")
      ->needs(prometheus);
  command
      ->add_option("--metrics-file", options->metrics_file,
                   "With --prometheus: write them to a file for node_exporter's textfile collector, as in once.prom")
      ->needs(prometheus);
  command->footer(
      "Examples:\n"
      "  once stats --scope payments\n"
      "  once stats --prometheus --metrics-file /var/lib/node_exporter/once.prom");
  command->callback([options, &invocation] { invocation.action = [options] { return stats(*options); }; });
}

}  // namespace once::cli
