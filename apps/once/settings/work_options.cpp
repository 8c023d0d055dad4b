#include "settings/work_options.hpp"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "output/text.hpp"
#include "settings/access.hpp"

namespace once::cli {

void add_work_options(CLI::App& command, WorkOptions& options, const std::string& on_failure_help,
                      const std::string& usual_settle) {
  const CLI::IsMember fates({"store", "release", "hold"});
  command.add_option("--lease", options.lease, "How long a claim blocks other callers after a crash, 10ms to 24h")
      ->envname("ONCE_LEASE");
  command
      .add_option("--retention", options.retention,
                  "How long the result is replayed before it expires; never: it does not expire")
      ->envname("ONCE_RETENTION");
  command
      .add_option("--failure-retention", options.failure_retention,
                  "The same for a failure that is stored (default: as --retention)")
      ->envname("ONCE_FAILURE_RETENTION");
  command
      .add_option("--expect", options.expect,
                  "How long the work should take; later it is overdue: see once ls --overdue")
      ->envname("ONCE_EXPECT");
  command.add_option("--on-failure", options.on_failure, on_failure_help)->check(fates);
  command
      .add_option("--on-exit", options.on_exit,
                  "The same for the exit codes listed, as in 75=release, 2,3=store, 10-19=hold, 1=success; repeatable")
      ->allow_extra_args(false);
  command
      .add_option("--on-signal", options.on_signal,
                  "The same for a command that was killed or interrupted (default: --on-failure if you set it;\n"
                  "otherwise release, or hold with --on-lapse hold)")
      ->check(fates);
  command
      .add_option("--on-lapse", options.on_lapse,
                  "When a holder dies and its lease expires: takeover (the next caller runs it again) or hold\n"
                  "(unknown, an operator decides: it runs at most once)")
      ->check(CLI::IsMember({"takeover", "hold"}));
  command.add_option("--grace", options.grace, "Time between SIGTERM and SIGKILL when once stops a command");
  command.add_option(
      "--reconcile", options.reconcile,
      "A shell command to ask when the outcome is unknown. It finds ONCE_KEY, ONCE_DERIVED_KEY ... Exit code\n"
      "0: it took place, with this output. 100: it did not. 101: it failed for good. Others: not known");
  command.add_option("--reconcile-settle", options.reconcile_settle,
                     "How long after the end of an attempt 100 begins to count; before, its request may be on its\n"
                     "way (default: " +
                         usual_settle + ")");
  command.add_option("--reconcile-timeout", options.reconcile_timeout, "How long that command may take");
}

Policy policy_of(const WorkOptions& options) {
  Policy policy;
  policy.lease = parse_duration(options.lease, "--lease (or ONCE_LEASE)");
  policy.retention = parse_retention(options.retention, "--retention (or ONCE_RETENTION)");
  if (!options.failure_retention.empty()) {
    policy.failure_retention =
        parse_retention(options.failure_retention, "--failure-retention (or ONCE_FAILURE_RETENTION)");
  }
  if (!options.expect.empty()) policy.expected = parse_duration(options.expect, "--expect (or ONCE_EXPECT)");
  policy.on_lapse = options.on_lapse == "hold" ? OnLapse::hold : OnLapse::takeover;
  return policy;
}

Millis settle_of(const WorkOptions& options, const Policy& policy, Millis longest_request) {
  if (!options.reconcile_settle.empty()) return parse_duration(options.reconcile_settle, "--reconcile-settle");
  return std::max({effective(policy).lease, longest_request, Millis{60'000}});
}

std::string told_variables(const WorkOptions& options, const std::string& wait) {
  return told_variables({{"ONCE_LEASE", options.lease},
                         {"ONCE_RETENTION", options.retention},
                         {"ONCE_FAILURE_RETENTION", options.failure_retention},
                         {"ONCE_EXPECT", options.expect},
                         {"ONCE_WAIT", wait}});
}

}  // namespace once::cli
