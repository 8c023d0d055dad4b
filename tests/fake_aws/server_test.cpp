// The fake behind HTTP and HTTPS: signatures, and what goes wrong on the wire. once's own signer and connections speak
// to it here; differential_test.py has it judge boto3's.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aws/http_client.hpp"
#include "aws/signer.hpp"
#include "fake_aws/fake_dynamodb_server.hpp"
#include "service.hpp"

namespace once::testing {
namespace server_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = FakeFault::Kind;

const FakeAccessKey access_key = {
    .access_key_id = "AKIDEXAMPLE", .secret_access_key = "secret", .session_token = "token"};

json put_request(std::string_view id) { return {{"TableName", "things"}, {"Item", {{"id", {{"S", id}}}}}}; }

class Wire {
 public:
  explicit Wire(FakeServerOptions options = {.keys = {access_key}})
      : tls_(options.tls), server_(std::make_unique<FakeDynamoDbServer>(service.fake, std::move(options))) {
    client_ = aws::make_http_client({.ca_file = server_->ca_file()});
  }

  [[nodiscard]] aws::HttpRequest request(std::string_view operation, const json& body) const {
    return {.method = "POST",
            .tls = tls_,
            .host = "127.0.0.1",
            .port = server_->port(),
            .target = "/",
            .headers = {{"Content-Type", "application/x-amz-json-1.0"},
                        {"X-Amz-Target", "DynamoDB_20120810." + std::string(operation)}},
            .body = body.dump()};
  }
  void sign(aws::HttpRequest& request, const FakeAccessKey& key = access_key, Millis late = Millis{0},
            const std::string& region = "eu-central-1", const std::string& name = "dynamodb") const {
    aws::Signer(name, region)
        .sign(request,
              {.access_key_id = key.access_key_id,
               .secret_access_key = key.secret_access_key,
               .session_token = key.session_token},
              service.clock->now() + late);
  }
  aws::HttpAnswer send(aws::HttpRequest request) const {
    std::promise<aws::HttpAnswer> answer;
    client_->send(std::move(request), [&](aws::HttpAnswer got) { answer.set_value(std::move(got)); });
    return answer.get_future().get();
  }
  aws::HttpAnswer put(std::string_view id) const {
    auto request = this->request("PutItem", put_request(id));
    sign(request);
    return send(std::move(request));
  }
  [[nodiscard]] bool exists(std::string_view id) const { return service.get(id) != json(); }

  Service service;
  FakeDynamoDbServer& server() { return *server_; }
  void stop() { server_.reset(); }

 private:
  const bool tls_;
  std::unique_ptr<FakeDynamoDbServer> server_;
  std::shared_ptr<aws::HttpClient> client_;
};

// What comes back for these bytes until the server closes, or until it has sent so much.
std::string raw(std::uint16_t port, std::string_view bytes, std::string_view until = "\r\n\r\n") {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  std::string out;
  char chunk[4096];
  while (out.find(until) == std::string::npos) {
    const ssize_t size = ::recv(socket, chunk, sizeof chunk, 0);
    if (size <= 0) {
      out += size < 0 ? "<reset>" : "<closed>";
      break;
    }
    out.append(chunk, static_cast<std::size_t>(size));
  }
  ::close(socket);
  return out;
}

TEST(FakeServer, AnswersSignedRequests) {
  Wire wire;
  wire.service.clock->jump(std::chrono::hours(24 * 40));  // 2026-02-10, wherever the host is.
  const auto answer = wire.put("a");
  ASSERT_FALSE(answer.error) << answer.error->message;
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.body, "{}");
  EXPECT_EQ(answer.header("date"), "Tue, 10 Feb 2026 00:00:00 GMT");
  EXPECT_EQ(answer.header("content-type"), "application/x-amz-json-1.0");
  EXPECT_EQ(answer.header("x-amz-crc32"), std::to_string(::crc32(0, reinterpret_cast<const Bytef*>("{}"), 2)));
  EXPECT_TRUE(wire.exists("a"));
  wire.put("b");
  EXPECT_EQ(wire.service.fake->round_trips("PutItem"), 2);
  const auto counts = wire.server().counts();
  EXPECT_EQ(counts.connections, 1) << "it is kept alive";
  EXPECT_EQ(counts.requests, 2);
  EXPECT_EQ(counts.refused, 0);
}

TEST(FakeServer, RefusesWhatIsNotSignedAsItShouldBe) {
  Wire wire({.keys = {access_key}, .region = "eu-central-1"});
  using Change = std::function<void(aws::HttpRequest&)>;
  const auto header = [](aws::HttpRequest& request, std::string_view name) -> std::string& {
    for (auto& [key, value] : request.headers) {
      if (key == name) return value;
    }
    throw std::runtime_error("no such header");
  };
  const auto refusal = [&](const Change& before, const FakeAccessKey& key, Millis late, const Change& after,
                           const std::string& region = "eu-central-1", const std::string& service = "dynamodb") {
    auto request = wire.request("PutItem", put_request("a"));
    before(request);
    wire.sign(request, key, late, region, service);
    after(request);
    const auto answer = wire.send(std::move(request));
    EXPECT_EQ(answer.status, 400) << answer.body;
    const json body = json::parse(answer.body);
    const std::string type = body.value("__type", "");
    return type.substr(type.find('#') + 1) + ": " + body.value("message", "");
  };
  const Change nothing = [](aws::HttpRequest&) {};
  const auto changed = [&](const Change& after) { return refusal(nothing, access_key, Millis{0}, after); };

  EXPECT_THAT(changed([](auto& request) { request.body = put_request("b").dump(); }),
              StartsWith("InvalidSignatureException: The request signature we calculated does not match"));
  EXPECT_THAT(changed([&](auto& request) { header(request, "X-Amz-Target") = "DynamoDB_20120810.DeleteItem"; }),
              StartsWith("InvalidSignatureException: The request signature we calculated does not match"));
  EXPECT_THAT(changed([](auto& request) { request.headers.emplace_back("X-Amz-Extra", "1"); }),
              HasSubstr("'x-amz-extra' must be a 'SignedHeader'"));
  EXPECT_THAT(changed([&](auto& request) { header(request, "Authorization").back() ^= 1; }),
              StartsWith("InvalidSignatureException"));
  EXPECT_THAT(changed([&](auto& request) { header(request, "Authorization") = "AWS4-HMAC-SHA256 Credential=x"; }),
              StartsWith("IncompleteSignatureException: Authorization header requires"));
  EXPECT_THAT(changed([&](auto& request) { header(request, "Authorization") = "Basic eA=="; }),
              StartsWith("IncompleteSignatureException: Unsupported AWS 'algorithm'"));
  EXPECT_THAT(changed([&](auto& request) { header(request, "X-Amz-Date") = "today"; }),
              StartsWith("IncompleteSignatureException"));
  EXPECT_THAT(changed([](auto& request) {
                std::erase_if(request.headers, [](const auto& each) { return each.first == "Authorization"; });
              }),
              StartsWith("MissingAuthenticationTokenException"));

  const auto by = [&](FakeAccessKey key) { return refusal(nothing, key, Millis{0}, nothing); };
  FakeAccessKey other = access_key;
  other.secret_access_key = "Secret";
  EXPECT_THAT(by(other), StartsWith("InvalidSignatureException: The request signature we calculated"));
  other = access_key;
  other.access_key_id = "AKIDOTHER";
  EXPECT_THAT(by(other),
              StartsWith("UnrecognizedClientException: The security token included in the request is invalid"));
  for (const auto* token : {"", "old"}) {
    other = access_key;
    other.session_token = token;
    EXPECT_THAT(by(other), StartsWith("UnrecognizedClientException"));
  }

  const auto late = [&](std::chrono::seconds by_that) { return refusal(nothing, access_key, by_that, nothing); };
  EXPECT_THAT(late(std::chrono::seconds(-301)),
              StartsWith("InvalidSignatureException: Signature expired: 20251231T235459Z is now earlier than "
                         "20251231T235500Z (20260101T000000Z - 5 min.)"));
  EXPECT_THAT(late(std::chrono::seconds(301)),
              StartsWith("InvalidSignatureException: Signature not yet current: 20260101T000501Z is still later than "
                         "20260101T000500Z (20260101T000000Z + 5 min.)"));
  EXPECT_THAT(refusal(nothing, access_key, Millis{0}, nothing, "us-east-1"), HasSubstr("scoped to a valid region"));
  EXPECT_THAT(refusal(nothing, access_key, Millis{0}, nothing, "eu-central-1", "s3"),
              HasSubstr("scoped to correct service"));

  FakeAccessKey expiring = access_key;
  expiring.expires_at = wire.service.clock->now();
  wire.server().set_keys({expiring});
  EXPECT_THAT(by(access_key),
              StartsWith("ExpiredTokenException: The security token included in the request is expired"));
  EXPECT_FALSE(wire.exists("a"));
  EXPECT_EQ(wire.service.fake->round_trips("PutItem"), 0);
  EXPECT_EQ(wire.server().counts().refused, wire.server().counts().requests);

  // Five minutes are allowed, and headers that are written in another way are the same.
  wire.server().set_keys({access_key});
  auto request = wire.request("PutItem", put_request("a"));
  request.headers.emplace_back("X-Amz-Meta", "  two   words ");
  wire.sign(request, access_key, std::chrono::minutes(5));
  EXPECT_EQ(wire.send(std::move(request)).status, 200);
}

TEST(FakeServer, BreaksTheConnectionAsPlanned) {
  for (const bool tls : {false, true}) {
    Wire wire({.keys = {access_key}, .tls = tls});
    const auto put = [&](std::string_view id, FakeFault fault) {
      wire.service.fake->set_faults([fault](const FakeCall&) { return fault; });
      return wire.put(id);
    };
    for (const bool abrupt : {false, true}) {
      const std::string suffix = abrupt ? "-reset" : "";
      const auto before = put("before" + suffix, {.kind = Kind::lost_before, .abrupt = abrupt});
      ASSERT_TRUE(before.error);
      EXPECT_EQ(before.error->kind, ErrorKind::in_doubt);
      EXPECT_FALSE(wire.exists("before" + suffix));
      const auto after = put("after" + suffix, {.kind = Kind::lost_after, .abrupt = abrupt});
      ASSERT_TRUE(after.error);
      EXPECT_TRUE(wire.exists("after" + suffix));
      const auto half = put("half" + suffix, {.kind = Kind::half_answer, .abrupt = abrupt});
      ASSERT_TRUE(half.error);
      EXPECT_EQ(half.error->kind, ErrorKind::in_doubt);
      EXPECT_TRUE(wire.exists("half" + suffix));
    }
    EXPECT_EQ(put("x", {.kind = Kind::throttled}).status, 400);
    EXPECT_EQ(put("x", {.kind = Kind::server_error}).status, 500);
    EXPECT_FALSE(wire.exists("x"));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(put("x", {.delay = Millis{30}}).status, 200);
    EXPECT_GE(std::chrono::steady_clock::now() - start, Millis{30});
  }
}

TEST(FakeServer, AResetIsOne) {
  Wire wire(FakeServerOptions{});
  const std::string body = put_request("a").dump();
  const std::string request =
      "POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: DynamoDB_20120810.PutItem\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  wire.service.fake->set_faults([](const FakeCall&) { return FakeFault{.kind = Kind::lost_after, .abrupt = true}; });
  EXPECT_EQ(raw(wire.server().port(), request), "<reset>");
  wire.service.fake->set_faults([](const FakeCall&) { return FakeFault{.kind = Kind::lost_after}; });
  EXPECT_EQ(raw(wire.server().port(), request), "<closed>");
  wire.service.fake->set_faults([](const FakeCall&) { return FakeFault{.kind = Kind::half_answer}; });
  EXPECT_THAT(raw(wire.server().port(), request, "<>"), ::testing::EndsWith("\r\n\r\n{<closed>"));
}

TEST(FakeServer, HoldsAnswers) {
  Wire wire;
  wire.service.fake->set_faults([](const FakeCall&) { return FakeFault{.held = true}; });
  auto first = std::async(std::launch::async, [&] { return wire.put("a"); });
  ASSERT_TRUE(wire.service.fake->wait_for_held(1));
  EXPECT_TRUE(wire.exists("a"));
  EXPECT_EQ(wire.service.fake->release(), 1);
  EXPECT_EQ(first.get().status, 200);

  auto second = std::async(std::launch::async, [&] { return wire.put("b"); });
  ASSERT_TRUE(wire.service.fake->wait_for_held(1));
  wire.stop();
  EXPECT_TRUE(second.get().error);
  EXPECT_EQ(wire.service.fake->release(), 1) << "nobody is there any more";
}

TEST(FakeServer, ShowsBadCertificatesWhenAsked) {
  using Certificate = FakeServerOptions::Certificate;
  for (const auto certificate : {Certificate::wrong_name, Certificate::expired}) {
    Wire wire({.keys = {access_key}, .tls = true, .certificate = certificate});
    const auto answer = wire.put("a");
    ASSERT_TRUE(answer.error);
    EXPECT_EQ(answer.error->kind, ErrorKind::misuse) << answer.error->message;
    EXPECT_FALSE(wire.exists("a"));
  }
}

TEST(FakeServer, GivesOneAnswerToEverything) {
  Wire wire({.keys = {access_key}, .fixed_answer = R"({"Item":{}})"});
  auto request = wire.request("GetItem", json::object());
  const auto answer = wire.send(std::move(request));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, R"({"Item":{}})");
  EXPECT_TRUE(wire.service.fake->round_trips().empty());
}

TEST(FakeServer, RefusesBadHttp) {
  Wire wire(FakeServerOptions{});
  const auto port = wire.server().port();
  EXPECT_THAT(raw(port, "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(raw(port, "POST / HTTP/1.1\r\nno colon\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(raw(port, "POST / HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 411 "));
  EXPECT_THAT(raw(port, "POST / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(raw(port, "POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(raw(port, "GET /else HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(raw(port, "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", "}"), HasSubstr("UnknownOperationException"));
  EXPECT_THAT(raw(port, "POST / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"),
              "HTTP/1.1 100 Continue\r\n\r\n");
  // Two requests in one piece get two answers.
  const std::string list = "POST / HTTP/1.1\r\nX-Amz-Target: DynamoDB_20120810.ListTables\r\nContent-Length: 2\r\n";
  const std::string both = raw(port, list + "\r\n{}" + list + "Connection: close\r\n\r\n{}", "<>");
  const auto first = both.find(R"({"TableNames":["things"]})");
  EXPECT_NE(both.find(R"({"TableNames":["things"]})", first + 1), std::string::npos) << both;
  EXPECT_THAT(both, ::testing::EndsWith("<closed>"));
}

TEST(FakeServer, SaysWhichPortIsTaken) {
  Wire wire(FakeServerOptions{});
  try {
    const FakeDynamoDbServer second(wire.service.fake, {.port = wire.server().port()});
    FAIL() << "two servers on one port";
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_THAT(error.what(), HasSubstr("cannot listen on 127.0.0.1:" + std::to_string(wire.server().port())));
  }
}

}  // namespace server_test
}  // namespace once::testing
