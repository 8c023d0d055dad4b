// The rules alone: which requests are protected, under which key, and the form of answers.
#include <once/frontends/http/rules.hpp>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <once/error.hpp>

#include "http_test.hpp"

namespace once::http {
namespace rules_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = Examination::Kind;
using nlohmann::json;

Options with_route(Options options = by_authorization()) {
  options.scope = "shop";
  return options;
}

Options optional() {
  Options options = with_route();
  options.policy.emplace().on_missing_key = OnMissingKey::run_unprotected;
  return options;
}

std::string stored_key(const Rules& rules, const Request& request) {
  const Examination found = rules.examine(request);
  EXPECT_EQ(found.kind, Kind::operation);
  return found.operation ? found.operation->key.stored() : "";
}

Fingerprint fingerprint(const Rules& rules, const Request& request) {
  const Examination found = rules.examine(request);
  EXPECT_EQ(found.kind, Kind::operation);
  return found.operation ? found.operation->fingerprint : Fingerprint();
}

// A problem as RFC 9457 wants it.
void expect_problem(const Answer& answer, unsigned status, const std::string& name) {
  EXPECT_EQ(answer.status, status);
  EXPECT_THAT(values(answer, "Content-Type"), ElementsAre("application/problem+json"));
  const json body = json::parse(answer.body);
  EXPECT_EQ(body.at("type"), "urn:once:problem:" + name);
  EXPECT_EQ(body.at("status"), status);
  EXPECT_FALSE(body.at("title").get<std::string>().empty());
  EXPECT_EQ(body.at("error").at("code"), name);
  EXPECT_EQ(body.at("error").at("message"), body.at("title"));
  EXPECT_FALSE(body.at("detail").get<std::string>().empty());
}

TEST(Rules, OnlyTheMethodsThatAreNamedAreProtected) {
  const Rules rules(with_route());
  for (const std::string_view method :
       {"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "post ", "POS", ""}) {
    Request request = post("k");
    request.method = method;
    EXPECT_EQ(rules.examine(request).kind, Kind::pass) << method;
    EXPECT_EQ(rules.examine_head(request).kind, Kind::pass) << method;
  }
  for (const std::string_view method : {"POST", "PATCH"}) {
    Request request = post("k");
    request.method = method;
    EXPECT_EQ(rules.examine(request).kind, Kind::operation) << method;
    EXPECT_EQ(rules.examine_head(request).kind, Kind::operation) << method;
  }
  Options put = with_route();
  put.methods = {"PUT"};
  EXPECT_EQ(Rules(put).examine(post("k")).kind, Kind::pass);
}

// Some servers take "patch" for PATCH, and ran it each time.
TEST(Rules, AMethodInAnotherCaseIsRefused) {
  for (const std::string_view method : {"post", "patch", "Patch", "pOST"}) {
    for (const std::string_view key : {"k", ""}) {
      const Rules rules(with_route());
      Request request = post(key);
      request.method = method;
      for (const Examination& found : {rules.examine(request), rules.examine_head(request)}) {
        EXPECT_EQ(found.kind, Kind::refuse) << method;
        expect_problem(found.answer, 400, "method-unclear");
      }
      Options open = with_route();
      open.protect = false;
      EXPECT_EQ(Rules(open).examine(request).kind, Kind::pass) << method;
      EXPECT_EQ(Rules(open).examine_head(request).kind, Kind::pass) << method;
    }
  }
}

TEST(Rules, ARequestWithoutKeyRunsUnprotectedOrIsRefused) {
  EXPECT_EQ(Rules(optional()).examine(post("")).kind, Kind::no_key);
  EXPECT_EQ(Rules(optional()).examine_head(post("")).kind, Kind::no_key);
  const Rules rules(with_route());
  for (const Examination& refused : {rules.examine(post("")), rules.examine_head(post(""))}) {
    EXPECT_EQ(refused.kind, Kind::refuse);
    expect_problem(refused.answer, 400, "key-missing");
  }
}

TEST(Rules, KeysThatAreNoneAreRefusedBeforeTheBodyIsRead) {
  const Rules rules(with_route());
  struct Case {
    std::vector<std::string> lines;
    std::string problem;
  };
  for (const Case& c : std::vector<Case>{{{"a", "b"}, "keys-differ"},
                                         {{""}, "key-invalid"},
                                         {{std::string(256, 'k')}, "key-invalid"},
                                         {{"caf\xC3\xA9"}, "key-invalid"}}) {
    Request request = post("");
    for (const std::string& line : c.lines) request.headers.push_back({"idempotency-KEY", line});
    for (const Examination& refused : {rules.examine(request), rules.examine_head(request)}) {
      EXPECT_EQ(refused.kind, Kind::refuse);
      expect_problem(refused.answer, 400, c.problem);
    }
  }
}

TEST(Rules, NothingOfARequestIsInAProblem) {
  const Rules rules(with_route());
  const std::string evil = "<script>\"\\\r\n";
  Request request = post(evil, evil);
  request.target = evil;
  const Examination refused = rules.examine(request);
  EXPECT_EQ(refused.kind, Kind::refuse);
  EXPECT_EQ(refused.answer.body.find("script"), std::string::npos);
  for (const Header& header : refused.answer.headers) EXPECT_EQ(header.value.find("script"), std::string::npos);
}

TEST(Rules, AKeyIsReadableAndBelongsToPrincipalMethodAndRoute) {
  const Rules rules(with_route());
  const std::string stored = stored_key(rules, post("\"order-17\""));
  EXPECT_TRUE(stored.starts_with("shop/POST /charges ")) << stored;
  EXPECT_TRUE(stored.ends_with("#order-17")) << stored;
  EXPECT_EQ(stored.size(), std::string("shop/POST /charges #order-17").size() + 64);
  EXPECT_EQ(stored.find("alice"), std::string::npos);
  EXPECT_EQ(stored_key(rules, post("order-17", "other body")), stored);

  std::set<std::string> keys = {stored};
  const auto is_new = [&](const std::function<void(Request&)>& change, const Rules& by) {
    Request request = post("order-17");
    change(request);
    EXPECT_TRUE(keys.insert(stored_key(by, request)).second);
  };
  is_new([](Request& r) { r.headers[0].value = "Bearer bob"; }, rules);
  is_new([](Request& r) { r.headers.push_back({"Authorization", "Bearer bob"}); }, rules);
  Options given = with_route();
  given.principal = Principal::given();
  is_new([](Request& r) { r.principal = "alice"; }, Rules(given));
  is_new([](Request& r) { r.principal = "bob"; }, Rules(given));
  is_new([](Request& r) { r.principal = "*"; }, Rules(given));
  is_new([](Request& r) { r.method = "PATCH"; }, rules);
  is_new([](Request& r) { r.target = "/charges/"; }, rules);
  is_new([](Request& r) { r.target = "/Charges"; }, rules);
  is_new([](Request& r) { r.target = "*"; }, rules);
  is_new([](Request& r) { r.headers[1].value = "Order-17"; }, rules);
  Options other_scope = with_route();
  other_scope.scope = "shop/POST";
  is_new([](Request&) {}, Rules(other_scope));
  Options no_scope = by_authorization();
  is_new([](Request&) {}, Rules(no_scope));
  Options by_two = with_route();
  by_two.principal = Principal::headers({"Authorization", "X-Tenant"});
  is_new([](Request& r) { r.headers.push_back({"x-tenant", "u"}); }, Rules(by_two));
  is_new([](Request& r) { r.headers.push_back({"x-tenant", "t"}); }, Rules(by_two));
  Options nobody = with_route();
  nobody.principal = Principal::shared();
  is_new([](Request&) {}, Rules(nobody));

  // What says who asks, and nothing else about the connection.
  Request same = post("order-17");
  same.headers.push_back({"User-Agent", "other"});
  EXPECT_EQ(stored_key(rules, same), stored);
  same.headers[0] = {"AUTHORIZATION", " Bearer alice\t"};
  EXPECT_EQ(stored_key(rules, same), stored);
}

TEST(Rules, WhatIsJoinedIsKeptApart) {
  Options options = with_route();
  options.principal = Principal::headers({"X-Tenant", "X-User"});
  const Rules rules(options);
  const auto with = [](std::string_view one, std::string_view a, std::string_view two, std::string_view b) {
    Request request = post("k");
    request.headers.push_back({one, a});
    request.headers.push_back({two, b});
    return request;
  };
  EXPECT_NE(stored_key(rules, with("X-Tenant", "ab", "X-User", "c")),
            stored_key(rules, with("X-Tenant", "a", "X-User", "bc")));
  Options user = with_route();
  user.principal = Principal::header("X-User");
  const Rules by_user(user);
  EXPECT_NE(stored_key(by_user, with("X-User", "ab", "X-User", "c")),
            stored_key(by_user, with("X-User", "a", "X-User", "bc")));
  user.fingerprint_headers = {"X-A", "X-B"};
  user.principal = Principal::shared();
  const Rules compared(user);
  EXPECT_NE(fingerprint(compared, with("X-A", "ab", "X-B", "c")), fingerprint(compared, with("X-A", "a", "X-B", "bc")));
}

TEST(Rules, ARouteTakesThePlaceOfThePath) {
  Options options = with_route();
  options.route = "/orders/{id}/pay";
  const Rules rules(options);
  Request one = post("k");
  one.target = "/orders/1/pay";
  Request two = post("k");
  two.target = "/orders/2/pay";
  EXPECT_EQ(stored_key(rules, one), stored_key(rules, two));
  EXPECT_THAT(stored_key(rules, one), HasSubstr("POST /orders/{id}/pay "));
  EXPECT_NE(fingerprint(rules, one), fingerprint(rules, two)) << "one key for two orders is a mistake, not a replay";
}

// The console computes the same from what an operator types: tests/console/console_test.mjs.
TEST(Rules, TheScopeEndsWithTheDigestOfTheClient) {
  const Rules rules({.principal = Principal::header("X-Api-Key")});
  Request request = post("k");
  request.headers.push_back({"x-api-key", " alice "});
  EXPECT_EQ(Key::from_stored(stored_key(rules, request)).scope(),
            "POST /charges 4b1d74d314e42fbdb8e2fef6b6ab43ba354a310909dd96095094f002b7f99463");
}

TEST(Rules, TheLongestOfEverythingIsAKey) {
  Options options = by_authorization();
  options.scope = std::string(42, '%');
  options.methods = {"UPDATEREDIRECTREF"};
  const Rules rules(options);
  std::set<std::string> keys;
  for (const std::size_t length : {127U, 128U, 129U, 5000U}) {
    const std::string path = "/" + std::string(length - 1, '%');
    const std::string key(255, 'k');
    Request request = post(key);
    request.method = rules.options().methods[0];
    request.target = path;
    const std::string stored = stored_key(rules, request);
    EXPECT_LE(stored.size(), max_key_bytes);
    EXPECT_TRUE(keys.insert(stored).second);
    if (length <= 128) continue;
    // A path that looks like a long one cut short is another one.
    const std::string scope = Key::from_stored(stored).scope();
    const std::string cut = scope.substr(scope.find(" /") + 1, 64 + 1 + 64);
    EXPECT_EQ(cut.substr(0, 65), path.substr(0, 64) + "~");
    request.target = cut;
    EXPECT_FALSE(keys.contains(stored_key(rules, request)));
  }
}

TEST(Rules, ThePathIsFoundInEachFormOfTheTarget) {
  const Rules rules(with_route());
  const std::string plain = stored_key(rules, post("k"));
  for (const std::string_view target :
       {"/charges?x=1", "http://shop.example/charges", "https://shop.example:8443/charges?x", "/charges#part"}) {
    Request request = post("k");
    request.target = target;
    EXPECT_EQ(stored_key(rules, request), plain) << target;
  }
  Request request = post("k");
  request.target = "http://shop.example?x=/charges";
  EXPECT_THAT(stored_key(rules, request), HasSubstr("POST / "));
}

// A retry has another trace, and is the same operation.
TEST(Rules, TheTraceIsPassedOnAndIsNoPartOfTheOperation) {
  const Rules rules(with_route());
  const Request plain = post("k", "body");
  EXPECT_EQ(rules.examine(plain).operation->trace, nullptr);
  Request traced = plain;
  traced.headers.push_back({"Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"});
  traced.headers.push_back({"tracestate", "a=1"});
  traced.headers.push_back({"TraceState", "b=2"});
  const Examination found = rules.examine(traced);
  ASSERT_NE(found.operation->trace, nullptr);
  EXPECT_EQ(found.operation->trace->parent.span_id_hex(), "00f067aa0ba902b7");
  EXPECT_EQ(found.operation->trace->state, "a=1,b=2");
  EXPECT_EQ(stored_key(rules, traced), stored_key(rules, plain));
  EXPECT_EQ(fingerprint(rules, traced), fingerprint(rules, plain));
  traced.headers.push_back({"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"});
  EXPECT_EQ(rules.examine(traced).operation->trace, nullptr) << "of two nobody knows which counts";
  traced = plain;
  traced.headers.push_back({"traceparent", "no"});
  EXPECT_EQ(rules.examine(traced).operation->trace, nullptr);
}

TEST(Rules, TheFingerprintIsOfMethodRouteTargetHeadersAndBody) {
  Options options = with_route();
  options.fingerprint_headers = {"Content-Type", "X-Mode"};
  const Rules rules(options);
  Request request = post("k", "body");
  request.headers.push_back({"Content-Type", "text/plain"});
  const Fingerprint first = fingerprint(rules, request);
  EXPECT_EQ(first.bytes().size(), 32U);
  EXPECT_EQ(fingerprint(rules, request), first);

  Request other_key = request;
  other_key.headers[1].value = "l";
  other_key.headers[0].value = "Bearer bob";
  other_key.headers.push_back({"User-Agent", "x"});
  EXPECT_EQ(fingerprint(rules, other_key), first);

  std::vector<Fingerprint> all = {first};
  const auto is_new = [&](const std::function<void(Request&)>& change) {
    Request changed = request;
    change(changed);
    const Fingerprint got = fingerprint(rules, changed);
    EXPECT_EQ(std::count(all.begin(), all.end(), got), 0);
    all.push_back(got);
  };
  is_new([](Request& r) { r.body = "body2"; });
  is_new([](Request& r) { r.body = ""; });
  is_new([](Request& r) { r.method = "PATCH"; });
  is_new([](Request& r) { r.target = "/charge"; });
  is_new([](Request& r) { r.target = "/charges?"; });
  is_new([](Request& r) { r.target = "/charges?dry=1"; });
  is_new([](Request& r) { r.headers.push_back({"Host", "shop.example"}); });
  is_new([](Request& r) { r.headers[2].value = "text/html"; });
  is_new([](Request& r) { r.headers.pop_back(); });
  is_new([](Request& r) { r.headers.push_back({"Content-Type", "text/plain"}); });
  is_new([](Request& r) { r.headers[2].name = "X-Mode"; });  // The same value under another name.
  is_new([](Request& r) { r.headers.push_back({"x-mode", ""}); });

  options.ignore_query = true;
  options.ignore_body = true;
  const Rules loose(options);
  Request changed = request;
  changed.body = "other";
  changed.target = "/charges?now=1";
  EXPECT_EQ(fingerprint(loose, changed), fingerprint(loose, request));
}

TEST(Rules, TheKeyInAFieldOfTheBody) {
  Options options = with_route();
  options.key_field = "order.id";
  const Rules rules(options);
  const auto examine = [&](std::string_view body) { return rules.examine(post("ignored\"", body)); };
  EXPECT_TRUE(stored_key(rules, post("", R"({"order":{"id":"o-1"}})")).ends_with("#o-1"));
  EXPECT_TRUE(stored_key(rules, post("", R"({"order": {"id": 17}})")).ends_with("#17"));
  EXPECT_EQ(rules.examine_head(post("")).kind, Kind::operation) << "only the body can tell";
  struct Case {
    std::string_view body;
    std::string problem;
  };
  for (const Case& c : std::vector<Case>{{"", "key-missing"},
                                         {"{}", "key-missing"},
                                         {R"({"order":{"id":null}})", "key-missing"},
                                         {R"({"order":{"id":""}})", "key-missing"},
                                         {R"({"order":{"id":{"a":1}}})", "key-invalid"},
                                         {R"({"order":{"id":true}})", "key-invalid"},
                                         {"{\"order\":{\"id\":\"\xC3\xA9\"}}", "key-invalid"},
                                         {"not json", "body-unreadable"},
                                         {R"({"order":{"id":9007199254740993}})", "body-unreadable"},
                                         {R"({"order":{"id":"a"})", "body-unreadable"},
                                         {R"({"order":{"id":"a"},"order":{"id":"b"}})", "body-unreadable"}}) {
    SCOPED_TRACE(c.body);
    const Examination refused = examine(c.body);
    EXPECT_EQ(refused.kind, Kind::refuse);
    expect_problem(refused.answer, 400, c.problem);
  }
  // What is not the key may be any number.
  EXPECT_TRUE(
      stored_key(rules, post("", R"({"cents":[18446744073709551617,1e400],"order":{"id":"o-1"}})")).ends_with("#o-1"));
  EXPECT_NE(fingerprint(rules, post("", R"({"cents":9007199254740993,"order":{"id":"o-1"}})")),
            fingerprint(rules, post("", R"({"cents":9007199254740992,"order":{"id":"o-1"}})")));
  options.policy.emplace().on_missing_key = OnMissingKey::run_unprotected;
  EXPECT_EQ(Rules(options).examine(post("", "{}")).kind, Kind::no_key);
  EXPECT_EQ(Rules(options).examine(post("", "not json")).kind, Kind::refuse)
      << "what cannot be read is never without key";
}

// Numbers of orders are often the same for two tenants.
TEST(Rules, TwoPrincipalsShareNoKeyOfABody) {
  Options options = with_route();
  options.principal = Principal::header("X-Tenant");
  options.key_field = "order.id";
  const Rules rules(options);
  const auto of = [&](std::string_view tenant) {
    Request request = post("", R"({"order":{"id":"o-1"}})");
    request.headers.push_back({"x-tenant", tenant});
    return stored_key(rules, request);
  };
  EXPECT_EQ(of("acme"), of("acme"));
  EXPECT_NE(of("acme"), of("umbrella"));
  EXPECT_TRUE(of("acme").ends_with("#o-1"));
  expect_problem(rules.examine(post("", R"({"order":{"id":"o-1"}})")).answer, 400, "principal-missing");
}

TEST(Rules, AKeyOfSeveralFieldsNeedsThemAll) {
  Options options = with_route();
  options.key_field = "join('-', [tenant, id])";
  const std::string whole = R"({"tenant":"acme","id":"o-1"})";
  const std::string half = R"({"tenant":"","id":"o-1"})";
  EXPECT_TRUE(stored_key(Rules(options), post("", whole)).ends_with("#acme-o-1"));
  expect_problem(Rules(options).examine(post("", half)).answer, 400, "key-missing");
  options.allow_null_parts = true;
  EXPECT_TRUE(stored_key(Rules(options), post("", half)).ends_with("#-o-1"));
}

TEST(Rules, TheKeyInTheQuery) {
  Options options = with_route();
  options.key_query = "request_id";
  const Rules rules(options);
  const auto at = [](std::string_view target) {
    Request request = post("other");
    request.target = target;
    return request;
  };
  EXPECT_TRUE(stored_key(rules, at("/charges?a=1&request_id=o%2D1&b")).ends_with("#o-1"));
  EXPECT_TRUE(stored_key(rules, at("/charges?request_id=a&request_id=a")).ends_with("#a"));
  EXPECT_TRUE(stored_key(rules, at("http://shop/charges?request%5Fid=a#x")).ends_with("#a"));
  for (const auto& [target, problem] :
       std::vector<std::pair<std::string, std::string>>{{"/charges", "key-missing"},
                                                        {"/charges?Request_id=a", "key-missing"},
                                                        {"/charges?request_id", "key-invalid"},
                                                        {"/charges?request_id=undefined", "key-invalid"},
                                                        {"/charges?request_id=a&request_id=b", "keys-differ"},
                                                        {"/charges?request_id=%C3%A9", "key-invalid"}}) {
    SCOPED_TRACE(target);
    expect_problem(rules.examine(at(target)).answer, 400, problem);
    expect_problem(rules.examine_head(at(target)).answer, 400, problem);
  }
}

TEST(Rules, TheKeyInThePath) {
  Options options = with_route();
  options.key_path = "/orders/{key}/{what}";
  options.route = "orders";
  const Rules rules(options);
  const auto at = [](std::string_view target) {
    Request request = post("other");
    request.target = target;
    return request;
  };
  EXPECT_TRUE(stored_key(rules, at("/orders/o-1/pay?x=1")).ends_with("#o-1"));
  EXPECT_TRUE(stored_key(rules, at("/Orders/o%2D1/pay/")).ends_with("#o-1"));
  for (const std::string target :
       {"/orders/o-1", "/orders/o-1/pay/now", "/invoices/o-1/pay", "/orders//o-1/pay", "*"}) {
    expect_problem(rules.examine_head(at(target)).answer, 400, "key-missing");
  }
  for (const std::string target : {"/orders//pay", "/orders/null/pay", "/orders/%0A/pay"}) {
    expect_problem(rules.examine(at(target)).answer, 400, "key-invalid");
  }
}

// A client may write "%2D" for "-" in its retry. Then it has the same key, for another path: 422.
TEST(Rules, AKeyInThePathIsOneKeyHoweverItIsWritten) {
  Options options{.principal = Principal::shared()};
  options.key_path = "/shops/{shop}/orders/{key}/pay";
  const Rules rules(options);
  const auto at = [&](std::string_view target) {
    Request request = post("other");
    request.target = target;
    return rules.examine(request).operation.value();
  };
  const once::Request first = at("/shops/a/orders/o-1/pay");
  EXPECT_THAT(first.key.stored(), HasSubstr("/shops/a/orders/{key}/pay"));
  for (const std::string target : {"/shops/a/orders/o%2D1/pay", "/shops/a/orders/o%2d1/pay", "/shops/a/orders/o-1/pay/",
                                   "/Shops/a/Orders/o-1/Pay", "/shops/%61/orders/o-1/pay"}) {
    EXPECT_EQ(at(target).key, first.key) << target;
    EXPECT_NE(at(target).fingerprint, first.fingerprint) << target;
  }
  for (const std::string target :
       {"/shops/b/orders/o-1/pay", "/shops/A/orders/o-1/pay", "/shops/a/orders/o-2/pay", "/shops/a/orders/O-1/pay"}) {
    EXPECT_NE(at(target).key, first.key) << target;
  }
}

TEST(Rules, TheKeyInAForm) {
  Options options = with_route();
  options.key_form = "request";
  const Rules rules(options);
  const auto form = [](std::string_view type, std::string_view body) {
    Request request = post("other", body);
    if (!type.empty()) request.headers.push_back({"Content-Type", type});
    return request;
  };
  constexpr std::string_view pairs = "application/x-www-form-urlencoded";
  constexpr std::string_view parts = "multipart/form-data; boundary=b";
  EXPECT_EQ(rules.examine_head(form(pairs, "")).kind, Kind::operation) << "only the body can tell";
  EXPECT_TRUE(stored_key(rules, form(pairs, "request=o-1&cents=5")).ends_with("#o-1"));
  EXPECT_TRUE(
      stored_key(rules, form(parts, "--b\r\nContent-Disposition: form-data; name=\"request\"\r\n\r\no-1\r\n--b--"))
          .ends_with("#o-1"));
  struct Case {
    std::string_view type;
    std::string_view body;
    std::string problem;
  };
  for (const Case& c : std::vector<Case>{{pairs, "", "key-missing"},
                                         {pairs, "cents=5", "key-missing"},
                                         {pairs, "request=", "key-invalid"},
                                         {pairs, "request=[object%20Object]", "key-invalid"},
                                         {pairs, "request=a&request=b", "keys-differ"},
                                         {parts, "--b\r\nContent-Disposition: form-data", "body-unreadable"},
                                         {"application/json", R"({"request":"a"})", "body-unreadable"},
                                         {"", "request=a", "body-unreadable"}}) {
    SCOPED_TRACE(c.body);
    expect_problem(rules.examine(form(c.type, c.body)).answer, 400, c.problem);
  }
}

TEST(Rules, KeysOfAnotherFormAreRefused) {
  Options options = with_route();
  options.key_pattern = "ord_[0-9]+";
  options.key_min_length = 7;
  const Rules rules(options);
  EXPECT_EQ(rules.examine(post("ord_123")).kind, Kind::operation);
  EXPECT_EQ(rules.examine(post("\"ord_123\"")).kind, Kind::operation);
  for (const auto& [key, says] : std::vector<std::pair<std::string, std::string>>{
           {"ord_12", "shorter"}, {"ord_12x", "form"}, {"Ord_123", "form"}, {"undefined", "missing value"}}) {
    SCOPED_TRACE(key);
    for (const Examination& refused : {rules.examine(post(key)), rules.examine_head(post(key))}) {
      expect_problem(refused.answer, 400, "key-invalid");
      EXPECT_THAT(refused.answer.body, HasSubstr(says));
    }
  }
  options.key_field = "id";
  expect_problem(Rules(options).examine(post("", R"({"id":"ord_12x"})")).answer, 400, "key-invalid");
}

TEST(Rules, AnotherHeaderCarriesTheKey) {
  Options options = optional();
  options.key_header = "PayPal-Request-Id";
  Request request = post("k");
  EXPECT_EQ(Rules(options).examine(request).kind, Kind::no_key);
  request.headers.push_back({"paypal-request-id", "p-1"});
  EXPECT_TRUE(stored_key(Rules(options), request).ends_with("#p-1"));
  options.key_header = "webhook-id, PayPal-Request-Id";
  EXPECT_TRUE(stored_key(Rules(options), request).ends_with("#p-1"));
  request.headers.push_back({"Webhook-Id", "p-1"});
  EXPECT_TRUE(stored_key(Rules(options), request).ends_with("#p-1"));
  request.headers.back().value = "p-2";
  expect_problem(Rules(options).examine(request).answer, 400, "keys-differ");
}

TEST(Rules, ABodyOverTheLimitIsRefused) {
  Options options = optional();
  options.max_body_bytes = 10;
  const Rules rules(options);
  EXPECT_EQ(rules.examine(post("k", "0123456789")).kind, Kind::operation);
  expect_problem(rules.examine(post("k", "0123456789a")).answer, 413, "body-too-large");
  EXPECT_EQ(rules.examine(post("", "0123456789a")).kind, Kind::no_key) << "without a key it is not ours to limit";
  for (const std::string_view length : {"11", "18446744073709551616", " 99999999999999999999999 "}) {
    Request request = post("k");
    request.headers.push_back({"content-length", length});
    expect_problem(rules.examine_head(request).answer, 413, "body-too-large");
  }
  for (const std::string_view length : {"10", "0", "", "x", "-1"}) {
    Request request = post("k");
    request.headers.push_back({"Content-Length", length});
    EXPECT_EQ(rules.examine_head(request).kind, Kind::operation) << length;
  }
  options.key_field = "id";
  expect_problem(Rules(options).examine(post("", "0123456789a")).answer, 413, "body-too-large");
}

// One name in several services behind one proxy is several operations.
TEST(Rules, TheHostCountsUnlessItIsSaidNotTo) {
  const auto to = [](std::string_view host, std::string_view target = "/charges") {
    Request request = post("k");
    request.target = target;
    if (!host.empty()) request.headers.push_back({"host", host});
    return request;
  };
  const Rules rules(with_route());
  const Fingerprint first = fingerprint(rules, to("a.example"));
  EXPECT_EQ(fingerprint(rules, to(" A.Example ")), first);
  EXPECT_EQ(fingerprint(rules, to("a.example:8080")), first) << "one proxy of several for the same service";
  EXPECT_EQ(fingerprint(rules, to("[::1]:8080")), fingerprint(rules, to("[::1]")));
  EXPECT_EQ(fingerprint(rules, to("b.example", "http://A.example/charges")), first) << "RFC 9112, section 3.2.2";
  EXPECT_NE(fingerprint(rules, to("b.example")), first);
  EXPECT_NE(fingerprint(rules, to("")), first);
  EXPECT_EQ(stored_key(rules, to("b.example")), stored_key(rules, to("a.example"))) << "so that it is 422";
  Options options = with_route();
  options.ignore_host = true;
  EXPECT_EQ(fingerprint(Rules(options), to("a.example")), fingerprint(Rules(options), to("b.example")));
}

TEST(Rules, EveryStatusHasItsFate) {
  const Rules rules(with_route());
  const std::set<unsigned> released = {401, 403, 407, 408, 409, 421, 425, 429};
  const std::set<unsigned> stored_5xx = {500, 501, 505};
  for (unsigned status = 100; status <= 599; ++status) {
    Fate fate = Fate::ambiguous;
    if ((status >= 200 && status <= 499) || stored_5xx.contains(status)) fate = Fate::store;
    if (released.contains(status)) fate = Fate::release;
    EXPECT_EQ(rules.fate_of(status), fate) << status;
  }
  Options options = with_route();
  options.fates = {{404, Fate::release}, {503, Fate::release}, {502, Fate::store}};
  const Rules own(options);
  EXPECT_EQ(own.fate_of(404), Fate::release);
  EXPECT_EQ(own.fate_of(503), Fate::release);
  EXPECT_EQ(own.fate_of(502), Fate::store);
  EXPECT_EQ(own.fate_of(504), Fate::ambiguous);
}

TEST(Rules, TheServiceMaySayTheFate) {
  const auto answer = [](unsigned status, std::vector<std::string> words) {
    Answer out = text_answer(status);
    for (std::string& word : words) out.headers.push_back({"once-fate", std::move(word)});
    return out;
  };
  Options options = with_route();
  EXPECT_EQ(Rules(options).fate_of(answer(500, {"release"})), Fate::store) << "off by default";
  options.service_fate = true;
  const Rules rules(options);
  EXPECT_EQ(rules.fate_of(answer(500, {})), Fate::store);
  EXPECT_EQ(rules.fate_of(answer(502, {})), Fate::ambiguous);
  EXPECT_EQ(rules.fate_of(answer(500, {"release"})), Fate::release);
  EXPECT_EQ(rules.fate_of(answer(200, {" release\t"})), Fate::release);
  EXPECT_EQ(rules.fate_of(answer(502, {"complete"})), Fate::store);
  EXPECT_EQ(rules.fate_of(answer(200, {"hold"})), Fate::hold);
  for (const std::string word : {"", "Release", "store", "release, release", "complete; q=1"}) {
    EXPECT_EQ(rules.fate_of(answer(200, {word})), Fate::hold) << word;
  }
  EXPECT_EQ(rules.fate_of(answer(200, {"release", "release"})), Fate::hold) << "twice";
}

TEST(Rules, EveryProblemIsWellFormed) {
  Options options = with_route();
  options.docs_url = "https://docs.example.com/idempotency";
  const Rules rules(options);
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(Problem::request_malformed); ++i) {
    const auto problem = static_cast<Problem>(i);
    const Answer answer = rules.problem(problem);
    const json body = json::parse(answer.body);
    EXPECT_EQ(body.at("type"), options.docs_url + "#" + std::string(to_string(problem)));
    EXPECT_EQ(body.at("status"), answer.status);
    EXPECT_EQ(answer.status, status_of(problem));
    EXPECT_TRUE(names.insert(std::string(to_string(problem))).second);
    if (problem != Problem::key_invalid) {
      EXPECT_FALSE(body.at("detail").get<std::string>().empty()) << to_string(problem);
    }
    const bool again = problem == Problem::in_progress || problem == Problem::store_unavailable ||
                       problem == Problem::claim_lost || problem == Problem::not_recorded;
    EXPECT_EQ(values(answer, "Retry-After").size(), again ? 1U : 0U) << to_string(problem);
  }
}

// A problem's type leads to its section.
TEST(Rules, EveryProblemHasItsSectionInTheDocs) {
  std::ifstream file(ONCE_DOCS "/http.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::size_t sections = 0;
  for (auto at = page.find("\n### "); at != std::string::npos; at = page.find("\n### ", at + 1)) ++sections;
  EXPECT_EQ(sections, static_cast<std::size_t>(Problem::request_malformed) + 1);
  for (int i = 0; i <= static_cast<int>(Problem::request_malformed); ++i) {
    const auto problem = static_cast<Problem>(i);
    const std::string section =
        "\n### " + std::string(to_string(problem)) + "\n\n" + std::to_string(status_of(problem)) + ". ";
    EXPECT_THAT(page, HasSubstr(section));
  }
}

TEST(Rules, RetryAfterIsInWholeSecondsRoundedUpAndLimited) {
  const Rules rules(with_route());
  struct Case {
    Millis wait;
    const char* header;
  };
  for (const Case& c : {Case{Millis{1}, "1"}, Case{Millis{1000}, "1"}, Case{Millis{1001}, "2"}, Case{Millis{4999}, "5"},
                        Case{Millis{30'000}, "5"}, Case{Millis{0}, "5"}}) {
    EXPECT_THAT(values(rules.problem(Problem::in_progress, c.wait), "Retry-After"), ElementsAre(c.header));
  }
}

Record completed(Result result) {
  Record record;
  record.state = once::State::completed;
  record.result = std::move(result);
  return record;
}

TEST(Rules, AReplayIsTheAnswerAndIsMarked) {
  const Rules rules(with_route());
  const Answer first{.status = 201,
                     .reason = "Created",
                     .headers = {{"X-Tag", "a"}, {"Content-Type", "text/plain"}, {"X-Tag", "b"}},
                     .body = std::string("a\0b\xFF", 4)};
  Answer expected = first;
  expected.headers.push_back({"Idempotent-Replayed", "true"});
  EXPECT_EQ(rules.replay(completed(rules.encode(first))), expected);
}

TEST(Rules, TheMarkIsReadableForScriptsThatMayReadTheAnswer) {
  const Rules rules(with_route());
  struct Case {
    Headers headers;
    std::vector<std::string> exposed;
  };
  const std::string mark = "Idempotent-Replayed";
  const Header origin = {"access-control-allow-origin", "https://shop.example"};
  for (const Case& c : std::vector<Case>{
           {{}, {}},
           {{{"Access-Control-Expose-Headers", "X-A"}}, {"X-A"}},  // Without a permitted origin it is nobody's.
           {{origin}, {mark}},
           {{origin, {"Access-Control-Expose-Headers", "X-A, X-B"}}, {"X-A, X-B, " + mark}},
           {{origin, {"Access-Control-Expose-Headers", ""}}, {mark}},
           {{origin, {"Access-Control-Expose-Headers", "*"}}, {"*, " + mark}},
           {{origin, {"Access-Control-Expose-Headers", "X-A,idempotent-replayed"}}, {"X-A,idempotent-replayed"}},
           {{origin, {"Access-Control-Expose-Headers", "X-A"}, {"access-control-expose-headers", "X-B"}},
            {"X-A", "X-B, " + mark}}}) {
    const Answer answer = rules.replay(completed(rules.encode(text_answer(200, "", c.headers))));
    EXPECT_TRUE(is_replay(answer));
    EXPECT_EQ(values(answer, "Access-Control-Expose-Headers"), c.exposed) << ::testing::PrintToString(c.headers);
  }
}

TEST(Rules, ATombstoneIsAClearAnswer) {
  Options options = with_route();
  options.max_answer_bytes = 200;
  const Rules rules(options);
  const Result result = rules.encode(
      text_answer(201, std::string(1000, 'x'),
                  {{"Location", "/charges/7"}, {"Content-Type", "text/plain"}, {"Access-Control-Allow-Origin", "*"}}));
  Answer answer = rules.replay(completed(result));
  expect_problem(answer, 410, "answer-not-kept");
  EXPECT_TRUE(is_replay(answer));
  EXPECT_EQ(json::parse(answer.body).at("original_status"), 201);
  EXPECT_EQ(json::parse(answer.body).at("original_bytes"), 1000);
  EXPECT_THAT(values(answer, "Location"), ElementsAre("/charges/7"));
  EXPECT_THAT(values(answer, "Access-Control-Expose-Headers"), ElementsAre("Idempotent-Replayed"));

  answer = rules.replay(completed(rules.encode_tombstone(text_answer(200), 0)));
  EXPECT_FALSE(json::parse(answer.body).contains("original_bytes"));

  Result by_the_store;  // The engine drops what no store can hold.
  by_the_store.placement = Placement::dropped;
  by_the_store.content_type = answer_content_type;
  answer = rules.replay(completed(by_the_store));
  expect_problem(answer, 410, "answer-not-kept");
  EXPECT_TRUE(is_replay(answer));
}

TEST(Rules, WhatAnOperatorHasDecidedIsReplayed) {
  const Rules rules(with_route());
  Answer answer = rules.replay(completed(Result::inlined(R"({"id":"ch_1"})", "application/json")));
  EXPECT_EQ(answer.status, 200U);
  EXPECT_EQ(answer.body, R"({"id":"ch_1"})");
  EXPECT_THAT(values(answer, "Content-Type"), ElementsAre("application/json"));
  EXPECT_TRUE(is_replay(answer));
  answer = rules.replay(completed(Result::inlined("plain", "a\r\nb")));
  EXPECT_THAT(values(answer, "Content-Type"), IsEmpty());

  Record failed;
  failed.state = once::State::failed;
  failed.failure = {"declined", "by hand"};
  answer = rules.replay(failed);
  expect_problem(answer, 500, "operation-failed");
  EXPECT_TRUE(is_replay(answer));
}

TEST(Rules, ARecordThatCannotBeReadIsAnError) {
  const Answer answer =
      Rules(with_route()).replay(completed(Result::inlined("junk", std::string(answer_content_type))));
  expect_problem(answer, 500, "record-unreadable");
  EXPECT_FALSE(is_replay(answer));
}

TEST(Rules, TheAnswerToEachBegin) {
  const Rules rules(with_route());
  const auto answer = [&](Begin::Kind kind, ErrorKind error = {}) {
    Begin begin;
    begin.kind = kind;
    begin.retry_after = Millis{2'500};
    begin.error.kind = error;
    return rules.answer_for(begin);
  };
  expect_problem(answer(Begin::Kind::conflict), 409, "in-progress");
  EXPECT_THAT(values(answer(Begin::Kind::conflict), "Retry-After"), ElementsAre("3"));
  expect_problem(answer(Begin::Kind::mismatch), 422, "key-reused");
  expect_problem(answer(Begin::Kind::unknown), 409, "outcome-unknown");
  expect_problem(answer(Begin::Kind::error, ErrorKind::unavailable), 503, "store-unavailable");
  expect_problem(answer(Begin::Kind::error, ErrorKind::in_doubt), 503, "store-unavailable");
  EXPECT_THAT(values(answer(Begin::Kind::error), "Retry-After"), ElementsAre("5"));
  expect_problem(answer(Begin::Kind::error, ErrorKind::corrupt), 500, "record-unreadable");
  expect_problem(answer(Begin::Kind::error, ErrorKind::misuse), 503, "store-unavailable");
  EXPECT_THAT(values(answer(Begin::Kind::error, ErrorKind::misuse), "Retry-After"), ElementsAre("5"));
  Begin begin;
  begin.kind = Begin::Kind::error;
  begin.error.kind = ErrorKind::misuse;
  begin.record = std::make_shared<const Record>();
  expect_problem(rules.answer_for(begin), 503, "store-unavailable");  // It refused to write over the record.
  begin.is_unreadable = true;                                         // Its result cannot be fetched.
  expect_problem(rules.answer_for(begin), 500, "record-unreadable");
  begin.is_unreadable = false;
  begin.error.kind = ErrorKind::unavailable;
  expect_problem(rules.answer_for(begin), 503, "store-unavailable");
  EXPECT_THROW(answer(Begin::Kind::claimed), Exception);
}

TEST(Rules, OptionsThatCannotBeAreRefusedByName) {
  struct Case {
    std::function<void(Options&)> change;
    const char* says;
  };
  for (const Case& c : std::vector<Case>{{[](Options& o) { o.methods = {}; }, "methods"},
                                         {[](Options& o) { o.methods = {"PO ST"}; }, "methods"},
                                         {[](Options& o) { o.methods = {std::string(33, 'P')}; }, "methods"},
                                         {[](Options& o) {
                                            o.methods = {"PUT", "Patch"};
                                          },
                                          "methods has 'Patch'"},
                                         {[](Options& o) { o.methods = {"m-search"}; }, "write M-SEARCH"},
                                         {[](Options& o) { o.methods = {"POTS"}; }, "'POTS', which is no known method"},
                                         {[](Options& o) {
                                            o.methods = {"POST", "*"};
                                          },
                                          "'*', which is no known method"},
                                         {[](Options& o) { o.route = "/a b"; }, "route"},
                                         {[](Options& o) { o.route = std::string(129, 'a'); }, "route"},
                                         {[](Options& o) { o.scope = std::string(129, 'a'); }, "scope"},
                                         {[](Options& o) { o.scope = std::string(43, '%'); }, "scope"},
                                         {[](Options& o) { o.key_header = ""; }, "key_header"},
                                         {[](Options& o) { o.key_header = "a:"; }, "key_header"},
                                         {[](Options& o) { o.key_header = "a, b c"; }, "key_header"},
                                         {[](Options& o) { o.key_field = "a["; }, "expression"},
                                         {[](Options& o) { o.fingerprint = "a["; }, "expression"},
                                         {[](Options& o) { o.key_field = o.key_form = "a"; }, "only one"},
                                         {[](Options& o) { o.key_path = "/orders/{id}"; }, "key_path"},
                                         {[](Options& o) { o.key_path = "orders/{key}"; }, "key_path"},
                                         {[](Options& o) { o.key_path = "/{key}/{key}"; }, "key_path"},
                                         {[](Options& o) { o.key_path = "/a//{key}"; }, "key_path"},
                                         {[](Options& o) { o.key_pattern = "("; }, "key_pattern"},
                                         {[](Options& o) { o.key_min_length = 0; }, "key_min_length"},
                                         {[](Options& o) { o.key_min_length = 256; }, "key_min_length"},
                                         {[](Options& o) { o.principal = Principal::header("a b"); }, "principal"},
                                         {[](Options& o) { o.principal = Principal::unsaid(); }, "principal"},
                                         {[](Options& o) { o.principal = Principal::header("dpop"); }, "new in each"},
                                         {[](Options& o) { o.challenge = "Bearer\r\nX: y"; }, "challenge"},
                                         {[](Options& o) { o.fingerprint_headers = {""}; }, "fingerprint_headers"},
                                         {[](Options& o) { o.never_store = {"\n"}; }, "never_store"},
                                         {[](Options& o) {
                                            o.fates = {{600, Fate::store}};
                                          },
                                          "fates"},
                                         {[](Options& o) { o.retry_after = Millis{999}; }, "retry_after"},
                                         {[](Options& o) { o.answer_timeout = Millis{-1}; }, "answer_timeout"},
                                         {[](Options& o) { o.answer_timeout = Millis{86'400'001}; }, "answer_timeout"},
                                         {[](Options& o) { o.docs_url = "https://a/\"b"; }, "docs_url"},
                                         {[](Options& o) { o.docs_url = "https://a/#b"; }, "docs_url"},
                                         {[](Options& o) { o.policy.emplace().lease = Millis{1}; }, "lease"}}) {
    Options options = by_authorization();
    c.change(options);
    SCOPED_TRACE(c.says);
    try {
      const Rules rules(options);
      ADD_FAILURE() << "was taken";
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_THAT(error.what(), HasSubstr(c.says));
    }
  }
}

}  // namespace rules_test
}  // namespace once::http
