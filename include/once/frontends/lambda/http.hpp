// once::lambda::http(): a handler of HTTP events whose POST and PATCH requests run once for each Idempotency-Key, by
// the same rules as once::http in servers and in `once proxy` (docs/http.md): 400, 409, 422, replays and their marker.
//
//   once::Engine engine({.store = once::open_store("dynamodb://payments")});
//   once::lambda::run(once::lambda::http(
//       engine, {.routes = once::http::Options{.principal = once::http::Principal::given()}},
//       [](const once::http::Request& request, once::http::Execution& execution) {
//         const std::string charge = charge_card(execution.derived_key("card"), request.body);
//         return once::http::Answer{.status = 201, .headers = {{"Content-Type", "application/json"}}, .body = charge};
//       }));
//
// Takes what API Gateway sends for REST APIs (payload format 1.0) and HTTP APIs (2.0, and 1.0), what function URLs send
// (2.0), and what an Application Load Balancer sends, with multi-value headers or without; the response has the form
// that goes with the event. (AWS, "Lambda proxy integrations in API Gateway", "Working with AWS Lambda proxy
// integrations for HTTP APIs", "Invoking function URLs", "Using Lambda functions as Application Load Balancer
// targets".)
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <once/engine/engine.hpp>
#include <once/frontends/http/endpoint.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/http/router.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/frontends/lambda/invocation.hpp>

namespace once::lambda {

// Everything by which API Gateway tells clients apart, together: the principal of a Lambda authorizer, issuer and
// subject of a checked token, the caller by IAM or Cognito, the API key, the client's certificate.
inline constexpr std::string_view default_principal =
    "requestContext.[authorizer.principalId, authorizer.claims.iss, authorizer.claims.sub, authorizer.jwt.claims.iss, "
    "authorizer.jwt.claims.sub, authorizer.lambda.principalId, authorizer.lambda.sub, authorizer.iam.userArn, "
    "authorizer.iam.cognitoIdentity.identityId, identity.userArn, identity.cognitoIdentityId, identity.apiKeyId, "
    "identity.clientCert.subjectDN, authentication.clientCert.subjectDN]";

struct HttpOptions {
  // One set of once::http::Options for all paths, or a set for each route. An empty scope in it becomes
  // EngineOptions::scope/FUNCTION. Policy::lease is what is left until the deadline: see within_deadline().
  // max_body_bytes: the platform lets bodies of up to 6 MB through, 1 MB from a load balancer.
  once::http::Routes routes;

  // Whose key it is, for routes whose principal is once::http::Principal::given(), or a function of it: JMESPath over
  // the event, a string, a number or a list of them, which counts as a whole. The platform has checked what an
  // authorizer says. What it gives must be the same for a request and its retry, and never the same for two clients: an
  // authorizer that answers with one principalId for all of them needs another expression here, such as
  // requestContext.authorizer.lambda.tenant (payload format 1.0: requestContext.authorizer.tenant). Where it gives
  // nothing but nulls, a request with a key is 400 principal-missing. APIs without an authorizer, function URLs without
  // IAM and load balancers tell clients apart by a header: Principal::header("X-Api-Key"), and for users whom a load
  // balancer signs in "x-amzn-oidc-identity". With the default expression, sessions of one role
  // (arn:aws:sts::ACCOUNT:assumed-role/ROLE/SESSION) are one client: the caller chooses their names, and has another
  // after its restart, when its retry must not run again. An expression of your own has them:
  // "requestContext.authorizer.iam.userArn".
  std::string principal{default_principal};

  std::string function;  // Empty: AWS_LAMBDA_FUNCTION_NAME.

  // As in IdempotentOptions. With ONCE_DISABLED, requests that would be protected run unprotected, and the observer is
  // told each time.
  std::optional<Environment> environment;
};

namespace detail {

using HttpWork = std::function<once::http::Answer(const once::http::Request&, once::http::Execution&, const Invocation&,
                                                  std::string_view)>;

Handler make_http(Engine& engine, HttpOptions options, HttpWork work);

}  // namespace detail

// `work` is callable as work(request, execution), work(request, execution, invocation) or work(request, execution,
// invocation, event), the last one for what only the event has (path parameters, an authorizer's claims), and returns a
// once::http::Answer. The request's target is path and query as the client sent them, as far as the event tells: REST
// APIs give a query decoded and without its order, so it is sorted by name and encoded anew. Its body is decoded, its
// principal is what HttpOptions::principal gave. A body of the answer that is no UTF-8 is sent as Base64 (REST APIs
// must list its type among their binary media types).
//
// The handler throws what the work throws, after the operation was ended as Options::on_throw and Options::ambiguous
// say, which API Gateway turns into a 502; FunctionError(errors::invalid_event) for an event of another kind; and
// FunctionError(errors::no_time_left). All else is an answer. Throws Exception(misuse) for options that cannot be.
//
// To be called by any number of threads at a time, if the work is. The engine must outlive it.
template <class Function>
Handler http(Engine& engine, HttpOptions options, Function&& work) {
  using Plain = std::decay_t<Function>;
  using Request = const once::http::Request&;
  using Execution = once::http::Execution&;
  if constexpr (std::is_invocable_r_v<once::http::Answer, Plain&, Request, Execution, const Invocation&,
                                      std::string_view>) {
    return detail::make_http(engine, std::move(options), std::forward<Function>(work));
  } else if constexpr (std::is_invocable_r_v<once::http::Answer, Plain&, Request, Execution, const Invocation&>) {
    return detail::make_http(
        engine, std::move(options),
        [work = std::forward<Function>(work)](Request request, Execution execution, const Invocation& invocation,
                                              std::string_view) mutable {
          return once::http::Answer(work(request, execution, invocation));
        });
  } else {
    static_assert(std::is_invocable_r_v<once::http::Answer, Plain&, Request, Execution>,
                  "once: the work must be callable with a const once::http::Request& and a once::http::Execution&, and "
                  "then, if it wants to, a const once::lambda::Invocation& and the event as a std::string_view; it "
                  "returns a once::http::Answer");
    return detail::make_http(engine, std::move(options),
                             [work = std::forward<Function>(work)](Request request, Execution execution,
                                                                   const Invocation&, std::string_view) mutable {
                               return once::http::Answer(work(request, execution));
                             });
  }
}

}  // namespace once::lambda
