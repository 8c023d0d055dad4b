// The rules of sending again, with a network and a time that the test holds in its hand.
#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <once/aws/client.hpp>
#include <once/error.hpp>
#include <once/platform/snapshot.hpp>
#include <once/testing/manual_time.hpp>

#include "aws/client.hpp"
#include "aws/http_client.hpp"
#include "platform/wait.hpp"
#include "wire_server.hpp"

namespace once::aws {
namespace wire_client_test {

using once::testing::manual_start;
using once::testing::ManualClock;
using once::testing::ManualTimers;
using once::testing::SeededRandom;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

HttpAnswer http(int status, std::string body, std::string date = {}) {
  HttpAnswer answer;
  answer.status = status;
  if (!date.empty()) answer.headers.emplace_back("date", std::move(date));
  answer.body = std::move(body);
  return answer;
}

HttpAnswer lost(ErrorKind kind, std::string message = "the network said no") {
  HttpAnswer answer;
  answer.error = Error{kind, std::move(message)};
  return answer;
}

HttpAnswer service_error(int status, const std::string& code, std::string date = {}) {
  return http(status, R"({"__type":"com.amazonaws.dynamodb.v20120810#)" + code + R"(","message":"Because."})",
              std::move(date));
}

// Keeps what is sent until the test answers.
class FakeHttp final : public HttpClient {
 public:
  void send(HttpRequest request, Callback<void(HttpAnswer)> done) override {
    requests.push_back(std::move(request));
    if (on_send) return done(on_send(requests.back()));
    waiting.push_back(std::move(done));
  }
  void answer(HttpAnswer with) {
    ASSERT_FALSE(waiting.empty()) << "no request is waiting for this answer";
    auto done = std::move(waiting.front());
    waiting.pop_front();
    done(std::move(with));
  }

  std::vector<HttpRequest> requests;
  std::deque<Callback<void(HttpAnswer)>> waiting;
  std::function<HttpAnswer(const HttpRequest&)> on_send;
};

// Hands out the first of its credentials; each reject() removes it, if another is left.
class FakeCredentials final : public CredentialsProvider {
 public:
  void get(Callback<void(CredentialsAnswer)> done) override {
    ++gets;
    if (keys.empty()) return done({.credentials = nullptr, .error = {ErrorKind::misuse, "no credentials anywhere"}});
    done({.credentials = std::make_shared<const Credentials>(Credentials{.access_key_id = keys.front(),
                                                                         .secret_access_key = "SECRET" + keys.front(),
                                                                         .session_token = {},
                                                                         .expires_at = {},
                                                                         .source = "the test"}),
          .error = {}});
  }
  void reject(const Credentials& credentials) override {
    rejected.push_back(credentials.access_key_id);
    if (keys.size() > 1) keys.erase(keys.begin());
  }

  std::vector<std::string> keys{"AKIDFIRST"};
  std::vector<std::string> rejected;
  int gets = 0;
};

struct World {
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers = std::make_shared<ManualTimers>(clock);
  std::shared_ptr<FakeHttp> net = std::make_shared<FakeHttp>();
  std::shared_ptr<FakeCredentials> credentials = std::make_shared<FakeCredentials>();
  std::vector<Reply> replies;
  std::unique_ptr<Client> client;

  explicit World(ClientOptions options = {}) {
    options.region = "eu-central-1";
    options.credentials = credentials;
    options.clock = clock;
    options.timers = timers;
    options.random = std::make_shared<SeededRandom>(17);
    options.environment = [](const std::string&) { return std::nullopt; };
    if (options.endpoint.empty()) options.endpoint = "http://127.0.0.1:8000";
    client = make_client(std::move(options), net);
  }

  void call(bool repeatable = false) {
    client->call({.operation = repeatable ? "GetItem" : "PutItem", .body = R"({"a":1})", .repeatable = repeatable},
                 [this](Reply reply) { replies.push_back(std::move(reply)); });
  }
  // The only reply.
  const Reply& reply() {
    EXPECT_EQ(replies.size(), 1U);
    return replies.at(0);
  }
  void expect_error(ErrorKind kind, const std::string& text) {
    ASSERT_EQ(replies.size(), 1U);
    ASSERT_TRUE(reply().error.has_value()) << reply().body;
    EXPECT_EQ(reply().error->kind, kind) << reply().error->message;
    EXPECT_THAT(reply().error->message,
                AllOf(HasSubstr(text), HasSubstr("Item at http://127.0.0.1:8000: "), Not(HasSubstr("SECRET"))));
    EXPECT_EQ(reply().status, 0);
  }
  void expect_no_repetition() {
    EXPECT_EQ(timers->pending(), 0U);
    EXPECT_EQ(net->requests.size(), 1U);
  }
};

std::string header(const HttpRequest& request, std::string_view name) {
  for (const auto& [key, value] : request.headers) {
    if (key == name) return value;
  }
  return "(none)";
}

TEST(WireClient, SendsOneSignedRequest) {
  World world({.endpoint = "https://dynamodb.eu-central-1.amazonaws.com", .timeout = Millis{1234}});
  EXPECT_EQ(world.client->name(), "https://dynamodb.eu-central-1.amazonaws.com");
  world.call();
  ASSERT_EQ(world.net->requests.size(), 1U);
  const HttpRequest& request = world.net->requests[0];
  EXPECT_EQ(request.method, "POST");
  EXPECT_TRUE(request.tls);
  EXPECT_EQ(request.host, "dynamodb.eu-central-1.amazonaws.com");
  EXPECT_EQ(request.port, 443);
  EXPECT_EQ(request.target, "/");
  EXPECT_EQ(request.timeout, Millis{1234});
  EXPECT_EQ(request.body, R"({"a":1})");
  EXPECT_EQ(header(request, "Content-Type"), "application/x-amz-json-1.0");
  EXPECT_EQ(header(request, "X-Amz-Target"), "DynamoDB_20120810.PutItem");
  EXPECT_EQ(header(request, "X-Amz-Date"), "20260101T000000Z");
  EXPECT_THAT(header(request, "Authorization"), HasSubstr("AKIDFIRST/20260101/eu-central-1/dynamodb/aws4_request"));
  EXPECT_TRUE(world.replies.empty());

  world.net->answer(http(200, R"({"b":2})", "Thu, 01 Jan 2026 00:00:07 GMT"));
  EXPECT_FALSE(world.reply().error);
  EXPECT_EQ(world.reply().status, 200);
  EXPECT_EQ(world.reply().body, R"({"b":2})");
  EXPECT_EQ(world.reply().time, (StoreTime{manual_start + Millis{7500}, Millis{500}}));
  world.expect_no_repetition();
  const ClientCounts counts = world.client->counts();
  EXPECT_EQ(counts.calls, 1U);
  EXPECT_EQ(counts.requests, 1U);
  EXPECT_EQ(counts.retries, 0U);
}

TEST(WireClient, AnErrorOfTheServiceIsTheReply) {
  for (const char* code : {"ConditionalCheckFailedException", "ResourceNotFoundException", "ValidationException",
                           "TransactionCanceledException"}) {
    World world;
    world.call();
    world.net->answer(service_error(400, code));
    EXPECT_FALSE(world.reply().error);
    EXPECT_EQ(world.reply().status, 400);
    EXPECT_THAT(world.reply().body, HasSubstr(code));
    EXPECT_FALSE(world.reply().time);
    world.expect_no_repetition();
  }
}

// An accepted signature of midnight, and an answer that took 10 s: the service's clock is between 23:55 and 00:05:10.
TEST(WireClient, ATimeThatTheSignatureContradictsIsNone) {
  const std::vector<std::pair<std::string, std::optional<Millis>>> dates{
      {"Wed, 31 Dec 2025 23:55:00 GMT", std::chrono::minutes(-5)},
      {"Thu, 01 Jan 2026 00:05:10 GMT", Millis{310'000}},
      {"Wed, 31 Dec 2025 23:54:57 GMT", std::nullopt},
      {"Thu, 01 Jan 2026 00:05:12 GMT", std::nullopt},
      {"Thu, 01 Jan 2026 01:00:00 GMT", std::nullopt},
      {"Thu, 01 Jan 1970 00:00:00 GMT", std::nullopt},
  };
  for (const auto& [date, wanted] : dates) {
    for (const bool refused : {false, true}) {
      SCOPED_TRACE(date);
      World world;
      world.call();
      world.timers->advance(Millis{10'000});
      world.net->answer(refused ? service_error(400, "ConditionalCheckFailedException", date) : http(200, "{}", date));
      EXPECT_FALSE(world.reply().error);
      EXPECT_EQ(world.reply().time.has_value(), wanted.has_value());
      EXPECT_EQ(world.reply().time.value_or(StoreTime{}).now, wanted ? manual_start + *wanted + Millis{500} : Time{});
      EXPECT_EQ(world.reply().false_time, !wanted);
      EXPECT_EQ(world.client->counts().false_times, wanted ? 0U : 1U);
    }
  }
}

TEST(WireClient, AnAnswerIsWhatItsChecksumIsOf) {
  const auto with = [](int status, std::string body, std::string sum) {
    HttpAnswer answer = http(status, std::move(body));
    answer.headers.emplace_back("x-amz-crc32", std::move(sum));
    return answer;
  };
  {
    World world;
    world.call();
    world.net->answer(with(200, "{}", "2745614147"));
    EXPECT_FALSE(world.reply().error);
  }
  // Also an error may say what was not meant: another code is another thing to do.
  for (const int status : {200, 400}) {
    for (const char* const sum : {"2745614148", "0", "x", "99999999999"}) {
      SCOPED_TRACE(sum);
      World world;
      world.call();
      world.net->answer(with(status, "{}", sum));
      world.expect_error(ErrorKind::in_doubt, "x-amz-crc32");
      world.expect_no_repetition();
      EXPECT_EQ(world.client->counts().damaged, 1U);
    }
  }
  World world;
  world.call(true);
  world.net->answer(with(200, "{}", "1"));
  world.timers->advance(Millis{1'000});
  world.net->answer(with(200, "{}", "2745614147"));
  EXPECT_FALSE(world.reply().error);
}

TEST(WireClient, WhatWasNotWrittenIsSentAgainAfterAPause) {
  World world;
  world.call();
  world.net->answer(lost(ErrorKind::unavailable));
  EXPECT_EQ(world.net->requests.size(), 1U);
  EXPECT_EQ(world.timers->pending(), 1U);
  world.timers->advance(Millis{25});
  ASSERT_EQ(world.net->requests.size(), 2U);
  world.net->answer(http(200, "{}"));
  EXPECT_FALSE(world.reply().error);
  EXPECT_EQ(world.client->counts().retries, 1U);
}

TEST(WireClient, PausesGrowAndAreJittered) {
  World world({.max_attempts = 100, .backoff = Millis{100}, .max_backoff = Millis{1'000}});
  std::vector<Uptime> pauses;
  world.call();
  for (int n = 0; n < 12; ++n) {
    world.net->answer(lost(ErrorKind::unavailable));
    const auto next = world.timers->next();
    ASSERT_TRUE(next);
    const Uptime pause = *next - world.clock->uptime();
    EXPECT_GE(pause, Uptime{0});
    EXPECT_LE(pause, std::min(Millis{100 << std::min(n, 10)}, Millis{1'000}));
    pauses.push_back(pause);
    world.timers->run_next();
  }
  // Full jitter: some are short, some are long.
  EXPECT_LT(*std::min_element(pauses.begin() + 4, pauses.end()), Millis{400});
  EXPECT_GT(*std::max_element(pauses.begin() + 4, pauses.end()), Millis{600});
}

TEST(WireClient, GivesUpAfterSoManyRequests) {
  World world({.max_attempts = 3});
  world.net->on_send = [](const HttpRequest&) { return lost(ErrorKind::unavailable); };
  world.call();
  world.timers->advance(Millis{10'000});
  EXPECT_EQ(world.net->requests.size(), 3U);
  world.expect_error(ErrorKind::unavailable,
                     "PutItem at http://127.0.0.1:8000: the network said no (after 3 requests)");
}

TEST(WireClient, GivesUpWhenTheTimeIsOver) {
  World world({.timeout = Millis{1'000}, .total_timeout = Millis{3'000}, .max_attempts = 100});
  world.call();
  for (int n = 0; n < 3; ++n) {
    world.timers->advance(Millis{1'000});
    if (!world.net->waiting.empty()) world.net->answer(lost(ErrorKind::unavailable));
    while (world.timers->pending() > 0) world.timers->run_next();
  }
  world.timers->advance(Millis{1'000});
  if (!world.net->waiting.empty()) world.net->answer(lost(ErrorKind::unavailable));
  world.expect_error(ErrorKind::unavailable, "the network said no");
  EXPECT_EQ(world.timers->pending(), 0U);
  EXPECT_EQ(world.client->counts().given_up, 1U);
}

TEST(WireClient, AWriteInDoubtIsNeverSentAgain) {
  const std::vector<HttpAnswer> answers = [] {
    std::vector<HttpAnswer> all;
    all.push_back(lost(ErrorKind::in_doubt));
    all.push_back(service_error(500, "InternalServerError"));
    all.push_back(http(500, "<html>"));
    all.push_back(http(503, ""));
    return all;
  }();
  for (const HttpAnswer& answer : answers) {
    World world;
    world.call();
    world.net->answer(answer);
    world.expect_error(ErrorKind::in_doubt, answer.error ? "the network said no" : "HTTP status 50");
    world.expect_no_repetition();
    EXPECT_EQ(world.client->counts().in_doubt, 1U);
  }
}

TEST(WireClient, AReadInDoubtIsSentAgain) {
  World world;
  world.call(true);
  world.net->answer(lost(ErrorKind::in_doubt));
  world.timers->advance(Millis{1'000});
  world.net->answer(service_error(500, "InternalServerError"));
  world.timers->advance(Millis{1'000});
  world.net->answer(http(200, "{}"));
  EXPECT_FALSE(world.reply().error);
  EXPECT_EQ(world.client->counts().retries, 2U);
}

// The last failure by itself would be unavailable; but the first request may have been executed.
TEST(WireClient, DoubtIsNotForgotten) {
  World world({.max_attempts = 2});
  world.call(true);
  world.net->answer(lost(ErrorKind::in_doubt));
  world.timers->advance(Millis{1'000});
  world.net->answer(lost(ErrorKind::unavailable));
  world.expect_error(ErrorKind::in_doubt, "the network said no (after 2 requests)");
}

TEST(WireClient, WhatCannotWorkIsNotSentAgain) {
  World world;
  world.call(true);
  world.net->answer(lost(ErrorKind::misuse, "the certificate is not good"));
  world.expect_error(ErrorKind::misuse, "the certificate is not good");
  world.expect_no_repetition();
}

TEST(WireClient, AWriteThatMetATransactionIsSentAgain) {
  for (const char* const code : {"TransactionConflictException", "ReplicatedWriteConflictException"}) {
    SCOPED_TRACE(code);
    World world;
    world.call();
    world.net->answer(service_error(400, code));
    EXPECT_TRUE(world.replies.empty());
    world.timers->advance(Millis{5'000});
    ASSERT_EQ(world.net->requests.size(), 2U);
    world.net->answer(http(200, "{}"));
    EXPECT_FALSE(world.reply().error);
    EXPECT_EQ(world.client->counts().throttled, 0U) << "nobody is to slow down for it";
  }
}

TEST(WireClient, ThrottledWritesAreSentAgain) {
  for (const auto& [status, code] : std::vector<std::pair<int, std::string>>{
           {400, "ProvisionedThroughputExceededException"},
           {400, "ThrottlingException"},
           {400, "RequestLimitExceeded"},
           {503, "SlowDown"},
           {429, "SomethingElse"},
       }) {
    SCOPED_TRACE(code);
    World world;
    world.call();
    world.net->answer(service_error(status, code));
    EXPECT_TRUE(world.replies.empty());
    world.timers->advance(Millis{5'000});
    ASSERT_EQ(world.net->requests.size(), 2U);
    world.net->answer(http(200, "{}"));
    EXPECT_FALSE(world.reply().error);
    EXPECT_EQ(world.client->counts().throttled, 1U);
  }
}

TEST(WireClient, ThrottlingIsRetriedUntilTheTotalTimeout) {
  World world({.timeout = Millis{1'000}, .total_timeout = Millis{10'000}, .max_attempts = 4});
  const Uptime began = world.clock->uptime();
  Uptime last{};
  world.net->on_send = [&](const HttpRequest&) {
    last = world.clock->uptime();
    return service_error(400, "ThrottlingException");
  };
  world.call();
  world.timers->advance(Millis{30'000});
  EXPECT_GT(world.net->requests.size(), 4U);
  EXPECT_GT(last - began, Millis{7'000}) << "not given up after half a second";
  EXPECT_LE(last - began, Millis{10'000});
  world.expect_error(ErrorKind::unavailable,
                     "the service is throttling (HTTP status 400, ThrottlingException: Because.)");
}

TEST(WireClient, ThrottlingOutlastsTheRetryBudget) {
  World world({.timeout = Millis{1'000}, .total_timeout = Millis{10'000}, .retry_budget = 0});
  int throttled = 8;
  world.net->on_send = [&](const HttpRequest&) {
    return throttled-- > 0 ? service_error(400, "ThrottlingException") : http(200, "{}");
  };
  world.call();
  world.timers->advance(Millis{10'000});
  EXPECT_FALSE(world.reply().error);
}

TEST(WireClient, ThrottlingReasonsAreInTheMessage) {
  World world({.max_attempts = 1});
  world.net->on_send = [](const HttpRequest&) {
    return http(400, R"({"__type":"com.amazonaws.dynamodb.v20120810#ThrottlingException","message":"Too much.",)"
                     R"("ThrottlingReasons":[{"reason":"TableWriteKeyRangeThroughputExceeded",)"
                     R"("resource":"arn:aws:dynamodb:eu-central-1:123456789012:table/once"}]})");
  };
  world.call();
  EXPECT_EQ(world.net->requests.size(), 1U) << "one attempt is one request";
  world.expect_error(ErrorKind::unavailable,
                     "ThrottlingException: Too much. [TableWriteKeyRangeThroughputExceeded "
                     "arn:aws:dynamodb:eu-central-1:123456789012:table/once])");
}

TEST(WireClient, TheBudgetBoundsAllRepetitionsTogether) {
  World world({.max_attempts = 10, .retry_budget = 20});
  world.net->on_send = [](const HttpRequest&) { return lost(ErrorKind::unavailable); };
  for (int i = 0; i < 100; ++i) world.call();
  world.timers->advance(Millis{15'000});
  EXPECT_EQ(world.replies.size(), 100U);
  EXPECT_EQ(world.net->requests.size(), 120U);
  EXPECT_EQ(world.client->counts().given_up, 100U);

  // Ten calls that succeed buy one repetition.
  world.net->on_send = [](const HttpRequest&) { return http(200, "{}"); };
  for (int i = 0; i < 30; ++i) world.call();
  world.net->on_send = [](const HttpRequest&) { return lost(ErrorKind::unavailable); };
  for (int i = 0; i < 10; ++i) world.call();
  world.timers->advance(Millis{15'000});
  EXPECT_NEAR(static_cast<double>(world.net->requests.size()), 120 + 30 + 10 + 3, 1);
}

TEST(WireClient, CorrectsTheClockAndRemembers) {
  for (const char* code : {"InvalidSignatureException", "RequestTimeTooSkewed", "RequestExpired"}) {
    SCOPED_TRACE(code);
    World world;
    world.call();
    world.net->answer(service_error(400, code, "Thu, 01 Jan 2026 00:06:00 GMT"));
    ASSERT_EQ(world.net->requests.size(), 2U) << "at once";
    EXPECT_EQ(header(world.net->requests[1], "X-Amz-Date"), "20260101T000600Z");
    world.net->answer(http(200, "{}"));
    EXPECT_FALSE(world.reply().error);
    world.clock->advance(std::chrono::seconds(10));
    world.call();
    EXPECT_EQ(header(world.net->requests[2], "X-Amz-Date"), "20260101T000610Z");
    EXPECT_EQ(world.client->counts().clock_corrections, 1U);
  }
}

TEST(WireClient, ForgetsTheCorrectionAtASnapshot) {
  for (const auto& happens : {&before_snapshot, &after_restore}) {
    World world;
    world.call();
    world.net->answer(service_error(400, "RequestTimeTooSkewed", "Thu, 01 Jan 2026 00:06:00 GMT"));
    world.net->answer(http(200, "{}"));
    happens();
    world.call();
    EXPECT_EQ(header(world.net->requests[2], "X-Amz-Date"), "20260101T000000Z");
    world.net->answer(http(200, "{}"));
  }
}

TEST(WireClient, ASignatureThatIsWrongAnywayIsNotSentForEver) {
  {
    World world;  // The time is right: there is nothing to correct.
    world.call();
    world.net->answer(service_error(400, "InvalidSignatureException", "Thu, 01 Jan 2026 00:00:01 GMT"));
    world.expect_error(ErrorKind::misuse,
                       "InvalidSignatureException: Because. (region eu-central-1, credentials from "
                       "the test, access key AKIDFIRST)");
    world.expect_no_repetition();
  }
  {
    World world;  // It reports no time.
    world.call();
    world.net->answer(service_error(400, "RequestTimeTooSkewed"));
    world.expect_error(ErrorKind::misuse, "RequestTimeTooSkewed");
    world.expect_no_repetition();
  }
  World world;  // Its time runs away: once is enough.
  world.call();
  world.net->answer(service_error(400, "RequestTimeTooSkewed", "Thu, 01 Jan 2026 01:00:00 GMT"));
  world.net->answer(service_error(400, "RequestTimeTooSkewed", "Thu, 01 Jan 2026 02:00:00 GMT"));
  world.expect_error(ErrorKind::misuse, "RequestTimeTooSkewed");
  EXPECT_EQ(world.net->requests.size(), 2U);
}

TEST(WireClient, ExpiredCredentialsAreRenewedOnce) {
  const std::pair<const char*, ErrorKind> cases[] = {{"ExpiredTokenException", ErrorKind::unavailable},
                                                     {"UnrecognizedClientException", ErrorKind::misuse}};
  for (const auto& [code, kind] : cases) {
    World world;
    world.credentials->keys = {"AKIDOLD", "AKIDNEW", "AKIDNEWER"};
    world.call();
    world.net->answer(service_error(400, code));
    ASSERT_EQ(world.net->requests.size(), 2U) << "at once";
    EXPECT_THAT(header(world.net->requests[1], "Authorization"), HasSubstr("AKIDNEW/"));
    EXPECT_EQ(world.credentials->rejected, std::vector<std::string>{"AKIDOLD"});
    world.net->answer(service_error(400, code));
    world.expect_error(kind, code);
    EXPECT_EQ(world.net->requests.size(), 2U);
  }
}

// There are no other credentials now, which may change.
TEST(WireClient, ExpiredCredentialsWithoutOthersAreNoMisuse) {
  for (const bool has_the_old_ones : {true, false}) {
    World world;
    world.call();
    if (!has_the_old_ones) world.credentials->keys.clear();
    world.net->answer(service_error(400, "ExpiredTokenException"));
    world.expect_error(ErrorKind::unavailable, "ExpiredTokenException: Because.");
    EXPECT_EQ(world.net->requests.size(), 1U);
  }
}

TEST(WireClient, TheSameCredentialsAreNotTriedAgain) {
  World world;
  world.call();
  world.net->answer(service_error(400, "UnrecognizedClientException"));
  world.expect_error(ErrorKind::misuse,
                     "UnrecognizedClientException: Because. (region eu-central-1, credentials from "
                     "the test, access key AKIDFIRST)");
  world.expect_no_repetition();
}

TEST(WireClient, DeniedAccessSaysWhoAsked) {
  World world;
  world.call();
  world.net->answer(service_error(400, "AccessDeniedException"));
  world.expect_error(ErrorKind::misuse,
                     "AccessDeniedException: Because. (region eu-central-1, credentials from the test");
  world.expect_no_repetition();
}

TEST(WireClient, WithoutCredentialsNothingIsSent) {
  World world;
  world.credentials->keys.clear();
  world.call();
  world.expect_error(ErrorKind::misuse, "no credentials anywhere");
  EXPECT_TRUE(world.net->requests.empty());
}

TEST(WireClient, ThrottlingSlowsAllCallsDown) {
  World world({.timeout = Millis{1'000}, .total_timeout = Millis{2'000}, .max_attempts = 1});
  world.net->on_send = [](const HttpRequest&) { return http(200, "{}"); };
  // Ten calls a second, for two seconds.
  for (int i = 0; i < 20; ++i) {
    world.call();
    world.timers->advance(Millis{100});
  }
  EXPECT_EQ(world.client->counts().paced, 0U);
  world.net->on_send = [](const HttpRequest&) { return service_error(400, "ThrottlingException"); };
  world.call();
  world.net->on_send = [](const HttpRequest&) { return http(200, "{}"); };
  // Now 100 at once: at 7 a second, 14 or so have their turn within the two seconds that a call has.
  const std::size_t before = world.net->requests.size();
  for (int i = 0; i < 100; ++i) world.call();
  EXPECT_LE(world.net->requests.size(), before + 1);
  world.timers->advance(Millis{1'000});
  EXPECT_NEAR(static_cast<double>(world.net->requests.size() - before), 8, 1);
  world.timers->advance(Millis{9'000});
  EXPECT_NEAR(static_cast<double>(world.net->requests.size() - before), 15, 1);
  EXPECT_EQ(world.replies.size(), 121U);
  const auto too_late = std::count_if(world.replies.begin(), world.replies.end(), [](const Reply& reply) {
    return reply.error && reply.error->kind == ErrorKind::unavailable &&
           reply.error->message.find("the turn of this call would come too late") != std::string::npos;
  });
  EXPECT_EQ(static_cast<std::size_t>(too_late), 100 - (world.net->requests.size() - before));
  // After twenty seconds without throttling there is no limit.
  world.timers->advance(Millis{11'000});
  const std::size_t later = world.net->requests.size();
  for (int i = 0; i < 100; ++i) world.call();
  EXPECT_EQ(world.net->requests.size(), later + 100);
}

TEST(WireClient, TheDestructorCompletesWhatIsUnderWay) {
  World world;
  world.call();  // Stays sent.
  world.call();  // Comes to wait for another attempt.
  auto done = std::move(world.net->waiting.back());
  world.net->waiting.pop_back();
  done(lost(ErrorKind::unavailable));
  EXPECT_EQ(world.timers->pending(), 1U);
  world.client.reset();
  ASSERT_EQ(world.replies.size(), 2U);
  EXPECT_EQ(world.replies[0].error.value().kind, ErrorKind::in_doubt);
  EXPECT_EQ(world.replies[1].error.value().kind, ErrorKind::unavailable);
  EXPECT_THAT(world.replies[1].error.value().message, HasSubstr("the client was closed"));
  // What comes later is nobody's.
  world.net->answer(http(200, "{}"));
  world.timers->advance(Millis{10'000});
  EXPECT_EQ(world.replies.size(), 2U);
  EXPECT_EQ(world.net->requests.size(), 2U);
}

TEST(WireClient, RefusesOptionsThatMakeNoSense) {
  const auto refused = [](ClientOptions options) {
    if (options.region.empty()) options.region = "eu-central-1";
    options.environment = [](const std::string&) { return std::nullopt; };
    EXPECT_THROW(make_client(options, std::make_shared<FakeHttp>()), Exception);
  };
  refused({.region = "Frankfurt"});
  refused({.region = "eu-central-1/x"});
  refused({.endpoint = "localhost:8000"});
  refused({.timeout = Millis{0}});
  refused({.timeout = Millis{2'000}, .total_timeout = Millis{1'000}});
  refused({.max_connections = 0});
  refused({.max_attempts = 0});
  refused({.max_attempts = 101});
  refused({.backoff = Millis{100}, .max_backoff = Millis{99}});
}

TEST(WireClient, ACompletionMayDestroyTheClient) {
  testing::Server server([](testing::Peer& peer) {
    if (peer.request()) peer.send(testing::answer("{}"));
    peer.request();
  });
  auto client =
      make_client({.region = "eu-central-1",
                   .endpoint = "http://127.0.0.1:" + std::to_string(server.port()),
                   .credentials = static_credentials({.access_key_id = "AKID", .secret_access_key = "SECRET"}),
                   .max_connections = 1,
                   .environment = [](const std::string&) { return std::nullopt; }});
  std::vector<ErrorKind> kinds;
  const auto got = wait_for<Reply>([&](Callback<void(Reply)> done) {
    // It is called on the network's thread, as soon as this one waits.
    client->call({.operation = "GetItem", .body = "{}", .repeatable = true},
                 [&, done = std::move(done)](Reply reply) mutable {
                   for (int i = 0; i < 3; ++i) {
                     client->call({.operation = "PutItem", .body = "{}"},
                                  [&](const Reply& each) { kinds.push_back(each.error.value().kind); });
                   }
                   client.reset();
                   done(std::move(reply));
                 });
  });
  EXPECT_FALSE(got.error);
  EXPECT_THAT(kinds, ::testing::Each(ErrorKind::in_doubt));
  EXPECT_EQ(kinds.size(), 3U);
}

// The whole of it: real connections, real threads, one client for many calls, destroyed while they run.
TEST(WireClient, WorksOverARealNetwork) {
  const auto identity = testing::make_identity();
  std::atomic<int> served{0};
  testing::Server server(
      [&](testing::Peer& peer) {
        while (const auto request = peer.request()) {
          const int number = ++served;
          peer.send(
              number % 10 == 0
                  ? "HTTP/1.1 400 Bad Request\r\nContent-Length: 35\r\n\r\n{\"__type\":\"x#ThrottlingException\"}  "
                  : testing::answer("{}", "Date: Thu, 01 Jan 2026 00:00:00 GMT\r\n"));
        }
      },
      identity);
  auto client =
      make_client({.region = "eu-central-1",
                   .endpoint = "https://localhost:" + std::to_string(server.port()),
                   .credentials = static_credentials({.access_key_id = "AKID", .secret_access_key = "SECRET"}),
                   .ca_file = identity.ca_file,
                   .max_connections = 8,
                   .max_backoff = Millis{100},
                   .environment = [](const std::string&) { return std::nullopt; }});
  for (int i = 0; i < 5; ++i) {
    const Reply reply = wait_for<Reply>([&](Callback<void(Reply)> done) {
      client->call({.operation = "GetItem", .body = "{}", .repeatable = true}, std::move(done));
    });
    ASSERT_FALSE(reply.error) << reply.error->message;
    EXPECT_EQ(reply.body, "{}");
  }
  std::atomic<int> completed{0};
  for (int i = 0; i < 500; ++i) {
    client->call({.operation = "PutItem", .body = "{}"}, [&](const Reply& reply) {
      if (!reply.error || reply.error->kind != ErrorKind::misuse) ++completed;
    });
  }
  client.reset();
  EXPECT_EQ(completed, 500);
}

}  // namespace wire_client_test
}  // namespace once::aws
