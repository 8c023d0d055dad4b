// The flags that `once run` and `once sqs` share: how long a claim and its result last, what the end of a command
// means, and whom to ask when it is unknown.
#pragma once

#include <string>
#include <vector>

#include <once/policy.hpp>
#include <once/time.hpp>

#include "settings/rules.hpp"

namespace CLI {
class App;
}

namespace once::cli {

struct WorkOptions {
  std::string lease = "30s";
  std::string retention = "24h";
  std::string failure_retention;
  std::string expect;
  std::string on_failure;
  std::string on_signal;
  std::vector<std::string> on_exit;
  std::string on_lapse = "takeover";
  std::string grace = "5s";
  std::string reconcile;  // Empty: no service is asked.
  std::string reconcile_settle;
  std::string reconcile_timeout = "30s";
};

// `on_failure_help`, `usual_settle`: where the two commands differ.
void add_work_options(CLI::App& command, WorkOptions& options, const std::string& on_failure_help,
                      const std::string& usual_settle);

// The claim's part of the policy: not checked yet. These throw Exception(misuse) and name the flag.
Policy policy_of(const WorkOptions& options);

// --reconcile-settle. By default the longest that is known of how long the work's requests may be on their way: the
// lease, `longest_request`, and at least a minute.
Millis settle_of(const WorkOptions& options, const Policy& policy, Millis longest_request = Millis{0});

// "ONCE_LEASE=5m, ONCE_WAIT=5s": the values that come from the environment. Empty: none. `wait`: of --wait.
std::string told_variables(const WorkOptions& options, const std::string& wait = {});

}  // namespace once::cli
