// The DynamoDB store's requests, and its reading of the answers.
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "fake_aws/fake_dynamodb.hpp"

namespace once::testing {
namespace dynamodb_store_test {

using namespace std::chrono_literals;
using stores::DynamoDbOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Trips = std::map<std::string, std::uint64_t>;

class DynamoDbStore : public ::testing::Test {
 protected:
  DynamoDbStore() {
    options.table = "records";
    options.clock = clock;
    options.transport = make_fake_transport(fake);
    options.allow_eventual = true;  // So that it does not ask.
  }

  std::unique_ptr<Store> open() { return stores::make_dynamodb_store(options); }

  void create_table() { fake->create_table(options.table, options.partition_key, options.sort_key); }

  void create_table_with_index(const std::string& projection = "ALL") {
    std::string keys = R"({"AttributeName":"id","KeyType":"HASH"})";
    std::string attributes =
        R"({"AttributeName":"id","AttributeType":"S"},{"AttributeName":"open","AttributeType":"S"})";
    if (!options.sort_key.empty()) {
      keys += R"(,{"AttributeName":")" + options.sort_key + R"(","KeyType":"RANGE"})";
      attributes += R"(,{"AttributeName":")" + options.sort_key + R"(","AttributeType":"S"})";
    }
    must(
        "CreateTable",
        R"({"TableName":"records","BillingMode":"PAY_PER_REQUEST","KeySchema":[)" + keys +
            R"(],"AttributeDefinitions":[)" + attributes +
            R"(],"GlobalSecondaryIndexes":[{"IndexName":"open","KeySchema":[{"AttributeName":"open","KeyType":"HASH"}],)"
            R"("Projection":{"ProjectionType":")" +
            projection + R"("}}]})");
  }

  void must(const char* operation, const std::string& body) {
    const FakeAnswer answer = fake->call(operation, body);
    if (answer.status != 200) throw std::runtime_error(answer.body);
  }

  // Every call from now on gets this answer.
  void answer_all(int status, std::string body) {
    fake->set_faults([status, body = std::move(body)](const FakeCall&) {
      return FakeFault{.kind = FakeFault::Kind::answered, .answer = {.status = status, .body = body}};
    });
  }

  static std::vector<Record> list_all(Store& store, ListQuery query) {
    std::vector<Record> all;
    for (int pages = 0; pages < 1000; ++pages) {
      ListPage page = blocking::list(store, query);
      if (page.error) throw Exception(*page.error);
      for (Record& record : page.records) all.push_back(std::move(record));
      if (page.cursor.empty()) return all;
      query.cursor = page.cursor;
    }
    throw std::runtime_error("the list does not end");
  }

  static Record in_state(const std::string& key, State state) {
    Record record = plain_record(key);
    record.state = state;
    return record;
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<FakeDynamoDb> fake = std::make_shared<FakeDynamoDb>(clock);
  DynamoDbOptions options;
};

TEST_F(DynamoDbStore, EachOperationIsOneRequest) {
  create_table();
  const auto store = open();
  const Record record = plain_record("k");
  Record next = record;
  next.revision = testing::revision_of(2);
  EXPECT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  EXPECT_EQ(blocking::insert(*store, record).status, AnswerStatus::refused);
  EXPECT_EQ(blocking::replace(*store, next, seen_of(record)).status, AnswerStatus::done);
  EXPECT_EQ(blocking::replace(*store, next, seen_of(record)).status, AnswerStatus::refused);
  EXPECT_EQ(blocking::remove(*store, "k", seen_of(record)).status, AnswerStatus::refused);
  EXPECT_EQ(blocking::get(*store, "k").status, AnswerStatus::done);
  EXPECT_EQ(blocking::remove(*store, "k", seen_of(next)).status, AnswerStatus::done);
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 4}, {"GetItem", 1}, {"DeleteItem", 2}}));
  EXPECT_EQ(stores::dynamodb_status(*store)->calls, 7U);
}

// What DescribeTable says of a global table: each of its regions would accept a claim.
TEST_F(DynamoDbStore, NoClaimIsMadeWhereAnotherRegionCanMakeItToo) {
  create_table();
  options.allow_eventual = false;
  const std::string replicas = R"("Replicas":[{"RegionName":"us-east-1"},{"RegionName":"eu-west-1"}])";
  FakeFault described{.kind = FakeFault::Kind::answered};
  fake->set_faults([&](const FakeCall& call) { return call.operation == "DescribeTable" ? described : FakeFault{}; });
  for (const std::string& table :
       {replicas + R"(,"GlobalTableVersion":"2019.11.21","MultiRegionConsistency":"EVENTUAL")", replicas,
        std::string(R"("GlobalTableVersion":"2017.11.29")")}) {
    described.answer.body = R"({"Table":{)" + table + "}}";
    const auto store = open();
    fake->reset_round_trips();
    for (int i = 0; i < 2; ++i) {
      const Answer answer = blocking::insert(*store, plain_record("k"));
      EXPECT_EQ(answer.error.kind, ErrorKind::misuse) << table;
      EXPECT_THAT(answer.error.message,
                  AllOf(HasSubstr("two regions can claim the same key"), HasSubstr("allow_eventual=1")));
    }
    EXPECT_EQ(fake->round_trips("PutItem"), 0U);
    // What was claimed before can be read and ended.
    EXPECT_EQ(blocking::get(*store, "k").status, AnswerStatus::done);
  }
  EXPECT_THAT(blocking::insert(*open(), plain_record("k")).error.message, HasSubstr("version 2017.11.29"));
  options.allow_eventual = true;
  fake->reset_round_trips();
  EXPECT_EQ(blocking::insert(*open(), plain_record("chosen")).status, AnswerStatus::done);
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 1}}));
}

TEST_F(DynamoDbStore, OtherTablesAreAskedAboutOnce) {
  create_table();
  options.allow_eventual = false;
  FakeFault described{.kind = FakeFault::Kind::answered};
  fake->set_faults([&](const FakeCall& call) { return call.operation == "DescribeTable" ? described : FakeFault{}; });
  int keys = 0;
  const auto insert = [&](Store& store) {
    const std::string key = "k" + std::to_string(++keys);
    EXPECT_EQ(blocking::insert(store, plain_record(key)).status, AnswerStatus::done) << described.answer.body;
  };
  for (const auto& [status, body] : std::vector<std::pair<int, std::string>>{
           {200, R"({"Table":{"TableStatus":"ACTIVE","Replicas":[]}})"},
           {200, R"({"Table":{"Replicas":[{"RegionName":"us-east-1"}],"MultiRegionConsistency":"STRONG"}})"},
           {400, R"({"__type":"x#AccessDeniedException","Message":"no"})"},
           {400, R"({"__type":"x#UnknownOperationException"})"}}) {
    described.answer = {.status = status, .body = body};
    const auto store = open();
    fake->reset_round_trips();
    insert(*store);
    insert(*store);
    EXPECT_EQ(fake->round_trips(), (Trips{{"DescribeTable", 1}, {"PutItem", 2}})) << body;
  }
  // No answer says nothing: the next claim asks again.
  described = {.kind = FakeFault::Kind::unreachable};
  const auto store = open();
  fake->reset_round_trips();
  insert(*store);
  described = {};
  insert(*store);
  insert(*store);
  EXPECT_EQ(fake->round_trips(), (Trips{{"DescribeTable", 2}, {"PutItem", 3}}));
}

TEST_F(DynamoDbStore, ARefusalWithoutTheItemIsFollowedByAConsistentRead) {
  create_table();
  const auto store = open();
  const Record record = full_record("k");
  blocking::insert(*store, record);
  std::vector<std::string> bodies;
  fake->set_faults([&](const FakeCall& call) {
    bodies.emplace_back(call.body);
    FakeFault fault;
    fault.without_item = true;
    return fault;
  });
  fake->reset_round_trips();
  const Answer answer = blocking::insert(*store, plain_record("k"));
  EXPECT_EQ(answer.status, AnswerStatus::refused);
  EXPECT_EQ(differences(record, *answer.record), "");
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 1}, {"GetItem", 1}}));
  EXPECT_THAT(bodies.at(1), HasSubstr("\"ConsistentRead\":true"));

  options.consistent_fallback = false;
  const auto strict = open();
  const Answer refused = blocking::insert(*strict, plain_record("k"));
  EXPECT_EQ(refused.error.kind, ErrorKind::misuse);
  EXPECT_THAT(refused.error.message, HasSubstr("consistent_fallback"));
  const Answer gone = blocking::remove(*strict, "k", {});
  EXPECT_EQ(gone.status, AnswerStatus::refused);
  EXPECT_EQ(gone.record, nullptr);
}

TEST_F(DynamoDbStore, EveryRefusalOfTheServiceSaysWhatToDo) {
  create_table();
  const auto store = open();
  struct Case {
    int status;
    const char* type;
    const char* message;
    ErrorKind write;
    ErrorKind read;
    const char* says;
  };
  using enum ErrorKind;
  const Case cases[] = {
      {400, "ResourceNotFoundException", "Requested resource not found", misuse, misuse, "once table create"},
      {400, "AccessDeniedException", "User is not authorized", misuse, misuse, "once table check"},
      {400, "ValidationException", "The provided key element does not match the schema", misuse, misuse, "primary key"},
      {400, "ValidationException", "One or more parameter values were invalid: Missing the key sk in the item", misuse,
       misuse, "primary key"},
      {400, "ValidationException", "Item size has exceeded the maximum allowed size", misuse, misuse, "Item size"},
      {400, "UnrecognizedClientException", "The security token is invalid", misuse, misuse, "token is invalid"},
      {400, "ProvisionedThroughputExceededException", "slow down", unavailable, unavailable, "slow down"},
      {400, "ThrottlingException", "slow down", unavailable, unavailable, "ThrottlingException"},
      {400, "RequestLimitExceeded", "slow down", unavailable, unavailable, "RequestLimitExceeded"},
      {400, "TransactionConflictException", "ongoing", unavailable, unavailable, "ongoing"},
      {400, "ExpiredTokenException", "expired", unavailable, unavailable, "renew the credentials"},
      {500, "InternalServerError", "oops", in_doubt, unavailable, "oops"},
      {503, "ServiceUnavailable", "later", in_doubt, unavailable, "later"},
      {400, "SomethingNew", "never heard of", misuse, misuse, "SomethingNew: never heard of"},
  };
  for (const Case& c : cases) {
    answer_all(c.status, R"({"__type":"com.amazonaws.dynamodb.v20120810#)" + std::string(c.type) + R"(","message":")" +
                             c.message + R"("})");
    const Record record = plain_record("k");
    for (const Answer& answer :
         {blocking::insert(*store, record), blocking::replace(*store, record, {}), blocking::remove(*store, "k", {})}) {
      ASSERT_EQ(answer.status, AnswerStatus::failed) << c.type;
      EXPECT_EQ(answer.error.kind, c.write) << c.type;
      EXPECT_THAT(answer.error.message, AllOf(HasSubstr("dynamodb:records: "), HasSubstr(c.says)));
    }
    EXPECT_EQ(blocking::get(*store, "k").error.kind, c.read) << c.type;
    EXPECT_EQ(blocking::list(*store, {}).error->kind, c.read) << c.type;
    EXPECT_EQ(blocking::sweep(*store, manual_start, 1).error->kind, c.read) << c.type;
  }
}

TEST_F(DynamoDbStore, WhatIsNotDynamoDbIsNeverTakenForSuccess) {
  create_table();
  const auto store = open();
  for (const int status : {200, 302, 404, 502}) {
    for (const char* body : {"", "<html>sign in to the network</html>", "[]", "{\"Item\":[]}", "{"}) {
      if (status == 200 && std::string_view(body).starts_with("{")) continue;  // An answer to a write is not read.
      answer_all(status, body);
      const Answer answer = blocking::insert(*store, plain_record("k"));
      ASSERT_EQ(answer.status, AnswerStatus::failed) << status << body;
      EXPECT_EQ(blocking::get(*store, "k").status, AnswerStatus::failed) << status << body;
    }
  }
  answer_all(200, "{\"Item\":[]}");
  EXPECT_EQ(blocking::get(*store, "k").error.kind, ErrorKind::unavailable);
  answer_all(400, "{}");
  EXPECT_THAT(blocking::get(*store, "k").error.message, HasSubstr("status 400 without saying why (does the endpoint"));
}

TEST_F(DynamoDbStore, ARecordUnderAnothersKeyIsCorrupt) {
  create_table();
  const auto store = open();
  const Record record = plain_record("k");
  blocking::insert(*store, record);
  const FakeAnswer other = fake->call("GetItem", R"({"TableName":"records","Key":{"id":{"S":"k"}}})");
  answer_all(200, other.body);
  const Answer answer = blocking::get(*store, "another");
  EXPECT_EQ(answer.error.kind, ErrorKind::corrupt);
  EXPECT_THAT(answer.error.message, HasSubstr("'another' holds the record of another"));
}

TEST_F(DynamoDbStore, OpenRecordsAreListedByTheIndexWhereThereIsOne) {
  create_table_with_index();
  options.count_capacity = true;  // Which DescribeTable knows nothing of.
  const auto store = open();
  std::set<std::string> open_keys;
  for (int i = 0; i < 60; ++i) {
    const State state = i % 3 == 0 ? State::in_progress : i % 3 == 1 ? State::completed : State::unknown;
    const Record record = in_state("k" + std::to_string(i), state);
    blocking::insert(*store, record);
    if (state == State::in_progress) open_keys.insert(record.key);
  }
  for (const std::size_t limit : {std::size_t{1}, std::size_t{3}, std::size_t{1000}}) {
    fake->reset_round_trips();
    std::set<std::string> listed;
    for (const Record& record : list_all(*store, {.state = State::in_progress, .limit = limit})) {
      EXPECT_TRUE(listed.insert(record.key).second) << record.key;
    }
    EXPECT_EQ(listed, open_keys);
    EXPECT_EQ(fake->round_trips("Scan"), 0U);
    EXPECT_GE(fake->round_trips("Query"), 8U);
    EXPECT_EQ(fake->round_trips("DescribeTable"), limit == 1 ? 1U : 0U) << "asked once";
  }
  EXPECT_EQ(stores::dynamodb_status(*store)->uses_index, true);
  fake->reset_round_trips();
  EXPECT_EQ(list_all(*store, {.state = State::completed}).size(), 20U);
  EXPECT_EQ(list_all(*store, {}).size(), 60U);
  EXPECT_EQ(fake->round_trips("Query"), 0U);
  // A record that is completed leaves the index.
  Record record = *blocking::get(*store, "k0").record;
  const Seen seen = seen_of(record);
  record.state = State::completed;
  record.revision += 1;
  blocking::replace(*store, record, seen);
  EXPECT_EQ(list_all(*store, {.state = State::in_progress}).size(), open_keys.size() - 1);
}

TEST_F(DynamoDbStore, WithoutAnIndexThatFitsTheTableIsScanned) {
  const Record record = plain_record("k");
  {
    create_table();
    const auto store = open();
    blocking::insert(*store, record);
    EXPECT_EQ(list_all(*store, {.state = State::in_progress}).size(), 1U);
    EXPECT_EQ(list_all(*store, {.state = State::in_progress}).size(), 1U);
    EXPECT_EQ(fake->round_trips("DescribeTable"), 1U);
    EXPECT_EQ(fake->round_trips("Scan"), 2U);
    EXPECT_EQ(stores::dynamodb_status(*store)->uses_index, false);
    // A role that may not describe the table.
    fake->set_faults([](const FakeCall& call) {
      if (call.operation != "DescribeTable") return FakeFault{};
      return FakeFault{.kind = FakeFault::Kind::answered,
                       .answer = {.status = 400, .body = R"({"__type":"x#AccessDeniedException","Message":"no"})"}};
    });
    const auto other = open();
    EXPECT_EQ(list_all(*other, {.state = State::in_progress}).size(), 1U);
    EXPECT_EQ(stores::dynamodb_status(*other)->uses_index, false);
    fake->set_faults([](const FakeCall&) { return FakeFault{}; });
    must("DeleteTable", R"({"TableName":"records"})");
  }
  create_table_with_index("KEYS_ONLY");
  const auto store = open();
  blocking::insert(*store, record);
  EXPECT_EQ(list_all(*store, {.state = State::in_progress}).size(), 1U);
  EXPECT_EQ(stores::dynamodb_status(*store)->uses_index, false);
  options.use_index = DynamoDbOptions::UseIndex::never;
  fake->reset_round_trips();
  const auto never_used = open();
  EXPECT_EQ(list_all(*never_used, {.state = State::in_progress}).size(), 1U);
  EXPECT_EQ(fake->round_trips(), (Trips{{"Scan", 1}}));
}

TEST_F(DynamoDbStore, StoresInOneCompositeTableSeeOnlyTheirOwn) {
  options.sort_key = "sk";
  create_table_with_index();
  options.partition_value = "idempotency#a";
  const auto a = open();
  options.partition_value = "idempotency#b";
  const auto b = open();
  for (int i = 0; i < 10; ++i) {
    blocking::insert(*a, plain_record("k" + std::to_string(i)));
    if (i < 4) blocking::insert(*b, plain_record("k" + std::to_string(i)));
  }
  must("PutItem", R"({"TableName":"records","Item":{"id":{"S":"customer#7"},"sk":{"S":"profile"}}})");
  for (const auto& state : {std::optional<State>(), std::optional<State>(State::in_progress)}) {
    EXPECT_EQ(list_all(*a, {.state = state, .limit = 3}).size(), 10U);
    EXPECT_EQ(list_all(*b, {.state = state, .limit = 3}).size(), 4U);
  }
  EXPECT_EQ(fake->round_trips("Scan"), 0U);
  const SweepAnswer swept = blocking::sweep(*b, never - 1ms, 100);
  EXPECT_EQ(swept.removed, 4U);
  EXPECT_FALSE(swept.error);
  EXPECT_EQ(list_all(*a, {}).size(), 10U);
}

TEST_F(DynamoDbStore, AnItemThatIsNoRecordDisturbsNoOther) {
  create_table();
  const auto store = open();
  for (int i = 0; i < 30; ++i) {
    Record record = plain_record("k" + std::to_string(i));
    record.expires_at = manual_start;
    blocking::insert(*store, record);
  }
  must("PutItem", R"({"TableName":"records","Item":{"id":{"S":"customer#7"},"expires_at":{"N":"1"}}})");
  ListQuery query{.limit = 7};
  std::size_t records = 0;
  std::vector<Error> unreadable;
  do {
    const ListPage page = blocking::list(*store, query);
    ASSERT_FALSE(page.error) << page.error->message;
    records += page.records.size();
    unreadable.insert(unreadable.end(), page.unreadable.begin(), page.unreadable.end());
    query.cursor = page.cursor;
  } while (!query.cursor.empty());
  EXPECT_EQ(records, 30U);
  ASSERT_EQ(unreadable.size(), 1U);
  EXPECT_EQ(unreadable[0].kind, ErrorKind::corrupt);
  EXPECT_THAT(unreadable[0].message, HasSubstr("customer#7"));
  std::size_t removed = 0;
  SweepAnswer answer;
  for (int calls = 0; calls == 0 || (answer.more && calls < 20); ++calls) {
    answer = blocking::sweep(*store, manual_start, 8);
    removed += answer.removed;
    EXPECT_TRUE(!answer.error || answer.error->kind == ErrorKind::corrupt);
  }
  EXPECT_EQ(removed, 30U);
  EXPECT_FALSE(answer.more);
}

TEST_F(DynamoDbStore, CursorsOfOtherStoresAreRefused) {
  options.sort_key = "sk";
  options.partition_value = "mine";
  fake->create_table("records", "id", "sk");
  const auto store = open();
  for (const char* cursor :
       {"t", "x", "t{}", R"(t{"id":{"S":"mine"}})", R"(t{"id":{"S":"other"},"sk":{"S":"k"}})",
        R"(t{"id":{"S":"mine"},"sk":{"N":"1"}})", R"(t{"id":{"S":"mine"},"sk":{"S":""}})", "i",
        "i8:", "i99:", "i:", "i-1:", R"(i0:{"id":{"S":"mine"},"sk":{"S":"k"},"open":{"S":"mine#1"}})"}) {
    const ListPage page = blocking::list(*store, {.cursor = cursor});
    ASSERT_TRUE(page.error.has_value()) << cursor;
    EXPECT_EQ(page.error->kind, ErrorKind::misuse) << cursor;
  }
  EXPECT_TRUE(fake->round_trips().empty());
}

TEST_F(DynamoDbStore, TheServiceDeletesWhatHasExpiredAndNothingEarlier) {
  create_table();
  must("UpdateTimeToLive",
       R"({"TableName":"records","TimeToLiveSpecification":{"AttributeName":"expiration","Enabled":true}})");
  const auto store = open();
  Record soon = plain_record("soon");
  soon.expires_at = clock->now() + 1500ms;
  Record forever = plain_record("forever");
  forever.expires_at = never;
  blocking::insert(*store, soon);
  blocking::insert(*store, forever);
  for (int i = 0; i < 20; ++i) {
    const bool expired = is_expired(soon.expires_at, clock->now());
    const std::size_t gone = fake->expire_now("records");
    EXPECT_TRUE(gone == 0 || expired) << "deleted early";
    clock->advance(250ms);
  }
  EXPECT_EQ(blocking::get(*store, "soon").record, nullptr);
  EXPECT_NE(blocking::get(*store, "forever").record, nullptr);
}

TEST_F(DynamoDbStore, SweepsGoOnWhereTheLastOneStopped) {
  create_table();
  const auto store = open();
  Record record = plain_record("");
  for (int i = 0; i < 3'000; ++i) {
    record.key = "k" + std::to_string(i);
    record.expires_at = i % 10 == 0 ? manual_start : never;
    blocking::insert(*store, record);
  }
  fake->reset_round_trips();
  std::size_t removed = 0;
  int calls = 0;
  for (bool more = true; more && calls < 100; ++calls) {
    const SweepAnswer answer = blocking::sweep(*store, manual_start, 50);
    ASSERT_FALSE(answer.error);
    EXPECT_LE(answer.removed, 50U);
    removed += answer.removed;
    more = answer.more;
  }
  EXPECT_EQ(removed, 300U);
  EXPECT_EQ(fake->round_trips("DeleteItem"), 300U);
  // Three pages of a thousand, begun again after each stop, and one lap more that finds nothing.
  EXPECT_LE(fake->round_trips("Scan"), 15U);
  EXPECT_EQ(list_all(*store, {.limit = 1000}).size(), 2'700U);
}

TEST_F(DynamoDbStore, ASweepDeletesOnlyWhatItSaw) {
  create_table();
  const auto store = open();
  Record record = plain_record("k");
  record.expires_at = manual_start;
  blocking::insert(*store, record);
  fake->set_faults([](const FakeCall& call) {
    FakeFault fault;
    fault.held = call.operation == "Scan";
    return fault;
  });
  std::optional<SweepAnswer> swept;
  store->sweep(manual_start, 10, [&](SweepAnswer answer) { swept = std::move(answer); });
  ASSERT_EQ(fake->held(), 1U);
  // Another attempt claims it between the scan and the deletion.
  Record next = record;
  next.revision = testing::revision_of(2);
  next.expires_at = never;
  EXPECT_EQ(blocking::replace(*store, next, seen_of(record)).status, AnswerStatus::done);
  fake->release();
  ASSERT_TRUE(swept.has_value());
  EXPECT_EQ(swept->removed, 0U);
  EXPECT_FALSE(swept->error);
  EXPECT_EQ(fake->round_trips("DeleteItem"), 1U);
  EXPECT_NE(blocking::get(*store, "k").record, nullptr);
}

TEST_F(DynamoDbStore, WhatIsTooLargeIsNotEvenSent) {
  create_table();
  const auto store = open();
  Record record = plain_record("k");
  record.result.bytes = std::string(store->capabilities().max_record_bytes - record_bytes(record), '\xFF');
  EXPECT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  fake->reset_round_trips();
  record.result.bytes += 'x';
  const Answer answer = blocking::insert(*store, record);
  EXPECT_EQ(answer.error.kind, ErrorKind::misuse);
  EXPECT_THAT(answer.error.message, HasSubstr("over the limit of"));
  // Steps take more room in an item than they are counted for.
  Record steps = plain_record("s");
  for (int i = 0; i < 30'000; ++i) steps.steps.push_back({std::to_string(i), ""});
  EXPECT_LT(record_bytes(steps), store->capabilities().max_record_bytes);
  EXPECT_EQ(blocking::insert(*store, steps).error.kind, ErrorKind::misuse);
  EXPECT_TRUE(fake->round_trips().empty());
}

TEST_F(DynamoDbStore, TellsTheServicesTimeBetweenItsAnswers) {
  create_table();
  const auto store = open();
  EXPECT_FALSE(store->time().has_value());
  clock->advance(700ms);
  const Answer answer = blocking::get(*store, "k");
  ASSERT_TRUE(answer.time.has_value());
  EXPECT_EQ(answer.time->error, 500ms);
  clock->advance(10s);
  const auto told = store->time();
  ASSERT_TRUE(told.has_value());
  EXPECT_LE(std::chrono::abs(told->now - clock->now()), told->error);
  EXPECT_LE(told->error, 510ms);
}

TEST_F(DynamoDbStore, CountsWhatWasConsumedIfAsked) {
  create_table();
  const auto without = open();
  blocking::insert(*without, plain_record("a"));
  EXPECT_EQ(stores::dynamodb_status(*without)->capacity_units, 0);
  options.count_capacity = true;
  const auto store = open();
  blocking::insert(*store, plain_record("b"));
  blocking::insert(*store, plain_record("b"));  // Refused: it costs the same, but the service does not say so.
  blocking::get(*store, "b");
  EXPECT_EQ(stores::dynamodb_status(*store)->capacity_units, 2);
  EXPECT_EQ(stores::dynamodb_status(*store)->endpoint, options.transport->name());
}

TEST_F(DynamoDbStore, AnInsertThatReadsFirstIsAnInsert) {
  create_table();
  options.read_first_over = 0;
  const auto store = open();
  Record record = plain_record("a");
  EXPECT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  EXPECT_EQ(blocking::insert(*store, record).status, AnswerStatus::refused);  // Meets it: now it reads.
  fake->reset_round_trips();
  const Answer met = blocking::insert(*store, record);
  EXPECT_EQ(met.status, AnswerStatus::refused);
  ASSERT_NE(met.record, nullptr);
  EXPECT_EQ(*met.record, record);
  EXPECT_EQ(fake->round_trips(), (Trips{{"GetItem", 1}}));

  // Another write may come between reading and writing, so the write is conditional.
  fake->reset_round_trips();
  Record other = plain_record("b");
  other.owner.bytes[0] ^= 1;
  fake->set_faults([&, done = false](const FakeCall& call) mutable {
    return FakeFault{.held = call.operation == "GetItem" && !std::exchange(done, true)};
  });
  Answer late;
  store->insert(share(other), [&](Answer&& answer) { late = std::move(answer); });
  EXPECT_EQ(fake->held(), 1U);
  EXPECT_EQ(blocking::insert(*open(), plain_record("b")).status, AnswerStatus::done);
  fake->release();
  EXPECT_EQ(late.status, AnswerStatus::refused);
  ASSERT_NE(late.record, nullptr);
  EXPECT_EQ(late.record->owner, plain_record("b").owner);

  // A read that gets no answer is no write in doubt.
  fake->set_faults([](const FakeCall&) { return FakeFault{.kind = FakeFault::Kind::lost_after}; });
  EXPECT_EQ(blocking::insert(*store, plain_record("c")).error.kind, ErrorKind::unavailable);
}

TEST_F(DynamoDbStore, OptionsOutOfRangeAreRefusedByName) {
  const auto refusal = [&](auto change) -> std::string {
    DynamoDbOptions changed = options;
    change(changed);
    try {
      stores::make_dynamodb_store(std::move(changed));
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& o) { o.table = ""; }), HasSubstr("table's name"));
  EXPECT_THAT(refusal([](auto& o) { o.attributes.owner = "status"; }),
              HasSubstr("two attributes have the name 'status'"));
  EXPECT_THAT(refusal([](auto& o) { o.partition_key = "status"; }), HasSubstr("'status'"));
  EXPECT_THAT(refusal([](auto& o) { o.sort_key = "id"; }), HasSubstr("'id'"));
  EXPECT_THAT(refusal([](auto& o) { o.attributes.note = ""; }), HasSubstr("1 to 255 bytes"));
  EXPECT_THAT(refusal([](auto& o) { o.attributes.note = std::string(256, 'n'); }), HasSubstr("1 to 255 bytes"));
  EXPECT_THAT(refusal([](auto& o) { o.partition_value = "x"; }), HasSubstr("name the sort key"));
  EXPECT_THAT(refusal([](auto& o) { o.index_shards = 0; }), HasSubstr("1 to 64 shards"));
  EXPECT_THAT(refusal([](auto& o) { o.index_shards = 65; }), HasSubstr("1 to 64 shards"));
  EXPECT_THAT(refusal([](auto& o) { o.index = ""; }), HasSubstr("name of the index"));
  EXPECT_THAT(refusal([](auto& o) { o.request_timeout = 99ms; }), HasSubstr("100ms"));
  EXPECT_THAT(refusal([](auto& o) { o.operation_timeout = 1s; }), HasSubstr("at least a request's timeout"));
}

TEST_F(DynamoDbStore, MayBeDestroyedInACompletionWhileOthersWait) {
  create_table();
  options.transport = make_fake_transport(fake, 2);
  fake->set_faults([](const FakeCall& call) {
    FakeFault fault;
    fault.held = call.operation == "GetItem";
    return fault;
  });
  std::shared_ptr<Store> store = open();
  const auto transport = std::exchange(options.transport, nullptr);
  std::atomic<int> answers{0};
  store->get("held", [&](const Answer&) { ++answers; });
  ASSERT_TRUE(fake->wait_for_held(1));
  Store* const raw = store.get();
  raw->insert(share(plain_record("k")), [&answers, store = std::move(store)](const Answer&) mutable {
    store.reset();
    ++answers;
    answers.notify_all();
  });
  answers.wait(0);
  EXPECT_EQ(answers, 1);
  fake->release();
  EXPECT_EQ(answers, 2);
}

// As an engine does that was destroyed while it waited: its completion alone has the store, and ends with it.
TEST_F(DynamoDbStore, MayBeDestroyedWithACompletionThatHasRun) {
  create_table();
  options.transport = make_fake_transport(fake, 1);
  fake->set_faults([](const FakeCall&) { return FakeFault{.held = true}; });
  std::shared_ptr<Store> store = open();
  const auto transport = std::exchange(options.transport, nullptr);
  const std::weak_ptr<Store> seen = store;
  bool was_there = false;
  Store* const raw = store.get();
  raw->get("k", [&, store = std::move(store)](const Answer&) { was_there = store != nullptr; });
  ASSERT_TRUE(fake->wait_for_held(1));
  EXPECT_EQ(fake->release(), 1U);
  EXPECT_TRUE(was_there);
  EXPECT_TRUE(seen.expired());
}

}  // namespace dynamodb_store_test
}  // namespace once::testing
