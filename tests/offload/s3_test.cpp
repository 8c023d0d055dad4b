// The S3 offload over a bucket in memory that fails as planned.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/fingerprint.hpp>
#include <once/testing/manual_time.hpp>

#include "aws/http.hpp"
#include "offload/s3/s3.hpp"

namespace once {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::string_view secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

std::string_view header(const aws::HttpRequest& request, std::string_view name) {
  for (const auto& [key, value] : request.headers) {
    if (key == name) return value;
  }
  return {};
}

aws::HttpAnswer answer(int status, std::string body = {}) {
  return {.status = status, .headers = {}, .body = std::move(body), .error = {}};
}
aws::HttpAnswer error(int status, const std::string& code, const std::string& more = {}) {
  return answer(status, "<?xml version=\"1.0\"?>\n<Error><Code>" + code + "</Code><Message>says " + code +
                            "</Message>" + more + "</Error>");
}
aws::HttpAnswer no_answer(ErrorKind kind) {
  return {.status = 0, .headers = {}, .body = {}, .error = Error{kind, "connection reset"}};
}

struct Bucket final : aws::HttpClient {
  struct Fault {
    aws::HttpAnswer answer;
    bool carried_out = false;
  };
  void send(aws::HttpRequest request, Callback<void(aws::HttpAnswer)> done) override {
    std::optional<Fault> fault;
    if (!faults.empty()) {
      fault = std::move(faults.front());
      faults.pop_front();
    }
    aws::HttpAnswer good;
    if (!fault || fault->carried_out) good = carry_out(request);
    seen.push_back(std::move(request));
    done(fault ? std::move(fault->answer) : std::move(good));
  }
  aws::HttpAnswer carry_out(const aws::HttpRequest& request) {
    const auto found = objects.find(request.target);
    if (request.method == "PUT") {
      if (found != objects.end() && header(request, "If-None-Match") == "*") return error(412, "PreconditionFailed");
      objects[request.target] = request.body;
      return answer(200);
    }
    if (request.method == "DELETE") {
      objects.erase(request.target);
      return answer(204);
    }
    return found == objects.end() ? error(404, "NoSuchKey") : answer(200, found->second);
  }
  void fail(aws::HttpAnswer with, bool carried_out = false) { faults.push_back({std::move(with), carried_out}); }

  std::map<std::string, std::string> objects;
  std::deque<Fault> faults;
  std::vector<aws::HttpRequest> seen;
};

struct Provider final : aws::CredentialsProvider {
  void get(Callback<void(aws::CredentialsAnswer)> done) override {
    if (!problem.message.empty()) return done({nullptr, problem});
    done({std::make_shared<const aws::Credentials>(aws::Credentials{.access_key_id = "AKID" + std::to_string(rejected),
                                                                    .secret_access_key = std::string(secret),
                                                                    .session_token = {},
                                                                    .expires_at = {},
                                                                    .source = "a test"}),
          {}});
  }
  void reject(const aws::Credentials& credentials) override {
    EXPECT_EQ(credentials.access_key_id, "AKID" + std::to_string(rejected));
    ++rejected;
  }
  int rejected = 0;
  Error problem;
};

class S3Test : public ::testing::Test {
 protected:
  S3Options options() {
    S3Options o;
    o.bucket = "results";
    o.prefix = "pay";
    o.region = "eu-central-1";
    o.credentials = provider;
    o.environment = [](const std::string& name) -> std::optional<std::string> {
      if (name == "AWS_CONFIG_FILE" || name == "AWS_SHARED_CREDENTIALS_FILE") return "/dev/null";
      return std::nullopt;
    };
    return o;
  }
  std::shared_ptr<Offload> open(S3Options with) {
    return make_s3_offload(std::move(with), {.http = bucket, .clock = clock, .timers = timers, .random = random});
  }
  OffloadAnswer finish(const std::function<void(Callback<void(OffloadAnswer)>)>& start) {
    std::optional<OffloadAnswer> got;
    start([&got](OffloadAnswer with) { got = std::move(with); });
    while (!got && timers->run_next()) {
    }
    if (!got) ADD_FAILURE() << "no answer";
    EXPECT_THAT(got->error ? got->error->message : "", Not(HasSubstr(std::string(secret))));
    return got.value_or(OffloadAnswer{});
  }
  OffloadAnswer put(Offload& to, std::string bytes, std::string hint = "shop#order 17/\xC3\xBC") {
    return finish([&](auto done) { to.put(hint, bytes, std::move(done)); });
  }
  OffloadAnswer get(Offload& from, std::string location) {
    return finish([&](auto done) { from.get(location, std::move(done)); });
  }
  OffloadAnswer remove(Offload& from, std::string location) {
    return finish([&](auto done) { from.remove(location, std::move(done)); });
  }

  std::shared_ptr<Bucket> bucket = std::make_shared<Bucket>();
  std::shared_ptr<Provider> provider = std::make_shared<Provider>();
  std::shared_ptr<testing::ManualClock> clock = std::make_shared<testing::ManualClock>();
  std::shared_ptr<testing::ManualTimers> timers = std::make_shared<testing::ManualTimers>(clock);
  std::shared_ptr<testing::SeededRandom> random = std::make_shared<testing::SeededRandom>(1);
};

TEST_F(S3Test, KeepsBytesUnderNewNamesAndGivesThemBack) {
  const auto s3 = open(options());
  std::string bytes(100'000, '\0');
  bytes[17] = '\xFF';
  const OffloadAnswer one = put(*s3, bytes);
  const OffloadAnswer two = put(*s3, bytes);
  EXPECT_THAT(one.text, MatchesRegex("s3://results/pay/shop_order_17___-[0-9a-f]{32}"));
  EXPECT_NE(one.text, two.text);
  EXPECT_EQ(get(*s3, one.text).text, bytes);
  EXPECT_EQ(remove(*s3, one.text).error, std::nullopt);
  EXPECT_EQ(remove(*s3, one.text).error, std::nullopt) << "missing is not an error";
  EXPECT_EQ(bucket->objects.size(), 1U);
  EXPECT_EQ(bucket->seen.size(), 5U) << "a request for each call";
}

TEST_F(S3Test, SendsWhatS3Wants) {
  const auto s3 = open(options());
  const std::string location = put(*s3, "hello").text;
  const aws::HttpRequest& request = bucket->seen.at(0);
  EXPECT_EQ(request.method, "PUT");
  EXPECT_EQ(request.host, "results.s3.eu-central-1.amazonaws.com");
  EXPECT_TRUE(request.tls);
  EXPECT_EQ(request.port, 443);
  EXPECT_EQ(request.timeout, Millis{60'000});
  EXPECT_EQ("s3://results" + request.target, location);
  // printf hello | sha256sum, and the same bytes in base64.
  EXPECT_EQ(header(request, "x-amz-checksum-sha256"), "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=");
  EXPECT_EQ(header(request, "X-Amz-Content-Sha256"),
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
  EXPECT_EQ(header(request, "If-None-Match"), "*");
  EXPECT_THAT(std::string(header(request, "Authorization")),
              AllOf(StartsWith("AWS4-HMAC-SHA256 Credential=AKID0/20260101/eu-central-1/s3/aws4_request"),
                    HasSubstr("if-none-match"), HasSubstr("x-amz-checksum-sha256")));
  EXPECT_EQ(header(request, "Host"), "results.s3.eu-central-1.amazonaws.com");
}

TEST_F(S3Test, TheBucketStandsWhereTheEndpointWantsIt) {
  const auto first_of = [&](S3Options o) {
    bucket->seen.clear();
    put(*open(std::move(o)), "x");
    const aws::HttpRequest& request = bucket->seen.at(0);
    return request.host + ":" + std::to_string(request.port) + request.target.substr(0, request.target.rfind('/'));
  };
  S3Options dotted = options();
  dotted.bucket = "my.results";
  EXPECT_EQ(first_of(dotted), "s3.eu-central-1.amazonaws.com:443/my.results/pay");
  S3Options own = options();
  own.endpoint = "http://127.0.0.1:9000";
  EXPECT_EQ(first_of(own), "127.0.0.1:9000/results/pay");
  own.path_style = false;
  own.endpoint = "http://minio.example:9000";
  EXPECT_EQ(first_of(own), "results.minio.example:9000/pay");
  S3Options forced = options();
  forced.path_style = true;
  forced.prefix = "a/b/";
  EXPECT_EQ(first_of(forced), "s3.eu-central-1.amazonaws.com:443/results/a/b");
  S3Options variable = options();
  variable.region = "";
  variable.prefix = "";
  variable.environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "AWS_ENDPOINT_URL_S3") return "http://[::1]:9000";
    if (name == "AWS_REGION") return "us-west-2";
    return std::nullopt;
  };
  EXPECT_EQ(first_of(variable), "::1:9000/results");
}

TEST_F(S3Test, SendsAgainWhatMayPass) {
  const auto s3 = open(options());
  bucket->fail(no_answer(ErrorKind::unavailable));
  bucket->fail(error(503, "SlowDown"));
  bucket->fail(error(500, "InternalError"));
  bucket->fail(error(409, "ConditionalRequestConflict"));
  const OffloadAnswer kept = put(*s3, "bytes");
  EXPECT_EQ(kept.error, std::nullopt);
  ASSERT_EQ(bucket->seen.size(), 5U);
  for (const auto& request : bucket->seen) EXPECT_EQ(request.target, bucket->seen.front().target);
  bucket->fail(no_answer(ErrorKind::in_doubt));
  bucket->fail(answer(502, "<html>a proxy</html>"));
  EXPECT_EQ(get(*s3, kept.text).text, "bytes");
  bucket->fail(no_answer(ErrorKind::in_doubt));
  EXPECT_EQ(remove(*s3, kept.text).error, std::nullopt);
  EXPECT_THAT(bucket->objects, IsEmpty());
}

TEST_F(S3Test, GivesUpAfterSomeAttempts) {
  S3Options few = options();
  few.max_attempts = 3;
  const auto s3 = open(few);
  for (int i = 0; i < 9; ++i) bucket->fail(error(503, "SlowDown"));
  const OffloadAnswer kept = put(*s3, "bytes");
  EXPECT_EQ(bucket->seen.size(), 3U);
  ASSERT_TRUE(kept.error);
  EXPECT_EQ(kept.error->kind, ErrorKind::unavailable);
  EXPECT_THAT(kept.error->message, AllOf(HasSubstr("cannot write s3://results/pay/"), HasSubstr("in 3 attempts"),
                                         HasSubstr("503 SlowDown: says SlowDown")));
  EXPECT_EQ(get(*s3, "s3://results/pay/x").error->kind, ErrorKind::unavailable);
  EXPECT_EQ(remove(*s3, "s3://results/pay/x").error->kind, ErrorKind::unavailable);
}

TEST_F(S3Test, ThePausesGrowAndAreDrawn) {
  S3Options many = options();
  many.max_attempts = 20;
  const auto s3 = open(many);
  for (int i = 0; i < 19; ++i) bucket->fail(error(500, "InternalError"));
  std::optional<OffloadAnswer> got;
  s3->put("h", "x", [&got](OffloadAnswer with) { got = std::move(with); });
  Millis most{50};
  std::vector<Millis> pauses;
  while (!got) {
    ASSERT_TRUE(timers->next());
    pauses.push_back(std::chrono::ceil<Millis>(*timers->next() - clock->uptime()));
    EXPECT_LE(pauses.back(), most);
    most = std::min(most * 2, Millis{5'000});
    timers->run_next();
  }
  EXPECT_EQ(pauses.size(), 19U);
  EXPECT_GT(*std::max_element(pauses.begin(), pauses.end()), Millis{2'500});
}

TEST_F(S3Test, AnAnswerThatWasLostIsNoSecondObject) {
  const auto s3 = open(options());
  bucket->fail(no_answer(ErrorKind::in_doubt), true);
  const OffloadAnswer kept = put(*s3, "bytes");
  EXPECT_EQ(kept.error, std::nullopt);
  EXPECT_EQ(bucket->objects.size(), 1U);
  EXPECT_EQ(get(*s3, kept.text).text, "bytes");
}

TEST_F(S3Test, ANameThatIsTakenIsNotUsed) {
  const auto s3 = open(options());
  const std::string first = put(*s3, "one", "h").text;
  random = std::make_shared<testing::SeededRandom>(1);  // A machine that was copied draws the same bytes.
  const OffloadAnswer second = put(*open(options()), "two", "h");
  EXPECT_EQ(second.error, std::nullopt);
  EXPECT_NE(second.text, first);
  EXPECT_EQ(get(*s3, first).text, "one");
  EXPECT_EQ(get(*s3, second.text).text, "two");
}

// A name that was refused is not where the bytes are.
TEST_F(S3Test, ARefusalOfEveryNameIsNoSuccess) {
  const auto s3 = open(options());
  bucket->fail(error(412, "PreconditionFailed"));
  bucket->fail(error(412, "PreconditionFailed"));
  const OffloadAnswer kept = put(*s3, "bytes");
  EXPECT_EQ(kept.error.value_or(Error{}).kind, ErrorKind::misuse) << kept.text;
  EXPECT_EQ(bucket->seen.size(), 2U);
  EXPECT_NE(bucket->seen.at(0).target, bucket->seen.at(1).target);
}

TEST_F(S3Test, AServerWithoutIfNoneMatchWillDo) {
  const auto s3 = open(options());
  bucket->fail(error(501, "NotImplemented"));
  EXPECT_EQ(put(*s3, "bytes").error, std::nullopt);
  EXPECT_EQ(header(bucket->seen.at(1), "If-None-Match"), "");
  put(*s3, "bytes");
  EXPECT_EQ(bucket->seen.size(), 3U) << "it is asked once";
}

TEST_F(S3Test, AMissingObjectIsClear) {
  const auto s3 = open(options());
  const OffloadAnswer missing = get(*s3, "s3://results/pay/gone-1");
  ASSERT_TRUE(missing.error);
  EXPECT_EQ(missing.error->kind, ErrorKind::corrupt);
  EXPECT_EQ(missing.error->message,
            "the object s3://results/pay/gone-1 is missing: was it removed, or did a lifecycle rule expire it before "
            "the record?");
}

TEST_F(S3Test, RefusalsSayWhatToDo) {
  const auto s3 = open(options());
  const auto refused = [&](aws::HttpAnswer with) {
    bucket->fail(std::move(with));
    const OffloadAnswer got = get(*s3, "s3://results/pay/x");
    EXPECT_EQ(got.error.value_or(Error{}).kind, ErrorKind::misuse);
    return got.error.value_or(Error{}).message;
  };
  EXPECT_THAT(refused(error(403, "AccessDenied")),
              AllOf(HasSubstr("the credentials (from a test) may not use s3://results/pay/x"), HasSubstr("missing")));
  EXPECT_THAT(refused(error(403, "SignatureDoesNotMatch")), HasSubstr("403 SignatureDoesNotMatch"));
  EXPECT_THAT(refused(error(404, "NoSuchBucket")), HasSubstr("there is no bucket results"));
  aws::HttpAnswer elsewhere = answer(301);
  elsewhere.headers = {{"x-amz-bucket-region", "us-west-2"}};
  EXPECT_THAT(refused(elsewhere), HasSubstr("is not in the region eu-central-1: use region=us-west-2"));
  EXPECT_THAT(refused(error(400, "AuthorizationHeaderMalformed")), HasSubstr("not in the region eu-central-1"));
  EXPECT_THAT(refused(error(400, "InvalidRequest")), HasSubstr("400 InvalidRequest: says InvalidRequest"));
  EXPECT_THAT(refused(no_answer(ErrorKind::misuse)), HasSubstr("connection reset"));
  provider->problem = {ErrorKind::misuse, "no credentials: tried the environment"};
  EXPECT_EQ(put(*s3, "x").error->kind, ErrorKind::misuse);
  EXPECT_THAT(put(*s3, "x").error->message, HasSubstr("tried the environment"));
}

TEST_F(S3Test, TheClockIsCorrectedOnce) {
  const auto s3 = open(options());
  bucket->fail(error(403, "RequestTimeTooSkewed", "<ServerTime>2026-01-03T04:05:06Z</ServerTime>"));
  EXPECT_EQ(put(*s3, "bytes").error, std::nullopt);
  EXPECT_EQ(header(bucket->seen.at(0), "X-Amz-Date"), "20260101T000000Z");
  EXPECT_EQ(header(bucket->seen.at(1), "X-Amz-Date"), "20260103T040506Z");
  clock->advance(std::chrono::seconds(10));
  put(*s3, "bytes");
  EXPECT_EQ(header(bucket->seen.at(2), "X-Amz-Date"), "20260103T040516Z");
  for (int i = 0; i < 2; ++i) {
    bucket->fail(error(403, "RequestTimeTooSkewed", "<ServerTime>2026-01-03T04:05:06Z</ServerTime>"));
  }
  EXPECT_EQ(put(*s3, "bytes").error->kind, ErrorKind::misuse);
  for (const char* odd :
       {"", "<ServerTime>yesterday, 11 o'clock</ServerTime>", "<ServerTime>2026-13-03T04:05:06Z</ServerTime>"}) {
    bucket->fail(error(403, "RequestTimeTooSkewed", odd));
    EXPECT_EQ(put(*s3, "bytes").error->kind, ErrorKind::misuse) << odd;
  }
}

TEST_F(S3Test, ExpiredCredentialsAreRenewedOnce) {
  const auto s3 = open(options());
  bucket->fail(error(400, "ExpiredToken"));
  EXPECT_EQ(put(*s3, "bytes").error, std::nullopt);
  EXPECT_EQ(provider->rejected, 1);
  EXPECT_THAT(std::string(header(bucket->seen.at(1), "Authorization")), HasSubstr("Credential=AKID1/"));
  bucket->fail(error(400, "ExpiredToken"));
  bucket->fail(error(400, "ExpiredToken"));
  EXPECT_EQ(put(*s3, "bytes").error->kind, ErrorKind::unavailable);
  EXPECT_EQ(provider->rejected, 3) << "those that came instead, too";
  bucket->fail(error(403, "InvalidAccessKeyId"));
  bucket->fail(error(403, "InvalidAccessKeyId"));
  EXPECT_EQ(put(*s3, "bytes").error->kind, ErrorKind::misuse);
}

TEST_F(S3Test, NoLocationLeadsOutOfIt) {
  const auto s3 = open(options());
  for (const char* location : {"s3://other/pay/x", "s3://results/payroll/x", "s3://results/x", "s3://results/pay/",
                               "file:x", "", "s3://results/../pay/x"}) {
    EXPECT_EQ(get(*s3, location).error.value_or(Error{}).kind, ErrorKind::misuse) << location;
    EXPECT_EQ(remove(*s3, location).error.value_or(Error{}).kind, ErrorKind::misuse) << location;
  }
  EXPECT_THAT(bucket->seen, IsEmpty());
}

TEST_F(S3Test, RefusesOptionsOutOfRange) {
  const auto refused = [&](auto change) {
    S3Options o = options();
    change(o);
    try {
      open(o);
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused([](S3Options& o) { o.bucket = "No_Bucket"; }), HasSubstr("'No_Bucket' is not a bucket's name"));
  EXPECT_THAT(refused([](S3Options& o) { o.bucket = ""; }), HasSubstr("not a bucket's name"));
  EXPECT_THAT(refused([](S3Options& o) { o.prefix = "a b"; }), HasSubstr("a prefix must have"));
  EXPECT_THAT(refused([](S3Options& o) { o.prefix = std::string(513, 'a'); }), HasSubstr("a prefix must have"));
  EXPECT_THAT(refused([](S3Options& o) { o.region = "EU"; }), HasSubstr("region"));
  EXPECT_THAT(refused([](S3Options& o) { o.region = ""; }), HasSubstr("no AWS region is set"));
  EXPECT_THAT(refused([](S3Options& o) { o.endpoint = "ftp://x"; }), HasSubstr("endpoint"));
  EXPECT_THAT(refused([](S3Options& o) { o.timeout = Millis{0}; }), HasSubstr("timeout"));
  EXPECT_THAT(refused([](S3Options& o) { o.max_attempts = 0; }), HasSubstr("max_attempts"));
}

TEST_F(S3Test, MayGoWhileACallWaits) {
  bucket->fail(error(500, "InternalError"));
  std::optional<OffloadAnswer> got;
  {
    const auto s3 = open(options());
    s3->put("h", "x", [&got](OffloadAnswer with) { got = std::move(with); });
  }
  EXPECT_FALSE(got);
  timers->run_next();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->error, std::nullopt);
}

}  // namespace
}  // namespace once
