// Which reloads make another key of one that there is.
#include "settings/key_change.hpp"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace once::cli {
namespace key_change_test {

using http::Options;
using http::Principal;
using http::Routes;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Options options() { return {.principal = Principal::header("X-Api-Key")}; }

Options with(const std::function<void(Options&)>& change) {
  Options changed = options();
  change(changed);
  return changed;
}

std::vector<std::string> lines(const Routes& before, const Routes& after) { return key_change(before, after).lines; }

TEST(KeyChange, WhatNamesAnOperationIsNoticed) {
  EXPECT_THAT(lines(options(), options()), IsEmpty());
  EXPECT_THAT(lines(options(), with([](Options& o) { o.scope = "shop"; })),
              ElementsAre("paths without a route: scope was empty, and would be 'shop'"));
  EXPECT_THAT(lines(options(), with([](Options& o) { o.route = "pay"; })),
              ElementsAre("paths without a route: operation was each path's own, and would be 'pay'"));
  EXPECT_THAT(
      lines(options(), with([](Options& o) { o.principal = Principal::shared(); })),
      ElementsAre("paths without a route: who a client is was header x-api-key, and would be one for all clients"));
  EXPECT_THAT(lines(options(), with([](Options& o) { o.principal = Principal::given("the certificate"); })),
              ElementsAre("paths without a route: who a client is was header x-api-key, and would be the certificate"));
  EXPECT_THAT(
      lines(options(), with([](Options& o) { o.key_header = "X-Id"; })),
      ElementsAre("paths without a route: the key's place was header idempotency-key, and would be header x-id"));
  EXPECT_THAT(lines(options(), with([](Options& o) { o.key_field = "id"; })), SizeIs(1));
  EXPECT_THAT(lines(options(), with([](Options& o) { o.methods = {"POST"}; })),
              ElementsAre("paths without a route: PATCH was protected, and would not be"));
  EXPECT_THAT(lines(options(), with([](Options& o) { o.protect = false; })), SizeIs(2));
}

TEST(KeyChange, TheRestIsNot) {
  EXPECT_THAT(lines(options(), with([](Options& o) {
                      o.policy.emplace().retention = std::chrono::hours(1);
                      o.on_ambiguous = OnLapse::takeover;
                      o.ignore_host = o.ignore_body = true;
                      o.fates = {{503, http::Fate::release}};
                      o.methods.emplace_back("PUT");
                      o.key_header = "IDEMPOTENCY-KEY";
                      o.principal = Principal::header("x-api-key");
                    })),
              IsEmpty());
  EXPECT_THAT(lines(with([](Options& o) { o.protect = false; }), options()), IsEmpty()) << "nothing had a key";
}

// A route that comes, goes or begins to count for a path takes it from another.
TEST(KeyChange, EachPathIsComparedWithWhatItHad) {
  const Options pay = with([](Options& o) { o.route = "pay"; });
  const Routes plain(options());
  EXPECT_THAT(lines(plain, {options(), {{"/charges", options()}}}), IsEmpty());
  EXPECT_THAT(lines(plain, {options(), {{"/charges", pay}}}),
              ElementsAre("paths without a route: operation was each path's own, and would be 'pay'"));
  EXPECT_THAT(lines({options(), {{"/charges", pay}}}, plain),
              ElementsAre("route /charges: operation was 'pay', and would be each path's own"));
  EXPECT_THAT(lines({options(), {{"/v1/*", pay}}}, {options(), {{"/V1/*", pay}, {"/v1/refunds", options()}}}),
              ElementsAre("route /v1/*: operation was 'pay', and would be each path's own"));
  // Each by itself leaves the other's paths alone; they meet in /orders/pay.
  EXPECT_THAT(lines({options(), {{"/orders/{id}", options()}}}, {options(), {{"/{kind}/pay", pay}}}),
              ElementsAre("paths without a route: operation was each path's own, and would be 'pay'",
                          "route /orders/{id}: operation was each path's own, and would be 'pay'"));
  EXPECT_THAT(lines({options(), {{"/orders/{id}", pay}}}, {options(), {{"/orders/{order}", pay}}}), IsEmpty());
  EXPECT_THAT(lines({options(), {{"/*", pay}}}, {pay, {}}), IsEmpty());
}

TEST(KeyChange, TheWordIsForOneChangeAlone) {
  const Options shop = with([](Options& o) { o.scope = "shop"; });
  const Options stall = with([](Options& o) { o.scope = "stall"; });
  const std::string word = key_change(options(), shop).word;
  EXPECT_THAT(word, SizeIs(12));
  EXPECT_EQ(key_change(options(), shop).word, word);
  EXPECT_NE(key_change(options(), stall).word, word);
  EXPECT_NE(key_change(shop, options()).word, word);
  EXPECT_EQ(key_change(options(), options()).word, "");
}

}  // namespace key_change_test
}  // namespace once::cli
