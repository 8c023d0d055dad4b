// Runs the simulation over many seeds, or replays one.
//
//   simulation [--seed N] [--operations M] [--world W] [--verbose]
//
// From seed N on, worlds of W operations each until M operations were made. A violation prints the command that repeats
// the one world it happened in, with everything that happens there.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "simulation.hpp"

namespace {

[[noreturn]] void usage(const std::string& wrong) {
  std::cerr << wrong << "\nusage: simulation [--seed N] [--operations M] [--world W] [--verbose]\n";
  std::exit(64);
}

std::uint64_t number(const std::string& text) {
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos) {
    usage("'" + text + "' is not a number");
  }
  return std::stoull(text);
}

}  // namespace

int main(int count, char** arguments) {
  using namespace once::simulation;
  std::uint64_t seed = 1;
  std::uint64_t operations = 1'000'000;
  std::uint64_t world = 1'000;
  bool verbose = false;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto value = [&] {
      return i + 1 < count ? number(arguments[++i]) : (usage(argument + " needs a number"), 0);
    };
    if (argument == "--seed") {
      seed = value();
    } else if (argument == "--operations") {
      operations = value();
    } else if (argument == "--world") {
      world = value();
    } else if (argument == "--verbose") {
      verbose = true;
    } else {
      usage("unknown argument '" + argument + "'");
    }
  }
  if (world == 0) usage("--world must be at least 1");
  Report sum;
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t made = 0;
  std::uint64_t worlds = 0;
  for (; made < operations; ++seed, ++worlds) {
    Options options;
    options.seed = seed;
    options.operations = std::min(world, operations - made);
    if (verbose) options.trace = &std::cout;
    try {
      const Report report = run(options);
      made += report.totals.asked;
      sum.digest = sum.digest * 31 + report.digest;
      sum.events += report.events;
      sum.crashes += report.crashes;
      sum.pauses += report.pauses;
      sum.jumps += report.jumps;
      sum.lost_answers += report.lost_answers;
      sum.late_writes += report.late_writes;
      sum.operator_acts += report.operator_acts;
      sum.effects += report.effects;
      sum.doubled_effects += report.doubled_effects;
      const auto add = [&](std::uint64_t Auditor::Totals::*member) { sum.totals.*member += report.totals.*member; };
      for (const auto member : {&Auditor::Totals::asked, &Auditor::Totals::executed, &Auditor::Totals::replayed,
                                &Auditor::Totals::conflicts, &Auditor::Totals::mismatches, &Auditor::Totals::unknown,
                                &Auditor::Totals::errors, &Auditor::Totals::takeovers, &Auditor::Totals::recorded,
                                &Auditor::Totals::superseded, &Auditor::Totals::lost, &Auditor::Totals::unrecorded,
                                &Auditor::Totals::writes}) {
        add(member);
      }
    } catch (const std::exception& error) {
      std::cout << "VIOLATION in seed " << seed << "\n  " << error.what() << "\nrepeat it with: simulation --seed "
                << seed << " --operations " << options.operations << " --world " << options.operations
                << " --verbose\n";
      return 1;
    }
  }
  const auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << worlds << " worlds, " << made << " operations, " << sum.events << " events, " << took << " s, digest "
            << sum.digest << "\n"
            << "executed " << sum.totals.executed << ", replayed " << sum.totals.replayed << ", conflicts "
            << sum.totals.conflicts << ", mismatches " << sum.totals.mismatches << ", unknown " << sum.totals.unknown
            << ", errors " << sum.totals.errors << "\n"
            << "takeovers " << sum.totals.takeovers << ", recorded " << sum.totals.recorded << ", superseded "
            << sum.totals.superseded << ", lost " << sum.totals.lost << ", unrecorded " << sum.totals.unrecorded
            << ", writes " << sum.totals.writes << "\n"
            << "crashes " << sum.crashes << ", pauses " << sum.pauses << ", clock jumps " << sum.jumps
            << ", requests in trouble " << sum.lost_answers << ", late writes " << sum.late_writes << ", operator acts "
            << sum.operator_acts << ", effects " << sum.effects << " of which repeated " << sum.doubled_effects << "\n";
  return 0;
}
