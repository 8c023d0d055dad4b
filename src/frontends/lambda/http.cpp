#include <once/frontends/lambda/http.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "frontends/lambda/function.hpp"
#include "frontends/lambda/http_event.hpp"

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
    Examination examination = endpoint->rules().examine_head(request);
    const bool ours = examination.kind == Examination::Kind::operation;
    const std::string principal =
        ours ? principal_of(http, endpoint->rules().options().principal_headers) : std::string();
    if (ours) {
      request.principal = principal;
      examination = endpoint->rules().examine(request);
    }
    if (disabled_ && examination.kind != Examination::Kind::pass) {
      examination = {};
      examination.kind = Examination::Kind::no_key;  // Whoever observes is told so.
    }
    if (examination.operation) {
      once::Request& operation = *examination.operation;
      operation.policy = within_deadline(engine_, operation.policy.value_or(engine_.options().policy), invocation);
      operation.holder = invocation.request_id;
    }
    return http.response(endpoint->run(std::move(examination), [&](once::http::Execution& execution) {
      return work_(request, execution, invocation, event);
    }));
  }

 private:
  [[nodiscard]] std::string principal_of(HttpEvent& http, const std::vector<std::string>& headers) const {
    std::string principal = http.principal(principal_, own_principal_);
    if (!own_principal_ && principal.empty() && hides_clients(http, headers)) {
      refuse_event(
          "the API's Lambda authorizer gives neither principalId nor sub, so that nothing tells its clients apart: set "
          "HttpOptions::principal to what does, such as requestContext.authorizer.lambda.tenant (payload format 1.0: "
          "requestContext.authorizer.tenant)");
    }
    return principal;
  }

  // A Lambda authorizer of an HTTP API that knows clients by what we do not: by its context, or by a header (a cookie,
  // a key) that is none of `headers`.
  static bool hides_clients(const HttpEvent& http, const std::vector<std::string>& headers) {
    const keys::json::Value authorizer = http.root().member("requestContext").member("authorizer");
    if (authorizer.kind() != keys::json::Kind::object) return false;
    const auto lambda = std::ranges::find(authorizer.members(), "lambda", &keys::json::Member::name);
    if (lambda == authorizer.members().end()) {
      // Payload format 1.0 has the context beside what is ours to know.
      constexpr std::array<std::string_view, 6> known{"claims", "scopes",      "jwt",
                                                      "iam",    "principalId", "integrationLatency"};
      return std::ranges::any_of(authorizer.members(), [&](const keys::json::Member& member) {
        return !member.value.is_null() && std::ranges::find(known, member.name) == known.end();
      });
    }
    const keys::json::Value& context = lambda->value;
    if (context.kind() == keys::json::Kind::object && !context.members().empty()) return true;
    return std::ranges::none_of(http.request().headers, [&](const once::http::HeaderView& header) {
      return std::ranges::any_of(headers,
                                 [&](const std::string& name) { return once::http::same_name(name, header.name); });
    });
  }

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
    return (*handler)(event, invocation);
  };
}

}  // namespace once::lambda
