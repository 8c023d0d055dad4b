// once::lambda::http(): a handler of HTTP events whose POST and PATCH requests run once per Idempotency-Key. The rules
// are those of once::http in servers and in `once proxy` (docs/http.md): 400, 409, 422, marked replays.
//
//   once::Engine engine({.store = once::open_store("dynamodb://payments")});
//   once::lambda::run(once::lambda::http(
//       engine, {.routes = once::http::Options{.principal = once::http::Principal::given()}},
//       [](const once::http::Request& request, once::http::Execution& execution) {
//         const std::string charge = charge_card(execution.derived_key("card"), request.body);
//         return once::http::Answer{.status = 201, .headers = {{"Content-Type", "application/json"}}, .body = charge};
//       }));
//
// Takes events of REST APIs (payload format 1.0), HTTP APIs (2.0 and 1.0), function URLs (2.0), Application Load
// Balancers, with or without multi-value headers, and VPC Lattice (event structure versions 1 and 2). The response has
// the matching form. (AWS, "Lambda proxy integrations in API Gateway", "Working with AWS Lambda proxy integrations for
// HTTP APIs", "Invoking function URLs", "Using Lambda functions as Application Load Balancer targets", "Lambda
// functions as targets in VPC Lattice".)
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

// Everything by which API Gateway distinguishes clients, together: the principal of a Lambda authorizer, the issuer and
// subject of a verified token, the caller by IAM or Cognito, the API key, the client's certificate.
inline constexpr std::string_view default_principal =
    "requestContext.[authorizer.principalId, authorizer.claims.iss, authorizer.claims.sub, authorizer.jwt.claims.iss, "
    "authorizer.jwt.claims.sub, authorizer.lambda.principalId, authorizer.lambda.sub, authorizer.iam.userArn, "
    "authorizer.iam.cognitoIdentity.identityId, identity.userArn, identity.cognitoIdentityId, identity.apiKeyId, "
    "identity.clientCert.subjectDN, authentication.clientCert.subjectDN]";

// How the requests of an API, a function URL or a load balancer are run.
struct HttpOptions {
  // One set of once::http::Options for all paths, or one for each route. An empty scope becomes
  // EngineOptions::scope/FUNCTION. The lease is the time until the deadline: see within_deadline(). max_body_bytes: the
  // platform passes bodies of up to 6 MB, 1 MB from a load balancer.
  once::http::Routes routes;

  // Who the client is, for routes whose principal is once::http::Principal::given(), or a function of it. JMESPath over
  // the event that selects a string, a number, or a list of them (used as a whole). The platform has verified what an
  // authorizer says.
  //
  // The value must be the same for a request and its retry, and different for two clients. If an authorizer returns one
  // principalId for all clients, use another expression, such as requestContext.authorizer.lambda.tenant (payload
  // format 1.0: requestContext.authorizer.tenant). If it selects only nulls, a request with a key is 400
  // principal-missing.
  //
  // APIs without an authorizer, function URLs without IAM and load balancers distinguish clients by a header:
  // Principal::header("X-Api-Key"), or "x-amzn-oidc-identity" for users whom a load balancer signs in.
  //
  // VPC Lattice: the default expression stands for the authenticated principal, and the subject of its certificate (IAM
  // Roles Anywhere): requestContext.identity in version 2, the header x-amzn-lattice-identity in version 1, where
  // JMESPath cannot read it. Both need an auth policy.
  //
  // With the default expression, all sessions of a role (arn:aws:sts::ACCOUNT:assumed-role/ROLE/SESSION) are one
  // client: a caller chooses the session's name, and has another after a restart. Then its retry must not run again. To
  // distinguish sessions: "requestContext.authorizer.iam.userArn".
  std::string principal{default_principal};

  std::string function = {};  // Empty: AWS_LAMBDA_FUNCTION_NAME.

  // As in IdempotentOptions. With ONCE_DISABLED, protected requests run unprotected, which is reported to the observer
  // each time.
  std::optional<Environment> environment = {};
};

namespace detail {

using HttpWork = std::function<once::http::Answer(const once::http::Request&, once::http::Execution&, const Invocation&,
                                                  std::string_view)>;

Handler make_http(Engine& engine, HttpOptions options, HttpWork work);

}  // namespace detail

// `work` is called as work(request, execution), work(request, execution, invocation) or work(request, execution,
// invocation, event), and returns a once::http::Answer. The event has path parameters and an authorizer's claims. The
// request's target is path and query as the client sent them. But events of REST APIs have a decoded query without its
// order, so that is sorted by name and encoded again. The body is decoded, the principal is the value of
// HttpOptions::principal. An answer's body that is not UTF-8 is sent as Base64 (REST APIs must list its type among
// their binary media types).
//
// The handler rethrows the work's exceptions, after it has ended the operation by Options::on_throw and
// Options::on_ambiguous. API Gateway turns them into a 502. It throws FunctionError(errors::invalid_event) for an event
// of another kind, and FunctionError(errors::no_time_left). Everything else is an answer. http() throws
// Exception(misuse) for invalid options.
//
// The handler may be called by several threads at once if the work may. The engine must outlive it.
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
