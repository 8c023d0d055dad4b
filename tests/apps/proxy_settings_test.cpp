// The settings of `once proxy`, and their effects.
#include "settings/proxy_settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace once::cli {
namespace proxy_settings_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

const Given least{{"listen", {{"127.0.0.1:0"}}}, {"upstream", {{"http://pay:9000/"}}}, {"no-principal", {{"true"}}}};

Given with(std::string name, Setting::Words words) {
  Given given = least;
  given[std::move(name)].words = std::move(words);
  return given;
}

ProxySettings settled(const Given& given) {
  std::vector<Complaint> complaints;
  ProxySettings settings = settle(given, {}, complaints);
  EXPECT_THAT(complaints, IsEmpty());
  return settings;
}

std::vector<std::string> complaints_about(const Given& given) {
  std::vector<Complaint> complaints;
  settle(given, {}, complaints);
  std::vector<std::string> texts;
  for (const Complaint& complaint : complaints) texts.push_back(to_string(complaint));
  return texts;
}

TEST(ProxySettings, MethodsAreInCapitals) {
  EXPECT_THAT(complaints_about(with("methods", {"PUT", "post"})),
              ElementsAre("--methods: methods has 'post': methods are case-sensitive (RFC 9110, section 9.1): "
                          "write POST"));
}

TEST(ProxySettings, TheEnvironmentCountsWhereNothingElseSaysMore) {
  setenv("ONCE_LEASE", "5m", 1);
  setenv("ONCE_RETENTION", "72h", 1);
  setenv("ONCE_WAIT", "", 1);
  const Given given = merged(given_by_environment(), with("lease", {"7m"}));
  const Policy policy = *settled(given).rules.otherwise.policy;
  EXPECT_EQ(policy.lease, Millis{420'000}) << "a flag or a file says more";
  EXPECT_EQ(policy.retention, Millis{259'200'000});
  EXPECT_FALSE(policy.wait);
  EXPECT_EQ(told_variables(given), "ONCE_RETENTION=72h");
  setenv("ONCE_RETENTION", "long", 1);
  EXPECT_THAT(complaints_about(merged(given_by_environment(), least)),
              ::testing::Contains(StartsWith("ONCE_RETENTION: retention is 'long'; write a whole number")));
  unsetenv("ONCE_LEASE");
  unsetenv("ONCE_RETENTION");
  unsetenv("ONCE_WAIT");
}

TEST(ProxySettings, UsualValuesAreTheLibrarys) {
  ProxySettings settings = settled(least);
  EXPECT_EQ(effective(*settings.rules.otherwise.policy), EffectivePolicy{});
  settings.rules.otherwise.policy.emplace();
  http::Options rules{.principal = http::Principal::shared()};
  rules.policy.emplace();
  rules.answer_timeout = proxy::Timeouts().answer;
  EXPECT_EQ(settings.rules.otherwise, rules);
  const proxy::ProxyOptions options;
  EXPECT_EQ(settings.proxy.max_head_bytes, options.max_head_bytes);
  EXPECT_EQ(settings.proxy.threads, options.threads);
  EXPECT_EQ(settings.proxy.timeouts.idle, options.timeouts.idle);
  EXPECT_EQ(settings.proxy.timeouts.head, options.timeouts.head);
  EXPECT_EQ(settings.proxy.timeouts.body, options.timeouts.body);
  EXPECT_EQ(settings.proxy.timeouts.connect, options.timeouts.connect);
  EXPECT_EQ(settings.proxy.timeouts.answer, options.timeouts.answer);
  EXPECT_EQ(settings.proxy.timeouts.upstream_idle, options.timeouts.upstream_idle);
  EXPECT_EQ(settings.proxy.upstreams.at(0).address.host, "pay");
  EXPECT_EQ(settings.proxy.upstreams.at(0).address.port, 9000);
  EXPECT_EQ(settings.proxy.admin, std::nullopt);
}

TEST(ProxySettings, EachIsTakenOver) {
  EXPECT_EQ(settled(with("admin", {"9100"})).proxy.admin->host, "127.0.0.1");
  EXPECT_EQ(settled(with("admin", {"[::1]:9100"})).proxy.admin->host, "::1");
  EXPECT_EQ(settled(with("optional-key", {"false"})).rules.otherwise.policy->on_missing_key, OnMissingKey::refuse);
  EXPECT_EQ(settled(with("optional-key", {"true"})).rules.otherwise.policy->on_missing_key,
            OnMissingKey::run_unprotected);
  EXPECT_TRUE(settled(with("ignore-query", {"true"})).rules.otherwise.ignore_query);
  EXPECT_TRUE(settled(with("ignore-body", {"true"})).rules.otherwise.ignore_body);
  EXPECT_TRUE(settled(with("ignore-host", {"true"})).rules.otherwise.ignore_host);
  EXPECT_EQ(settled(with("challenge", {"Basic"})).rules.otherwise.challenge, "Basic");
  EXPECT_EQ(settled(with("on-ambiguous", {"takeover"})).rules.otherwise.on_ambiguous, OnLapse::takeover);
  EXPECT_EQ(settled(with("on-store-down", {"run-unprotected"})).rules.otherwise.policy->on_store_down,
            OnStoreDown::run_unprotected);
  EXPECT_EQ(settled(with("on-unrecorded", {"fail"})).rules.otherwise.policy->on_unrecorded, OnUnrecorded::fail);
  EXPECT_EQ(settled(with("lease", {"5m"})).rules.otherwise.policy->lease, Millis{300'000});
  const Policy waiting = *settled(with("wait", {"7s"})).rules.otherwise.policy;
  EXPECT_EQ(waiting.on_conflict, OnConflict::wait);
  EXPECT_EQ(waiting.wait, Millis{7'000});
  EXPECT_EQ(settled(with("wait", {"0s"})).rules.otherwise.policy->on_conflict, OnConflict::fail);
  const auto fates = settled(with("fate", {"502=release", "500,501=ambiguous"})).rules.otherwise.fates;
  EXPECT_EQ(fates, (std::map<unsigned, http::Fate>{
                       {500, http::Fate::ambiguous}, {501, http::Fate::ambiguous}, {502, http::Fate::release}}));
  EXPECT_EQ(settled(with("threads", {"3"})).proxy.threads, 3U);
}

TEST(ProxySettings, AllComplaintsComeAtOnce) {
  EXPECT_THAT(complaints_about({}),
              ElementsAre(StartsWith("--listen is required"), StartsWith("--upstream is required"),
                          StartsWith("nothing says who a client is")));
  EXPECT_THAT(complaints_about({{"listen", {{"nowhere"}}},
                                {"upstream", {{"pay:9000"}}},
                                {"no-principal", {{"true"}}},
                                {"fate", {{"99=store"}}},
                                {"lease", {{"1"}}},
                                {"body-limit", {{"2GiB"}}},
                                {"threads", {{"many"}}}}),
              SizeIs(6));
  EXPECT_THAT(complaints_about(with("threads", {"-1"})),
              ElementsAre("--threads must be a whole number, as in 4, not '-1'"));
  EXPECT_THAT(complaints_about(with("on-ambiguous", {"maybe"})),
              ElementsAre("--on-ambiguous must be hold or takeover, not 'maybe'"));
}

// Without a word, all clients were one, and got one another's answers.
TEST(ProxySettings, NothingStartsBeforeItIsSaidWhoAClientIs) {
  Given nobody = least;
  nobody.erase("no-principal");
  const auto about = [&](const Given& change) { return complaints_about(merged(nobody, change)); };
  for (const Given& change : {Given{}, Given{{"no-principal", {{"false"}}}}}) {
    const std::vector<std::string> complaints = about(change);
    ASSERT_THAT(complaints, SizeIs(1));
    for (const char* const way :
         {"principal-header NAME", "principal-jwt FILE", "principal-certificate", "no-principal"}) {
      EXPECT_THAT(complaints[0], HasSubstr(way));
    }
  }
  EXPECT_THAT(about({{"principal-header", {{"X-Api-Key"}}}}), IsEmpty());
  EXPECT_THAT(about({{"principal-header", {{"X-Api-Key"}}}, {"no-principal", {{"true"}}}}),
              ElementsAre("only one setting may say who a client is, not two: principal-header and no-principal"));
  EXPECT_THAT(about({{"principal-header", {.words = {}, .place = {}}}}), ElementsAre(HasSubstr("needs a header")));
  EXPECT_THAT(about({{"principal-header", {{"DPoP"}}}}),
              ElementsAre(StartsWith("--principal-header: principal has 'DPoP', which is new in each request")));
  for (const char* const name :
       {"Signature-Input", "Stripe-Signature", "X-HUB-SIGNATURE-256", "X-Request-Id", "traceparent"}) {
    EXPECT_THAT(about({{"principal-header", {{name}}}}), ElementsAre(HasSubstr("which is new in each request")))
        << name;
  }
  EXPECT_THAT(about({{"principal-jwt", {{"/nowhere/keys"}}}}),
              ElementsAre(HasSubstr("key_file /nowhere/keys cannot be read: No such file")));
  // What passes through unprotected belongs to nobody.
  EXPECT_THAT(about({{"protect", {{"false"}}}}), IsEmpty());
}

TEST(ProxySettings, ARouteHasClientsOfItsOwn) {
  std::vector<Complaint> complaints;
  Given given = least;
  given["principal-header"].words = {"X-Api-Key"};
  given.erase("no-principal");
  const std::vector<GivenRoute> routes{
      {.path = "/a", .place = {}, .rules = {{"no-principal", {.words = {"true"}, .place = {}}}}},
      {.path = "/b", .place = {}, .rules = {}},
      {.path = "/c", .place = {}, .rules = {{"principal-header", {.words = {"X-User", "X-Tenant"}, .place = {}}}}}};
  const ProxySettings settings = settle(given, routes, complaints);
  EXPECT_THAT(complaints, IsEmpty());
  EXPECT_EQ(settings.rules.otherwise.principal, http::Principal::header("X-Api-Key"));
  EXPECT_EQ(settings.rules.routes.at(0).options.principal, http::Principal::shared());
  EXPECT_EQ(settings.rules.routes.at(1).options.principal, http::Principal::header("X-Api-Key"));
  EXPECT_EQ(settings.rules.routes.at(2).options.principal, http::Principal::headers({"X-User", "X-Tenant"}));
}

TEST(ProxySettings, RoutesWithTheSameKeysHaveTheSamePrincipal) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() / ("once-jwk-" + std::to_string(getpid()));
  std::ofstream(file) << R"({"kty":"oct","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"})";
  std::vector<Complaint> complaints;
  Given given = least;
  given.erase("no-principal");
  given["principal-jwt"].words = {file.string()};
  const ProxySettings settings =
      settle(given,
             {{.path = "/a", .place = {}, .rules = {}},
              {.path = "/b", .place = {}, .rules = {{"principal-jwt-claim", {.words = {"client_id"}, .place = {}}}}}},
             complaints);
  std::filesystem::remove(file);
  EXPECT_THAT(complaints, IsEmpty());
  EXPECT_EQ(settings.rules.otherwise.principal.what(), "claim sub of the JWT in Authorization");
  EXPECT_EQ(settings.rules.routes.at(0).options.principal, settings.rules.otherwise.principal);
  EXPECT_EQ(settings.rules.routes.at(1).options.principal.what(), "claim client_id of the JWT in Authorization");
}

TEST(ProxySettings, WhatTheLibraryRefusesIsSaidOfTheSetting) {
  EXPECT_THAT(complaints_about(with("lease", {"1ms"})), ElementsAre(StartsWith("--lease: policy lease is 1 ms; ")));
  EXPECT_THAT(complaints_about(with("idle-timeout", {"25h"})),
              ElementsAre("--idle-timeout: a timeout must be 1ms to 24h"));
  EXPECT_THAT(complaints_about(with("key-field", {"a["})), ElementsAre(StartsWith("--key-field: ")));
  EXPECT_THAT(complaints_about(with("route", {"a b"})), ElementsAre("--route: route contains a space"));
}

// A route, or a flag, that says where the key is says all of it.
TEST(ProxySettings, TheKeysPlaceReplacesAnInheritedOne) {
  std::vector<Complaint> complaints;
  const std::vector<GivenRoute> routes{
      {.path = "/a", .place = {}, .rules = {{"key-query", {.words = {"id"}, .place = {}}}}},
      {.path = "/b", .place = {}, .rules = {{"key-header", {.words = {"X-Id"}, .place = {}}}}},
      {.path = "/c", .place = {}, .rules = {{"key-pattern", {.words = {"[0-9]+"}, .place = {}}}}}};
  const ProxySettings settings = settle(with("key-field", {"order.id"}), routes, complaints);
  EXPECT_THAT(complaints, IsEmpty());
  EXPECT_EQ(settings.rules.routes.at(0).options.key_field, "");
  EXPECT_EQ(settings.rules.routes.at(0).options.key_query, "id");
  EXPECT_TRUE(settings.rules.routes.at(1).options.key_is_in_header());
  EXPECT_EQ(settings.rules.routes.at(1).options.key_header, "X-Id");
  EXPECT_EQ(settings.rules.routes.at(2).options.key_field, "order.id");
  Given both = with("key-field", {"id"});
  both["key-form"].words = {"id"};
  EXPECT_THAT(complaints_about(both), ElementsAre(HasSubstr("only one may say where the key is")));
  EXPECT_THAT(complaints_about(with("key-pattern", {"("})), ElementsAre(StartsWith("--key-pattern: ")));
  EXPECT_THAT(complaints_about(with("key-min-length", {"256"})), ElementsAre(StartsWith("--key-min-length: ")));
  EXPECT_THAT(complaints_about(with("fingerprint", {"a["})), ElementsAre(StartsWith("--fingerprint: ")));
}

TEST(ProxySettings, AKeyPathFitsItsRoute) {
  const auto about = [](const std::string& path, const std::string& key_path) {
    std::vector<Complaint> complaints;
    settle(with("optional-key", {"true"}),
           {{.path = path, .place = {}, .rules = {{"key-path", {.words = {key_path}, .place = {}}}}}}, complaints);
    std::vector<std::string> texts;
    for (const Complaint& complaint : complaints) texts.push_back(to_string(complaint));
    return texts;
  };
  for (const char* const path : {"/orders/{id}/pay", "/orders/*", "/*", "/Orders/{key}/pay/", "/{a}/{b}/{c}"}) {
    EXPECT_THAT(about(path, "/orders/{key}/pay"), IsEmpty()) << path;
  }
  EXPECT_THAT(about("/orders/{id}/pay", "/{shop}/{key}/pay"), IsEmpty());
  for (const char* const path : {"/order/{id}/pay", "/orders/{id}", "/orders/{id}/pay/now", "/order/*", "/orders"}) {
    EXPECT_THAT(about(path, "/orders/{key}/pay"),
                ElementsAre(HasSubstr("matches no path of its route '" + std::string(path))));
  }
}

TEST(ProxySettings, PresetsAreOtherSettings) {
  Given given = with("preset", {"stripe"});
  given.erase("no-principal");
  const http::Options stripe = settled(with_preset(given)).rules.otherwise;
  EXPECT_EQ(stripe.key_field, "id");
  EXPECT_EQ(stripe.principal, http::Principal::shared());
  EXPECT_EQ(stripe.fates.at(500), http::Fate::release);
  EXPECT_EQ(stripe.fates.at(400), http::Fate::release);
  EXPECT_EQ(stripe.fates.at(302), http::Fate::release) << "no sender follows it";
  EXPECT_FALSE(stripe.fates.contains(502)) << "it may have been processed";
  EXPECT_EQ(stripe.policy->retention, std::chrono::hours(7 * 24));
  // What is given counts.
  given["key-header"].words = {"X-Id"};
  given["retention"].words = {"1h"};
  given["principal-header"].words = {"X-Sender"};
  const http::Options own = settled(with_preset(given)).rules.otherwise;
  EXPECT_TRUE(own.key_is_in_header());
  EXPECT_EQ(own.key_header, "X-Id");
  EXPECT_EQ(own.policy->retention, std::chrono::hours(1));
  EXPECT_EQ(own.principal, http::Principal::header("X-Sender"));
  for (const std::string name : {"github", "svix"}) {
    EXPECT_TRUE(settled(with_preset(with("preset", {name}))).rules.otherwise.key_is_in_header()) << name;
  }
  EXPECT_THAT(complaints_about(with_preset(with("preset", {"shopify"}))),
              ElementsAre("--preset must be stripe, github or svix, not 'shopify'"));
}

TEST(ProxySettings, FatesHaveRanges) {
  const auto fates = settled(with("fate", {"400-402=release", "402,500=hold"})).rules.otherwise.fates;
  EXPECT_EQ(
      fates,
      (std::map<unsigned, http::Fate>{
          {400, http::Fate::release}, {401, http::Fate::release}, {402, http::Fate::hold}, {500, http::Fate::hold}}));
  for (const std::string text : {"402-400=release", "400-=release", "-400=release", "400-600=release",
                                 "400-401-402=hold", "400-402", "400-402=keep"}) {
    EXPECT_THAT(complaints_about(with("fate", {text})), ElementsAre(HasSubstr("400-499=release"))) << text;
  }
}

TEST(ProxySettings, ARouteHasATimeForAnswersOfItsOwn) {
  std::vector<Complaint> complaints;
  const std::vector<GivenRoute> routes{
      {.path = "/reports", .place = {}, .rules = {{"answer-timeout", {.words = {"10m"}, .place = {}}}}},
      {.path = "/else", .place = {}, .rules = {}}};
  const ProxySettings settings = settle(with("answer-timeout", {"5s"}), routes, complaints);
  EXPECT_THAT(complaints, IsEmpty());
  EXPECT_EQ(settings.rules.otherwise.answer_timeout, Millis{5'000});
  EXPECT_EQ(settings.proxy.timeouts.answer, Millis{5'000});
  EXPECT_EQ(settings.rules.routes.at(0).options.answer_timeout, Millis{600'000});
  EXPECT_EQ(settings.rules.routes.at(1).options.answer_timeout, Millis{5'000});
  EXPECT_THAT(complaints_about(with("answer-timeout", {"2d"})),
              ElementsAre("--answer-timeout: a timeout must be 1ms to 24h"));
}

TEST(ProxySettings, ARouteSaysWhomToAskAboutTheUnknown) {
  std::vector<Complaint> complaints;
  const std::vector<GivenRoute> routes{{.path = "/charges",
                                        .place = {},
                                        .rules = {{"reconcile", {.words = {"GET /charges?key={key}"}, .place = {}}},
                                                  {"reconcile-not-done", {.words = {"404", "410"}, .place = {}}},
                                                  {"reconcile-settle", {.words = {"3m"}, .place = {}}}}},
                                       {.path = "/else", .place = {}, .rules = {}}};
  const ProxySettings settings = settle(with("reconcile-interval", {"5s"}), routes, complaints);
  EXPECT_THAT(complaints, IsEmpty());
  EXPECT_EQ(settings.proxy.reconcile_interval, Millis{5'000});
  EXPECT_EQ(settings.rules.routes.at(0).options.reconcile, "GET /charges?key={key}");
  EXPECT_EQ(settings.rules.routes.at(0).options.reconcile_not_done, (std::vector<unsigned>{404, 410}));
  EXPECT_EQ(settings.rules.routes.at(0).options.reconcile_settle, Millis{180'000});
  EXPECT_EQ(settings.rules.routes.at(1).options.reconcile, "");
  EXPECT_THAT(complaints_about(with("reconcile", {"GET /charges"})), ElementsAre(HasSubstr("must have {key}")));
  EXPECT_THAT(complaints_about(with("reconcile-not-done", {"40x"})), ElementsAre(HasSubstr("must be statuses")));
  EXPECT_THAT(complaints_about(with("reconcile-not-done", {"503"})), ElementsAre(HasSubstr("says nothing")));
}

TEST(ProxySettings, ACertificateNeedsItsKey) {
  Given given = with("tls-cert", {"cert.pem"});
  EXPECT_THAT(complaints_about(given), ElementsAre("a certificate and its key go together: name both files"));
  given["tls-key"].words = {"key.pem"};
  EXPECT_THAT(complaints_about(given), IsEmpty());
  given["admin-tls-cert"].words = {"cert.pem"};
  given["admin-tls-key"].words = {"key.pem"};
  EXPECT_THAT(complaints_about(given),
              ElementsAre("a certificate for operators needs an address where they connect (admin)"));
  given["admin"].words = {"9100"};
  EXPECT_THAT(complaints_about(given), IsEmpty());
  given["admin"].words = {"0.0.0.0:9100"};  // TLS says who we are, not who they are.
  EXPECT_THAT(complaints_about(given), ElementsAre(::testing::HasSubstr("Name a file with a token")));
}

TEST(ProxySettings, AClientIsKnownByItsCertificateOnlyWhereItMustShowOne) {
  const Given tls{{"tls-cert", {{"cert.pem"}}}, {"tls-key", {{"key.pem"}}}};
  const Given asking{{"client-ca", {{"clients.pem"}}}};
  Given given = least;
  given.erase("no-principal");
  given["principal-certificate"].words = {"true"};
  EXPECT_THAT(complaints_about(given), ElementsAre(HasSubstr("name the authorities that sign them (client-ca)")));
  EXPECT_THAT(complaints_about(merged(given, tls)),
              ElementsAre(HasSubstr("name the authorities that sign them (client-ca)")));
  EXPECT_THAT(complaints_about(merged(given, asking)), ElementsAre(HasSubstr("client-ca needs TLS")));
  EXPECT_THAT(complaints_about(merged(given, merged(tls, asking))), IsEmpty());
  EXPECT_THAT(complaints_about(merged(least, asking)), ElementsAre(HasSubstr("client-ca needs TLS")));
  // A route may know its clients in another way, or be the only one that needs certificates.
  std::vector<Complaint> complaints;
  const std::vector<GivenRoute> routes{
      {.path = "/a", .place = {}, .rules = {{"principal-certificate", {.words = {"true"}, .place = {}}}}}};
  const ProxySettings settings = settle(merged(least, merged(tls, asking)), routes, complaints);
  EXPECT_THAT(complaints, IsEmpty());
  EXPECT_EQ(settings.rules.otherwise.principal, http::Principal::shared());
  EXPECT_TRUE(settings.rules.routes.at(0).options.principal.is_given());
  static_cast<void>(settle(least, routes, complaints));
  EXPECT_THAT(complaints, SizeIs(1));
}

TEST(ProxySettings, ARouteAddsToWhatIsLeftOutAndCannotLoseIt) {
  std::vector<Complaint> complaints;
  Given given = with("keep-input", {"true"});
  given["input-without"].words = {"card", "cvc"};
  const std::vector<GivenRoute> routes{
      {.path = "/a", .place = {}, .rules = {{"input-without", {.words = {"cvc", "pin"}, .place = {}}}}},
      {.path = "/b", .place = {}, .rules = {{"keep-input", {.words = {"false"}, .place = {}}}}}};
  const ProxySettings settings = settle(given, routes, complaints);
  EXPECT_THAT(complaints, IsEmpty());
  EXPECT_EQ(settings.rules.otherwise.policy->keep_input, true);
  EXPECT_THAT(settings.rules.otherwise.input_without, ElementsAre("card", "cvc"));
  EXPECT_EQ(settings.rules.routes.at(0).options.policy->keep_input, true);
  EXPECT_THAT(settings.rules.routes.at(0).options.input_without, ElementsAre("card", "cvc", "pin"));
  EXPECT_EQ(settings.rules.routes.at(1).options.policy->keep_input, false);
  EXPECT_THAT(settings.rules.routes.at(1).options.input_without, ElementsAre("card", "cvc"));
  EXPECT_EQ(settled(least).rules.otherwise.policy->keep_input.value_or(false), false) << "off by default";
  given["input-without"].words = {"card", "length(card)"};
  EXPECT_THAT(complaints_about(given), ElementsAre(HasSubstr("\"length(card)\" does not say where a field stands")));
}

TEST(ProxySettings, NoFieldsAreLeftOutOfInputsThatNobodyKeeps) {
  const Given given = with("input-without", {"card"});
  const std::string refusal =
      "--input-without leaves fields out of inputs, but no input is kept: add --keep-input here or in a route, or "
      "remove it";
  EXPECT_THAT(complaints_about(given), ElementsAre(refusal));
  EXPECT_THAT(complaints_about(merged(given, {{"keep-input", {.words = {"false"}, .place = {}}}})),
              ElementsAre(refusal));
  const auto keeping = [](std::string path) {
    return GivenRoute{
        .path = std::move(path), .place = {}, .rules = {{"keep-input", {.words = {"true"}, .place = {}}}}};
  };
  std::vector<Complaint> complaints;
  static_cast<void>(settle(given, {keeping("/a")}, complaints));
  EXPECT_THAT(complaints, IsEmpty()) << "named for all routes, kept by one";
  const GivenRoute idle{.path = "/b",
                        .place = {},
                        .rules = {{"input-without", {.words = {"pin"}, .place = {.file = "once.toml", .line = 7}}}}};
  static_cast<void>(settle(least, {keeping("/a"), idle}, complaints));
  ASSERT_THAT(complaints, SizeIs(1)) << "the other route's inputs are none of its own";
  EXPECT_EQ(to_string(complaints.front()),
            "once.toml:7:0: input_without leaves fields out of inputs, but no input is kept: add keep_input = true, or "
            "remove it");
}

TEST(ProxySettings, RulesUpstreamsTheLogAndTheDrainChangeWithoutARestart) {
  Given after = with("lease", {"5m"});
  after["upstream"].words = {"http://other:9000", "http://another:9000"};
  after["access-log"].words = {"none"};
  after["stop-within"].words = {"1s"};
  EXPECT_THAT(needing_restart(least, after), IsEmpty());
  after["threads"].words = {"3"};
  after["store"].words = {"sqlite:other.db"};
  EXPECT_THAT(needing_restart(least, after), ElementsAre("store", "threads"));
  after["threads"].words = {"0"};  // As it is without.
  EXPECT_THAT(needing_restart(least, after), ElementsAre("store"));
}

TEST(ProxySettings, NamesAreUnique) {
  std::set<std::string> names;
  std::set<std::string> keys;
  for (const Setting& setting : proxy_settings()) {
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
    EXPECT_TRUE(keys.insert(setting.key()).second) << setting.key();
  }
}

}  // namespace proxy_settings_test
}  // namespace once::cli
