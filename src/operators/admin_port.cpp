#include "operators/admin_port.hpp"

#include <utility>

#include <once/error.hpp>

#include "operators/requests.hpp"

namespace once::operators {

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

namespace {

bool needs_token(const AdminPortOptions& options) {
  return !options.address.empty() && options.token_file.empty() &&
         proxy::is_loopback(parse_admin(options.address, "--admin"));
}

}  // namespace

AdminPort::AdminPort(const AdminPortOptions& options, const StoreAccess& access, Engine& engine,
                     std::function<std::string()> metrics, std::function<std::string()> unready,
                     OverviewSources sources)
    : made_(needs_token(options) ? std::make_unique<MadeTokenFile>() : nullptr),
      token_(made_ ? made_->path() : options.token_file, "--admin-token-file"),
      metrics_token_(options.metrics_token_file, "--metrics-token-file") {
  token_.follow();
  metrics_token_.follow();
  std::string host = console_host(options.console_origin, token_.is_set());
  if (options.address.empty()) return;
  const proxy::Address address = parse_admin(options.address, "--admin");
  check_admin(address, token_.is_set());
  if (!options.audit_log.empty()) audit_.emplace(options.audit_log);
  console_.emplace(token_, ConsoleOptions{.audit = audit_ ? &*audit_ : nullptr, .host = std::move(host)});
  operators_.emplace(access, token_, std::move(sources), &*console_);
  proxy::AdminOptions server{.listen = address,
                             .metrics = std::move(metrics),
                             .unready = std::move(unready),
                             .operators =
                                 [this](const http::Request& request, Callback<void(proxy::OperatorsAnswer)> done) {
                                   operators_->answer_later(request, std::move(done));
                                 },
                             .refuse_metrics = metrics_guard(metrics_token_, address)};
  server_.emplace(engine, std::move(server));
}

// What waits for the store is answered, and not carried out: the server waits for every answer.
AdminPort::~AdminPort() {
  if (operators_) operators_->stop();
}

}  // namespace once::operators
