// Batches of Kinesis and DynamoDB streams: the same as of queues, in their orders.
#include <barrier>

#include "batch_test.hpp"

namespace once::testing {
namespace streams_test {

using lambda::Order;
using streams::Change;

struct Put {
  std::string sequence;
  std::string key = "k";
  std::string data = "e30=";  // {}
};

// As in https://docs.aws.amazon.com/lambda/latest/dg/with-kinesis.html
std::string kinesis_event(const std::vector<Put>& puts, const std::string& stream = "orders") {
  std::string out = R"({"Records":[)";
  for (const Put& each : puts) {
    if (out.back() == '}') out += ",";
    out += R"({"kinesis":{"kinesisSchemaVersion":"1.0","partitionKey":")" + each.key + R"(","sequenceNumber":")" +
           each.sequence + R"(","data":")" + each.data + R"(","approximateArrivalTimestamp":1545084650.987},)" +
           R"("eventSource":"aws:kinesis","eventVersion":"1.0","eventID":"shardId-000000000006:)" + each.sequence +
           R"(","eventName":"aws:kinesis:record","invokeIdentityArn":"arn:aws:iam::123456789012:role/lambda-role",)" +
           R"("awsRegion":"us-east-2","eventSourceARN":"arn:aws:kinesis:us-east-2:123456789012:stream/)" + stream +
           R"("})";
  }
  return out + "]}";
}

struct Changed {
  std::string sequence;
  std::string id = "101";
  std::string image = R"({"id":{"N":"101"},"cents":{"N":"1299"}})";
};

// As in https://docs.aws.amazon.com/lambda/latest/dg/with-ddb.html
std::string dynamodb_event(const std::vector<Changed>& changes) {
  std::string out = R"({"Records":[)";
  for (const Changed& each : changes) {
    if (out.back() == '}') out += ",";
    out +=
        R"({"eventID":"e)" + each.sequence + R"(","eventVersion":"1.0","dynamodb":{"Keys":{"id":{"N":")" + each.id +
        R"("}},"NewImage":)" + each.image +
        R"(,"ApproximateCreationDateTime":1.4797278E9,"StreamViewType":"NEW_IMAGE","SequenceNumber":")" +
        each.sequence + R"(","SizeBytes":26},"awsRegion":"us-west-2","eventName":"INSERT",)" +
        R"("eventSourceARN":"arn:aws:dynamodb:us-west-2:123456789012:table/orders/stream/2026-01-01T00:00:00.000",)" +
        R"("eventSource":"aws:dynamodb"})";
  }
  return out + "]}";
}

class StreamBatchTest : public BatchTest {
 protected:
  auto handler() {
    return [this](const Change& change) {
      effects.add(change.sequence_number);
      if (change.data == "boom" || change.new_image.find("boom") != std::string_view::npos) {
        throw std::runtime_error("boom");
      }
    };
  }
  BatchOptions ordered(Order order) {
    return options([&](BatchOptions& o) { o.order = order; });
  }
  static constexpr const char* boom = "Ym9vbQ==";
};

TEST_F(StreamBatchTest, AFailureStopsItsPartitionKeyAndNoOther) {
  const std::vector<Put> puts = {{"1", "a"}, {"2", "b"}, {"3", "a", boom}, {"4", "a"}, {"5", "b"}};
  const auto batch = streams::batch(engine, options(), handler());
  EXPECT_EQ(batch(kinesis_event(puts), invocation()), failures({"3", "4"}));
  EXPECT_THAT(effects.list(), UnorderedElementsAre("1", "2", "3", "5"));
  EXPECT_EQ(ends.of("4"), "blocked");
  ends.clear();

  // Asked again from the first reported one on: what was done meanwhile is replayed.
  EXPECT_EQ(batch(kinesis_event({{"3", "a"}, {"4", "a"}, {"5", "b"}}), invocation()), nothing_failed);
  EXPECT_EQ(ends.of("5"), "replayed");
  EXPECT_EQ(effects.count("5"), 1U);
  EXPECT_EQ(effects.count("4"), 1U);
}

TEST_F(StreamBatchTest, WhatHasNoKeyDoesNotRunBehindAFailureThatBringsItAgain) {
  const auto batch = streams::batch(engine, options([](BatchOptions& o) {
                                      o.parallel = 1;
                                      o.key_source = streams::KeySource::payload;
                                      o.key = "order";
                                      o.policy.emplace().on_missing_key = OnMissingKey::run_unprotected;
                                    }),
                                    [this](const Change& change) {
                                      effects.add(change.sequence_number);
                                      if (change.sequence_number == "2") throw std::runtime_error("boom");
                                    });
  const std::string keyed = "eyJvcmRlciI6MX0=";  // {"order":1}
  const std::string other = "eyJvcmRlciI6Mn0=";  // {"order":2}
  const std::vector<Put> puts = {{"1", "a"}, {"2", "b", keyed}, {"3", "c"}, {"4", "d", other}};
  EXPECT_EQ(batch(kinesis_event(puts), invocation()), failures({"2", "3"}));
  EXPECT_THAT(effects.list(), ElementsAre("1", "2", "4"));
  EXPECT_EQ(ends.of("1"), "unprotected");
  EXPECT_EQ(ends.of("3"), "blocked");
}

TEST_F(StreamBatchTest, AWholeShardCanBeKeptInOrder) {
  const std::vector<Put> puts = {{"1", "a"}, {"2", "b"}, {"3", "a", boom}, {"4", "a"}, {"5", "b"}};
  const auto batch = streams::batch(engine, ordered(Order::shard), handler());
  EXPECT_EQ(batch(kinesis_event(puts), invocation()), failures({"3", "4", "5"}));
  EXPECT_THAT(effects.list(), ElementsAre("1", "2", "3"));
}

TEST_F(StreamBatchTest, PartitionKeysRunSideBySide) {
  std::barrier both(2);
  const auto batch = streams::batch(engine, options(), [&](const Change&) { both.arrive_and_wait(); });
  EXPECT_EQ(batch(kinesis_event({{"1", "a"}, {"2", "b"}, {"3", "a"}, {"4", "b"}}), invocation()), nothing_failed);
}

TEST_F(StreamBatchTest, WithoutOrderAllRunSideBySide) {
  std::barrier all(3);
  const auto batch = streams::batch(engine, ordered(Order::none), [&](const Change&) { all.arrive_and_wait(); });
  EXPECT_EQ(batch(kinesis_event({{"1"}, {"2"}, {"3"}}), invocation()), nothing_failed);
}

TEST_F(StreamBatchTest, DataIsDecodedAndCanNameTheOperation) {
  const auto batch = streams::batch(engine, options([](BatchOptions& o) {
                                      o.key_source = KeySource::payload;
                                      o.key = "order";
                                    }),
                                    [&](const Change& change) {
                                      EXPECT_EQ(change.source, Change::Source::kinesis);
                                      EXPECT_EQ(change.event_id, "shardId-000000000006:" + change.sequence_number);
                                      EXPECT_TRUE(change.keys.empty());
                                      effects.add(change.partition_key + ":" + change.data);
                                    });
  // {"order":7}, again with blanks under another key, and something that is no JSON.
  EXPECT_EQ(batch(kinesis_event({{"1", "a", "eyJvcmRlciI6N30="}, {"2", "b", "eyAib3JkZXIiIDogNyB9"}, {"3", "c", boom}}),
                  invocation()),
            failures({"3"}));
  EXPECT_THAT(effects.list(), ElementsAre(R"(a:{"order":7})"));
  EXPECT_EQ(ends.of("2"), "duplicate");
  EXPECT_EQ(ends.of("3"), "poison");
}

TEST_F(StreamBatchTest, DataThatIsNoBase64IsPoisonAndStopsItsKey) {
  const auto batch = streams::batch(engine, options(), handler());
  EXPECT_EQ(batch(kinesis_event({{"1", "a", "!"}, {"2", "a"}, {"3", "b"}}), invocation()), failures({"1", "2"}));
  EXPECT_EQ(ends.of("1"), "poison");
  EXPECT_THAT(effects.list(), ElementsAre("3"));
}

TEST_F(StreamBatchTest, OneEventIdInTwoStreamsIsTwoOperations) {
  const auto batch = streams::batch(engine, options(), handler());
  EXPECT_EQ(batch(kinesis_event({{"1"}}, "orders"), invocation()), nothing_failed);
  ends.clear();
  EXPECT_EQ(batch(kinesis_event({{"1"}}, "others"), invocation()), nothing_failed);
  ends.clear();
  EXPECT_EQ(batch(kinesis_event({{"1"}}, "orders"), invocation()), nothing_failed);
  EXPECT_EQ(effects.count("1"), 2U);
  EXPECT_EQ(ends.whole("1").key, "f/batch#arn:aws:kinesis:us-east-2:123456789012:stream/orders/shardId-000000000006:1");
}

TEST_F(StreamBatchTest, ItemsOfATableKeepTheirOrder) {
  const std::vector<Changed> changes = {
      {"1", "101"}, {"2", "102"}, {"3", "101", R"({"what":{"S":"boom"}})"}, {"4", "101"}, {"5", "102"}};
  const auto batch = streams::batch(engine, options(), handler());
  EXPECT_EQ(batch(dynamodb_event(changes), invocation()), failures({"3", "4"}));
  EXPECT_THAT(effects.list(), UnorderedElementsAre("1", "2", "3", "5"));
}

TEST_F(StreamBatchTest, ImagesAreGivenAsTheEventHasThem) {
  const auto batch = streams::batch(engine, options([](BatchOptions& o) {
                                      o.key_source = KeySource::payload;
                                      o.key = "NewImage.id.N";
                                      o.fingerprint = "NewImage.cents";
                                    }),
                                    [&](const Change& change) {
                                      EXPECT_EQ(change.source, Change::Source::dynamodb);
                                      EXPECT_EQ(change.event_name, "INSERT");
                                      EXPECT_EQ(change.keys, R"({"id":{"N":"101"}})");
                                      EXPECT_EQ(change.new_image, R"({"id":{"N":"101"},"cents":{"N":"1299"}})");
                                      EXPECT_TRUE(change.old_image.empty());
                                      effects.add(change.sequence_number);
                                      return std::string("kept");
                                    });
  EXPECT_EQ(
      batch(dynamodb_event({{"1"}, {"2"}, {"3", "101", R"({"id":{"N":"101"},"cents":{"N":"1"}})"}}), invocation()),
      failures({"3"}));
  EXPECT_THAT(effects.list(), ElementsAre("1"));
  EXPECT_EQ(ends.of("2"), "duplicate");
  EXPECT_EQ(ends.of("3"), "mismatch");
}

TEST_F(StreamBatchTest, WhatCannotBeReadIsParked) {
  const auto batch = streams::batch(engine, options([](BatchOptions& o) { o.on_poison = OnDeadEnd::park; }), handler());
  EXPECT_EQ(batch(kinesis_event({{"1", "a", "!"}, {"2", "a"}}), invocation()), nothing_failed);
  const std::optional<Record> record =
      stored("arn:aws:kinesis:us-east-2:123456789012:stream/orders/shardId-000000000006:1", "f/batch/parked");
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->state, State::unknown);
  EXPECT_THAT(step(*record, "record"), HasSubstr(R"("data":"!")"));
  EXPECT_THAT(effects.list(), ElementsAre("2"));
}

// Pipes names records by their event ids. The keys are those of an event source mapping.
TEST_F(StreamBatchTest, PipesPassesBareRecords) {
  const auto batch = streams::batch(engine, options(), [&](const Change& change) {
    EXPECT_TRUE(change.source == Change::Source::dynamodb || change.partition_key == "a");
    effects.add(change.event_id + ":" + change.data);
    if (change.data == "boom" || change.new_image.find("boom") != std::string_view::npos) {
      throw std::runtime_error("boom");
    }
  });
  // Their Kinesis records have the members of "kinesis" beside the others.
  const std::string one =
      R"({"kinesisSchemaVersion":"1.0","partitionKey":"a","sequenceNumber":"1","data":"e30=",)"
      R"("approximateArrivalTimestamp":1545084650.987,"eventSource":"aws:kinesis","eventVersion":"1.0",)"
      R"("eventID":"shardId-000000000006:1","eventName":"aws:kinesis:record","awsRegion":"us-east-2",)"
      R"("eventSourceARN":"arn:aws:kinesis:us-east-2:123456789012:stream/orders"})";
  std::string two = one;
  two.replace(two.find("e30="), 4, boom);
  for (const char* const number : {R"("sequenceNumber":"1")", "000000000006:1"}) {
    two[two.find(number) + std::string_view(number).rfind('1')] = '2';
  }
  EXPECT_EQ(batch("[" + one + "," + two + "]", invocation()), failures({"shardId-000000000006:2"}));
  EXPECT_THAT(effects.list(), ElementsAre("shardId-000000000006:1:{}", "shardId-000000000006:2:boom"));
  ends.clear();
  EXPECT_EQ(batch(kinesis_event({{"1", "a"}}), invocation()), nothing_failed);
  EXPECT_EQ(ends.of("1"), "replayed");
  ends.clear();

  EXPECT_EQ(batch(as_piped(dynamodb_event({{"1", "101"}, {"2", "102", R"({"what":{"S":"boom"}})"}})), invocation()),
            failures({"e2"}));
}

TEST_F(StreamBatchTest, EventsOfOtherServicesAreRefused) {
  const auto batch = streams::batch(engine, options(), handler());
  for (const std::string& event :
       {sqs_event({{.id = "a"}}), std::string("{}"), std::string(R"({"Records":[{"eventSource":"aws:kinesis"}]})"),
        std::string(R"({"Records":[{"eventSource":"aws:dynamodb","eventID":"1","dynamodb":{"Keys":{}}}]})")}) {
    EXPECT_THROW(batch(event, invocation()), FunctionError) << event;
  }
  EXPECT_THROW(batch(as_piped(sqs_event({{.id = "a"}})), invocation()), FunctionError);
  EXPECT_EQ(batch(R"({"Records":[]})", invocation()), nothing_failed);
  EXPECT_EQ(batch("[]", invocation()), nothing_failed);
  EXPECT_THROW(
      streams::batch(engine, options([](BatchOptions& o) { o.key_source = KeySource::deduplication_id; }), handler()),
      Exception);
}

}  // namespace streams_test
}  // namespace once::testing
