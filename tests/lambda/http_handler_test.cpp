// once::lambda::http(): events of API Gateway, function URLs and load balancers as requests, the rules of once::http on
// them, and their answers in the form that goes with the event.
#include <once/frontends/lambda/http.hpp>

#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <once/decide.hpp>
#include <once/error.hpp>

#include "frontends/lambda/handler/http_event.hpp"
#include "handler_test.hpp"

namespace once::lambda {
namespace http_handler_test {

using Json = nlohmann::ordered_json;
using once::http::Answer;
using once::http::Execution;
using once::http::Headers;
using once::http::Principal;
using once::http::Request;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json event_of(const std::string& name) {
  std::ifstream file(ONCE_TEST_EVENTS "/" + name + ".json");
  EXPECT_TRUE(file.is_open()) << name;
  return Json::parse(file);
}

std::string header(const Request& request, std::string_view name) {
  std::string all;
  for (const auto& [own, value] : request.headers) {
    if (once::http::same_name(own, name)) all += (all.empty() ? "" : "|") + std::string(value);
  }
  return all;
}

Answer created(std::string body, Headers headers = {{"Content-Type", "application/json"}}) {
  return {.status = 201, .reason = {}, .headers = std::move(headers), .body = std::move(body)};
}

class LambdaHttp : public HandlerTest {
 protected:
  static HttpOptions http_options() {
    // The events are of APIs with an authorizer, and of those without.
    const auto client = [](const Request& request) {
      return request.principal.empty() ? header(request, "Authorization") : std::string(request.principal);
    };
    HttpOptions options{.routes = once::http::Options{.principal = Principal::function("client", client)}};
    options.environment = Environment{.function_name = "pay-fn", .handler = "bootstrap", .disabled = {}};
    return options;
  }

  // A handler that counts, over one engine.
  Handler charges(Process& in, HttpOptions options = http_options()) {
    return http(*in.engine, std::move(options),
                [this](const Request&, Execution&) { return created("{\"charge\":" + std::to_string(++runs) + "}"); });
  }

  // What the client is answered.
  struct Got {
    unsigned status = 0;
    std::string body;
    std::vector<std::string> replayed;
    Json response;
  };
  Got ask(const Handler& handler, const Json& event, Millis left = 30s) const {
    Got got;
    got.response = Json::parse(handler(event.dump(), invocation(left)));
    got.status = got.response.at("statusCode");
    got.body = got.response.at("body");
    for (const char* const form : {"headers", "multiValueHeaders"}) {
      if (!got.response.contains(form)) continue;
      for (const auto& [name, value] : got.response.at(form).items()) {
        if (!once::http::same_name(name, "Idempotent-Replayed")) continue;
        got.replayed.push_back(value.is_array() ? value.at(0).get<std::string>() : value.get<std::string>());
      }
    }
    return got;
  }
  static std::string problem(const Got& got) {
    const std::string type = Json::parse(got.body).at("type");
    return type.substr(type.rfind(':') + 1);
  }

  int runs = 0;
};

// The four services, with an event of each that has the key order-17.
class LambdaHttpForms : public LambdaHttp, public ::testing::WithParamInterface<const char*> {
 protected:
  static Json event() {
    const std::string name = GetParam();
    Json made = event_of(name == "alb_multi_value" ? "alb" : name);
    if (name == "alb_multi_value") {
      Json headers = Json::object();
      for (const auto& [key, value] : made["headers"].items()) headers[key] = Json::array({value});
      made.erase("headers");
      made.erase("queryStringParameters");
      made["multiValueHeaders"] = headers;
      made["multiValueQueryStringParameters"] = {{"tag", {"a", "b%20c"}}, {"currency", {"eur"}}};
    }
    return made;
  }
  static void set_key(Json& event, const std::string& name, const std::string& key) {
    for (const char* const form : {"headers", "multiValueHeaders"}) {
      if (!event.contains(form)) continue;
      event[form].erase("Idempotency-Key");
      event[form].erase("idempotency-key");
      if (key.empty()) continue;
      if (std::string_view(form) == "headers" && !event[form].front().is_array()) {
        event[form][name] = key;
      } else {
        event[form][name] = Json::array({key});
      }
    }
  }
  static Json& method_of(Json& event) {
    for (const char* const name : {"httpMethod", "method"}) {
      if (event.contains(name)) return event[name];
    }
    return event["requestContext"]["http"]["method"];
  }
};

TEST_P(LambdaHttpForms, TheFirstRunsAndTheRestGetItsAnswer) {
  const Handler handler = charges(process());
  const Got first = ask(handler, event());
  EXPECT_EQ(first.status, 201U);
  EXPECT_EQ(first.body, R"({"charge":1})");
  EXPECT_THAT(first.replayed, ElementsAre());
  for (const char* const name : {"idempotency-key", "Idempotency-Key", "IDEMPOTENCY-KEY"}) {
    for (const char* const key : {"order-17", "\"order-17\""}) {
      Json again = event();
      set_key(again, name, key);
      const Got got = ask(handler, again);
      EXPECT_EQ(got.status, 201U);
      EXPECT_EQ(got.body, R"({"charge":1})");
      EXPECT_THAT(got.replayed, ElementsAre("true"));
    }
  }
  EXPECT_EQ(runs, 1);
  EXPECT_THAT(Key::from_stored(record().key).scope(), StartsWith("shop/pay-fn/POST /charges "));
  EXPECT_EQ(record().holder, "host:1 req-1");
}

TEST_P(LambdaHttpForms, TheProblemsAreThoseOfHttp) {
  HttpOptions options = http_options();
  Process& here = process();
  const Handler handler = charges(here, options);

  Json without = event();
  set_key(without, "", "");
  Got got = ask(handler, without);
  EXPECT_EQ(got.status, 400U);
  EXPECT_EQ(problem(got), "key-missing");

  Json invalid = event();
  set_key(invalid, "Idempotency-Key", std::string(256, 'k'));
  EXPECT_EQ(problem(ask(handler, invalid)), "key-invalid");

  EXPECT_EQ(ask(handler, event()).status, 201U);
  Json reused = event();
  reused["body"] = "e30=";  // With or without Base64 it is another one.
  got = ask(handler, reused);
  EXPECT_EQ(got.status, 422U);
  EXPECT_EQ(problem(got), "key-reused");

  here.cut();
  Json next = event();
  set_key(next, "Idempotency-Key", "order-18");
  got = ask(handler, next);
  EXPECT_EQ(got.status, 503U);
  EXPECT_EQ(problem(got), "store-unavailable");
  EXPECT_EQ(runs, 1);
}

TEST_P(LambdaHttpForms, ADuplicateMeanwhileIs409) {
  Process& here = process();
  Process& there = process();
  const Handler other = charges(there);
  const Handler handler = http(*here.engine, http_options(), [&](const Request&, Execution&) {
    const Got got = ask(other, event());
    EXPECT_EQ(got.status, 409U);
    EXPECT_EQ(problem(got), "in-progress");
    EXPECT_THAT(got.response.dump(), HasSubstr("Retry-After"));
    return created("mine");
  });
  EXPECT_EQ(ask(handler, event()).body, "mine");
  EXPECT_EQ(ask(other, event()).body, "mine");
  EXPECT_EQ(runs, 0);
}

TEST_P(LambdaHttpForms, TheRequestIsWhatTheClientSent) {
  const std::string form = GetParam();
  const Handler handler =
      http(*process().engine, http_options(),
           [&](const Request& request, Execution& execution, const Invocation& of, std::string_view raw) {
             EXPECT_TRUE(execution.is_protected());
             EXPECT_EQ(of.request_id, "req-1");
             EXPECT_EQ(Json::parse(raw), event());
             EXPECT_EQ(request.method, "POST");
             EXPECT_EQ(request.body, R"({"order_id":"order-17","cents":500})");
             EXPECT_EQ(header(request, "content-type"), "application/json");
             EXPECT_EQ(header(request, "AUTHORIZATION"), "Bearer alice");
             if (form == "http_api" || form == "function_url") {
               EXPECT_EQ(request.target, "/charges?tag=a&tag=b%20c&currency=eur");
               EXPECT_EQ(header(request, "Cookie"), "session=s1; theme=dark");
             } else if (form.starts_with("vpc_lattice")) {
               EXPECT_EQ(request.target, "/charges?tag=a&tag=b%20c&currency=eur");
             } else {
               EXPECT_EQ(request.target,
                         form == "alb" ? "/charges?currency=eur&tag=b%20c" : "/charges?currency=eur&tag=a&tag=b%20c");
             }
             EXPECT_EQ(request.principal.empty(), form.starts_with("alb"));
             return created("done");
           });
  EXPECT_EQ(ask(handler, event()).status, 201U);
}

TEST_P(LambdaHttpForms, TheAnswerHasTheFormOfTheService) {
  const std::string form = GetParam();
  const Handler handler = http(*process().engine, http_options(), [&](const Request&, Execution&) {
    return created("tschüss \"\n", {{"Content-Type", "text/plain"},
                                    {"X-Tag", "a"},
                                    {"Set-Cookie", "s=1; Expires=Thu, 01 Jan 2026 00:00:00 GMT"},
                                    {"x-tag", "b"},
                                    {"Set-Cookie", "t=2"},
                                    {"Content-Length", "11"}});
  });
  const Json response = ask(handler, event()).response;
  EXPECT_EQ(response.at("statusCode"), 201);
  EXPECT_EQ(response.at("body"), "tschüss \"\n");
  EXPECT_EQ(response.at("isBase64Encoded"), false);
  const std::string first_cookie = "s=1; Expires=Thu, 01 Jan 2026 00:00:00 GMT";
  const Json multiple{{"Content-Type", {"text/plain"}}, {"X-Tag", {"a", "b"}}, {"Set-Cookie", {first_cookie, "t=2"}}};
  if (form == "rest_api") {
    EXPECT_EQ(response.size(), 4U);
    EXPECT_EQ(response.at("multiValueHeaders"), multiple);
  } else if (form == "alb_multi_value") {
    EXPECT_EQ(response.at("multiValueHeaders"), multiple);
    EXPECT_EQ(response.at("statusDescription"), "201 Created");
    EXPECT_FALSE(response.contains("headers"));
  } else if (form == "alb") {
    EXPECT_EQ(
        response.at("headers"),
        (Json{{"Content-Type", "text/plain"}, {"X-Tag", "a, b"}, {"Set-Cookie", first_cookie}, {"set-Cookie", "t=2"}}));
    EXPECT_EQ(response.at("statusDescription"), "201 Created");
    EXPECT_FALSE(response.contains("multiValueHeaders"));
  } else if (form.starts_with("vpc_lattice")) {
    EXPECT_EQ(
        response.at("headers"),
        (Json{{"Content-Type", "text/plain"}, {"X-Tag", "a, b"}, {"Set-Cookie", first_cookie}, {"set-Cookie", "t=2"}}));
    EXPECT_EQ(response.size(), 4U);
  } else {
    EXPECT_EQ(response.at("headers"), (Json{{"Content-Type", "text/plain"}, {"X-Tag", "a, b"}}));
    EXPECT_EQ(response.at("cookies"), (Json{first_cookie, "t=2"}));
    EXPECT_EQ(response.size(), 5U);
  }
}

TEST_P(LambdaHttpForms, BinaryBodiesAreBase64) {
  const Handler handler = http(*process().engine, http_options(), [&](const Request& request, Execution&) {
    return created(std::string("\x89PNG\0", 5) + std::string(request.body), {});
  });
  Json event = LambdaHttpForms::event();
  event["body"] = "/wA=";  // FF 00
  event[event.contains("raw_path") ? "is_base64_encoded" : "isBase64Encoded"] = true;
  for (int i = 0; i < 2; ++i) {
    const Json response = ask(handler, event).response;
    EXPECT_EQ(response.at("body"), "iVBORwD/AA==");
    EXPECT_EQ(response.at("isBase64Encoded"), true);
  }
}

TEST_P(LambdaHttpForms, OtherMethodsAndRequestsThatNeedNoKeyRunAsOften) {
  Process& here = process();
  HttpOptions options = http_options();
  options.routes.otherwise.policy = Policy{.on_missing_key = OnMissingKey::run_unprotected};
  const Handler handler = charges(here, options);
  Json get = event();
  method_of(get) = "GET";
  EXPECT_EQ(ask(handler, get).body, R"({"charge":1})");
  EXPECT_EQ(ask(handler, get).body, R"({"charge":2})");
  EXPECT_EQ(here.told(EventKind::unprotected), 0U) << "none of our business";
  Json without = event();
  set_key(without, "", "");
  EXPECT_EQ(ask(handler, without).body, R"({"charge":3})");
  EXPECT_EQ(ask(handler, without).body, R"({"charge":4})");
  EXPECT_EQ(here.told(EventKind::unprotected), 2U);
  EXPECT_EQ(here.store->counts().calls, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, LambdaHttpForms,
                         ::testing::Values("rest_api", "http_api", "function_url", "alb", "alb_multi_value",
                                           "vpc_lattice_v1", "vpc_lattice_v2"),
                         [](const auto& made) { return std::string(made.param); });

TEST_F(LambdaHttp, LatticeClientsAreTheirRoles) {
  HttpOptions options = http_options();
  options.routes.otherwise.principal = Principal::given();
  const Handler handler = charges(process(), options);
  const auto with = [](const char* version, const std::string& principal, const std::string& session,
                       const std::string& subject = {}) {
    Json event = event_of(version);
    if (std::string_view(version) == "vpc_lattice_v2") {
      Json& identity = event["requestContext"]["identity"];
      identity["principal"] = principal + session;
      identity["sessionName"] = session;
      if (!subject.empty()) identity["x509SubjectCn"] = subject;
    } else {
      event["headers"]["x-amzn-lattice-identity"] = "Principal=" + principal + session + "; SessionName=" + session +
                                                    "; X509Subject/CN=" + subject + "; Type=AWS_IAM";
    }
    return event;
  };
  const std::string shop = "arn:aws:sts::123456789012:assumed-role/shop/";
  const std::string till = "arn:aws:sts::123456789012:assumed-role/till/";
  // Both versions know the same client, also after its restart.
  for (const char* const version : {"vpc_lattice_v1", "vpc_lattice_v2"}) {
    for (const char* const session : {"i-1", "i-2"}) {
      EXPECT_EQ(ask(handler, with(version, shop, session)).body, R"({"charge":1})") << version << session;
    }
  }
  for (const char* const version : {"vpc_lattice_v1", "vpc_lattice_v2"}) {
    EXPECT_EQ(ask(handler, with(version, till, "i-1")).body, R"({"charge":2})") << version;
    EXPECT_EQ(ask(handler, with(version, shop, "i-1", "a.example")).body, R"({"charge":3})") << version;
    EXPECT_EQ(ask(handler, with(version, shop, "i-1", "b.example")).body, R"({"charge":4})") << version;
  }
  EXPECT_EQ(runs, 4);
}

TEST_F(LambdaHttp, LatticeWithoutAPrincipalIsRefused) {
  HttpOptions options = http_options();
  options.routes.otherwise.principal = Principal::given();
  const Handler handler = charges(process(), options);
  Json nobody = event_of("vpc_lattice_v2");
  nobody["requestContext"]["identity"] = {{"sourceVpcArn", "arn:aws:ec2:eu-central-1:123456789012:vpc/vpc-1"}};
  EXPECT_EQ(problem(ask(handler, nobody)), "principal-missing");
  // Without one, with an empty one, and with two of which a client may have sent one.
  for (const char* const identity :
       {"", "Principal=; Type=AWS_IAM", "OtherPrincipal=arn:aws:iam::1:user/bob",
        "Principal=arn:aws:iam::1:user/bob; Type=AWS_IAM, Principal=arn:aws:iam::1:user/eve"}) {
    Json event = event_of("vpc_lattice_v1");
    event["headers"]["x-amzn-lattice-identity"] = identity;
    EXPECT_EQ(problem(ask(handler, event)), "principal-missing") << identity;
  }
  Json without = event_of("vpc_lattice_v1");
  without["headers"].erase("x-amzn-lattice-identity");
  EXPECT_EQ(problem(ask(handler, without)), "principal-missing");
  EXPECT_EQ(runs, 0);
}

// Parameters may be decoded: what they contain must not look like another query.
TEST_F(LambdaHttp, LatticeParametersBecomeOneQuery) {
  std::string target;
  const Handler handler = http(*process().engine, http_options(), [&](const Request& request, Execution&) {
    target = request.target;
    return created("{}");
  });
  Json event = event_of("vpc_lattice_v2");
  event["path"] = "/charges";
  event["queryStringParameters"] = {{"b", {"1&a=2", "3"}}, {"a", "x"}};
  EXPECT_EQ(ask(handler, event).status, 201U);
  EXPECT_EQ(target, "/charges?a=x&b=1%26a%3D2&b=3");
}

TEST_F(LambdaHttp, ClientsAreToldApartByTheAuthorizer) {
  const Handler handler = charges(process());
  const auto body = [&](Json event) { return ask(handler, event).body; };
  const auto with = [](const char* name, const Json& authorizer) {
    Json event = event_of(name);
    event["requestContext"]["authorizer"] = authorizer;
    return event;
  };
  int number = 0;
  // A client each, so that each runs; and a renewed token, or another request, is no other client.
  for (Json event :
       {with("rest_api", {{"principalId", "alice"}}), with("rest_api", {{"principalId", "bob"}}),
        with("rest_api", {{"claims", {{"iss", "a"}, {"sub", "alice"}, {"exp", "1"}}}}),
        with("rest_api", {{"claims", {{"iss", "b"}, {"sub", "alice"}, {"exp", "1"}}}}),
        with("http_api", {{"jwt", {{"claims", {{"iss", "c"}, {"sub", "alice"}, {"exp", "1"}}}}}}),
        with("http_api", {{"lambda", {{"principalId", "eve"}, {"quota", 3}}}}),
        with("http_api", {{"lambda", {{"sub", "eve"}}}}),
        with("http_api", {{"iam", {{"userArn", "arn:aws:iam::1:user/alice"}}}}),
        with("http_api",
             {{"iam", {{"userArn", "arn:aws:iam::1:user/alice"}, {"cognitoIdentity", {{"identityId", "eu:1"}}}}}})}) {
    SCOPED_TRACE(event["requestContext"]["authorizer"].dump());
    // REST and HTTP APIs write this query differently; that is not what is asked here.
    event.erase("multiValueQueryStringParameters");
    event.erase("queryStringParameters");
    event["rawQueryString"] = "";
    const std::string own = "{\"charge\":" + std::to_string(++number) + "}";
    EXPECT_EQ(body(event), own);
    for (const char* const form : {"headers", "multiValueHeaders"}) {
      if (!event.contains(form)) continue;
      for (const char* const name : {"Authorization", "authorization"}) event[form].erase(name);
    }
    event["requestContext"]["requestId"] = "another";
    for (const char* const claims : {"/requestContext/authorizer/claims", "/requestContext/authorizer/jwt/claims"}) {
      if (event.contains(Json::json_pointer(claims))) event[Json::json_pointer(claims)]["exp"] = "2";
    }
    EXPECT_EQ(body(event), own);
  }
  EXPECT_EQ(runs, number);
}

TEST_F(LambdaHttp, AHeaderTellsClientsApartIfThatIsSaid) {
  HttpOptions options = http_options();
  options.routes.otherwise.principal = Principal::header("x-api-key");
  const Handler handler = charges(process(), options);
  Json alice = event_of("function_url");
  EXPECT_EQ(ask(handler, alice).status, 400U);
  alice["headers"]["x-api-key"] = "alice";
  Json bob = alice;
  bob["headers"]["x-api-key"] = "bob";
  EXPECT_EQ(ask(handler, alice).body, R"({"charge":1})");
  EXPECT_EQ(ask(handler, bob).body, R"({"charge":2})");
  EXPECT_EQ(ask(handler, alice).body, R"({"charge":1})");
}

TEST_F(LambdaHttp, WhoHasSignedAnewIsTheSameClient) {
  HttpOptions options = http_options();
  options.routes.otherwise.principal = Principal::given();
  const Handler handler = charges(process(), options);
  Json event = event_of("function_url");
  for (const char* const signature : {"AWS4-HMAC-SHA256 Signature=a", "AWS4-HMAC-SHA256 Signature=b"}) {
    event["headers"]["authorization"] = signature;
    EXPECT_EQ(ask(handler, event).body, R"({"charge":1})");
  }
}

TEST_F(LambdaHttp, AContextThatNamesNobodyIsRefusedUntilAnExpressionSaysWhatDoes) {
  HttpOptions options = http_options();
  options.routes.otherwise.principal = Principal::given();
  const auto refused = [&](const char* name, const Json& authorizer) {
    Json event = event_of(name);
    event["requestContext"]["authorizer"] = authorizer;
    const Got got = ask(charges(process(), options), event);
    EXPECT_EQ(got.status, 400U) << authorizer;
    EXPECT_EQ(problem(got), "principal-missing") << authorizer;
  };
  for (const Json& authorizer :
       {Json(), Json::object(), Json{{"lambda", {{"tenant", "t1"}}}}, Json{{"lambda", nullptr}}}) {
    refused("http_api", authorizer);
  }
  refused("rest_api", {{"tenant", "t1"}, {"claims", nullptr}, {"integrationLatency", 12}});
  EXPECT_EQ(runs, 0);

  Json event = event_of("http_api");
  event["requestContext"]["authorizer"] = {{"lambda", {{"tenant", "t1"}}}};
  options.principal = "requestContext.authorizer.lambda.tenant";
  const Handler handler = charges(process(), options);
  EXPECT_EQ(ask(handler, event).body, R"({"charge":1})");
  EXPECT_EQ(ask(handler, event).body, R"({"charge":1})");
  event["requestContext"]["authorizer"]["lambda"]["tenant"] = "t2";
  EXPECT_EQ(ask(handler, event).body, R"({"charge":2})");

  options.principal = "requestContext.authorizer";
  EXPECT_EQ(error_of([&, objects = charges(process(), options)] { return objects(event.dump(), invocation()); }),
            errors::invalid_event);
  options.principal = "requestContext.[";
  EXPECT_THROW(static_cast<void>(charges(process(), options)), Exception);
}

TEST_F(LambdaHttp, SessionsOfARoleAreOneClientUnlessAnExpressionTellsThemApart) {
  const auto event = [](const std::string& arn) {
    Json out = event_of("function_url");
    out["requestContext"]["authorizer"] = {{"iam", {{"userArn", arn}}}};
    return out;
  };
  const std::string role = "arn:aws:sts::123456789012:assumed-role/shop/";
  const Handler handler = charges(process());
  EXPECT_EQ(ask(handler, event(role + "i-0a1b")).body, R"({"charge":1})");
  EXPECT_EQ(ask(handler, event(role + "i-0c2d")).body, R"({"charge":1})") << "the retry of another instance";
  EXPECT_EQ(ask(handler, event("arn:aws:sts::123456789012:assumed-role/stall/i-0a1b")).body, R"({"charge":2})");
  EXPECT_EQ(ask(handler, event("arn:aws:iam::123456789012:user/shop/ann")).body, R"({"charge":3})");
  EXPECT_EQ(ask(handler, event("arn:aws:iam::123456789012:user/shop/bob")).body, R"({"charge":4})");

  HttpOptions options = http_options();
  options.principal = "requestContext.authorizer.[iam.userArn]";
  const Handler apart = charges(process(), options);
  EXPECT_EQ(ask(apart, event(role + "i-0a1b")).body, R"({"charge":5})");
  EXPECT_EQ(ask(apart, event(role + "i-0c2d")).body, R"({"charge":6})");
}

TEST_F(LambdaHttp, NumbersAsPrincipalsAreComparedAsTheyAreWritten) {
  HttpOptions options = http_options();
  options.principal = "requestContext.authorizer.lambda.[tenant]";
  const Handler handler = charges(process(), options);
  const auto body = [&](const char* tenant) {
    Json event = event_of("http_api");
    event["requestContext"]["authorizer"] = {{"lambda", {{"tenant", "#"}}}};
    std::string text = event.dump();
    text.replace(text.find("\"#\""), 3, tenant);
    return Json::parse(handler(text, invocation())).at("body").get<std::string>();
  };
  EXPECT_EQ(body("9007199254740992"), R"({"charge":1})");
  EXPECT_EQ(body("9007199254740993"), R"({"charge":2})") << "a double would make them one";
  EXPECT_EQ(body("\"9007199254740993\""), R"({"charge":3})");
  EXPECT_EQ(body("9007199254740993"), R"({"charge":2})");
}

TEST_F(LambdaHttp, RoutesHaveRulesOfTheirOwn) {
  HttpOptions options = http_options();
  once::http::Options strict{.principal = Principal::given()};
  options.routes = once::http::Routes(once::http::Options{.principal = Principal::shared(), .protect = false},
                                      {{.path = "/charges", .options = strict}});
  const Handler handler = charges(process(), options);
  Json event = event_of("http_api");
  event["headers"].erase("idempotency-key");
  EXPECT_EQ(ask(handler, event).status, 400U);
  event["rawPath"] = "/search";
  EXPECT_EQ(ask(handler, event).status, 201U);
  event["rawPath"] = "/x/..;/charges";
  EXPECT_EQ(problem(ask(handler, event)), "path-unclear");
  EXPECT_EQ(ask(handler, event_of("http_api")).body, R"({"charge":2})");
  EXPECT_THAT(Key::from_stored(record().key).scope(), StartsWith("shop/pay-fn/POST /charges "));
}

TEST_F(LambdaHttp, TheLeaseIsWhatIsLeftOfTheInvocation) {
  Process& here = process();
  const Handler handler = http(*here.engine, http_options(), [&](const Request&, Execution& execution) {
    EXPECT_GE(record().lease_until, clock->now() + 3s);
    EXPECT_LE(record().lease_until, clock->now() + 3s + 10ms);
    timers->advance(2'999ms);
    EXPECT_FALSE(execution.stop_token().stop_requested());
    EXPECT_EQ(here.told(EventKind::renewed), 0U);
    return created("done");
  });
  EXPECT_EQ(ask(handler, event_of("http_api"), 3s).status, 201U);
  Json next = event_of("http_api");
  next["headers"]["idempotency-key"] = "order-18";
  EXPECT_EQ(error_of([&] { return handler(next.dump(), invocation(0s)); }), errors::no_time_left);
}

TEST_F(LambdaHttp, AnEndedInvocationIsHeldOrTakenOver) {
  for (const OnLapse ambiguous : {OnLapse::hold, OnLapse::takeover}) {
    Process& dying = process();
    Process& next = process();
    HttpOptions options = http_options();
    options.function = ambiguous == OnLapse::hold ? "holding" : "taking";
    options.routes.otherwise.on_ambiguous = ambiguous;
    const Handler dies = http(*dying.engine, options, [&](const Request&, Execution&) {
      dying.cut();
      clock->advance(4s);
      return created("never sent");
    });
    static_cast<void>(ask(dies, event_of("http_api"), 3s));
    const Got got = ask(charges(next, options), event_of("http_api"));
    if (ambiguous == OnLapse::hold) {
      EXPECT_EQ(problem(got), "outcome-unknown");
      EXPECT_EQ(runs, 0);
    } else {
      EXPECT_EQ(got.body, R"({"charge":1})");
      EXPECT_EQ(runs, 1);
    }
  }
}

TEST_F(LambdaHttp, ThawedTooLateTheClientGetsTheAnswerThatCounts) {
  HttpOptions options = http_options();
  options.routes.otherwise.on_ambiguous = OnLapse::takeover;
  Process& frozen = process();
  Process& other = process();
  const Handler handler = http(*frozen.engine, options, [&](const Request&, Execution&) {
    timers->advance(10min);
    EXPECT_EQ(ask(charges(other, options), event_of("http_api")).body, R"({"charge":1})");
    return created("too late");
  });
  const Got got = ask(handler, event_of("http_api"));
  EXPECT_EQ(got.body, R"({"charge":1})");
  EXPECT_THAT(got.replayed, ElementsAre("true"));
  EXPECT_EQ(frozen.told(EventKind::finish_refused), 1U);
}

TEST_F(LambdaHttp, AfterATimeoutTheRetryGoesOnAfterTheCharge) {
  HttpOptions options = http_options();
  options.routes.otherwise.on_ambiguous = OnLapse::takeover;
  Process& dying = process();
  Process& next = process();
  int charged = 0;
  const auto work = [&](bool dies) {
    return [&, dies](const Request&, Execution& execution) {
      ++runs;
      const std::string charge = execution.step("charge", [&] { return "ch_" + std::to_string(++charged); });
      if (dies) {
        dying.cut();
        clock->advance(4s);
      }
      return created(charge);
    };
  };
  static_cast<void>(ask(http(*dying.engine, options, work(true)), event_of("http_api"), 3s));
  EXPECT_EQ(ask(http(*next.engine, options, work(false)), event_of("http_api")).body, "ch_1");
  EXPECT_EQ(ask(http(*next.engine, options, work(false)), event_of("http_api")).body, "ch_1");
  EXPECT_EQ(charged, 1);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(record().attempt, 2U);
}

TEST_F(LambdaHttp, ThawedItBeginsNoFurtherStep) {
  for (const OnLapse ambiguous : {OnLapse::hold, OnLapse::takeover}) {
    for (const bool finished_meanwhile : {true, false}) {
      SCOPED_TRACE(::testing::Message() << (ambiguous == OnLapse::hold ? "hold " : "takeover ") << finished_meanwhile);
      HttpOptions options = http_options();
      options.function = std::to_string(processes.size());
      options.routes.otherwise.on_ambiguous = ambiguous;
      Process& frozen = process();
      Process& other = process();
      int mails = 0;
      const Handler handler = http(*frozen.engine, options, [&](const Request&, Execution& execution) {
        timers->advance(10min);
        if (finished_meanwhile) {
          // Under hold somebody has resolved it, which is a write over the claim as well.
          Record done = records().back();
          for (const Record& stored : records()) {
            if (stored.state == State::in_progress) done = stored;
          }
          const Seen seen{done.owner, done.revision, 0};
          done.owner = Owner{};
          complete(done, Result::inlined("resolved", "text/plain"), EffectivePolicy{}, Stamp(clock->now(), 0));
          EXPECT_EQ(blocking::replace(*shared, done, seen).status, once::AnswerStatus::done);
        }
        execution.step("mail", [&] { ++mails; });
        return created("not reached");
      });
      const Got got = ask(handler, event_of("http_api"));
      EXPECT_EQ(mails, 0);
      const Got again = ask(charges(other, options), event_of("http_api"));
      if (finished_meanwhile) {
        // A claim that may be taken over is not looked after: the client is told to ask again.
        if (ambiguous == OnLapse::hold) {
          EXPECT_EQ(got.body, "resolved");
        } else {
          EXPECT_EQ(problem(got), "claim-lost");
        }
        EXPECT_EQ(again.body, "resolved");
      } else {
        EXPECT_EQ(got.status, 409U);
        EXPECT_EQ(problem(got), "claim-lost");
        if (ambiguous == OnLapse::hold) {
          EXPECT_EQ(problem(again), "outcome-unknown");
        } else {
          EXPECT_THAT(again.body, StartsWith(R"({"charge":)"));
        }
      }
    }
  }
}

TEST_F(LambdaHttp, WhatTheWorkThrowsPassesThroughAndIsHeld) {
  const Handler handler = http(*process().engine, http_options(), [&](const Request&, Execution&) -> Answer {
    ++runs;
    throw std::runtime_error("the bank hung up");
  });
  EXPECT_THROW(static_cast<void>(handler(event_of("http_api").dump(), invocation())), std::runtime_error);
  EXPECT_EQ(problem(ask(handler, event_of("http_api"))), "outcome-unknown");
  EXPECT_EQ(runs, 1);
}

TEST_F(LambdaHttp, SwitchedOffItRunsUnprotectedAndSaysSo) {
  HttpOptions options = http_options();
  options.environment->disabled = "1";
  Process& here = process();
  const Handler handler = charges(here, options);
  EXPECT_EQ(ask(handler, event_of("http_api")).body, R"({"charge":1})");
  EXPECT_EQ(ask(handler, event_of("http_api")).body, R"({"charge":2})");
  EXPECT_EQ(here.told(EventKind::unprotected), 2U);
  EXPECT_EQ(here.store->counts().calls, 0U);
}

TEST_F(LambdaHttp, EventsOfOtherKindsAreErrors) {
  const Handler handler = charges(process());
  for (const std::string event :
       {"", "{", "[]", "null", "{}", R"({"Records":[]})", R"({"httpMethod":7})", R"({"httpMethod":""})",
        R"({"requestContext":{"http":{}}})", R"({"httpMethod":"POST","path":"/","headers":7})",
        R"({"httpMethod":"POST","path":"/","headers":{"a":7}})", R"({"httpMethod":"POST","path":"/","body":{}})",
        R"({"httpMethod":"POST","path":7})", R"({"httpMethod":"POST","path":"/","body":"%","isBase64Encoded":true})"}) {
    EXPECT_EQ(error_of([&] { return handler(event, invocation()); }), errors::invalid_event) << event;
  }
  EXPECT_EQ(runs, 0);
}

TEST_F(LambdaHttp, WhatTheConsoleSendsForATestIsARequest) {
  HttpOptions options = http_options();
  options.routes.otherwise.policy = Policy{.on_missing_key = OnMissingKey::run_unprotected};  // It has none.
  const Handler handler = charges(process(), options);
  const Json event = Json::parse(R"({"httpMethod":"POST","path":"/charges","headers":null,"multiValueHeaders":null,
      "queryStringParameters":null,"multiValueQueryStringParameters":null,"body":null,"isBase64Encoded":false,
      "requestContext":{"identity":{}}})");
  EXPECT_EQ(ask(handler, event).status, 201U);
}

TEST(LambdaTarget, PathsStandAsTheyMayInATarget) {
  EXPECT_EQ(target_path("/charges/17"), "/charges/17");
  EXPECT_EQ(target_path(""), "/");
  EXPECT_EQ(target_path("charges"), "/charges");
  EXPECT_EQ(target_path("/a b/ü?x#y"), "/a%20b/%C3%BC%3Fx%23y");
  EXPECT_EQ(target_path("/100%25/50%/%zz/%"), "/100%25/50%25/%25zz/%25");
  EXPECT_EQ(target_path("/-._~!$&'()*+,;=:@"), "/-._~!$&'()*+,;=:@");
}

}  // namespace http_handler_test
}  // namespace once::lambda
