// What the fake's expressions mean, and which ones it refuses with which words.
#include <cctype>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service.hpp"

namespace once::testing {
namespace expression_test {

using ::testing::HasSubstr;

// Uses of placeholders only: what an expression does not mention may not be given.
json with_placeholders(json request, const std::string& text, const json& names, const json& values) {
  const auto used = [&text](const json& all) {
    json out = json::object();
    for (const auto& [key, value] : all.items()) {
      // As a whole word: ":S" is not in ":Set".
      for (auto at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
        const char next = at + key.size() < text.size() ? text[at + key.size()] : ' ';
        if (std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '_') out[key] = value;
      }
    }
    return out;
  };
  if (const json some = used(names); !some.empty()) request["ExpressionAttributeNames"] = some;
  if (const json some = used(values); !some.empty()) request["ExpressionAttributeValues"] = some;
  return request;
}

const json names = {{"#status", "status"}, {"#dot", "a.b"}};
const json values = json::parse(R"({":one":{"N":"1"},":two":{"N":"2"},":ten":{"N":"10"},":a":{"S":"a"},":b":{"S":"b"},
  ":done":{"S":"done"},":lst":{"L":[{"S":"x"}]},":true":{"BOOL":true},":group1":{"SS":["a","c"]},":nums":{"NS":["3"]},
  ":dict":{"M":{"k":{"S":"v"}}},":raw1":{"B":"AP8="},":S":{"S":"S"},":null":{"NULL":true}})");

class Conditions : public ::testing::Test {
 protected:
  Conditions() {
    service_.put(
        json::parse(R"({"id":{"S":"x"},"status":{"S":"done"},"n":{"N":"2"},"txt":{"S":"abcd"},"umlaut":{"S":"äöü"},
      "lst":{"L":[{"N":"1"},{"M":{"deep":{"S":"b"}}}]},"group1":{"SS":["a","b"]},"flag":{"BOOL":true},"raw1":{"B":"AP8B"},
      "a.b":{"N":"1"},"nil":{"NULL":true},"dict":{"M":{"k":{"S":"v"}}},"nums":{"NS":["1.0","3"]}})"));
  }
  [[nodiscard]] FakeAnswer ask(const std::string& condition) const {
    json check = with_placeholders(
        {{"TableName", "things"}, {"Key", {{"id", {{"S", "x"}}}}}, {"ConditionExpression", condition}}, condition,
        names, values);
    return service_.fake->call("TransactWriteItems", json{{"TransactItems", {{{"ConditionCheck", check}}}}}.dump());
  }
  [[nodiscard]] bool holds(const std::string& condition) const {
    const FakeAnswer answer = ask(condition);
    EXPECT_TRUE(answer.status == 200 || answer.body.find("ConditionalCheckFailed") != std::string::npos)
        << condition << '\n'
        << answer.body;
    return answer.status == 200;
  }
  [[nodiscard]] std::string refusal(const std::string& condition) const {
    const FakeAnswer answer = ask(condition);
    EXPECT_EQ(answer.status, 400) << condition;
    return json::parse(answer.body).value("message", answer.body);
  }

  Service service_;
};

TEST_F(Conditions, Hold) {
  for (const auto* condition : {
           "attribute_exists(id)",
           "attribute_not_exists(absent)",
           "attribute_exists(lst[1].deep)",
           "attribute_not_exists(lst[2])",
           "attribute_not_exists(txt.part1)",
           "attribute_type(txt, :S)",
           "begins_with(txt, :a)",
           "begins_with(raw1, :raw1)",
           "contains(txt, :b)",
           "contains(group1, :a)",
           "contains(lst, :one)",
           "contains(nums, :one)",
           "#status = :done",
           "#dot = :one",
           "n = :two",
           "n <> :one",
           "n > :one",
           "n >= :two",
           "n < :ten",
           "n <= :two",
           "n BETWEEN :one AND :ten",
           "n IN (:one, :two)",
           "absent <> :one",
           "txt <> :one",
           "NOT absent = :one",
           "not n = :one",
           "size(txt) > :two",
           "size(umlaut) > :two AND size(umlaut) < :ten",
           "size(group1) = :two",
           "size(lst) = :two",
           "size(dict) = :one",
           "size(lst[1].deep) = :one",
           "n = :one OR n = :two",
           "n = :two AND txt > :a",
           "n = :one AND n = :ten OR n = :two",
           "n = :two OR n = :one AND n = :ten",
           "NOT (n = :one OR n = :ten)",
           "NOT n = :one AND n = :two",
           "(n = :two)",
           "(n = :two) AND (txt > :a OR n = :one)",
           ":two = n",
           "dict = :dict",
           "nil = :null",
           "flag = :true",
           "lst[0] = :one",
           "lst[1].deep = :b",
           ":one < n",
           "(n) = (:two)",
       }) {
    EXPECT_TRUE(holds(condition)) << condition;
  }
}

TEST_F(Conditions, DoNotHold) {
  for (const auto* condition : {
           "attribute_exists(absent)",
           "attribute_not_exists(id)",
           "attribute_type(n, :S)",
           "begins_with(txt, :b)",
           "begins_with(n, :a)",
           "contains(txt, :one)",
           "contains(group1, :one)",
           "contains(lst, :two)",
           "contains(n, :one)",
           "n = :one",
           "n = :a",
           "absent = :one",
           "absent < :one",
           "txt < :one",
           "n BETWEEN :ten AND :ten",
           "n IN (:one, :ten)",
           "absent IN (:one)",
           "size(n) = :one",
           "size(absent) = :one",
           "NOT n = :two",
           "n = :two AND absent = :one",
           "absent > :one OR absent < :one",
           "lst[5] = :one",
           "dict.x = :one",
       }) {
    EXPECT_FALSE(holds(condition)) << condition;
  }
}

TEST_F(Conditions, AreRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "The expression can not be empty;"},
      {"n = ", "Syntax error; token: \"<EOF>\", near: \"="},
      {"n == :one", "Syntax error; token: \"=\", near: \"=="},
      {"n = :one :two", "Syntax error; token: \":two\""},
      {"n ! :one", "Syntax error; token: \"!\""},
      {"(n = :one", "Syntax error; token: \"<EOF>\""},
      {"n = :one)", "Syntax error; token: \")\""},
      {"((n = :one))", "The expression has redundant parentheses;"},
      {"status = :one", "Attribute name is a reserved keyword; reserved keyword: status"},
      {"Size = :one", "Attribute name is a reserved keyword; reserved keyword: Size"},
      {"_n = :one", "Syntax error"},
      {"n = :absent", "An expression attribute value used in expression is not defined; attribute value: :absent"},
      {"#absent = :one",
       "An expression attribute name used in the document path is not defined; attribute name: #absent"},
      {"exists(n)", "Invalid function name; function: exists"},
      {"Contains(n, :one)", "Invalid function name; function: Contains"},
      {"attribute_exists(n, n)",
       "Incorrect number of operands for operator or function; operator or function: "
       "attribute_exists, number of operands: 2"},
      {"attribute_exists(:one)",
       "Operator or function requires a document path; operator or function: attribute_exists"},
      {"attribute_type(n, :a)", "Invalid attribute type name found; type: a"},
      {"attribute_exists(n) = :true", "Syntax error; token: \"=\""},
      {"n < :true", "Incorrect operand type for operator or function; operator or function: <, operand type: BOOL"},
      {"begins_with(n, :one)", "operator or function: begins_with, operand type: N"},
      {"n BETWEEN :ten AND :one",
       "The BETWEEN operator requires upper bound to be greater than or equal to lower bound"},
      {"n BETWEEN :one AND :a", "The BETWEEN operator requires same data type for lower and upper bounds"},
      {"n = n", "The first operand must be distinct from the remaining operands"},
      {"if_not_exists(n, :one)", "The function is not allowed in a condition expression; function: if_not_exists"},
      {"n = contains(n, :one)", "The function is not allowed to be used this way in an expression; function: contains"},
      {"n[x] = :one", "Syntax error; token: \"x\""},
      {std::string(4000, '(') + "n = :one", "The expression contains too many operators; operator count: 301"},
      {std::string(5000, ' '), "Expression size has exceeded the maximum allowed size; expression size: 5000"},
  };
  for (const auto& [condition, words] : cases) {
    EXPECT_THAT(refusal(condition), HasSubstr("Invalid ConditionExpression: "));
    EXPECT_THAT(refusal(condition), HasSubstr(words)) << condition;
  }
}

TEST_F(Conditions, PlaceholdersAreAllUsedAndAllThere) {
  json request = {{"TableName", "things"}, {"Item", {{"id", {{"S", "x"}}}}}};
  request["ExpressionAttributeValues"] = {{":v", {{"S", "v"}}}};
  EXPECT_EQ(service_.refusal("PutItem", request),
            "ValidationException: ExpressionAttributeValues can only be specified when using expressions: "
            "ConditionExpression is null");
  request["ConditionExpression"] = "attribute_exists(id)";
  EXPECT_EQ(service_.refusal("PutItem", request),
            "ValidationException: Value provided in ExpressionAttributeValues unused in expressions: keys: {:v}");
  request.erase("ExpressionAttributeValues");
  request["ExpressionAttributeNames"] = {{"#n", "n"}};
  EXPECT_EQ(service_.refusal("PutItem", request),
            "ValidationException: Value provided in ExpressionAttributeNames unused in expressions: keys: {#n}");
  request["ExpressionAttributeNames"] = json::object();
  EXPECT_EQ(service_.refusal("PutItem", request), "ValidationException: ExpressionAttributeNames must not be empty");
  request["ExpressionAttributeNames"] = {{"n", "n"}};
  EXPECT_EQ(service_.refusal("PutItem", request),
            "ValidationException: ExpressionAttributeNames contains invalid key: Syntax error; key: \"n\"");
  request.erase("ExpressionAttributeNames");
  request["ConditonExpression"] = "x";
  EXPECT_THAT(service_.refusal("PutItem", request), HasSubstr("'ConditonExpression'"));
}

class Updates : public ::testing::Test {
 protected:
  Updates() {
    service_.put(json::parse(R"({"id":{"S":"x"},"n":{"N":"2"},"lst":{"L":[{"S":"0"},{"S":"1"},{"S":"2"}]},
      "dict":{"M":{"k":{"S":"v"}}},"group1":{"SS":["a","b"]},"nums":{"NS":["1"]},"txt":{"S":"t"}})"));
    before_ = service_.get("x");
  }
  [[nodiscard]] json request(const std::string& update) const {
    return with_placeholders({{"TableName", "things"}, {"Key", {{"id", {{"S", "x"}}}}}, {"UpdateExpression", update}},
                             update, names, values);
  }
  // What differs afterwards; null for what is gone.
  [[nodiscard]] json changed(const std::string& update) const {
    service_.good("UpdateItem", request(update));
    const json after = service_.get("x");
    json out = json::object();
    for (const auto& [name, value] : after.items()) {
      if (!before_.contains(name) || before_[name] != value) out[name] = value;
    }
    for (const auto& [name, value] : before_.items()) {
      if (!after.contains(name)) out[name] = nullptr;
    }
    service_.put(before_);
    return out;
  }

  Service service_;
  json before_;
};

TEST_F(Updates, ChangeTheItem) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"SET a = :one", R"({"a":{"N":"1"}})"},
      {"Set #status = :done, n = n + :one", R"({"status":{"S":"done"},"n":{"N":"3"}})"},
      {"SET n = n - :ten", R"({"n":{"N":"-8"}})"},
      {"SET n = :ten - n", R"({"n":{"N":"8"}})"},
      {"SET a = if_not_exists(a, :one), n = if_not_exists(n, :ten) + :one", R"({"a":{"N":"1"},"n":{"N":"3"}})"},
      {"SET a = n, n = :one", R"({"a":{"N":"2"},"n":{"N":"1"}})"},
      {"SET lst = list_append(lst, :lst)", R"({"lst":{"L":[{"S":"0"},{"S":"1"},{"S":"2"},{"S":"x"}]}})"},
      {"SET lst = list_append(:lst, lst)", R"({"lst":{"L":[{"S":"x"},{"S":"0"},{"S":"1"},{"S":"2"}]}})"},
      {"SET lst[1] = :a", R"({"lst":{"L":[{"S":"0"},{"S":"a"},{"S":"2"}]}})"},
      {"SET lst[7] = :a", R"({"lst":{"L":[{"S":"0"},{"S":"1"},{"S":"2"},{"S":"a"}]}})"},
      {"SET dict.k = :one, dict.x = :two", R"({"dict":{"M":{"k":{"N":"1"},"x":{"N":"2"}}}})"},
      {"SET #dot = :one", R"({"a.b":{"N":"1"}})"},
      {"REMOVE n, absent", R"({"n":null})"},
      {"REMOVE lst[0], lst[2]", R"({"lst":{"L":[{"S":"1"}]}})"},
      {"REMOVE dict.k", R"({"dict":{"M":{}}})"},
      {"REMOVE lst[9]", R"({})"},
      {"ADD n :ten, a :one", R"({"n":{"N":"12"},"a":{"N":"1"}})"},
      {"ADD group1 :group1, x :group1", R"({"group1":{"SS":["a","b","c"]},"x":{"SS":["a","c"]}})"},
      {"ADD nums :nums", R"({"nums":{"NS":["1","3"]}})"},
      {"DELETE group1 :group1", R"({"group1":{"SS":["b"]}})"},
      {"DELETE x :group1", R"({})"},
      {"SET a = :one REMOVE n ADD nums :nums DELETE group1 :group1",
       R"({"a":{"N":"1"},"n":null,"nums":{"NS":["1","3"]},"group1":{"SS":["b"]}})"},
  };
  for (const auto& [update, expected] : cases) EXPECT_EQ(changed(update), json::parse(expected)) << update;
}

TEST_F(Updates, ALastElementTakesItsSetAlong) {
  json deletion = request("DELETE group1 :group1");
  deletion["ExpressionAttributeValues"][":group1"] = {{"SS", {"a", "b"}}};
  service_.good("UpdateItem", deletion);
  EXPECT_FALSE(service_.get("x").contains("group1"));
}

TEST_F(Updates, AreRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"SET id = :a", "Cannot update attribute id. This attribute is part of the key"},
      {"REMOVE id", "This attribute is part of the key"},
      {"SET n = absent", "The provided expression refers to an attribute that does not exist in the item"},
      {"SET n = absent + :one", "The provided expression refers to an attribute that does not exist in the item"},
      {"SET a.b = :one", "The document path provided in the update expression is invalid for update"},
      {"REMOVE a.b", "The document path provided in the update expression is invalid for update"},
      {"SET txt[0] = :one", "The document path provided in the update expression is invalid for update"},
      {"SET n = txt + :one", "An operand in the update expression has an incorrect data type"},
      {"SET n = n + :a", "Incorrect operand type for operator or function; operator or function: +, operand type: S"},
      {"ADD txt :one", "An operand in the update expression has an incorrect data type"},
      {"ADD n :a", "operator: ADD, operand type: S"},
      {"DELETE n :one", "operator: DELETE, operand type: N"},
      {"DELETE nums :group1", "An operand in the update expression has an incorrect data type"},
      {"SET lst = list_append(lst, :one)", "operator or function: list_append, operand type: N"},
      {"SET n = :one SET a = :two", "The \"SET\" section can only be used once in an update expression;"},
      {"SET n = :one, n = :two",
       "Two document paths overlap with each other; must remove or rewrite one of these paths; "
       "path one: [n], path two: [n]"},
      {"SET dict = :dict REMOVE dict.k", "path one: [dict], path two: [dict, k]"},
      {"SET dict.k = :one, dict[0] = :two", "Two document paths conflict with each other"},
      {"SET n = size(lst)", "The function is not allowed in an update expression; function: size"},
      {"SET status = :one", "reserved keyword: status"},
      {"SET n", "Syntax error; token: \"<EOF>\""},
      {"n = :one", "Syntax error; token: \"n\""},
      {"ADD n n", "Syntax error; token: \"n\""},
      {"", "The expression can not be empty;"},
  };
  for (const auto& [update, words] : cases) {
    EXPECT_THAT(service_.refusal("UpdateItem", request(update)), HasSubstr(words)) << update;
  }
  EXPECT_EQ(service_.get("x"), before_);
}

TEST_F(Updates, AreExactToTheLastDigit) {
  const std::vector<std::vector<std::string>> cases = {
      {"0.1", "0.2", "0.3"}, {"99999999999999999999999999999999999999", "-1", "99999999999999999999999999999999999998"},
      {"1", "-1", "0"},      {"-5", "3", "-2"},
      {"5", "-7", "-2"},     {"1e20", "1e-10", "100000000000000000000.0000000001"},
      {"999", "1", "1000"},  {"-0.5", "-0.5", "-1"},
  };
  for (const auto& sum : cases) {
    service_.put({{"id", {{"S", "x"}}}, {"n", {{"N", sum[0]}}}});
    service_.good("UpdateItem", {{"TableName", "things"},
                                 {"Key", {{"id", {{"S", "x"}}}}},
                                 {"UpdateExpression", "ADD n :v"},
                                 {"ExpressionAttributeValues", {{":v", {{"N", sum[1]}}}}}});
    EXPECT_EQ(service_.get("x")["n"]["N"], sum[2]) << sum[0] << " + " << sum[1];
  }
}

TEST_F(Updates, ReturnWhatWasAskedFor) {
  const auto returned = [&](const std::string& what) {
    json update = request("SET n = :ten, dict.k = :a");
    update["ReturnValues"] = what;
    const json answer = service_.good("UpdateItem", update);
    service_.put(before_);
    return answer.value("Attributes", json());
  };
  EXPECT_EQ(returned("NONE"), json());
  EXPECT_EQ(returned("ALL_OLD"), before_);
  EXPECT_EQ(returned("ALL_NEW")["n"]["N"], "10");
  EXPECT_EQ(returned("UPDATED_OLD"), json::parse(R"({"n":{"N":"2"},"dict":{"M":{"k":{"S":"v"}}}})"));
  EXPECT_EQ(returned("UPDATED_NEW"), json::parse(R"({"n":{"N":"10"},"dict":{"M":{"k":{"S":"a"}}}})"));
}

TEST(Projections, TakeParts) {
  const Service service;
  service.put(json::parse(
      R"({"id":{"S":"x"},"n":{"N":"2"},"lst":{"L":[{"S":"0"},{"S":"1"},{"M":{"a":{"S":"2"},"b":{"S":"3"}}}]}})"));
  const auto taken = [&](const std::string& projection) {
    return service
        .good("GetItem",
              {{"TableName", "things"}, {"Key", {{"id", {{"S", "x"}}}}}, {"ProjectionExpression", projection}})
        .value("Item", json());
  };
  EXPECT_EQ(taken("n, absent"), json::parse(R"({"n":{"N":"2"}})"));
  EXPECT_EQ(taken("lst[2].b, lst[0]"), json::parse(R"({"lst":{"L":[{"S":"0"},{"M":{"b":{"S":"3"}}}]}})"));
  EXPECT_EQ(taken("lst[9], n.x"), json::object());
  EXPECT_THAT(service.refusal(
                  "GetItem",
                  {{"TableName", "things"}, {"Key", {{"id", {{"S", "x"}}}}}, {"ProjectionExpression", "lst, lst[0]"}}),
              HasSubstr("Invalid ProjectionExpression: Two document paths overlap"));
}

}  // namespace expression_test
}  // namespace once::testing
