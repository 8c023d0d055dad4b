#include <once/frontends/lambda/http.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <once/error.hpp>

#include "frontends/lambda/handler/function.hpp"
#include "frontends/lambda/handler/http_event.hpp"
#include "frontends/lambda/metrics/invocation_span.hpp"

namespace once::lambda {

namespace {

using once::http::Examination;

once::http::Routes with_scope(once::http::Routes routes, const std::string& scope) {
  const auto fill = [&](once::http::Options& options) {
    if (options.scope.empty()) options.scope = scope;
  };
  fill(routes.otherwise);
  for (once::http::Route& route : routes.routes) fill(route.options);
  return routes;
}

class HttpHandler {
 public:
  HttpHandler(Engine& engine, HttpOptions&& options, detail::HttpWork&& work)
      : engine_(engine),
        disabled_(is_disabled(*options.environment)),
        own_principal_(options.principal != default_principal),
        principal_(options.principal, keys::Dialect::native, "the principal expression"),
        endpoints_(engine, with_scope(std::move(options.routes),
                                      join_scope(engine.options().scope,
                                                 options.function.empty() ? options.environment->function_name
                                                                          : options.function,
                                                 {}))),
        work_(std::move(work)) {}

  std::string operator()(std::string_view event, const Invocation& invocation) {
    HttpEvent http(event);
    once::http::Request request = http.request();
    once::http::Endpoint* const endpoint = endpoints_.find(request);
    if (endpoint == nullptr) return http.response(endpoints_.unclear());
    const once::http::Options& rules = endpoint->rules().options();
    std::string principal;
    if (rules.protect && rules.principal.takes_given() &&
        std::ranges::find(rules.methods, request.method) != rules.methods.end()) {
      principal =
          http.is_lattice() && !own_principal_ ? http.lattice_principal() : http.principal(principal_, own_principal_);
    }
    request.principal = principal;
    Examination examination = endpoint->rules().examine(request);
    if (disabled_ && examination.kind != Examination::Kind::pass) {
      examination = {};
      examination.kind = Examination::Kind::no_key;  // Reported to the observer.
    }
    if (examination.operation) {
      once::Request& operation = *examination.operation;
      operation.policy = within_deadline(engine_, operation.policy.value_or(Policy{}), invocation);
      operation.holder = invocation.request_id;
      if (operation.trace == nullptr) operation.trace = trace_from_xray(invocation.trace_id);
    }
    return http.response(endpoint->run(std::move(examination), [&](once::http::Execution& execution) {
      return work_(request, execution, invocation, event);
    }));
  }

 private:
  Engine& engine_;
  const bool disabled_;
  const bool own_principal_;
  const keys::Selector principal_;
  once::http::Endpoints endpoints_;
  const detail::HttpWork work_;
};

}  // namespace

Handler detail::make_http(Engine& engine, HttpOptions options, HttpWork work) {
  if (!work) throw Exception(ErrorKind::misuse, "lambda::http() was given an empty function");
  options.environment = environment_or_process(options.environment);
  auto handler = std::make_shared<HttpHandler>(engine, std::move(options), std::move(work));
  return [handler = std::move(handler)](std::string_view event, const Invocation& invocation) {
    const InvocationSpan span(invocation);
    return (*handler)(event, invocation);
  };
}

}  // namespace once::lambda
