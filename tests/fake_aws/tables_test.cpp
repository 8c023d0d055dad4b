// Tables, queries, scans, batches and transactions of the fake.
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service.hpp"

namespace once::testing {
namespace tables_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const json events_table = json::parse(R"({"TableName":"events","BillingMode":"PAY_PER_REQUEST",
  "KeySchema":[{"AttributeName":"pk","KeyType":"HASH"},{"AttributeName":"sk","KeyType":"RANGE"}],
  "AttributeDefinitions":[{"AttributeName":"pk","AttributeType":"S"},{"AttributeName":"sk","AttributeType":"N"},
                          {"AttributeName":"open","AttributeType":"S"}],
  "GlobalSecondaryIndexes":[{"IndexName":"open-index","Projection":{"ProjectionType":"KEYS_ONLY"},
    "KeySchema":[{"AttributeName":"open","KeyType":"HASH"},{"AttributeName":"sk","KeyType":"RANGE"}]}]})");

json event_key(std::string_view pk, int sk) { return {{"pk", {{"S", pk}}}, {"sk", {{"N", std::to_string(sk)}}}}; }

class Events : public ::testing::Test {
 protected:
  Events() {
    service_.good("CreateTable", events_table);
    for (const int sk : {10, -5, 2, 100, 0}) put("a", sk, sk > 1 ? "yes" : "");
    put("b", 1, "yes");
    put("b", 7, "no");
  }
  void put(std::string_view pk, int sk, std::string_view open) const {
    json item = event_key(pk, sk);
    item["twice"] = {{"N", std::to_string(2 * sk)}};
    if (!open.empty()) item["open"] = {{"S", open}};
    service_.good("PutItem", {{"TableName", "events"}, {"Item", item}});
  }
  [[nodiscard]] static json query(const std::string& condition, json values, json more = json::object()) {
    more["TableName"] = "events";
    more["KeyConditionExpression"] = condition;
    more["ExpressionAttributeValues"] = std::move(values);
    return more;
  }
  [[nodiscard]] static std::vector<int> numbers(const json& answer) {
    std::vector<int> out;
    for (const auto& item : answer["Items"]) out.push_back(std::stoi(item["sk"]["N"].get<std::string>()));
    return out;
  }
  [[nodiscard]] std::vector<int> found(const json& request) const { return numbers(service_.good("Query", request)); }

  Service service_;
  const json a_ = {{":p", {{"S", "a"}}}};
};

TEST_F(Events, AreFoundInTheOrderOfTheirNumbers) {
  EXPECT_THAT(found(query("pk = :p", a_)), ElementsAre(-5, 0, 2, 10, 100));
  EXPECT_THAT(found(query("pk = :p", a_, {{"ScanIndexForward", false}})), ElementsAre(100, 10, 2, 0, -5));
  EXPECT_THAT(found(query("pk = :p", {{":p", {{"S", "c"}}}})), IsEmpty());
}

TEST_F(Events, AreNarrowedByTheRangeKey) {
  json values = a_;
  values[":n"] = {{"N", "2"}};
  EXPECT_THAT(found(query("pk = :p AND sk = :n", values)), ElementsAre(2));
  EXPECT_THAT(found(query("pk = :p AND sk < :n", values)), ElementsAre(-5, 0));
  EXPECT_THAT(found(query("pk = :p AND sk <= :n", values)), ElementsAre(-5, 0, 2));
  EXPECT_THAT(found(query("sk > :n AND pk = :p", values)), ElementsAre(10, 100));
  EXPECT_THAT(found(query("pk = :p AND sk >= :n", values, {{"ScanIndexForward", false}})), ElementsAre(100, 10, 2));
  values[":m"] = {{"N", "50"}};
  EXPECT_THAT(found(query("pk = :p AND (sk BETWEEN :n AND :m)", values)), ElementsAre(2, 10));
}

TEST_F(Events, AreFilteredAfterTheyAreRead) {
  json values = a_;
  values[":t"] = {{"N", "3"}};
  const json answer =
      service_.good("Query", query("pk = :p", values, {{"FilterExpression", "twice > :t"}, {"Limit", 3}}));
  EXPECT_THAT(numbers(answer), ElementsAre(2));
  EXPECT_EQ(answer["Count"], 1);
  EXPECT_EQ(answer["ScannedCount"], 3);
  EXPECT_EQ(answer["LastEvaluatedKey"], event_key("a", 2));
  EXPECT_THAT(service_.refusal("Query", query("pk = :p", values, {{"FilterExpression", "sk > :t"}})),
              HasSubstr("Filter Expression can only contain non-primary key attributes: Primary key attribute: sk"));
}

TEST_F(Events, ComeInPages) {
  for (const bool forward : {true, false}) {
    std::vector<int> all;
    json request = query("pk = :p", a_, {{"Limit", 2}, {"ScanIndexForward", forward}});
    std::size_t pages = 0;
    while (true) {
      const json answer = service_.good("Query", request);
      const auto some = numbers(answer);
      all.insert(all.end(), some.begin(), some.end());
      ++pages;
      if (!answer.contains("LastEvaluatedKey")) break;
      request["ExclusiveStartKey"] = answer["LastEvaluatedKey"];
    }
    EXPECT_EQ(pages, 3);
    if (forward) {
      EXPECT_THAT(all, ElementsAre(-5, 0, 2, 10, 100));
    } else {
      EXPECT_THAT(all, ElementsAre(100, 10, 2, 0, -5));
    }
  }
  // A page that is just full says where it ended, though nothing follows.
  EXPECT_TRUE(service_.good("Query", query("pk = :p", a_, {{"Limit", 5}})).contains("LastEvaluatedKey"));
  EXPECT_FALSE(service_.good("Query", query("pk = :p", a_, {{"Limit", 6}})).contains("LastEvaluatedKey"));
  EXPECT_THAT(service_.refusal("Query", query("pk = :p", a_, {{"ExclusiveStartKey", {{"pk", {{"S", "a"}}}}}})),
              HasSubstr("The provided starting key is invalid"));
}

TEST_F(Events, APageEndsAfterOneMegabyte) {
  for (int i = 0; i < 4; ++i) {
    json item = event_key("big", i);
    item["x"] = {{"S", std::string(399'000, 'x')}};
    service_.good("PutItem", {{"TableName", "events"}, {"Item", item}});
  }
  const json answer = service_.good("Query", query("pk = :p", {{":p", {{"S", "big"}}}}));
  EXPECT_EQ(answer["Count"], 3);
  EXPECT_EQ(answer["LastEvaluatedKey"], event_key("big", 2));
}

TEST_F(Events, AnIndexHoldsOnlyItemsWithItsKey) {
  const json open = {{":o", {{"S", "yes"}}}};
  json request =
      query("#open = :o", open, {{"IndexName", "open-index"}, {"ExpressionAttributeNames", {{"#open", "open"}}}});
  EXPECT_THAT(found(request), ElementsAre(1, 2, 10, 100));
  EXPECT_EQ(service_.good("Query", request)["Items"][0],
            json::parse(R"({"pk":{"S":"b"},"sk":{"N":"1"},"open":{"S":"yes"}})"));
  // It follows what happens to the items.
  service_.good("DeleteItem", {{"TableName", "events"}, {"Key", event_key("a", 10)}});
  service_.good("UpdateItem", {{"TableName", "events"},
                               {"Key", event_key("a", 2)},
                               {"UpdateExpression", "REMOVE #open"},
                               {"ExpressionAttributeNames", {{"#open", "open"}}}});
  put("a", 0, "yes");
  EXPECT_THAT(found(request), ElementsAre(0, 1, 100));
  request["Limit"] = 1;
  json answer = service_.good("Query", request);
  EXPECT_EQ(answer["LastEvaluatedKey"].size(), 3);
  request["ExclusiveStartKey"] = answer["LastEvaluatedKey"];
  EXPECT_THAT(found(request), ElementsAre(1));
  request["ConsistentRead"] = true;
  EXPECT_THAT(service_.refusal("Query", request), HasSubstr("Consistent reads are not supported on global"));
  request["IndexName"] = "another";
  EXPECT_THAT(service_.refusal("Query", request), HasSubstr("The table does not have the specified index: another"));
  json item = event_key("a", 0);
  item["open"] = {{"N", "1"}};
  EXPECT_THAT(service_.refusal("PutItem", {{"TableName", "events"}, {"Item", item}}),
              HasSubstr("Type mismatch for Index Key open Expected: S Actual: N IndexName: open-index"));
}

TEST_F(Events, KeyConditionsAreChecked) {
  json values = a_;
  values[":n"] = {{"N", "2"}};
  EXPECT_THAT(service_.refusal("Query", query("sk = :n", {{":n", {{"N", "2"}}}})),
              HasSubstr("Query condition missed key schema element: pk"));
  EXPECT_THAT(service_.refusal("Query", query("pk > :p", a_)), HasSubstr("Query key condition not supported"));
  EXPECT_THAT(service_.refusal("Query", query("pk = :p AND sk <> :n", values)),
              HasSubstr("Invalid operator used in KeyConditionExpression: <>"));
  EXPECT_THAT(service_.refusal("Query", query("pk = :p OR sk = :n", values)),
              HasSubstr("Invalid operator used in KeyConditionExpression: OR"));
  EXPECT_THAT(service_.refusal("Query", query("pk = :p AND twice = :n", values)),
              HasSubstr("Query condition missed key schema element: sk"));
  EXPECT_THAT(service_.refusal("Query", query("pk = :n", {{":n", {{"N", "2"}}}})),
              HasSubstr("Condition parameter type does not match schema type"));
  EXPECT_THAT(service_.refusal("GetItem", {{"TableName", "events"}, {"Key", {{"pk", {{"S", "a"}}}}}}),
              HasSubstr("The provided key element does not match the schema"));
  EXPECT_THAT(service_.refusal("GetItem", {{"TableName", "nowhere"}, {"Key", event_key("a", 1)}}),
              StartsWith("ResourceNotFoundException: Requested resource not found"));
}

TEST_F(Events, AScanReachesEachItemOnce) {
  std::multiset<std::string> seen;
  for (int segment = 0; segment < 3; ++segment) {
    json request = {{"TableName", "events"}, {"Segment", segment}, {"TotalSegments", 3}, {"Limit", 2}};
    while (true) {
      const json answer = service_.good("Scan", request);
      for (const auto& item : answer["Items"]) seen.insert(item["pk"].dump() + item["sk"].dump());
      if (!answer.contains("LastEvaluatedKey")) break;
      request["ExclusiveStartKey"] = answer["LastEvaluatedKey"];
    }
  }
  EXPECT_EQ(seen.size(), 7);
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 7);
  const json counted = service_.good("Scan", {{"TableName", "events"},
                                              {"Select", "COUNT"},
                                              {"FilterExpression", "pk = :p"},
                                              {"ExpressionAttributeValues", a_}});
  EXPECT_EQ(counted, json::parse(R"({"Count":5,"ScannedCount":7})"));
  EXPECT_EQ(service_.good("Scan", {{"TableName", "events"}, {"IndexName", "open-index"}})["Count"], 5);
  EXPECT_THAT(service_.refusal("Scan", {{"TableName", "events"}, {"Segment", 3}, {"TotalSegments", 3}}),
              HasSubstr("less than parameter TotalSegments"));
}

class Transactions : public Events {
 protected:
  [[nodiscard]] static json put_of(std::string_view pk, int sk) {
    return {
        {"Put",
         {{"TableName", "events"}, {"Item", event_key(pk, sk)}, {"ConditionExpression", "attribute_not_exists(pk)"}}}};
  }
  [[nodiscard]] bool exists(std::string_view pk, int sk) const {
    return service_.good("GetItem", {{"TableName", "events"}, {"Key", event_key(pk, sk)}}).contains("Item");
  }
};

TEST_F(Transactions, DoAllOrNothing) {
  const json update = {{"Update",
                        {{"TableName", "events"},
                         {"Key", event_key("a", 0)},
                         {"UpdateExpression", "SET twice = :v"},
                         {"ExpressionAttributeValues", {{":v", {{"S", "x"}}}}}}}};
  const json erase = {{"Delete", {{"TableName", "events"}, {"Key", event_key("a", 10)}}}};
  const json check = {{"ConditionCheck",
                       {{"TableName", "events"},
                        {"Key", event_key("b", 7)},
                        {"ConditionExpression", "attribute_not_exists(pk)"},
                        {"ReturnValuesOnConditionCheckFailure", "ALL_OLD"}}}};
  const json refused = service_.bad("TransactWriteItems", {{"TransactItems", {put_of("n", 1), update, erase, check}}});
  EXPECT_EQ(refused["__type"], "com.amazonaws.dynamodb.v20120810#TransactionCanceledException");
  EXPECT_EQ(refused["Message"],
            "Transaction cancelled, please refer cancellation reasons for specific reasons [None, None, None, "
            "ConditionalCheckFailed]");
  EXPECT_EQ(refused["CancellationReasons"][0], json::parse(R"({"Code":"None"})"));
  EXPECT_EQ(refused["CancellationReasons"][3]["Code"], "ConditionalCheckFailed");
  EXPECT_EQ(refused["CancellationReasons"][3]["Message"], "The conditional request failed");
  EXPECT_EQ(refused["CancellationReasons"][3]["Item"]["open"]["S"], "no");
  EXPECT_FALSE(exists("n", 1));
  EXPECT_TRUE(exists("a", 10));

  const json answer = service_.good(
      "TransactWriteItems", {{"TransactItems", {put_of("n", 1), update, erase}}, {"ReturnConsumedCapacity", "TOTAL"}});
  EXPECT_TRUE(exists("n", 1));
  EXPECT_FALSE(exists("a", 10));
  EXPECT_EQ(answer["ConsumedCapacity"][0]["TableName"], "events");
}

TEST_F(Transactions, TouchAnItemOnce) {
  EXPECT_THAT(service_.refusal("TransactWriteItems", {{"TransactItems", {put_of("n", 1), put_of("n", 1)}}}),
              HasSubstr("Transaction request cannot include multiple operations on one item"));
}

TEST_F(Transactions, AreKnownByTheirTokenForTenMinutes) {
  const json request = {
      {"TransactItems", {put_of("n", 1)}}, {"ClientRequestToken", "token"}, {"ReturnConsumedCapacity", "TOTAL"}};
  EXPECT_EQ(service_.good("TransactWriteItems", request)["ConsumedCapacity"][0]["CapacityUnits"], 2.0);
  EXPECT_EQ(service_.good("TransactWriteItems", request)["ConsumedCapacity"][0]["CapacityUnits"], 2.0)
      << "asked again, the item is read";
  const json other = {{"TransactItems", {put_of("n", 2)}}, {"ClientRequestToken", "token"}};
  EXPECT_THAT(service_.refusal("TransactWriteItems", other), StartsWith("IdempotentParameterMismatchException"));
  service_.clock->advance(std::chrono::minutes(11));
  EXPECT_THAT(service_.refusal("TransactWriteItems", request), StartsWith("TransactionCanceledException"));
}

TEST_F(Transactions, HaveRoomForFourMegabytes) {
  const auto put_large = [](int sk, std::size_t bytes) {
    json item = event_key("large", sk);
    item["text"]["S"] = std::string(bytes, 'x');
    return json{{"Put", {{"TableName", "events"}, {"Item", item}}}};
  };
  json items = json::array();
  for (int i = 0; i < 11; ++i) items.push_back(put_large(i, 390'000));
  EXPECT_THAT(service_.refusal("TransactWriteItems", {{"TransactItems", items}}), HasSubstr("4 MB"));
  EXPECT_FALSE(exists("large", 0));
  items.erase(10);
  service_.good("TransactWriteItems", {{"TransactItems", items}});
  EXPECT_TRUE(exists("large", 9));
}

TEST(FakeTables, AreDescribedAsTheyWereMade) {
  const Service service;
  EXPECT_EQ(service.good("CreateTable", events_table)["TableDescription"]["TableStatus"], "CREATING");
  const json table = service.good("DescribeTable", {{"TableName", "events"}})["Table"];
  EXPECT_EQ(table["TableStatus"], "ACTIVE");
  EXPECT_EQ(table["KeySchema"], events_table["KeySchema"]);
  EXPECT_EQ(table["AttributeDefinitions"], events_table["AttributeDefinitions"]);
  EXPECT_EQ(table["BillingModeSummary"]["BillingMode"], "PAY_PER_REQUEST");
  EXPECT_EQ(table["CreationDateTime"], 1'767'225'600.0);
  EXPECT_EQ(table["GlobalSecondaryIndexes"][0]["KeySchema"], events_table["GlobalSecondaryIndexes"][0]["KeySchema"]);
  EXPECT_EQ(table["GlobalSecondaryIndexes"][0]["IndexStatus"], "ACTIVE");
  EXPECT_THAT(service.refusal("CreateTable", events_table),
              StartsWith("ResourceInUseException: Table already exists: events"));
  EXPECT_EQ(service.good("ListTables", json::object()), json::parse(R"({"TableNames":["events","things"]})"));
  EXPECT_EQ(service.good("ListTables", {{"Limit", 1}}),
            json::parse(R"({"TableNames":["events"],"LastEvaluatedTableName":"events"})"));
  EXPECT_EQ(service.good("DeleteTable", {{"TableName", "events"}})["TableDescription"]["TableStatus"], "DELETING");
  EXPECT_THAT(service.refusal("DescribeTable", {{"TableName", "events"}}),
              StartsWith("ResourceNotFoundException: Requested resource not found: Table: events not found"));
}

TEST(FakeTables, TakeTheirTimeIfTold) {
  const Service service;
  service.fake->set_creation_steps(2);
  service.good("CreateTable", events_table);
  EXPECT_THAT(service.refusal("GetItem", {{"TableName", "events"}, {"Key", event_key("a", 1)}}),
              StartsWith("ResourceNotFoundException"));
  for (const auto* status : {"CREATING", "CREATING", "ACTIVE"}) {
    EXPECT_EQ(service.good("DescribeTable", {{"TableName", "events"}})["Table"]["TableStatus"], status);
  }
  service.good("GetItem", {{"TableName", "events"}, {"Key", event_key("a", 1)}});
}

TEST(FakeTables, AreRefusedWhenTheyMakeNoSense) {
  const Service service;
  const auto refusal = [&](const json& change) {
    json table = events_table;
    table.merge_patch(change);
    return service.refusal("CreateTable", table);
  };
  EXPECT_THAT(refusal({{"TableName", "x"}}), HasSubstr("3 to 255 characters"));
  EXPECT_THAT(refusal({{"BillingMode", "PROVISIONED"}}),
              HasSubstr("ReadCapacityUnits and WriteCapacityUnits must both"));
  EXPECT_THAT(refusal({{"GlobalSecondaryIndexes", nullptr}}), HasSubstr("does not exactly match number of attributes"));
  EXPECT_THAT(refusal({{"KeySchema", {{{"AttributeName", "zz"}, {"KeyType", "HASH"}}}}}),
              HasSubstr("Some index key attributes are not defined"));
  EXPECT_THAT(refusal({{"KeySchema", {{{"AttributeName", "pk"}, {"KeyType", "RANGE"}}}}}),
              HasSubstr("not a HASH key type"));
  EXPECT_THAT(refusal({{"KeySchema", json::array()}}), HasSubstr("greater than or equal to 1"));
  json protected_table = events_table;
  protected_table["DeletionProtectionEnabled"] = true;
  service.good("CreateTable", protected_table);
  EXPECT_THAT(service.refusal("DeleteTable", {{"TableName", "events"}}), HasSubstr("protected against deletion"));
}

TEST(FakeTables, ForgetWhatHasExpiredWhenTold) {
  const Service service;
  const auto set = [](bool enabled, std::string_view attribute) {
    return json{{"TableName", "things"},
                {"TimeToLiveSpecification", {{"Enabled", enabled}, {"AttributeName", attribute}}}};
  };
  const json describe = {{"TableName", "things"}};
  EXPECT_EQ(service.good("DescribeTimeToLive", describe),
            json::parse(R"({"TimeToLiveDescription":{"TimeToLiveStatus":"DISABLED"}})"));
  EXPECT_EQ(service.fake->expire_now("things"), 0);
  EXPECT_EQ(service.refusal("UpdateTimeToLive", set(false, "end")),
            "ValidationException: TimeToLive is already disabled");
  service.good("UpdateTimeToLive", set(true, "end"));
  EXPECT_EQ(service.refusal("UpdateTimeToLive", set(true, "end")),
            "ValidationException: TimeToLive is already enabled");
  EXPECT_THAT(service.refusal("UpdateTimeToLive", set(true, "other")),
              HasSubstr("active on a different AttributeName"));
  EXPECT_EQ(service.good("DescribeTimeToLive", describe),
            json::parse(R"({"TimeToLiveDescription":{"TimeToLiveStatus":"ENABLED","AttributeName":"end"}})"));

  const std::int64_t now_s = manual_start.time_since_epoch().count() / 1000;
  const auto put = [&](std::string_view id, const json& end) { service.put({{"id", {{"S", id}}}, {"end", end}}); };
  put("gone", {{"N", std::to_string(now_s)}});
  put("alive", {{"N", std::to_string(now_s + 1)}});
  put("text", {{"S", std::to_string(now_s - 10)}});
  put("ancient", {{"N", std::to_string(now_s - std::int64_t{6} * 365 * 24 * 3600)}});
  EXPECT_EQ(service.get("gone")["id"]["S"], "gone") << "expired items stay until they are deleted";
  EXPECT_EQ(service.fake->expire_now("things"), 1);
  EXPECT_EQ(service.get("gone"), json());
  for (const auto* id : {"alive", "text", "ancient"}) EXPECT_EQ(service.get(id)["id"]["S"], id);
}

TEST(FakeTables, CanBeRecoverable) {
  const Service service;
  const auto status = [&] {
    return service.good(
        "DescribeContinuousBackups",
        {{"TableName",
          "things"}})["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"];
  };
  EXPECT_EQ(status(), "DISABLED");
  service.good("UpdateContinuousBackups",
               {{"TableName", "things"}, {"PointInTimeRecoverySpecification", {{"PointInTimeRecoveryEnabled", true}}}});
  EXPECT_EQ(status(), "ENABLED");
  EXPECT_THAT(service.refusal("DescribeContinuousBackups", {{"TableName", "nowhere"}}),
              StartsWith("TableNotFoundException"));
}

TEST(FakeRequests, AreRefusedWhenTheyAreNoSuchThing) {
  const Service service;
  EXPECT_THAT(service.fake->call("PutItem", "{").body, HasSubstr("com.amazon.coral.service#SerializationException"));
  EXPECT_THAT(service.fake->call("PutItem", "[]").body, HasSubstr("#SerializationException"));
  EXPECT_THAT(service.fake->call("PutItem", R"({"TableName":"things","Item":"x"})").body,
              HasSubstr("#SerializationException"));
  EXPECT_THAT(service.fake->call("PutItem", "{\"a\":\"\xff\"}").body, HasSubstr("#SerializationException"));
  EXPECT_THAT(
      service.fake->call("CreateTable", R"({"TableName":"abc","KeySchema":[1],"AttributeDefinitions":[1]})").body,
      HasSubstr("Exception"));
  EXPECT_THAT(service.fake->call("DropTable", "{}").body, HasSubstr("#UnknownOperationException"));
  EXPECT_THAT(service.refusal("PutItem", {{"Item", {{"id", {{"S", "x"}}}}}}), HasSubstr("Value null at 'tableName'"));
  EXPECT_THAT(service.refusal("PutItem",
                              {{"TableName", "things"}, {"Item", {{"id", {{"S", "x"}}}}}, {"ReturnValues", "ALL_NEW"}}),
              HasSubstr("ReturnValues can only be ALL_OLD or NONE"));
  EXPECT_THAT(service.refusal("UpdateItem",
                              {{"TableName", "things"}, {"Key", {{"id", {{"S", "x"}}}}}, {"ReturnValues", "SOME"}}),
              HasSubstr("Member must satisfy enum value set"));
}

TEST(FakeCapacity, IsTold) {
  const Service service;
  const auto units = [&](std::string_view operation, json request) {
    request["TableName"] = "things";
    request["ReturnConsumedCapacity"] = "TOTAL";
    return service.good(operation, request)["ConsumedCapacity"]["CapacityUnits"].get<double>();
  };
  const json key = {{"id", {{"S", "x"}}}};
  EXPECT_EQ(units("PutItem", {{"Item", {{"id", {{"S", "x"}}}, {"v", {{"S", std::string(2'000, 'v')}}}}}}), 2);
  EXPECT_EQ(units("GetItem", {{"Key", key}}), 0.5);
  EXPECT_EQ(units("GetItem", {{"Key", key}, {"ConsistentRead", true}}), 1);
  EXPECT_EQ(units("DeleteItem", {{"Key", key}}), 2);
  EXPECT_EQ(units("DeleteItem", {{"Key", key}}), 1);
}

}  // namespace tables_test
}  // namespace once::testing
