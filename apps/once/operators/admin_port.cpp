#include "operators/admin_port.hpp"

#include <CLI/CLI.hpp>
#include <utility>

#include <once/error.hpp>

#include "operators/requests.hpp"
#include "process/store_look.hpp"

namespace once::cli {

proxy::Address parse_admin(const std::string& address, const std::string& what) {
  const bool is_port = address.find_first_not_of("0123456789") == std::string::npos;
  return proxy::parse_address(is_port ? "127.0.0.1:" + address : address, what);
}

void check_admin(const proxy::Address& address, bool has_token) {
  if (has_token || proxy::is_loopback(address)) return;
  throw Exception(ErrorKind::misuse,
                  "admin: any client that reaches " + address.host +
                      " could change records. Name a file with a token (admin-token-file), or listen on 127.0.0.1");
}

std::function<std::optional<http::Answer>(const http::Request&)> metrics_guard(const AdminToken& token,
                                                                               const proxy::Address& address) {
  if (token.is_set()) return [&token](const http::Request& request) { return token.refuse(request); };
  if (proxy::is_loopback(address)) return refuse_foreign_host;
  return {};
}

const char* const audit_log_help =
    "A file to which a line of JSON is added for each sign-in, payload shown, and change (default: none)";

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
  command.add_option("--stats-interval", flags.stats_interval, stats_interval_help)->capture_default_str();
}

namespace {

bool needs_token(const AdminFlags& flags) {
  return !flags.address.empty() && flags.token_file.empty() &&
         proxy::is_loopback(parse_admin(flags.address, "--admin"));
}

}  // namespace

AdminPort::AdminPort(const AdminFlags& flags, const StoreAccess& access, Engine& engine,
                     std::function<std::string()> metrics, std::function<std::string()> unready,
                     OverviewSources sources)
    : made_(needs_token(flags) ? std::make_unique<MadeTokenFile>() : nullptr),
      token_(made_ ? made_->path() : flags.token_file, "--admin-token-file"),
      metrics_token_(flags.metrics_token_file, "--metrics-token-file") {
  token_.follow();
  metrics_token_.follow();
  std::string host = console_host(flags.console_origin, token_.is_set());
  if (flags.address.empty()) return;
  const proxy::Address address = parse_admin(flags.address, "--admin");
  check_admin(address, token_.is_set());
  if (!flags.audit_log.empty()) audit_.emplace(flags.audit_log);
  console_.emplace(token_, ConsoleOptions{.audit = audit_ ? &*audit_ : nullptr, .host = std::move(host)});
  operators_.emplace(access, token_, std::move(sources), &*console_);
  proxy::AdminOptions options{.listen = address,
                              .metrics = std::move(metrics),
                              .unready = std::move(unready),
                              .operators =
                                  [this](const http::Request& request, Callback<void(proxy::OperatorsAnswer)> done) {
                                    operators_->answer_later(request, std::move(done));
                                  },
                              .refuse_metrics = metrics_guard(metrics_token_, address)};
  server_.emplace(engine, std::move(options));
}

// What waits for the store is answered, and not carried out: the server waits for every answer.
AdminPort::~AdminPort() {
  if (operators_) operators_->stop();
}

}  // namespace once::cli
