// The operations of the fake, and its transport.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service.hpp"

namespace once::testing {
namespace dynamodb_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;

json key(std::string_view id) { return {{"id", {{"S", id}}}}; }

json on_things(json request) {
  request["TableName"] = "things";
  return request;
}

TEST(FakeItems, ComeBackAsTheyWere) {
  const Service service;
  const json item =
      json::parse(R"({"id":{"S":"a"},"n":{"N":"-12.5"},"b":{"B":"AP8="},"t":{"BOOL":true},"z":{"NULL":true},
    "m":{"M":{"x":{"L":[{"S":""},{"N":"0"}]}}},"ss":{"SS":["a","b"]},"ns":{"NS":["1","2"]},"bs":{"BS":["AA==","AQ=="]}})");
  service.put(item);
  EXPECT_EQ(service.get("a"), item);
  EXPECT_EQ(service.get("b"), json());
}

TEST(FakeItems, NumbersAreNormalised) {
  const Service service;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1.0", "1"},
      {"007", "7"},
      {"-0", "0"},
      {"1E3", "1000"},
      {"+1.50e-2", "0.015"},
      {".5", "0.5"},
      {"5.", "5"},
      {"100E-2", "1"},
      {"0e500", "0"},
      {"12345678901234567890123456789012345678", "12345678901234567890123456789012345678"},
      {"1e125", "1" + std::string(125, '0')},
      {"1e-130", "0." + std::string(129, '0') + "1"}};
  for (const auto& [given, kept] : cases) {
    service.put({{"id", {{"S", "n"}}}, {"n", {{"N", given}}}});
    EXPECT_EQ(service.get("n")["n"]["N"], kept) << given;
  }
  for (const auto* bad : {"", "x", "1x", "1e", "--1", "1.2.3", "NaN", "0x10", " 1"}) {
    EXPECT_THAT(service.refusal("PutItem", on_things({{"Item", {{"id", {{"S", "n"}}}, {"n", {{"N", bad}}}}}})),
                StartsWith("ValidationException: The parameter cannot be converted to a numeric value"))
        << bad;
  }
  const auto refusal = [&](std::string_view number) {
    return service.refusal("PutItem", on_things({{"Item", {{"id", {{"S", "n"}}}, {"n", {{"N", number}}}}}}));
  };
  EXPECT_THAT(refusal("123456789012345678901234567890123456789"), HasSubstr("more than 38 significant digits"));
  EXPECT_THAT(refusal("1e126"), HasSubstr("Number overflow"));
  EXPECT_THAT(refusal("1e-131"), HasSubstr("Number underflow"));
}

TEST(FakeItems, AreRefusedAsTheServiceDoesIt) {
  const Service service;
  const auto refusal = [&](const json& item) { return service.refusal("PutItem", on_things({{"Item", item}})); };
  EXPECT_EQ(refusal({{"x", {{"S", "y"}}}}),
            "ValidationException: One or more parameter values were invalid: Missing the key id in the item");
  EXPECT_EQ(
      refusal({{"id", {{"N", "1"}}}}),
      "ValidationException: One or more parameter values were invalid: Type mismatch for key id expected: S actual: N");
  EXPECT_THAT(refusal(key("")), HasSubstr("cannot contain an empty string value. Key: id"));
  EXPECT_THAT(refusal(key(std::string(2049, 'k'))), HasSubstr("Size of hashkey has exceeded"));
  EXPECT_THAT(refusal({{"id", {{"S", "a"}}}, {"s", {{"SS", {"a", "a"}}}}}), HasSubstr("contains duplicates"));
  EXPECT_THAT(refusal({{"id", {{"S", "a"}}}, {"s", {{"NS", {"1", "1.0"}}}}}), HasSubstr("contains duplicates"));
  EXPECT_THAT(refusal({{"id", {{"S", "a"}}}, {"s", {{"SS", json::array()}}}}), HasSubstr("may not be empty"));
  EXPECT_THAT(refusal({{"id", {{"S", "a"}}}, {"s", json::object()}}), HasSubstr("must contain exactly one"));
  EXPECT_THAT(refusal({{"id", {{"S", "a"}}}, {"s", {{"S", "1"}, {"N", "1"}}}}), HasSubstr("more than one datatypes"));
  EXPECT_THAT(refusal({{"id", {{"S", "a"}}}, {"s", {{"S", 1}}}}), StartsWith("SerializationException"));
  EXPECT_THAT(refusal({{"id", {{"S", "a"}}}, {"s", {{"B", "A"}}}}), StartsWith("SerializationException"));
  EXPECT_THAT(refusal({{"id", {{"S", "a"}}}, {"s", {{"NULL", false}}}}), HasSubstr("Null attribute value types"));
  EXPECT_EQ(service.get("a"), json());
}

TEST(FakeItems, EndAt400KiB) {
  const Service service;
  // The names count as well: id, its value, x.
  const std::size_t most = 400 * 1024 - 2 - 1 - 1;
  service.put({{"id", {{"S", "a"}}}, {"x", {{"S", std::string(most, 'x')}}}});
  EXPECT_EQ(service.refusal("PutItem",
                            on_things({{"Item", {{"id", {{"S", "a"}}}, {"x", {{"S", std::string(most + 1, 'x')}}}}}})),
            "ValidationException: Item size has exceeded the maximum allowed size");
  EXPECT_EQ(service.refusal("UpdateItem", on_things({{"Key", key("a")},
                                                     {"UpdateExpression", "SET y = :y"},
                                                     {"ExpressionAttributeValues", {{":y", {{"S", ""}}}}}})),
            "ValidationException: Item size to update has exceeded the maximum allowed size");
}

TEST(FakeItems, AFailedConditionShowsTheItemWhenAsked) {
  const Service service;
  service.put({{"id", {{"S", "a"}}}, {"v", {{"N", "1"}}}});
  json request = on_things({{"Item", key("a")}, {"ConditionExpression", "attribute_not_exists(id)"}});
  json refused = service.bad("PutItem", request);
  EXPECT_EQ(refused["__type"], "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException");
  EXPECT_EQ(refused["message"], "The conditional request failed");
  EXPECT_FALSE(refused.contains("Item"));
  request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD";
  EXPECT_EQ(service.bad("PutItem", request)["Item"], service.get("a"));
  const json absent = on_things({{"Key", key("b")},
                                 {"ConditionExpression", "attribute_exists(id)"},
                                 {"ReturnValuesOnConditionCheckFailure", "ALL_OLD"}});
  EXPECT_FALSE(service.bad("DeleteItem", absent).contains("Item"));
}

TEST(FakeTransport, CountsAndTellsTheTime) {
  const Service service;
  const auto transport = make_fake_transport(service.fake);
  service.clock->advance(Millis{1'700});
  std::optional<aws::Reply> reply;
  transport->call({.operation = "GetItem", .body = on_things({{"Key", key("a")}}).dump()},
                  [&](aws::Reply got) { reply = std::move(got); });
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->body, "{}");
  EXPECT_FALSE(reply->error);
  EXPECT_EQ(reply->time, (StoreTime{.now = manual_start + Millis{1'500}, .error = Millis{500}}));
  EXPECT_EQ(service.fake->round_trips("GetItem"), 1);
  EXPECT_EQ(service.fake->round_trips("PutItem"), 0);
}

TEST(FakeTransport, FaultsHappenAsPlanned) {
  const Service service;
  const auto transport = make_fake_transport(service.fake);
  const auto put = [&](std::string_view id, FakeFault fault) {
    service.fake->set_faults([&](const FakeCall& call) {
      EXPECT_EQ(call.operation, "PutItem");
      return fault;
    });
    std::optional<aws::Reply> reply;
    transport->call({.operation = "PutItem", .body = on_things({{"Item", key(id)}}).dump()},
                    [&](aws::Reply got) { reply = std::move(got); });
    EXPECT_TRUE(reply);
    return reply.value_or(aws::Reply{});
  };
  using Kind = FakeFault::Kind;
  EXPECT_EQ(put("before", {.kind = Kind::lost_before}).error->kind, ErrorKind::in_doubt);
  EXPECT_EQ(service.get("before"), json());
  EXPECT_EQ(put("after", {.kind = Kind::lost_after}).error->kind, ErrorKind::in_doubt);
  EXPECT_EQ(service.get("after"), key("after"));
  EXPECT_EQ(put("unreachable", {.kind = Kind::unreachable}).error->kind, ErrorKind::unavailable);
  EXPECT_EQ(service.get("unreachable"), json());
  EXPECT_THAT(put("throttled", {.kind = Kind::throttled}).body, HasSubstr("#ProvisionedThroughputExceededException"));
  EXPECT_EQ(service.get("throttled"), json());
  EXPECT_EQ(put("error", {.kind = Kind::server_error}).status, 500);
  EXPECT_EQ(service.get("error"), json());
  EXPECT_EQ(put("written", {.kind = Kind::server_error_after}).status, 500);
  EXPECT_EQ(service.get("written"), key("written"));
  EXPECT_EQ(put("other", {.kind = Kind::answered, .answer = {.status = 418, .body = "{}"}}).status, 418);
}

TEST(FakeTransport, AnAnswerWaitsUntilItIsLetGo) {
  const Service service;
  auto transport = make_fake_transport(service.fake, 1);
  service.fake->set_faults([](const FakeCall&) { return FakeFault{.held = true}; });
  std::optional<aws::Reply> first;
  std::optional<aws::Reply> second;
  transport->call({.operation = "PutItem", .body = on_things({{"Item", key("a")}}).dump()},
                  [&](aws::Reply got) { first = std::move(got); });
  ASSERT_TRUE(service.fake->wait_for_held(1));
  EXPECT_EQ(service.get("a"), key("a"));
  EXPECT_FALSE(first);
  EXPECT_EQ(service.fake->release(), 1);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->status, 200);

  transport->call({.operation = "PutItem", .body = on_things({{"Item", key("b")}}).dump()},
                  [&](aws::Reply got) { second = std::move(got); });
  ASSERT_TRUE(service.fake->wait_for_held(1));
  transport.reset();
  ASSERT_TRUE(second && second->error);
  EXPECT_EQ(second->error->kind, ErrorKind::in_doubt);
  EXPECT_EQ(service.fake->release(), 1) << "nobody listens any more";
}

TEST(FakeTransport, TheItemOfAFailedConditionCanBeLeftOut) {
  const Service service;
  service.put(key("a"));
  const auto transport = make_fake_transport(service.fake);
  service.fake->set_faults([](const FakeCall&) { return FakeFault{.without_item = true}; });
  std::string body;
  transport->call({.operation = "PutItem",
                   .body = on_things({{"Item", key("a")},
                                      {"ConditionExpression", "attribute_not_exists(id)"},
                                      {"ReturnValuesOnConditionCheckFailure", "ALL_OLD"}})
                               .dump()},
                  [&](aws::Reply got) { body = got.body; });
  EXPECT_THAT(body, HasSubstr("#ConditionalCheckFailedException"));
  EXPECT_FALSE(json::parse(body).contains("Item"));
}

}  // namespace dynamodb_test
}  // namespace once::testing
