// A storm of payments. Several processes charge orders on behalf of impatient clients that ask again and again; some
// are killed in the middle of a charge, some freeze for longer than their lease. Every order is charged once.
//
//   storm [--seed N] [--orders N] [--requests N] [--workers N] [--crashes N] [--freezes N] [--seconds S]
//         [--directory DIR] [--json] [--without-once]
//
// Exit code 0: every order was charged exactly once, and all callers of an order got one answer. 1: otherwise. 2:
// usage. With --without-once the same storm runs unprotected, to show what happens then (and ends with 0).
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <once/platform/blocking.hpp>
#include <once/stores/open.hpp>
#include <once/stores/sqlite.hpp>

#include "director.hpp"

namespace {

namespace fs = std::filesystem;
using storm::Options;
using storm::Summary;

std::string default_directory() {
  if (fs::is_directory("build")) return "build/storm";
  return (fs::temp_directory_path() / ("once-storm-" + std::to_string(getpid()))).string();
}

struct Total {
  int once = 0;
  int more = 0;
  int never = 0;
  int calls = 0;
  std::int64_t too_much_cents = 0;
};

Total add_up(const Options& options, const Summary& summary) {
  Total total;
  for (int order = 0; order < options.orders; ++order) {
    const auto found = summary.accounts.find(static_cast<std::uint32_t>(order));
    const storm::Account account = found == summary.accounts.end() ? storm::Account{} : found->second;
    total.calls += account.calls;
    (account.charges == 0 ? total.never : account.charges == 1 ? total.once : total.more) += 1;
    if (account.charges > 1) total.too_much_cents += account.cents - account.cents / account.charges;
  }
  return total;
}

// The records must tell the same story as the ledger.
void compare_with_records(const std::string& store_path, Summary& summary) {
  const auto store = once::stores::make_sqlite_store({.path = store_path, .create = false});
  std::size_t records = 0;
  once::ListQuery query;
  do {
    once::ListPage page = once::blocking::list(*store, query);
    if (page.error) throw once::Exception(*page.error);
    for (const once::Record& record : page.records) {
      ++records;
      if (record.state != once::State::completed) {
        summary.problems.push_back(record.key + " is " + std::string(to_string(record.state)) + ", not completed");
      }
      const std::string name = record.key.substr(record.key.rfind('-') + 1);
      const storm::Account account = summary.accounts[static_cast<std::uint32_t>(std::stoul(name))];
      if (account.calls > static_cast<int>(record.attempt)) {
        summary.problems.push_back(record.key + " was claimed " + std::to_string(record.attempt) +
                                   " times, and the bank was asked " + std::to_string(account.calls) + " times");
      }
    }
    query.cursor = page.cursor;
  } while (!query.cursor.empty());
  if (records != summary.accounts.size()) {
    summary.problems.push_back(std::to_string(summary.accounts.size()) + " orders in the ledger, but " +
                               std::to_string(records) + " records");
  }
}

void print(const Options& options, const Summary& summary, const Total& total) {
  std::printf("\n");
  const auto row = [](const char* name, int value, const char* text = "") {
    std::printf("  %-24s %5d   %s\n", name, value, text);
  };
  row("requests", summary.answered + summary.repeated,
      options.without_once ? "" : "a client that gets no answer asks again");
  row("executions", summary.executions);
  if (!options.without_once) {
    row("replays", summary.replays, "the stored answer, nothing run");
    row("conflicts", summary.conflicts, "another request was running it: retry");
    row("takeovers", summary.takeovers, "of claims whose owner was killed or frozen");
  }
  row("crashes (kill -9)", summary.crashes);
  row("frozen owners", summary.freezes);
  if (!options.without_once) row("late writes refused", summary.late_refused, "from owners that had lost their claim");
  std::printf("\n  at the bank: %d calls for %d orders\n", total.calls, options.orders);
  std::printf("  charged once: %d orders, more than once: %d, never: %d\n", total.once, total.more, total.never);
  if (total.too_much_cents > 0) {
    std::printf("  customers paid %lld.%02lld too much\n", static_cast<long long>(total.too_much_cents / 100),
                static_cast<long long>(total.too_much_cents % 100));
  }
}

void print_json(const Options& options, const Summary& summary, const Total& total) {
  const nlohmann::ordered_json json{
      {"seed", options.seed},
      {"orders", options.orders},
      {"requests", summary.answered + summary.repeated},
      {"answered", summary.answered},
      {"executions", summary.executions},
      {"replays", summary.replays},
      {"conflicts", summary.conflicts},
      {"takeovers", summary.takeovers},
      {"crashes", summary.crashes},
      {"freezes", summary.freezes},
      {"late_writes_refused", summary.late_refused},
      {"bank_calls", total.calls},
      {"charged_once", total.once},
      {"charged_more_than_once", total.more},
      {"never_charged", total.never},
      {"problems", summary.problems},
  };
  std::printf("%s\n", json.dump(2).c_str());
}

int run(Options options) {
  if (options.crashes + options.freezes > options.orders) {
    throw CLI::ValidationError("--crashes and --freezes together must not exceed --orders");
  }
  if (options.requests < options.orders) throw CLI::ValidationError("--requests must not be less than --orders");
  if (options.directory.empty()) options.directory = default_directory();
  fs::create_directories(options.directory);
  const std::string store_path = options.directory + "/payments.db";
  const std::string ledger_path = options.directory + "/ledger.csv";
  for (const char* end : {"", "-wal", "-shm", "-lock"}) fs::remove(store_path + end);

  if (!options.json) {
    std::printf(
        "%d requests for %d orders, %d processes, %d of them killed while charging, %d frozen%s (--seed %llu)\n\n",
        options.requests, options.orders, options.workers, options.crashes, options.freezes,
        options.without_once ? ", and nothing to protect them" : "", static_cast<unsigned long long>(options.seed));
  }
  Summary summary = storm::play(options, store_path, ledger_path);
  const Total total = add_up(options, summary);
  if (options.without_once) {
    options.json ? print_json(options, summary, total) : print(options, summary, total);
    if (!options.json) std::printf("\nThat was without once. Run it again without --without-once.\n");
    return 0;
  }
  compare_with_records(store_path, summary);
  const bool good = summary.problems.empty() && total.once == options.orders;
  if (options.json) {
    print_json(options, summary, total);
    return good ? 0 : 1;
  }
  print(options, summary, total);
  for (const std::string& problem : summary.problems) std::printf("  PROBLEM: %s\n", problem.c_str());
  std::printf("\n%s\n", good ? "Every order was charged exactly once, and all who asked got the same receipt."
                             : "SOMETHING WENT WRONG: see above.");
  std::printf("\nThe records:  build/once ls --store sqlite:%s\nThe ledger:   %s\nUnprotected:  %s --without-once\n",
              once::escape_url(store_path).c_str(), ledger_path.c_str(), options.program.c_str());
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.program = argv[0];
  CLI::App app("A storm of payments: duplicates, crashes and frozen owners, and every order is charged once.", "storm");
  app.add_option("--seed", options.seed, "Makes the same plan of requests and mishaps")->capture_default_str();
  app.add_option("--orders", options.orders, "Orders to charge")->check(CLI::Range(1, 10'000))->capture_default_str();
  app.add_option("--requests", options.requests, "Requests for them, duplicates included")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--workers", options.workers, "Processes")->check(CLI::Range(2, 64))->capture_default_str();
  app.add_option("--crashes", options.crashes, "Kills (kill -9) of a process that is charging")
      ->check(CLI::Range(0, 1'000))
      ->capture_default_str();
  app.add_option("--freezes", options.freezes, "Processes stopped for longer than their lease while charging")
      ->check(CLI::Range(0, 1'000))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "Spreads the requests over this time")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  app.add_option("--directory", options.directory, "For the store and the ledger; default build/storm");
  app.add_flag("--json", options.json, "Print only a summary, as JSON");
  app.add_flag("--without-once", options.without_once, "Show what happens unprotected");
  try {
    app.parse(argc, argv);
    return run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "storm: %s\n", error.what());
    return 1;
  }
}
