// The signer against AWS's published examples and against botocore.
#include "aws/signer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <once/error.hpp>

namespace once::aws {
namespace sign_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;

using Headers = std::vector<std::pair<std::string, std::string>>;

constexpr Time at(std::int64_t seconds) { return Time(std::chrono::seconds(seconds)); }

std::string header(const HttpRequest& request, std::string_view name) {
  std::string found;
  for (const auto& [key, value] : request.headers) {
    if (key != name) continue;
    EXPECT_EQ(found, "") << name << " twice";
    found = value;
  }
  return found;
}

HttpRequest make_request(std::string method, std::string host, std::string target, Headers headers = {},
                         std::string body = {}) {
  HttpRequest request;
  request.method = std::move(method);
  request.host = std::move(host);
  request.target = std::move(target);
  request.headers = std::move(headers);
  request.body = std::move(body);
  return request;
}

Credentials make_credentials(std::string access_key_id, std::string secret, std::string token = {}) {
  Credentials credentials;
  credentials.access_key_id = std::move(access_key_id);
  credentials.secret_access_key = std::move(secret);
  credentials.session_token = std::move(token);
  return credentials;
}

// The aws-sig-v4-test-suite: one key, one moment, one service.
struct Published {
  const char* name;
  HttpRequest request;
  const char* signed_headers;
  const char* signature;
};

TEST(Signer, AgreesWithThePublishedTestSuite) {
  const std::string host = "example.amazonaws.com";
  const char* const vanilla = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";
  const char* const usual = "host;x-amz-date";
  std::vector<Published> cases;
  cases.push_back({"get-vanilla", make_request("GET", host, "/"), usual, vanilla});
  cases.push_back({"get-vanilla-empty-query", make_request("GET", host, "/?"), usual, vanilla});
  cases.push_back({"get-slash", make_request("GET", host, "//"), usual, vanilla});
  cases.push_back({"get-slash-dot-slash", make_request("GET", host, "/./"), usual, vanilla});
  cases.push_back({"get-relative", make_request("GET", host, "/example/.."), usual, vanilla});
  cases.push_back({"get-relative-relative", make_request("GET", host, "/example1/example2/../.."), usual, vanilla});
  cases.push_back({"get-utf8", make_request("GET", host, "/\xE1\x88\xB4"), usual,
                   "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"});
  cases.push_back({"get-vanilla-query-order-key-case", make_request("GET", host, "/?Param2=value2&Param1=value1"),
                   usual, "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"});
  cases.push_back({"post-vanilla", make_request("POST", host, "/"), usual,
                   "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"});
  cases.push_back(
      {"post-x-www-form-urlencoded",
       make_request("POST", host, "/", {{"Content-Type", "application/x-www-form-urlencoded"}}, "Param1=value1"),
       "content-type;host;x-amz-date", "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"});

  Signer signer("service", "us-east-1");
  const auto credentials = make_credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
  for (Published& each : cases) {
    signer.sign(each.request, credentials, at(1'440'938'160));
    EXPECT_EQ(header(each.request, "X-Amz-Date"), "20150830T123600Z");
    EXPECT_EQ(header(each.request, "Authorization"),
              std::string("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
                          "SignedHeaders=") +
                  each.signed_headers + ", Signature=" + each.signature)
        << each.name;
  }
}

// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
TEST(Signer, AgreesWithTheExamplesOfS3) {
  const std::string host = "examplebucket.s3.amazonaws.com";
  std::vector<std::pair<HttpRequest, const char*>> cases;
  cases.emplace_back(make_request("GET", host, "/test.txt", {{"Range", "bytes=0-9"}}),
                     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  cases.emplace_back(
      make_request("PUT", host, "/test%24file.text",
                   {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                   "Welcome to Amazon S3."),
      "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  cases.emplace_back(make_request("GET", host, "/?lifecycle"),
                     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  cases.emplace_back(make_request("GET", host, "/?max-keys=2&prefix=J"),
                     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");

  Signer signer("s3", "us-east-1");
  const auto credentials = make_credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
  for (auto& [request, signature] : cases) {
    signer.sign(request, credentials, at(1'369'353'600));
    EXPECT_THAT(header(request, "Authorization"), EndsWith(std::string(", Signature=") + signature));
  }
  EXPECT_EQ(header(cases[1].first, "X-Amz-Content-Sha256"),
            "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
}

std::string from_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = (bits << 6U) | static_cast<unsigned>(digits.find(c));
    count += 6;
    if (count >= 8) out += static_cast<char>((bits >> static_cast<unsigned>(count -= 8)) & 0xFFU);
  }
  return out;
}

struct Vector {
  std::string service;
  std::string region;
  HttpRequest request;
  Credentials credentials;
  Time now;
  std::string date;
  std::string authorization;
};

std::vector<Vector> read_vectors() {
  std::ifstream file(ONCE_AWS_DATA "/sign_botocore.json");
  std::vector<Vector> out;
  const auto document = nlohmann::json::parse(file);
  for (const auto& each : document.at("requests")) {
    Vector vector{
        .service = each.at("service"),
        .region = each.at("region"),
        .request = make_request(each.at("method"), each.at("host"), each.at("target"),
                                each.at("headers").get<Headers>(), from_base64(each.at("body").get<std::string>())),
        .credentials =
            make_credentials(each.at("access_key_id"), each.at("secret_access_key"), each.at("session_token")),
        .now = Time(Millis(each.at("now_ms").get<std::int64_t>() + 999)),  // Cut off, not rounded.
        .date = each.at("date"),
        .authorization = each.at("authorization")};
    vector.request.tls = each.at("tls");
    vector.request.port = each.at("port");
    out.push_back(std::move(vector));
  }
  return out;
}

TEST(Signer, AgreesWithBotocore) {
  const std::vector<Vector> vectors = read_vectors();
  ASSERT_GE(vectors.size(), 300U);
  std::map<std::pair<std::string, std::string>, Signer> signers;
  for (const Vector& each : vectors) {
    Signer& signer = signers.try_emplace({each.service, each.region}, each.service, each.region).first->second;
    HttpRequest request = each.request;
    signer.sign(request, each.credentials, each.now);
    EXPECT_EQ(header(request, "X-Amz-Date"), each.date);
    EXPECT_EQ(header(request, "X-Amz-Security-Token"), each.credentials.session_token);
    ASSERT_EQ(header(request, "Authorization"), each.authorization)
        << each.service << ' ' << request.method << ' ' << request.target;
  }
}

// Different credentials and days fight for the one kept key.
TEST(Signer, ServesManyThreads) {
  std::vector<Vector> vectors = read_vectors();
  std::erase_if(vectors, [](const Vector& each) { return each.service != "s3" || each.region != "us-east-1"; });
  ASSERT_GE(vectors.size(), 10U);
  Signer signer("s3", "us-east-1");
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = 0; i < 200; ++i) {
        const Vector& each = vectors[(i * (thread + 1)) % vectors.size()];
        HttpRequest request = each.request;
        signer.sign(request, each.credentials, each.now);
        ASSERT_EQ(header(request, "Authorization"), each.authorization);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Signer, SignsAgainWhatWasSigned) {
  Signer signer("s3", "us-east-1");
  HttpRequest request = make_request("PUT", "h", "/a", {{"x-amz-date", "old"}, {"AUTHORIZATION", "old"}}, "body");
  HttpRequest fresh = make_request("PUT", "h", "/a", {}, "other body");
  signer.sign(request, make_credentials("A", "secret", "token"), at(0));
  request.body = "other body";
  signer.sign(request, make_credentials("A", "other"), at(86'400));
  signer.sign(fresh, make_credentials("A", "other"), at(86'400));
  EXPECT_EQ(request.headers, fresh.headers);
}

TEST(Signer, SignsTheHostAsItIsSent) {
  HttpRequest request = make_request("GET", "h", "/");
  EXPECT_EQ(host_header(request), "h");
  request.port = 80;
  EXPECT_EQ(host_header(request), "h:80");
  request.tls = false;
  EXPECT_EQ(host_header(request), "h");
  request.host = "::1";
  EXPECT_EQ(host_header(request), "[::1]");
  request.host = "[::1]";
  request.port = 8000;
  EXPECT_EQ(host_header(request), "[::1]:8000");
}

TEST(Signer, LeavesOutWhatProxiesChange) {
  Signer signer("dynamodb", "us-east-1");
  HttpRequest request =
      make_request("POST", "h", "/", {{"user-agent", "a"}, {"Connection", "keep-alive"}, {"accept-encoding", "gzip"}});
  signer.sign(request, make_credentials("A", "b"), at(0));
  EXPECT_THAT(header(request, "Authorization"), HasSubstr("SignedHeaders=host;x-amz-date,"));
  EXPECT_EQ(header(request, "Connection"), "keep-alive");
}

TEST(Signer, RefusesATargetItCannotSign) {
  Signer signer("s3", "us-east-1");
  for (const char* target : {"", "a", "*", "http://h/", "/a#b"}) {
    HttpRequest request = make_request("GET", "h", target);
    try {
      signer.sign(request, make_credentials("A", "hidden"), at(0));
      FAIL() << target;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_THAT(error.what(), HasSubstr("'/'"));
    }
  }
}

}  // namespace sign_test
}  // namespace once::aws
