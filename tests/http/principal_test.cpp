// Principals: no client gets another's answer, and no client becomes another with a retry.
#include <once/frontends/http/principal.hpp>

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <once/error.hpp>

#include "http_test.hpp"

namespace once::http {
namespace principal_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view jwt = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl";

Request request_of(std::vector<HeaderView> headers) {
  headers.push_back({"Idempotency-Key", "order-1"});
  return {.method = "POST", .target = "/charges", .headers = std::move(headers), .body = "{}"};
}

Who::Kind kind_of(const Principal& principal, std::vector<HeaderView> headers) {
  return principal.who(request_of(std::move(headers))).kind;
}

std::string name_of(const Principal& principal, std::vector<HeaderView> headers) {
  return principal.who(request_of(std::move(headers))).name;
}

std::string problem_of(const Answer& answer) {
  return answer.status < 400 ? "" : nlohmann::json::parse(answer.body).at("error").at("code").get<std::string>();
}

// Both have the same key for the same charge, and Authorization does not distinguish them. When principals were made of
// it, Bob got Alice's answer.
TEST(Principal, NobodyGetsTheAnswerOfAnother) {
  World world;
  Endpoint endpoint(*world.engine, {.principal = Principal::header("X-Api-Key")});
  const auto ask = [&](std::vector<HeaderView> headers, const std::string& answer) {
    return endpoint.run(request_of(std::move(headers)), [&](Execution&) { return text_answer(200, answer); });
  };
  EXPECT_EQ(ask({{"X-Api-Key", "alice"}}, "of alice").body, "of alice");
  EXPECT_EQ(ask({{"X-Api-Key", "bob"}}, "of bob").body, "of bob");
  EXPECT_EQ(ask({{"x-api-key", "alice"}}, "again").body, "of alice");

  for (const std::vector<HeaderView>& headers :
       std::vector<std::vector<HeaderView>>{{}, {{"Cookie", "alice"}}, {{"X-Api-Key", " "}}}) {
    const Answer refused = ask(headers, "of anybody");
    EXPECT_EQ(refused.status, 400U);
    EXPECT_EQ(problem_of(refused), "principal-missing");
    EXPECT_THAT(values(refused, "WWW-Authenticate"), IsEmpty());
  }
  EXPECT_EQ(world.records(), 2U);
}

TEST(Principal, WhereThereIsAChallengeAMissingOneIs401) {
  World world;
  Endpoint endpoint(*world.engine,
                    {.principal = Principal::header("Authorization"), .challenge = "Basic realm=\"pay\""});
  for (const Examination& found :
       {endpoint.rules().examine(request_of({})), endpoint.rules().examine_head(request_of({}))}) {
    EXPECT_EQ(found.kind, Examination::Kind::refuse);
    EXPECT_EQ(found.answer.status, 401U);
    EXPECT_EQ(nlohmann::json::parse(found.answer.body).at("status"), 401);
    EXPECT_EQ(problem_of(found.answer), "principal-missing");
    EXPECT_THAT(values(found.answer, "WWW-Authenticate"), ElementsAre("Basic realm=\"pay\""));
  }
}

TEST(Principal, RequestsWithoutAKeyNeedNone) {
  const Rules rules(
      {.principal = Principal::header("X-Api-Key"), .policy = Policy{.on_missing_key = OnMissingKey::run_unprotected}});
  Request request = request_of({});
  request.headers.clear();
  EXPECT_EQ(rules.examine(request).kind, Examination::Kind::no_key);
  request.method = "GET";
  EXPECT_EQ(rules.examine(request_of({{"X-Api-Key", "a"}})).kind, Examination::Kind::operation);
}

// With the token as principal, the retry with a renewed one was another operation, and ran a second time.
TEST(Principal, WhatARetryHasAnewIsRefusedWithTheRemedy) {
  World world;
  Endpoint endpoint(*world.engine, {.principal = Principal::header("Authorization")});
  const std::string bearer = "Bearer " + std::string(jwt);
  int runs = 0;
  const Answer refused = endpoint.run(request_of({{"Authorization", bearer}}), [&](Execution&) {
    ++runs;
    return text_answer(200);
  });
  EXPECT_EQ(refused.status, 400U);
  EXPECT_EQ(problem_of(refused), "principal-unstable");
  EXPECT_THAT(refused.body, HasSubstr("principal-jwt"));
  EXPECT_EQ(refused.body.find(jwt), std::string::npos);
  EXPECT_EQ(runs, 0);
}

TEST(Principal, WhatIsMadeAnewAndWhatIsNot) {
  const Principal principal = Principal::header("X-Who");
  const std::string token(jwt);
  for (const std::string& anew :
       {token,
        "Bearer " + token,
        "bearer  " + token,
        "session=" + token + "; theme=dark",
        "vapid t=" + token + ", k=a",
        "access_token=\"Bearer%20" + token + "\"",
        "sid=s%3A" + token + ".c2lnbmF0dXJl",
        "a=%" + token,
        std::string("eyJhbGciOiJub25lIn0.e30."),
        std::string("eyJhbGciOiJkaXIiLCJlbmMiOiJBMTI4R0NNIn0..aXY.Y2lwaGVy.dGFn"),
        std::string("AWS4-HMAC-SHA256 Credential=AKID/20261123/eu/execute-api/aws4_request, Signature=ab"),
        std::string("AWS4-ECDSA-P256-SHA256 Credential=AKID, Signature=ab"),
        std::string("AWS AKID:sig="),
        std::string("Signature keyId=\"a\",signature=\"b\""),
        std::string("HMAC a:b"),
        std::string("hmac-sha256 a:b"),
        std::string("Digest username=\"a\", nc=00000001"),
        std::string("OAuth oauth_signature=\"a\""),
        std::string("DPoP Kz~8mXK1EalYznwH"),
        std::string("SharedKey account:sig"),
        std::string("Negotiate YII=")}) {
    EXPECT_EQ(kind_of(principal, {{"X-Who", anew}}), Who::Kind::unstable) << anew;
  }
  for (const char* const same : {"alice", "Basic YWxpY2U6c2VjcmV0", "Bearer sk_live_51H8", "1.2.3", "a.b.c", "eyJ",
                                 "eyJ.eyJ.eyJ", "api.example.com", "Signature", "CN=alice,O=shop",
                                 "eyJzdWIiOiJhIn0.e30.c2ln", "Bearer v4.public.eyJzdWIi", "AWS4"}) {
    EXPECT_EQ(kind_of(principal, {{"X-Who", same}}), Who::Kind::known) << same;
  }
}

TEST(Principal, SeveralHeadersCountTogetherAndAllMustBeThere) {
  const Principal principal = Principal::headers({"X-Tenant", "X-User"});
  EXPECT_NE(name_of(principal, {{"X-Tenant", "a"}, {"X-User", "bc"}}),
            name_of(principal, {{"X-Tenant", "ab"}, {"X-User", "c"}}));
  EXPECT_NE(name_of(principal, {{"X-Tenant", "a"}, {"X-User", "b"}}),
            name_of(principal, {{"X-Tenant", "b"}, {"X-User", "a"}}));
  EXPECT_NE(name_of(principal, {{"X-Tenant", "a"}, {"X-Tenant", "b"}, {"X-User", "c"}}),
            name_of(principal, {{"X-Tenant", "a"}, {"X-User", "b"}, {"X-User", "c"}}));
  EXPECT_EQ(name_of(principal, {{"X-User", "b"}, {"x-tenant", " a\t"}}),
            name_of(principal, {{"X-Tenant", "a"}, {"X-User", "b"}}));
  EXPECT_EQ(kind_of(principal, {{"X-Tenant", "a"}}), Who::Kind::missing);
  EXPECT_EQ(kind_of(principal, {{"X-Tenant", "a"}, {"X-User", ""}}), Who::Kind::missing);
  EXPECT_THROW(static_cast<void>(Principal::headers({})), Exception);
}

TEST(Principal, TheServerOrAFunctionMaySayIt) {
  Request request = request_of({{"X-Api-Key", "k7"}});
  EXPECT_EQ(Principal::given().who(request).kind, Who::Kind::missing);
  request.principal = "alice";
  EXPECT_EQ(Principal::given().who(request).name, "alice");
  EXPECT_EQ(Principal::header("X-Api-Key").who(request).name.find("alice"), std::string::npos);

  const Principal looked_up = Principal::function("account of the key", [](const Request& asked) {
    return asked.headers.at(0).value == "k7" ? std::string("account 7") : std::string();
  });
  EXPECT_EQ(looked_up.who(request).name, "account 7");
  EXPECT_EQ(kind_of(looked_up, {{"X-Api-Key", "k8"}}), Who::Kind::missing);
  EXPECT_EQ(looked_up, Principal(looked_up));
  EXPECT_EQ(looked_up.what(), "account of the key");
  EXPECT_EQ(Principal::headers({"X-A", "x-b"}).what(), "header x-a x-b");
  EXPECT_THROW(static_cast<void>(Principal::function("none", {})), Exception);
}

// Two routes may be one operation. Who is told in another way is another client all the same.
TEST(Principal, ANameThatIsToldInAnotherWayIsAnothers) {
  const auto key_of = [](Principal principal) {
    Request request = request_of({{"X-Api-Key", "*"}, {"X-User", "*"}});
    request.principal = "*";
    return Rules({.principal = std::move(principal)}).examine(request).operation.value().key.stored();
  };
  const auto star = [](const Request&) { return std::string("*"); };
  const std::set<std::string> keys{key_of(Principal::given()), key_of(Principal::shared()),
                                   key_of(Principal::header("X-Api-Key")), key_of(Principal::header("X-User")),
                                   key_of(Principal::function("star", star))};
  EXPECT_EQ(keys.size(), 5U);
}

}  // namespace principal_test
}  // namespace once::http
