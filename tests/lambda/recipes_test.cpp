// The key recipes on example events of each service: the same event delivered again has the same key, another one has
// another, other services' events have none; and docs/lambda-events.md says what the header says.
#include <once/frontends/lambda/recipes.hpp>

#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <once/keys/key_deriver.hpp>

namespace once::lambda {
namespace recipes_test {

using Json = nlohmann::ordered_json;
using recipes::Recipe;
using ::testing::HasSubstr;

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.is_open()) << path;
  return text.str();
}

std::string example(const Recipe& recipe) {
  return text_of_file(ONCE_TEST_EVENTS "/" + std::string(recipe.file) + ".json");
}

keys::Derived derive(const Recipe& recipe, const std::string& event) {
  const keys::KeyDeriver deriver(
      {.scope = "test", .expression = std::string(recipe.key), .fingerprint = std::string(recipe.fingerprint)});
  return deriver.derive(event);
}

// What a second delivery of the same event changes, and what makes it another event.
struct Changes {
  std::function<void(Json&)> delivered_again;
  std::vector<std::function<void(Json&)>> another;
  std::function<void(Json&)> another_payload;  // Under the same key. Empty: the recipe compares nothing.
};

const std::map<std::string_view, Changes>& changes() {
  static const std::map<std::string_view, Changes> all{
      {"event_bridge",
       {[](Json& e) { e["replay-name"] = "replay-1"; },
        {[](Json& e) { e["id"] = "0f3c2e7c-0000-4cf7-a9f1-bf3703467718"; },
         [](Json& e) { e["source"] = "com.example.other"; }},
        [](Json& e) { e["detail"]["cents"] = 900; }}},
      {"sns",
       {[](Json& e) { e["Records"][0]["EventSubscriptionArn"] = "arn:aws:sns:eu-central-1:123456789012:orders:2"; },
        {[](Json& e) { e["Records"][0]["Sns"]["MessageId"] = "00000000-ee98-5cb9-9903-4c221d41eb5e"; },
         [](Json& e) { e["Records"][0]["Sns"]["TopicArn"] = "arn:aws:sns:eu-central-1:123456789012:refunds"; }},
        [](Json& e) { e["Records"][0]["Sns"]["Message"] = "{}"; }}},
      {"s3",
       {[](Json& e) { e["Records"][0]["s3"]["configurationId"] = "renamed"; },
        {[](Json& e) { e["Records"][0]["s3"]["object"]["sequencer"] = "0C0F6F405D6ED209E2"; },
         [](Json& e) { e["Records"][0]["s3"]["object"]["key"] = "incoming/order-18.json"; },
         [](Json& e) { e["Records"][0]["s3"]["bucket"]["name"] = "example-archive"; },
         [](Json& e) { e["Records"][0]["eventName"] = "ObjectRemoved:Delete"; },
         [](Json& e) {
           e["Records"][0]["s3"]["object"].erase("sequencer");
           e["Records"][0]["eventTime"] = "2026-01-01T12:00:01.000Z";
         }},
        {}}},
      {"dynamodb_stream",
       {[](Json& e) { e["dynamodb"]["ApproximateCreationDateTime"] = 1767268801; },
        {[](Json& e) { e["eventID"] = "c4ca4238a0b923820dcc509a6f75849c"; },
         [](Json& e) { e["eventSourceARN"] = "arn:aws:dynamodb:eu-central-1:123456789012:table/other/stream/1"; }},
        {}}},
      {"kinesis",
       {[](Json& e) { e["kinesis"]["approximateArrivalTimestamp"] = 1767268801.1; },
        {[](Json& e) {
           e["eventID"] = "shardId-000000000006:49590338271490256608559692538361571095921575989136588899";
         },
         [](Json& e) { e["eventSourceARN"] = "arn:aws:kinesis:eu-central-1:123456789012:stream/other"; }},
        {}}},
      {"sqs",
       {[](Json& e) {
          e["attributes"]["ApproximateReceiveCount"] = "2";
          e["receiptHandle"] = "another";
        },
        {[](Json& e) { e["messageId"] = "00000000-87a3-44ab-83d2-661975830a7d"; },
         [](Json& e) { e["eventSourceARN"] = "arn:aws:sqs:eu-central-1:123456789012:refunds"; }},
        {}}},
      {"sqs_fifo",
       {[](Json& e) {  // Sent again by a sender that was not told that it was sent.
          e["attributes"]["ApproximateReceiveCount"] = "2";
          e["messageId"] = "00000000-4cc7-4302-9e22-7cd8afdaadf5";
          e["receiptHandle"] = "another";
        },
        {[](Json& e) { e["attributes"]["MessageDeduplicationId"] = "order-18-placed"; },
         [](Json& e) { e["attributes"]["MessageGroupId"] = "customer-5"; }},
        {}}},
      {"sns_in_sqs",
       {[](Json& e) { e["UnsubscribeURL"] = "https://sns.eu-central-1.amazonaws.com/?another"; },
        {[](Json& e) { e["MessageId"] = "00000000-ee98-5cb9-9903-4c221d41eb5e"; },
         [](Json& e) { e["TopicArn"] = "arn:aws:sns:eu-central-1:123456789012:refunds"; }},
        [](Json& e) { e["Message"] = "{}"; }}},
      {"kafka",
       {[](Json& e) { e["eventSourceKey"] = "orders-0"; },  // Once more, through EventBridge Pipes.
        {[](Json& e) { e["topic"] = "refunds"; }, [](Json& e) { e["partition"] = 1; },
         [](Json& e) { e["offset"] = 16; }, [](Json& e) { e["timestamp"] = 1767268800001; }},
        {}}},
      {"step_functions",
       {[](Json& e) { e["retry"] = 1; },
        {[](Json& e) { e["once"]["execution"] = "arn:aws:states:eu-central-1:123456789012:execution:orders:7"; },
         [](Json& e) { e["once"]["state"] = "Refund"; },
         [](Json& e) { e["once"]["entered"] = "2026-01-01T12:00:07.000Z"; }, [](Json& e) { e["once"]["item"] = 1; }},
        [](Json& e) { e["input"]["cents"] = 900; }}},
      {"rest_api",
       {[](Json& e) {
          e["requestContext"]["requestId"] = "another";
          e["headers"]["X-Amzn-Trace-Id"] = "Root=1-another";
          e["headers"]["Authorization"] = "Bearer renewed";
        },
        {[](Json& e) { e["headers"]["Idempotency-Key"] = "order-18"; },
         [](Json& e) { e["requestContext"]["authorizer"]["principalId"] = "user|bob"; },
         [](Json& e) {
           e["requestContext"]["authorizer"] = {{"claims", {{"sub", "bob"}}}};
         },
         [](Json& e) {
           e["requestContext"].erase("authorizer");
           e["requestContext"]["identity"]["apiKeyId"] = "k7";
         },
         [](Json& e) { e["path"] = "/refunds"; }},
        [](Json& e) { e["body"] = "{}"; }}},
      {"http_api",
       {[](Json& e) {
          e["requestContext"]["requestId"] = "another";
          e["headers"]["authorization"] = "Bearer renewed";
        },
        {[](Json& e) { e["headers"]["idempotency-key"] = "order-18"; },
         [](Json& e) { e["requestContext"]["authorizer"]["jwt"]["claims"]["sub"] = "bob"; },
         [](Json& e) { e["requestContext"]["authorizer"]["jwt"]["claims"]["iss"] = "https://idp.example.org"; },
         [](Json& e) { e["rawPath"] = "/refunds"; }},
        [](Json& e) { e["body"] = "{}"; }}},
      {"function_url",
       {[](Json& e) {
          e["requestContext"]["requestId"] = "another";
          e["headers"]["authorization"] = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE, Signature=another";
        },
        {[](Json& e) { e["headers"]["idempotency-key"] = "order-18"; },
         [](Json& e) { e["requestContext"]["authorizer"]["iam"]["userArn"] = "arn:aws:iam::123456789012:user/bob"; },
         [](Json& e) { e["rawPath"] = "/refunds"; }},
        [](Json& e) { e["body"] = "e30="; }}},
      {"alb",
       {[](Json& e) {
          e["headers"]["x-forwarded-port"] = "8443";
          e["headers"]["x-amzn-oidc-data"] = "a JWT that is signed anew";
        },
        {[](Json& e) { e["headers"]["idempotency-key"] = "order-18"; },
         [](Json& e) { e["headers"]["x-amzn-oidc-identity"] = "bob"; }, [](Json& e) { e["path"] = "/refunds"; }},
        [](Json& e) { e["body"] = "{}"; }}},
      {"vpc_lattice_v1",
       {[](Json& e) { e["headers"]["authorization"] = "AWS4-HMAC-SHA256 another"; },
        {[](Json& e) { e["headers"]["idempotency-key"] = "order-18"; },
         [](Json& e) { e["headers"]["x-amzn-lattice-identity"] = "Principal=arn:aws:iam::123456789012:user/bob"; },
         [](Json& e) { e["raw_path"] = "/refunds"; }},
        [](Json& e) { e["body"] = "{}"; }}},
      {"vpc_lattice_v2",
       {[](Json& e) {
          e["headers"]["authorization"] = {"AWS4-HMAC-SHA256 another"};
          e["requestContext"]["timeEpoch"] = "1767268801000000";
        },
        {[](Json& e) { e["headers"]["idempotency-key"] = {"order-18"}; },
         [](Json& e) { e["requestContext"]["identity"]["principal"] = "arn:aws:iam::123456789012:user/bob"; },
         [](Json& e) { e["path"] = "/refunds"; }},
        [](Json& e) { e["body"] = "{}"; }}},
  };
  return all;
}

class Recipes : public ::testing::TestWithParam<Recipe> {};

TEST_P(Recipes, TheSameEventDeliveredAgainHasTheSameKeyAndPayload) {
  const Recipe& recipe = GetParam();
  const keys::Derived first = derive(recipe, example(recipe));
  ASSERT_TRUE(first.key);
  Json again = Json::parse(example(recipe));
  changes().at(recipe.file).delivered_again(again);
  ASSERT_NE(again, Json::parse(example(recipe)));
  const keys::Derived second = derive(recipe, again.dump());
  EXPECT_EQ(second.key, first.key) << second.key_text;
  EXPECT_EQ(second.fingerprint, first.fingerprint) << second.fingerprint_text;
  EXPECT_EQ(first.fingerprint.empty(), recipe.fingerprint.empty());
}

TEST_P(Recipes, AnotherEventHasAnotherKey) {
  const Recipe& recipe = GetParam();
  std::vector<keys::Derived> keys{derive(recipe, example(recipe))};
  for (const auto& change : changes().at(recipe.file).another) {
    Json event = Json::parse(example(recipe));
    change(event);
    keys.push_back(derive(recipe, event.dump()));
    ASSERT_TRUE(keys.back().key);
    for (std::size_t i = 0; i + 1 < keys.size(); ++i) EXPECT_NE(keys[i].key, keys.back().key) << keys[i].key_text;
  }
}

TEST_P(Recipes, AnotherPayloadUnderTheKeyIsNoticed) {
  const Recipe& recipe = GetParam();
  const auto& change = changes().at(recipe.file).another_payload;
  ASSERT_EQ(static_cast<bool>(change), !recipe.fingerprint.empty());
  if (!change) return;
  Json event = Json::parse(example(recipe));
  change(event);
  const keys::Derived first = derive(recipe, example(recipe));
  const keys::Derived second = derive(recipe, event.dump());
  EXPECT_EQ(second.key, first.key);
  EXPECT_NE(second.fingerprint, first.fingerprint);
}

TEST_P(Recipes, EventsOfOthersHaveNoKey) {
  const Recipe& recipe = GetParam();
  EXPECT_FALSE(derive(recipe, "{}").key);
  EXPECT_FALSE(derive(recipe, R"({"Records":[]})").key);
  for (const Recipe& other : recipes::all) {
    if (other.key == recipe.key) continue;
    if (recipe.file == "sqs" && other.file == "sqs_fifo") continue;  // A message of such a queue is one of SQS.
    const keys::Derived derived = derive(recipe, example(other));
    EXPECT_FALSE(derived.key) << other.name << ": " << derived.key_text;
  }
}

// A bucket without versions, a state that is no Map, a GET without query and body.
TEST_P(Recipes, OptionalPartsMayBeMissing) {
  const Recipe& recipe = GetParam();
  Json event = Json::parse(example(recipe));
  for (const char* const name :
       {"body", "queryStringParameters", "query_string_parameters", "multiValueQueryStringParameters"}) {
    event.erase(name);
  }
  if (event.contains("once")) event["once"].erase("item");
  if (recipe.file == "s3") {
    event["Records"][0]["s3"]["object"].erase("versionId");
    event["Records"][0]["s3"]["object"].erase("sequencer");
  }
  const keys::KeyDeriver deriver({.scope = "test",
                                  .expression = std::string(recipe.key),
                                  .fingerprint = std::string(recipe.fingerprint),
                                  .require_key = true});
  EXPECT_TRUE(deriver.derive(event.dump()).key);
  if (recipe.file != "alb") return;
  EXPECT_EQ(deriver.derive(event.dump()).fingerprint_text, R"(["POST",null,null])") << "as before there were literals";
}

TEST_P(Recipes, AnExampleWithoutItsKeyHasNone) {
  const Recipe& recipe = GetParam();
  Json event = Json::parse(example(recipe));
  for (const char* const name : {"id", "eventID", "messageId", "attributes", "once", "topic", "MessageId"})
    event.erase(name);
  if (event.contains("Records")) event["Records"][0].erase(recipe.file == "sns" ? "Sns" : "s3");
  if (event.contains("headers") && event["headers"].is_object()) {
    event["headers"].erase("idempotency-key");
    event["headers"].erase("Idempotency-Key");
  }
  EXPECT_FALSE(derive(recipe, event.dump()).key);
}

// Whose key it is counts: where nothing says it that a retry would have again, there is no key.
TEST_P(Recipes, AnHttpEventOfNobodyHasNoKey) {
  const Recipe& recipe = GetParam();
  Json event = Json::parse(example(recipe));
  if (!event.contains("headers") || !event["headers"].is_object()) return;
  if (event.contains("requestContext")) {
    event["requestContext"].erase("authorizer");
    event["requestContext"].erase("identity");
  }
  event["headers"].erase("x-amzn-oidc-identity");
  event["headers"].erase("x-amzn-lattice-identity");
  EXPECT_FALSE(derive(recipe, event.dump()).key);
}

TEST_P(Recipes, TheDocumentsTableSaysTheSame) {
  const Recipe& recipe = GetParam();
  const auto cell = [](std::string_view expression) {
    if (expression.empty()) return std::string("–");
    const bool has_literal = expression.find('`') != std::string_view::npos;
    std::string out = has_literal ? "`` " : "`";
    for (const char c : expression) out += c == '|' ? std::string("\\|") : std::string(1, c);
    return out + (has_literal ? " ``" : "`");
  };
  const std::string of = recipe.over == recipes::Over::event    ? "the event"
                         : recipe.over == recipes::Over::record ? "a record"
                                                                : "the payload";
  EXPECT_THAT(text_of_file(ONCE_DOCS "/lambda-events.md"),
              HasSubstr("\n| [" + std::string(recipe.name) + "](../tests/lambda/events/" + std::string(recipe.file) +
                        ".json) | `" + std::string(recipe.file) + "` | " + of + " | " + cell(recipe.key) + " | " +
                        cell(recipe.fingerprint) + " |"));
}

INSTANTIATE_TEST_SUITE_P(All, Recipes, ::testing::ValuesIn(recipes::all),
                         [](const auto& made) { return std::string(made.param.file); });

TEST(RecipesAll, HaveChangesEach) { EXPECT_EQ(recipes::all.size(), changes().size()); }

}  // namespace recipes_test
}  // namespace once::lambda
