// What may commit with a record, as it is checked before anything is sent.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/stores/dynamodb_transaction.hpp>

namespace once::testing {
namespace transact_items_test {

using stores::TransactItems;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Add = TransactItems& (TransactItems::*)(std::string_view);

std::string refusal(Add add, std::string_view json, TransactItems items = {}) {
  const std::string before = items.json();
  const std::size_t bytes = items.bytes();
  try {
    (items.*add)(json);
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_EQ(items.json(), before);
    EXPECT_EQ(items.bytes(), bytes);
    return error.what();
  }
  ADD_FAILURE() << "taken: " << json;
  return {};
}

std::string put_of(std::size_t bytes) {
  return R"({"TableName":"t","Item":{"id":{"S":")" + std::string(bytes - 2, 'x') + R"("}}})";
}

TEST(TransactItems, AreSentAsTheyWereGiven) {
  TransactItems items;
  EXPECT_EQ(items.size(), 0U);
  const std::string put = R"({ "TableName": "orders", "Item": {"id": {"S": "o\u00e9"}, "n": {"N": "1"}} })";
  const std::string update = R"({"TableName":"stock","Key":{"sku":{"S":"tea"}},"UpdateExpression":"ADD #p :less",)"
                             R"("ConditionExpression":"#p >= :one","ExpressionAttributeNames":{"#p":"pieces"},)"
                             R"("ExpressionAttributeValues":{":less":{"N":"-1"},":one":{"N":"1"}},)"
                             R"("ReturnValuesOnConditionCheckFailure":"ALL_OLD"})";
  const std::string key = R"({"TableName":"carts","Key":{"user":{"S":"u"},"at":{"N":"5"}}})";
  const std::string check = R"({"TableName":"users","Key":{"user":{"S":"u"}},"ConditionExpression":"active = :t",)"
                            R"("ExpressionAttributeValues":{":t":{"BOOL":true}}})";
  items.put(put).update(update).remove(key).condition_check(check);
  EXPECT_EQ(items.size(), 4U);
  EXPECT_EQ(items.json(), R"({"Put":)" + put + R"(},{"Update":)" + update + R"(},{"Delete":)" + key +
                              R"(},{"ConditionCheck":)" + check + "}");
  EXPECT_EQ(items.name(0), "write 1 (Put in 'orders')");
  EXPECT_EQ(items.name(1), "write 2 (Update in 'stock')");
  EXPECT_EQ(items.name(2), "write 3 (Delete in 'carts')");
  EXPECT_EQ(items.name(3), "write 4 (ConditionCheck in 'users')");
}

TEST(TransactItems, AreRefusedWithTheirReason) {
  const Add put = &TransactItems::put;
  const Add update = &TransactItems::update;
  const Add remove = &TransactItems::remove;
  const Add check = &TransactItems::condition_check;
  struct Case {
    Add add;
    std::string json;
    std::string why;
  };
  const std::string long_name(600, 'n');
  const std::vector<Case> cases = {
      {put, "", "write 1 (Put): it is not JSON"},
      {put, "{", "it is not JSON"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}}} {})", "it is not JSON"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}}}},{"Delete":{})", "it is not JSON"},
      {put, "{\"TableName\":\"\xff\"}", "it is not JSON"},
      {put, "[]", "it is not a JSON object"},
      {put, "{}", "Item is missing"},
      {put, R"({"Item":{"id":{"S":"1"}}})", "TableName is missing"},
      {put, R"({"TableName":7,"Item":{"id":{"S":"1"}}})", "TableName is not a string"},
      {put, R"({"TableName":"","Item":{"id":{"S":"1"}}})", "TableName is empty"},
      {put, R"({"TableName":"t","Item":{}})", "Item is empty"},
      {put, R"({"TableName":"t","Item":{"id":"1"}})", "attribute 'id'"},
      {put, R"({"TableName":"t","Item":{"id":{"X":"1"}}})", "'X' is no type of an attribute value"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}},"TableName":"u"})", "\"TableName\" occurs twice"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}},"ConditionExpresion":"a = b"})",
       "'ConditionExpresion' is no member of it"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}},"UpdateExpression":"SET a = b"})",
       "'UpdateExpression' is no member"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}},"ConditionExpression":""})", "ConditionExpression is empty"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}},"ExpressionAttributeNames":["#a"]})", "is not an object"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}},"ExpressionAttributeNames":{"#a":1}})", "is not a string"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}},"ExpressionAttributeValues":{":a":1}})", "attribute ':a'"},
      {put, R"({"TableName":"t","Item":{"id":{"S":"1"}},"ReturnValuesOnConditionCheckFailure":"ALL_NEW"})",
       "is ALL_OLD or NONE"},
      {put, put_of(400 * 1024 + 1), "the item has 409601 bytes; it may have 409600"},
      {update, R"({"TableName":"t","Key":{"id":{"S":"1"}}})", "write 1 (Update): UpdateExpression is missing"},
      {update, R"({"TableName":"t","Item":{"id":{"S":"1"}},"UpdateExpression":"SET a = b"})", "'Item' is no member"},
      {remove, R"({"TableName":"t"})", "write 1 (Delete): Key is missing"},
      {remove, R"({"TableName":"t","Key":{"a":{"S":"1"},"b":{"S":"1"},"c":{"S":"1"}}})", "one attribute or two"},
      {check, R"({"TableName":"t","Key":{"id":{"S":"1"}}})",
       "write 1 (ConditionCheck): ConditionExpression is missing"},
  };
  for (const Case& c : cases) EXPECT_THAT(refusal(c.add, c.json), HasSubstr(c.why)) << c.json.substr(0, 100);
}

TEST(TransactItems, HaveTheServicesLimits) {
  TransactItems many;
  for (std::size_t i = 0; i < TransactItems::max_items; ++i) many.put(put_of(10));
  EXPECT_EQ(many.size(), 99U);
  EXPECT_EQ(many.bytes(), 990U);
  EXPECT_THAT(refusal(&TransactItems::put, put_of(10), many),
              AllOf(StartsWith("write 100 (Put"), HasSubstr("room for 99 writes beside the record")));

  TransactItems large;
  for (int i = 0; i < 10; ++i) large.put(put_of(400 * 1024));
  large.put(put_of(TransactItems::max_bytes - large.bytes()));
  EXPECT_EQ(large.bytes(), TransactItems::max_bytes);
  EXPECT_THAT(refusal(&TransactItems::put, put_of(2), large),
              HasSubstr("4194306 bytes together; they may have 4194304"));
}

}  // namespace transact_items_test
}  // namespace once::testing
