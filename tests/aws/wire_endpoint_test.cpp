// Regions, endpoints, dates and errors of services: what is read from text.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <once/error.hpp>

#include "aws/endpoint.hpp"
#include "aws/pace.hpp"
#include "aws/service_error.hpp"

namespace once::aws {
namespace wire_endpoint_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

// With a config file of this text, which goes with it.
class Surroundings {
 public:
  explicit Surroundings(Variables variables, const std::string& config = {}) : variables_(std::move(variables)) {
    variables_.emplace("AWS_CONFIG_FILE", path_);
    variables_.emplace("AWS_SHARED_CREDENTIALS_FILE", path_ + ".credentials");
    std::ofstream(path_) << config;
  }
  ~Surroundings() { std::filesystem::remove(path_); }
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;

  [[nodiscard]] Environment get() const {
    return [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      if (found == variables_.end()) return std::nullopt;
      return found->second;
    };
  }

 private:
  const std::string path_ = ::testing::TempDir() + "once_wire_config_" + std::to_string(::getpid());
  Variables variables_;
};

template <class Run>
std::string refusal(Run run) {
  try {
    run();
  } catch (const Exception& exception) {
    EXPECT_EQ(exception.kind(), ErrorKind::misuse);
    return exception.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

TEST(WireEndpoint, ParsesUrls) {
  const std::vector<std::pair<std::string, Endpoint>> good = {
      {"https://dynamodb.eu-central-1.amazonaws.com", {true, "dynamodb.eu-central-1.amazonaws.com", 443, ""}},
      {"http://localhost:8000", {false, "localhost", 8000, ""}},
      {"HTTP://LocalHost:8000/", {false, "localhost", 8000, ""}},
      {"http://127.0.0.1", {false, "127.0.0.1", 80, ""}},
      {"https://[::1]:8443/a/b/", {true, "::1", 8443, "/a/b"}},
      {"https://[fe80::1]", {true, "fe80::1", 443, ""}},
      {"http://fake_aws:65535", {false, "fake_aws", 65535, ""}},
  };
  for (const auto& [url, endpoint] : good) {
    EXPECT_EQ(parse_endpoint(url, "test"), endpoint) << url;
    EXPECT_EQ(parse_endpoint(endpoint.url(), "test"), endpoint) << url;
  }
  EXPECT_EQ(parse_endpoint("http://[::1]:80/x", "test").url(), "http://[::1]/x");
}

TEST(WireEndpoint, RefusesOtherUrls) {
  for (const char* url : {"",
                          "localhost:8000",
                          "//localhost",
                          "ftp://localhost",
                          "http:/localhost",
                          "http://",
                          "http://:80",
                          "http://a b",
                          "http://-a",
                          "http://a-",
                          "http://a..b",
                          "http://a:0",
                          "http://a:65536",
                          "http://a:8x",
                          "http://a:",
                          "http://::1",
                          "http://[::1",
                          "http://[::g]",
                          "http://[1.2.3.4]",
                          "http://[::1]8",
                          "http://1.2.3",
                          "http://1.2.3.256",
                          "http://a?b",
                          "http://a#b",
                          "http://a/\xc3\xa4",
                          "http://a/b c",
                          "http://user:word@a",
                          "http://ä"}) {
    EXPECT_THAT(refusal([&] { parse_endpoint(url, "THE_PLACE"); }),
                AllOf(HasSubstr("THE_PLACE"), HasSubstr("https://")))
        << url;
  }
  EXPECT_THAT(refusal([] { parse_endpoint("http://user:hunter2@host", "x"); }), Not(HasSubstr("hunter2")));
}

TEST(WireEndpoint, FindsTheRegion) {
  const std::string config = "[default]\nregion = eu-west-1\n[profile other]\nregion = eu-west-2\n[profile none]\n";
  using Case = std::pair<Variables, std::string>;
  for (const auto& [variables, region] : {
           Case{{{"AWS_REGION", "us-east-1"}, {"AWS_DEFAULT_REGION", "us-east-2"}}, "us-east-1"},
           Case{{{"AWS_REGION", ""}, {"AWS_DEFAULT_REGION", "us-east-2"}}, "us-east-2"},
           Case{{}, "eu-west-1"},
           Case{{{"AWS_PROFILE", "other"}}, "eu-west-2"},
       }) {
    EXPECT_EQ(find_region(Surroundings(variables, config).get()), region);
  }
  EXPECT_EQ(find_region(Surroundings(Variables{{"AWS_PROFILE", "none"}}, config).get(), "other"), "eu-west-2");
  EXPECT_THAT(refusal([&] {
                find_region(Surroundings(Variables{{"AWS_PROFILE", "none"}}, config).get());
              }),
              AllOf(HasSubstr("no AWS region is set"), HasSubstr("AWS_REGION"), HasSubstr("profile 'none'")));
  EXPECT_THAT(refusal([&] {
                find_region(Surroundings(Variables{{"AWS_REGION", "EU (Frankfurt)"}}).get());
              }),
              HasSubstr("AWS_REGION does not name a region"));
}

TEST(WireEndpoint, FindsTheEndpoint) {
  const std::string config =
      "[default]\nendpoint_url = http://config:1\nservices = mine\n"
      "[services mine]\ndynamodb =\n  endpoint_url = http://config-dynamodb:2\n";
  const auto find = [&](Variables variables, const std::string& service, const std::string& region,
                        const std::string& text = {}) {
    const Surroundings surroundings(std::move(variables), text);
    return find_endpoint(service, region, surroundings.get()).url();
  };
  EXPECT_EQ(find({}, "dynamodb", "eu-central-1"), "https://dynamodb.eu-central-1.amazonaws.com");
  EXPECT_EQ(find({}, "dynamodb", "cn-north-1"), "https://dynamodb.cn-north-1.amazonaws.com.cn");
  EXPECT_EQ(find({}, "dynamodb", "eu-central-1", config), "http://config-dynamodb:2");
  EXPECT_EQ(find({}, "s3", "eu-central-1", config), "http://config:1");
  const Variables both = {{"AWS_ENDPOINT_URL", "http://all:3"}, {"AWS_ENDPOINT_URL_DYNAMODB", "http://dynamodb:4"}};
  EXPECT_EQ(find(both, "dynamodb", "eu-central-1", config), "http://dynamodb:4");
  EXPECT_EQ(find(both, "s3", "eu-central-1", config), "http://all:3");
  Variables ignored = both;
  ignored["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "True";
  EXPECT_EQ(find(ignored, "s3", "eu-central-1", config), "https://s3.eu-central-1.amazonaws.com");
  EXPECT_THAT(refusal([&] {
                find({{"AWS_ENDPOINT_URL", "all:3"}}, "s3", "eu-central-1");
              }),
              HasSubstr("AWS_ENDPOINT_URL is 'all:3'"));
  EXPECT_THAT(refusal([&] { find({}, "s3", "evil.example/"); }), HasSubstr("region"));
  EXPECT_THAT(refusal([&] { find({}, "dynamodb", "local"); }), HasSubstr("endpoint=http://localhost:8000"));
  EXPECT_EQ(find({}, "s3", "eu-central-1", config + "[default]\nignore_configured_endpoint_urls = true\n"),
            "https://s3.eu-central-1.amazonaws.com");
}

// The table is botocore's: make_endpoints.py.
TEST(WireEndpoint, EachRegionAndVariantIsWhereAwsHasIt) {
  std::ifstream file(ONCE_AWS_DATA "/endpoints.json");
  const auto table = nlohmann::json::parse(file);
  std::size_t tried = 0;
  for (const auto& [service, regions] : table.at("hosts").items()) {
    for (const auto& [region, hosts] : regions.items()) {
      for (std::size_t variant = 0; variant < 4; ++variant) {
        const Surroundings surroundings(Variables{{"AWS_USE_FIPS_ENDPOINT", variant >= 2 ? "true" : "false"},
                                                  {"AWS_USE_DUALSTACK_ENDPOINT", variant % 2 == 1 ? "true" : "false"}});
        const auto find = [&] { return find_endpoint(service, region, surroundings.get()); };
        ++tried;
        if (hosts.at(variant).is_null()) {
          EXPECT_THAT(refusal(find), HasSubstr("AWS has no endpoint for FIPS of " + service + " in " + region));
          continue;
        }
        auto host = hosts.at(variant).get<std::string>();
        if (service == "s3") host = host.substr(std::string("bucket.").size());
        EXPECT_EQ(find().url(), "https://" + host);
        EXPECT_EQ(region_of_host(service, host), region);
        EXPECT_TRUE(is_of_aws(host));
      }
    }
  }
  EXPECT_GT(tried, 800U);
  for (const char* host : {"", "sqs", "sqs.", "sqs.eu-central-1", "sqs.eu-central-1.amazonaws.com.evil.example",
                           "sqs.cn-north-1.amazonaws.com", "dynamodb.eu-central-1.amazonaws.com", "localhost:4566",
                           "vpce-1.sqs.eu-central-1.vpce.amazonaws.com", "eu-central-1.queue.amazonaws.com"}) {
    EXPECT_EQ(region_of_host("sqs", host), "") << host;
  }
  EXPECT_FALSE(is_of_aws("localhost"));
  EXPECT_FALSE(is_of_aws("amazonaws.com.evil.example"));
}

TEST(WireEndpoint, FipsAndDualStackAreHonouredOrRefused) {
  const std::string fips =
      "[default]\nuse_fips_endpoint = true\n[profile both]\nuse_fips_endpoint = TRUE\n"
      "use_dualstack_endpoint = true\n[profile bucket]\ns3 =\n  use_dualstack_endpoint = true\n";
  const auto find = [&](Variables variables, const std::string& service, GivenEndpoint given = {}) {
    const Surroundings surroundings(std::move(variables), fips);
    return find_endpoint(service, "eu-central-1", surroundings.get(), {}, given).url();
  };
  EXPECT_EQ(find({}, "sqs"), "https://sqs-fips.eu-central-1.amazonaws.com");
  EXPECT_EQ(find({{"AWS_PROFILE", "both"}}, "sqs"), "https://sqs-fips.eu-central-1.api.aws");
  EXPECT_EQ(find({{"AWS_PROFILE", "bucket"}}, "s3"), "https://s3.dualstack.eu-central-1.amazonaws.com");
  EXPECT_EQ(find({{"AWS_PROFILE", "bucket"}}, "sqs"), "https://sqs.eu-central-1.amazonaws.com");
  // The variable counts before the profile.
  EXPECT_EQ(find({{"AWS_USE_FIPS_ENDPOINT", "False"}}, "sqs"), "https://sqs.eu-central-1.amazonaws.com");
  EXPECT_THAT(refusal([&] {
                find({}, "sqs", {"http://localhost:4566", "the option endpoint"});
              }),
              AllOf(HasSubstr("the option endpoint names an endpoint"), HasSubstr("use_fips_endpoint")));
  EXPECT_THAT(refusal([&] {
                find({{"AWS_ENDPOINT_URL_SQS", "http://localhost:4566"}}, "sqs");
              }),
              HasSubstr("AWS_ENDPOINT_URL_SQS names an endpoint"));
  for (const char* name :
       {"AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"}) {
    EXPECT_THAT(refusal([&] {
                  find({{name, "yes"}}, "sqs");
                }),
                AllOf(HasSubstr(name), HasSubstr("write true or false")));
  }
  EXPECT_THAT(refusal([&] {
                find({{"AWS_ACCOUNT_ID_ENDPOINT_MODE", "required"}}, "dynamodb");
              }),
              AllOf(HasSubstr("AWS_ACCOUNT_ID_ENDPOINT_MODE"), HasSubstr("preferred or disabled")));
}

TEST(WireEndpoint, ReadsDates) {
  EXPECT_EQ(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Time(Millis{784'111'777'000}));
  EXPECT_EQ(parse_http_date("Thu, 29 Feb 2024 23:59:59 GMT"), Time(Millis{1'709'251'199'000}));
  for (const char* bad :
       {"", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "Sun, 06 Nov 1994 08:49:37 CET",
        "Sun, 06 Nox 1994 08:49:37 GMT", "Sun, 31 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 24:49:37 GMT",
        "Sun, +6 Nov 1994 08:49:37 GMT", "Sun, 06 ovD 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:60:37 GMT"}) {
    EXPECT_EQ(parse_http_date(bad), std::nullopt) << bad;
  }
}

TEST(WireEndpoint, ReadsErrorsOfServices) {
  const auto read = [](std::string body, std::string type = {}) {
    HttpAnswer answer;
    answer.status = 400;
    answer.body = std::move(body);
    if (!type.empty()) answer.headers.emplace_back("x-amzn-errortype", std::move(type));
    const ServiceError error = read_service_error(answer);
    return error.code + "|" + error.message;
  };
  EXPECT_EQ(read(R"({"__type":"com.amazonaws.dynamodb.v20120810#ResourceNotFoundException","message":"gone"})"),
            "ResourceNotFoundException|gone");
  EXPECT_EQ(read(R"({"Message":"no \"way\"","__type":"com.amazon.coral.service#AccessDeniedException"})"),
            R"(AccessDeniedException|no "way")");
  EXPECT_EQ(read(R"({"__type":"ThrottlingException:http://internal.amazon.com/x/"})"), "ThrottlingException|");
  EXPECT_EQ(read("{}", "ValidationException:http://internal.amazon.com/x/"), "ValidationException|");
  // Only what stands at the top counts: an item may have any attributes.
  EXPECT_EQ(read(R"({"Item":{"__type":{"S":"ThrottlingException"},"message":{"S":"x"}},"message":7,)"
                 R"("__type":"a#ConditionalCheckFailedException"})"),
            "ConditionalCheckFailedException|");
  for (const char* body : {"", "<html>", "[]", "\"x\"", "{", R"({"__type")", R"({"__type":)", "null"}) {
    EXPECT_EQ(read(body), "|") << body;
  }
}

TEST(WirePace, NoLimitWithoutThrottling) {
  Pace pace;
  Uptime now = std::chrono::hours(5);
  for (int i = 0; i < 100'000; ++i) {
    EXPECT_EQ(pace.reserve(now, now), now);
    now += std::chrono::microseconds(10);
  }
}

TEST(WirePace, SlowsDownAndRecovers) {
  Pace pace;
  Uptime now = std::chrono::hours(5);
  // 1 000 a second.
  for (int i = 0; i < 3000; ++i) {
    pace.reserve(now, now);
    now += std::chrono::milliseconds(1);
  }
  // How many get through in a second, trying every tenth of a millisecond.
  const auto rate = [&] {
    int passed = 0;
    const Uptime end = now + std::chrono::seconds(1);
    for (; now < end; now += std::chrono::microseconds(100)) passed += pace.reserve(now, now).has_value() ? 1 : 0;
    return passed;
  };
  pace.throttled(now);
  pace.throttled(now);  // Of the same burst: it counts once.
  EXPECT_NEAR(rate(), 725, 40);
  for (int i = 1; i < 10; ++i) rate();
  EXPECT_NEAR(rate(), 1225, 150);
  pace.throttled(now);
  EXPECT_NEAR(rate(), 1225 * 0.725, 150);
  now += std::chrono::seconds(20);
  EXPECT_EQ(rate(), 10'000);
}

TEST(WirePace, NeverStops) {
  Pace pace;
  Uptime now = std::chrono::hours(5);
  for (int i = 0; i < 100; ++i) {
    pace.throttled(now);
    now += std::chrono::seconds(1);
  }
  const auto turn = pace.reserve(now, now + std::chrono::seconds(1));
  ASSERT_TRUE(turn);
  const auto next = pace.reserve(now, now + std::chrono::seconds(2));
  ASSERT_TRUE(next);
  EXPECT_LE(*next - *turn, std::chrono::seconds(1));
}

}  // namespace wire_endpoint_test
}  // namespace once::aws
