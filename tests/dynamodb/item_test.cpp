// DynamoDB's JSON, in and out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include <nlohmann/json.hpp>

#include "stores/dynamodb/item.hpp"
#include "text/json_write.hpp"

namespace once::stores::dynamodb {
namespace item_test {

using Value = AttributeValue;

std::string json_of(const Item& item) {
  std::string out;
  append_json(out, item);
  return out;
}

Item read(std::string_view json) {
  auto item = item_from_json(json);
  if (const Error* error = std::get_if<Error>(&item)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<Item>(std::move(item));
}

Item every_type() {
  Value set;
  set.type = Value::Type::ss;
  set.set = {"a", "b\"\\"};
  Value numbers;
  numbers.type = Value::Type::ns;
  numbers.set = {"1", "-2.5"};
  Value blobs;
  blobs.type = Value::Type::bs;
  blobs.set = {std::string("\0\xFF", 2), "x"};
  Item map;
  map.add("inner", Value::l({Value::n(7), Value::m({})}));
  Item item;
  item.add("s", Value::s("caf\xC3\xA9 \"quoted\" \\ \n\t\x01"));
  item.add("n", Value::n(std::string("12345678901234567890.5")));
  item.add("b", Value::b(std::string("\0\x01\xFF", 3)));
  item.add("yes", Value::boolean(true));
  item.add("no", Value::boolean(false));
  item.add("nothing", Value{});
  item.add("m", Value::m(map));
  item.add("l", Value::l({}));
  item.add("ss", set);
  item.add("ns", numbers);
  item.add("bs", blobs);
  item.add("", Value::s(""));
  return item;
}

TEST(Item, EveryTypeIsWrittenAsTheServiceWantsIt) {
  EXPECT_EQ(json_of(every_type()),
            R"({"s":{"S":"café \"quoted\" \\ \n\t\u0001"},"n":{"N":"12345678901234567890.5"},"b":{"B":"AAH/"},)"
            R"("yes":{"BOOL":true},"no":{"BOOL":false},"nothing":{"NULL":true},)"
            R"("m":{"M":{"inner":{"L":[{"N":"7"},{"M":{}}]}}},"l":{"L":[]},"ss":{"SS":["a","b\"\\"]},)"
            R"("ns":{"NS":["1","-2.5"]},"bs":{"BS":["AP8=","eA=="]},"":{"S":""}})");
}

TEST(Item, EveryByteIsEscapedWhereverItStands) {
  for (unsigned byte = 0; byte < 0x80; ++byte) {
    for (std::size_t length = 1; length <= 18; ++length) {
      for (std::size_t at = 0; at < length; ++at) {
        std::string text(length, 'a');
        text[at] = static_cast<char>(byte);
        std::string json;
        text::json::append_quoted(json, text);
        EXPECT_EQ(nlohmann::json(text).dump().size() > length + 2, json.size() > length + 2) << byte << ' ' << at;
        EXPECT_EQ(nlohmann::json::parse(json), text) << byte << ' ' << at;
      }
    }
  }
}

TEST(Item, WhatWasWrittenIsReadBack) {
  const Item item = every_type();
  EXPECT_TRUE(read(json_of(item)) == item);
  EXPECT_FALSE(read(R"({"a":{"S":"1"}})") == read(R"({"a":{"N":"1"}})"));
  EXPECT_TRUE(read(R"({"a":{"S":"1"},"b":{"S":"2"}})") == read(R"({"b":{"S":"2"},"a":{"S":"1"}})"));
}

TEST(Item, BinaryOfEveryLengthAndByteSurvives) {
  for (std::size_t length = 0; length < 20; ++length) {
    for (const char fill : {'\0', '\xFF', 'a'}) {
      Item item;
      item.add("b", Value::b(std::string(length, fill)));
      EXPECT_TRUE(read(json_of(item)) == item) << length;
    }
  }
}

TEST(Item, MalformedJsonIsAnErrorThatSaysWhere) {
  for (const auto& [json, part] : {std::pair{R"({"a":{"S":1}})", "attribute 'a'"},
                                   {R"({"a":{"Q":"1"}})", "no type"},
                                   {R"({"a":{"S":"1","N":"2"}})", "one member"},
                                   {R"({"a":{"B":"!!!!"}})", "base64"},
                                   {R"({"a":{"B":"AAA"}})", "base64"},
                                   {R"({"a":{"B":"AA=A"}})", "base64"},
                                   {R"({"a":{"B":"AB=="}})", "base64"},
                                   {R"({"a":{"B":"===="}})", "base64"},
                                   {R"({"a":{"BOOL":"true"}})", "BOOL"},
                                   {R"({"a":{"L":{}}})", "array"},
                                   {R"({"a":{"M":{"b":{"N":1}}}})", "attribute 'a': attribute 'b'"},
                                   {R"({"a":"text"})", "attribute 'a'"},
                                   {R"([])", "not an object"},
                                   {R"({"a":{"S":"1"})", "malformed"},
                                   {"", "malformed"}}) {
    const auto item = item_from_json(json);
    const Error* error = std::get_if<Error>(&item);
    ASSERT_NE(error, nullptr) << json;
    EXPECT_EQ(error->kind, ErrorKind::corrupt) << json;
    EXPECT_THAT(error->message, ::testing::HasSubstr(part)) << json;
  }
}

TEST(Item, NestingIsBounded) {
  const auto nested = [](int depth) {
    std::string json = R"({"a":)";
    for (int i = 0; i < depth; ++i) json += R"({"L":[)";
    json += R"({"N":"1"})";
    for (int i = 0; i < depth; ++i) json += "]}";
    return json + "}";
  };
  EXPECT_TRUE(std::holds_alternative<Item>(item_from_json(nested(31))));
  EXPECT_TRUE(std::holds_alternative<Error>(item_from_json(nested(32))));
  EXPECT_TRUE(std::holds_alternative<Error>(item_from_json(nested(5'000))));
}

// The examples are the service's own words on sizes: names and values, 3 bytes for a container and 1 for each element.
TEST(Item, BytesAreCountedAsTheServiceCountsThem) {
  Item item;
  item.add("id", Value::s("abc"));  // 2 + 3
  EXPECT_EQ(item_bytes(item), 5U);
  item.add("blob", Value::b(std::string(10, '\0')));  // 4 + 10, not their base64
  EXPECT_EQ(item_bytes(item), 19U);
  item.add("flag", Value::boolean(true));  // 4 + 1
  EXPECT_EQ(item_bytes(item), 24U);
  item.add("l", Value::l({Value::s("xy"), Value::s("")}));  // 1 + 3 + (1 + 2) + 1
  EXPECT_EQ(item_bytes(item), 32U);
}

TEST(Answer, ErrorsComeUnderAnyPrefixAndEitherSpelling) {
  for (const char* json : {R"({"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
                              "message":"The conditional request failed","Item":{"id":{"S":"k"}}})",
                           R"({"__type":"ConditionalCheckFailedException","Message":"The conditional request failed",
                              "Item":{"id":{"S":"k"}}})"}) {
    const auto read = answer_from_json(json);
    ASSERT_TRUE(std::holds_alternative<ServiceAnswer>(read));
    const auto& answer = std::get<ServiceAnswer>(read);
    EXPECT_EQ(answer.error_type, "ConditionalCheckFailedException");
    EXPECT_EQ(answer.message, "The conditional request failed");
    ASSERT_TRUE(answer.item.has_value());
    EXPECT_EQ(answer.item->find("id")->text, "k");
  }
}

TEST(Answer, ReadsPagesTablesCapacityAndCancelledTransactions) {
  const auto page = answer_from_json(
      R"({"Items":[{"id":{"S":"a"}},{"id":{"S":"b"}}],"Count":2,"LastEvaluatedKey":{"id":{"S":"b"}},
          "ConsumedCapacity":{"TableName":"t","CapacityUnits":1.5}})");
  ASSERT_TRUE(std::holds_alternative<ServiceAnswer>(page));
  EXPECT_EQ(std::get<ServiceAnswer>(page).items.size(), 2U);
  EXPECT_TRUE(std::get<ServiceAnswer>(page).last_key.has_value());
  EXPECT_EQ(std::get<ServiceAnswer>(page).capacity_units, 1.5);

  const auto described = answer_from_json(
      R"({"Table":{"TableStatus":"ACTIVE","AttributeDefinitions":[{"AttributeName":"id","AttributeType":"S"},
          {"AttributeName":"open","AttributeType":"S"}],"KeySchema":[{"AttributeName":"id","KeyType":"HASH"}],
          "GlobalSecondaryIndexes":[{"IndexName":"open","IndexStatus":"CREATING","Projection":{"ProjectionType":"ALL"},
          "KeySchema":[{"AttributeName":"open","KeyType":"HASH"}]}]}})");
  ASSERT_TRUE(std::holds_alternative<ServiceAnswer>(described));
  const auto& table = std::get<ServiceAnswer>(described).table;
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(table->partition_key, "id");
  EXPECT_EQ(table->partition_type, "S");
  EXPECT_EQ(table->sort_key, "");
  ASSERT_EQ(table->indexes.size(), 1U);
  EXPECT_EQ(table->indexes[0].status, "CREATING");

  const auto cancelled = answer_from_json(
      R"({"__type":"x#TransactionCanceledException","Message":"no","CancellationReasons":[{"Code":"None"},
          {"Code":"ConditionalCheckFailed","Message":"failed","Item":{"id":{"S":"k"}}}]})");
  ASSERT_TRUE(std::holds_alternative<ServiceAnswer>(cancelled));
  const auto& reasons = std::get<ServiceAnswer>(cancelled).reasons;
  ASSERT_EQ(reasons.size(), 2U);
  EXPECT_EQ(reasons[1].code, "ConditionalCheckFailed");
  EXPECT_TRUE(reasons[1].item.has_value());
}

TEST(Answer, WhatIsNoAnswerIsAnError) {
  EXPECT_TRUE(std::holds_alternative<ServiceAnswer>(answer_from_json("")));
  for (const char* text : {"<html>", "[]", "7", "{\"Item\":7}", "{\"Items\":[7]}", "{\"a\":\"\xFF\"}"}) {
    EXPECT_TRUE(std::holds_alternative<Error>(answer_from_json(text))) << text;
  }
}

TEST(Text, IsReadableWithoutControlCharacters) {
  EXPECT_TRUE(is_readable_text(""));
  EXPECT_TRUE(is_readable_text("a\tb\r\ncaf\xC3\xA9"));
  EXPECT_FALSE(is_readable_text(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_readable_text("\x7F"));
  EXPECT_FALSE(is_readable_text("\xFF"));
  EXPECT_EQ(text_or_bytes("caf\xC3\xA9").type, Value::Type::s);
  EXPECT_EQ(text_or_bytes("\xFF").type, Value::Type::b);
}

}  // namespace item_test
}  // namespace once::stores::dynamodb
