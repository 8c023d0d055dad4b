#include "settings/admin_flags.hpp"

#include <CLI/CLI.hpp>

namespace once::cli {

const char* const console_origin_help =
    "https://HOST[:PORT], as browsers show it: the console is there too, behind a gateway that ends TLS\n"
    "(default: at localhost only)";
const char* const audit_log_help =
    "A file to which a line of JSON is added for each sign-in, payload shown, and change (default: none)";
const char* const stats_interval_help =
    "How often to count unknown, failed, lapsed and overdue records in the store, for\n"
    "/metrics of --admin; 0 or off: never";

void add_admin_flags(CLI::App& command, AdminFlags& flags) {
  command.add_option(
      "--admin", flags.address,
      "[HOST:]PORT for /healthz, /readyz, /metrics, the operators' API and its console; HOST defaults to 127.0.0.1\n"
      "(default: off)");
  command.add_option("--admin-token-file", flags.token_file,
                     "A file with the token that the operators' API requires, or with a line for each token:\n"
                     "NAME reader|operator SHA256 (default on a loopback address: a new token, in a file whose path\n"
                     "is printed; another HOST needs one)");
  command.add_option("--metrics-token-file", flags.metrics_token_file,
                     "A file with another token, which /metrics requires (default: none)");
  command.add_option("--console-origin", flags.console_origin, console_origin_help);
  command.add_option("--audit-log", flags.audit_log, audit_log_help);
  command.add_option("--stats-interval", flags.stats_interval, stats_interval_help);
}

}  // namespace once::cli
