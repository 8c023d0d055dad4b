// Runs the simulation over many seeds, or replays one.
//
//   simulation [--seed N | --worlds N,N…] [--operations M] [--world W] [--store NAME] [--bug NAME] [--bugs]
//              [--progress] [--coverage] [--verbose]
//
// From seed N on, worlds of W operations each until M operations were made. --worlds plays these seeds, a world of W
// operations each. --store dynamodb or sqlite: over the real store's code instead of the simulated store. --bug plants
// one of simulation.hpp's; --bugs plants each, and prints after how many operations it was seen. --progress prints a
// line "played M" every second, and at the end. --coverage prints what was met (coverage.hpp), and fails if that is not
// all there is to meet. A violation prints the command that repeats the one world it happened in, with everything that
// happens there.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "coverage.hpp"
#include "simulation.hpp"

namespace {

[[noreturn]] void usage(const std::string& wrong) {
  std::cerr << wrong
            << "\nusage: simulation [--seed N | --worlds N,N...] [--operations M] [--world W] [--store NAME] "
               "[--bug NAME] [--bugs] [--progress] [--coverage] [--verbose]\n";
  std::exit(64);
}

std::uint64_t number(const std::string& text) {
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos) {
    usage("'" + text + "' is not a number");
  }
  return std::stoull(text);
}

std::vector<std::uint64_t> numbers(const std::string& text) {
  std::vector<std::uint64_t> all;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    all.push_back(number(text.substr(from, end - from)));
    from = end + 1;
  }
  return all;
}

once::simulation::Bug bug_named(const std::string& name) {
  using once::simulation::Bug;
  for (int i = 0; i <= static_cast<int>(once::simulation::last_bug); ++i) {
    if (name == to_string(static_cast<Bug>(i))) return static_cast<Bug>(i);
  }
  usage("there is no bug '" + name + "'");
}

once::simulation::Which store_named(const std::string& name) {
  using once::simulation::Which;
  for (int i = 1; i <= static_cast<int>(once::simulation::last_store); ++i) {
    if (name == to_string(static_cast<Which>(i))) return static_cast<Which>(i);
  }
  usage("there is no real store '" + name + "' here");
}

// How many operations it takes until the auditor sees each planted bug, and by which rule. False if one is not seen.
bool play_bugs(std::uint64_t seed, std::uint64_t operations, std::uint64_t world) {
  using namespace once::simulation;
  bool all = true;
  for (int i = 1; i <= static_cast<int>(last_bug); ++i) {
    const Bug bug = static_cast<Bug>(i);
    std::uint64_t made = 0;
    std::string rule;
    for (std::uint64_t next = seed; made < operations && rule.empty(); ++next) {
      try {
        made += world;
        run({.seed = next, .operations = world, .bug = bug, .store = store_of(bug)});
      } catch (const Violation& violation) {
        made += violation.operations - world;
        rule = std::string(violation.what()).substr(0, std::string(violation.what()).find(':'));
      }
    }
    all = all && !rule.empty();
    std::cout << "| `" << to_string(bug) << "` | " << made << " | " << (rule.empty() ? "NOT SEEN" : rule) << " |"
              << std::endl;
  }
  return all;
}

}  // namespace

int main(int count, char** arguments) {
  using namespace once::simulation;
  std::uint64_t seed = 1;
  std::uint64_t operations = 1'000'000;
  std::uint64_t world = 1'000;
  bool verbose = false;
  bool progress = false;
  bool bugs = false;
  Bug bug = Bug::none;
  Which store = Which::simulated;
  std::vector<std::uint64_t> seeds;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto value = [&]() -> std::string {
      return i + 1 < count ? arguments[++i] : (usage(argument + " needs a value"), "");
    };
    if (argument == "--seed") {
      seed = number(value());
    } else if (argument == "--worlds") {
      seeds = numbers(value());
    } else if (argument == "--operations") {
      operations = number(value());
    } else if (argument == "--world") {
      world = number(value());
    } else if (argument == "--store") {
      store = store_named(value());
    } else if (argument == "--bug") {
      bug = bug_named(value());
      store = store_of(bug);
    } else if (argument == "--progress") {
      progress = true;
    } else if (argument == "--bugs") {
      bugs = true;
    } else if (argument == "--coverage") {
      coverage().on = true;
    } else if (argument == "--verbose") {
      verbose = true;
    } else {
      usage("unknown argument '" + argument + "'");
    }
  }
  if (world == 0) usage("--world must be at least 1");
  if (bug != Bug::none && store != store_of(bug)) usage("that bug is one of another store");
  if (coverage().on && store != Which::simulated) usage("--coverage counts what the simulated store meets");
  if (!seeds.empty()) operations = seeds.size() * world;
  if (bugs) return play_bugs(seed, operations, world) ? 0 : 1;
  Report sum;
  const auto start = std::chrono::steady_clock::now();
  auto told = start;
  std::uint64_t made = 0;
  std::uint64_t worlds = 0;
  for (; made < operations; ++seed, ++worlds) {
    if (!seeds.empty()) seed = seeds.at(worlds);
    Options options;
    options.seed = seed;
    options.bug = bug;
    options.store = store;
    options.operations = std::min(world, operations - made);
    if (verbose) options.trace = &std::cout;
    if (const auto now = std::chrono::steady_clock::now(); progress && now - told >= std::chrono::seconds(1)) {
      told = now;
      std::cout << "played " << made << std::endl;
    }
    try {
      const Report report = run(options);
      made += options.operations;
      sum.digest = sum.digest * 31 + report.digest;
      sum.events += report.events;
      sum.crashes += report.crashes;
      sum.copies += report.copies;
      sum.power_cuts += report.power_cuts;
      sum.pauses += report.pauses;
      sum.jumps += report.jumps;
      sum.lost_answers += report.lost_answers;
      sum.late_writes += report.late_writes;
      sum.operator_acts += report.operator_acts;
      sum.effects += report.effects;
      sum.doubled_effects += report.doubled_effects;
      const auto add = [&](std::uint64_t Auditor::Totals::*member) { sum.totals.*member += report.totals.*member; };
      for (const auto member :
           {&Auditor::Totals::asked, &Auditor::Totals::executed, &Auditor::Totals::replayed,
            &Auditor::Totals::conflicts, &Auditor::Totals::mismatches, &Auditor::Totals::unknown,
            &Auditor::Totals::errors, &Auditor::Totals::takeovers, &Auditor::Totals::attached,
            &Auditor::Totals::recorded, &Auditor::Totals::superseded, &Auditor::Totals::lost,
            &Auditor::Totals::unrecorded, &Auditor::Totals::writes, &Auditor::Totals::slept, &Auditor::Totals::saved}) {
        add(member);
      }
    } catch (const std::exception& error) {
      std::cout << "VIOLATION in seed " << seed << "\n  " << error.what() << "\nrepeat it with: simulation --seed "
                << seed << " --operations " << options.operations << " --world " << options.operations
                << (store == Which::simulated ? std::string() : std::string(" --store ") + to_string(store))
                << (bug == Bug::none ? std::string() : std::string(" --bug ") + to_string(bug)) << " --verbose\n";
      return 1;
    }
  }
  if (progress) std::cout << "played " << made << '\n';
  const auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << worlds << " worlds, " << made << " operations, " << sum.events << " events, " << took << " s, digest "
            << sum.digest << "\n"
            << "executed " << sum.totals.executed << ", replayed " << sum.totals.replayed << ", conflicts "
            << sum.totals.conflicts << ", mismatches " << sum.totals.mismatches << ", unknown " << sum.totals.unknown
            << ", errors " << sum.totals.errors << "\n"
            << "takeovers " << sum.totals.takeovers << ", attached " << sum.totals.attached << ", recorded "
            << sum.totals.recorded << ", superseded " << sum.totals.superseded << ", lost " << sum.totals.lost
            << ", unrecorded " << sum.totals.unrecorded << ", writes " << sum.totals.writes << ", leases slept over "
            << sum.totals.slept << " of which renewed " << sum.totals.saved << "\n"
            << "crashes " << sum.crashes << ", copies " << sum.copies << ", power cuts " << sum.power_cuts
            << ", pauses " << sum.pauses << ", clock jumps " << sum.jumps << ", requests in trouble "
            << sum.lost_answers << ", late writes " << sum.late_writes << ", operator acts " << sum.operator_acts
            << ", effects " << sum.effects << " of which repeated " << sum.doubled_effects << "\n";
  if (coverage().on && !coverage().report(std::cout, ONCE_SOURCE_FOLDER)) return 1;
  return 0;
}
