// Which route a path belongs to, and which routes cannot be.
#include <once/frontends/http/router.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/frontends/http/endpoint.hpp>
#include <once/stores/memory.hpp>

#include "frontends/http/readings.hpp"

namespace once::http {
namespace router_test {

Options by_authorization() { return {.principal = Principal::header("Authorization")}; }

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Rules of their own: the name is one of them.
Route route(std::string path, std::vector<std::string> methods = {"POST", "PATCH"}) {
  Route made{.path = path, .options = {.principal = Principal::shared()}};
  made.options.scope = std::move(path);
  made.options.methods = std::move(methods);
  return made;
}

std::vector<Route> routes(const std::vector<std::string>& paths) {
  std::vector<Route> made;
  for (const std::string& path : paths) made.push_back(route(path));
  return made;
}

// The path of the route; "-": none of them; "?": unclear.
std::string found(const Router& router, const std::string& target, const std::string& method = "POST") {
  const auto index = router.find(method, target);
  if (!index) return "?";
  const auto& all = router.routes().routes;
  return *index == all.size() ? "-" : all[*index].path;
}

TEST(Router, PatternsMatchSegmentBySegment) {
  const Router router({by_authorization(), routes({"/charges", "/orders/{id}", "/orders/{id}/pay", "/v1/*", "/"})});
  EXPECT_EQ(found(router, "/charges"), "/charges");
  EXPECT_EQ(found(router, "/charges/"), "/charges");
  EXPECT_EQ(found(router, "/Charges?a=b/v1/"), "/charges");
  EXPECT_EQ(found(router, "http://shop/charges?a"), "/charges");
  EXPECT_EQ(found(router, "/charges/1"), "-");
  EXPECT_EQ(found(router, "/charge"), "-");
  EXPECT_EQ(found(router, "/orders/17"), "/orders/{id}");
  EXPECT_EQ(found(router, "/orders/17/pay"), "/orders/{id}/pay");
  EXPECT_EQ(found(router, "/orders"), "-");
  EXPECT_EQ(found(router, "/v1"), "/v1/*");
  EXPECT_EQ(found(router, "/v1/"), "/v1/*");
  EXPECT_EQ(found(router, "/v1/a/b/c"), "/v1/*");
  EXPECT_EQ(found(router, "/v10"), "-");
  EXPECT_EQ(found(router, "/"), "/");
  EXPECT_EQ(found(router, "http://shop"), "/");
  EXPECT_EQ(found(router, "*", "OPTIONS"), "-");
  EXPECT_EQ(found(router, "charges"), "?");
}

TEST(Router, TheMostSpecificOneCountsInAnyOrder) {
  std::vector<std::string> paths{"/*", "/v1/*", "/v1/{x}", "/v1/orders/*", "/v1/orders/pay"};
  std::ranges::sort(paths);
  int orders = 0;
  do {
    const Router router({by_authorization(), routes(paths)});
    ASSERT_EQ(found(router, "/else"), "/*");
    ASSERT_EQ(found(router, "/v1"), "/v1/*");
    ASSERT_EQ(found(router, "/v1/orders"), "/v1/orders/*");
    ASSERT_EQ(found(router, "/v1/orders/pay"), "/v1/orders/pay");
    ASSERT_EQ(found(router, "/v1/orders/pay/now"), "/v1/orders/*");
    ASSERT_EQ(found(router, "/v1/other"), "/v1/{x}");
    ASSERT_EQ(found(router, "/v1/other/thing"), "/v1/*");
    ASSERT_EQ(found(router, "/v1/other/thing/now"), "/v1/*");
  } while (++orders < 500 && std::ranges::next_permutation(paths).found);
}

TEST(Router, OnePathMayHaveRoutesByMethod) {
  const Router router({by_authorization(), {route("/orders", {"POST"}), route("/orders/", {"PUT", "DELETE"})}});
  EXPECT_EQ(router.find("POST", "/orders"), 0U);
  EXPECT_EQ(router.find("DELETE", "/orders"), 1U);
  EXPECT_EQ(router.find("GET", "/orders"), 0U);     // Passes through by either.
  EXPECT_EQ(router.find("delete", "/orders"), 1U);  // To be refused by its rules.
}

std::vector<std::string> faults(const std::vector<Route>& all) {
  std::vector<std::string> texts;
  for (const auto& fault : Router::faults(all)) texts.push_back(std::to_string(fault.route) + ": " + fault.text);
  return texts;
}

TEST(Router, TwoPathsThatCrossAreRefused) {
  EXPECT_THAT(faults(routes({"/{a}/pay", "/orders/{b}"})),
              UnorderedElementsAre("1: the paths '/orders/{b}' and '/{a}/pay' both match /orders/pay, and neither is "
                                   "more specific"));
  EXPECT_THAT(faults(routes({"/orders/*", "/{a}/pay"})), UnorderedElementsAre(HasSubstr("both match /orders/pay")));
  EXPECT_THAT(faults(routes({"/{a}/*", "/{b}/x/{c}/y", "/q/*"})),
              UnorderedElementsAre(HasSubstr("2: the paths '/q/*' and '/{b}/x/{c}/y' both match /q/x/x/y")));
  EXPECT_THAT(faults(routes({"/a/{b}/c", "/a/b/*", "/x"})), UnorderedElementsAre(HasSubstr("both match /a/b/c")));
  EXPECT_THAT(faults(routes({"/a/*", "/b/*", "/a/{x}", "/a/b", "/{x}", "/*", "/a"})), IsEmpty());
}

TEST(Router, TwoRoutesOfOnePathNeedMethodsOfTheirOwn) {
  EXPECT_THAT(faults({route("/a/{x}"), route("/A/{y}/")}), UnorderedElementsAre(HasSubstr("is the same as '/a/{x}'")));
  EXPECT_THAT(faults({route("/a", {"POST"}), route("/a", {"PUT"})}), IsEmpty());
  std::vector<Route> open{route("/a", {"POST"}), route("/a", {"PUT"})};
  open[1].options.protect = false;
  EXPECT_THAT(faults(open), UnorderedElementsAre(HasSubstr("1: the path '/a' is the same")));
}

TEST(Router, WhatIsNoPatternIsRefused) {
  for (const char* const path :
       {"",     "charges", "/a//b", "/a/*/b", "/a*", "/{}",    "/{a}b", "/a{b}",     "/a b", "/a%20", "/a;b",
        "/a?b", "/a#b",    "/a\\b", "/a+b",   "/..", "/a/./b", "/a.",   "/\xc3\xa9", "//",   "/{a b}"}) {
    const auto all = faults(routes({path, "/fine"}));
    EXPECT_EQ(all.size(), 1U) << path;
    EXPECT_THROW(Router({by_authorization(), routes({path})}), Exception) << path;
  }
  EXPECT_THAT(faults(routes({"/" + std::string(2000, 'x')})), UnorderedElementsAre(HasSubstr("1024 bytes")));
  EXPECT_THAT(faults(std::vector<Route>(1001, route("/a"))), UnorderedElementsAre(HasSubstr("more than 1000 routes")));
}

TEST(Router, APathWithMoreThanOneReadingIsUnclearWhereRulesDiffer) {
  std::vector<Route> all = routes({"/charges", "/public/*", "/files/{name}", "/a.b"});
  const Router router({{.principal = Principal::shared()}, all});
  for (const char* const path : {"/public/../charges",
                                 "/public/%2e%2e/charges",
                                 "/public/..;/charges",
                                 "/public/..%2fcharges",
                                 "//charges",
                                 "/charges;x=1",
                                 "/charges%2f",
                                 "/charges%2F.",
                                 "/%63harges",
                                 "/charges%00",
                                 "/charges.",
                                 "/charges.json",
                                 "/charges%20",
                                 "/charges+",
                                 "/charges%3fa",
                                 "/charges%23",
                                 "/public/%252e%252e/charges",
                                 "/public\\..\\charges",
                                 "/charge\xc5\xbf",
                                 "/public/%ef%bc%8e%ef%bc%8e/charges",
                                 "/public/%c0%ae%c0%ae/charges",
                                 "/charges#x",
                                 "/%",
                                 "/files/a%2fb",

                                 "/public/.../x",
                                 "/;/charges"}) {
    EXPECT_EQ(found(router, path), "?") << path;
    EXPECT_EQ(found(router, path, "GET"), found(router, "/charges", "GET") == "?" ? "?" : found(router, path, "GET"));
    EXPECT_NE(found(router, path, "GET"), "?") << path;  // By all readings it passes through.
  }
  // All readings of these belong to one route.
  EXPECT_EQ(found(router, "/public/x/../y"), "/public/*");
  EXPECT_EQ(found(router, "/public/a%20b;v=1//c.txt"), "/public/*");
  EXPECT_EQ(found(router, "/public/%e6%97%a5%e6%9c%ac/a"), "/public/*");
  EXPECT_EQ(found(router, "/files/a%20b.pdf"), "/files/{name}");
  EXPECT_EQ(found(router, "/files/caf\xe9"), "/files/{name}");
  EXPECT_EQ(found(router, "/files/100%25"), "/files/{name}");
  EXPECT_EQ(found(router, "/a.b"), "/a.b");  // Written so in the routes.
  EXPECT_EQ(found(router, "/else/x.json"), "-");
  // Rules that are the same need no decision.
  for (Route& each : all) each.options = {.principal = Principal::shared()};
  EXPECT_EQ(found(Router({{.principal = Principal::shared()}, all}), "/public/../charges"), "/public/*");
}

TEST(Router, HugePathsAreNoWork) {
  const Router router({by_authorization(), routes({"/charges", "/public/*"})});
  std::string nested = "%2e";
  for (int i = 0; i < 200; ++i) nested.insert(1, "25");
  EXPECT_EQ(found(router, "/public/" + nested), "?");
  std::string many = "/public";
  for (int i = 0; i < 100'000; ++i) many += "/%2e.;a=b//";
  EXPECT_EQ(found(router, many), "?");
  EXPECT_EQ(found(router, "/public/" + std::string(1'000'000, 'x')), "/public/*");
}

TEST(Readings, ThePathItselfIsTheFirst) {
  EXPECT_TRUE(has_one_reading("/orders/17:cancel/(x)"));
  EXPECT_FALSE(has_one_reading("/orders//17"));
  EXPECT_THAT(readings_of("/a/b").value(), UnorderedElementsAre("/a/b"));
  const auto readings = readings_of("/a/%2e%2e/b").value();
  EXPECT_EQ(readings.front(), "/a/%2e%2e/b");
  EXPECT_THAT(readings, UnorderedElementsAre("/a/%2e%2e/b", "/a/../b", "/b"));
}

TEST(Readings, SomePathsMayLeaveTheirFolder) {
  for (const char* const stays : {"/", "/charges", "/a/b.json", "/a%20b", "/a/../b", "/a;x=1/b", "/caf%C3%A9",
                                  "/v1.0/x", "/a+b", "/a//b", "//a", "/a/./b", "/%61", "/folder/./x", "/%66older/x"}) {
    EXPECT_FALSE(may_leave_folder(stays)) << stays;
  }
  for (const char* const leaves : {"/..", "/../", "/../a", "/%2e%2e/a", "/a/../../b", "/a/..%2f..%2fb", "/..;/b",
                                   "/.%2e/b", "/\\..\\..\\b", "/%252e%252e/b", "/a%zz", "/../folder/x", "/../folder",
                                   "/../parent/x", "/%2e%2e/folder/x", "/..;/parent", "/../folder/../parent/x"}) {
    EXPECT_TRUE(may_leave_folder(leaves)) << leaves;
  }
}

TEST(Endpoints, EachRouteHasItsOwn) {
  Engine engine({.store = stores::make_memory_store()});
  std::vector<Route> all{route("/charges"), route("/health")};
  all[1].options.protect = false;
  Endpoints endpoints(
      engine,
      {{.principal = Principal::shared(), .policy = Policy{.on_missing_key = OnMissingKey::run_unprotected}}, all});
  const auto opened = [&](std::string_view target, std::vector<HeaderView> headers = {}) {
    const Request request{
        .method = "POST", .target = target, .headers = std::move(headers), .body = {}, .principal = {}};
    Endpoint* const endpoint = endpoints.find(request);
    return endpoint == nullptr ? "unclear" : std::string(to_string(endpoint->open(request).kind));
  };
  const std::vector<HeaderView> key{{"Idempotency-Key", "k"}};
  EXPECT_EQ(opened("/charges"), "refused");
  EXPECT_EQ(opened("/charges", key), "claimed");
  EXPECT_EQ(opened("/health", key), "passed");
  EXPECT_EQ(opened("/else"), "unprotected");
  EXPECT_EQ(opened("/health/../charges", key), "unclear");
  EXPECT_EQ(endpoints.unclear().status, 400U);
}

}  // namespace router_test
}  // namespace once::http
