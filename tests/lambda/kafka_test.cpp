// Batches of Kafka: the same as of queues, in the orders of its partitions, reported by partition and offset.
#include <once/frontends/lambda/recipes.hpp>

#include "batch_test.hpp"

namespace once::testing {
namespace kafka_test {

using kafka::Message;
using lambda::Order;

struct Put {
  std::string topic = "orders";
  int partition = 0;
  int offset = 0;
  std::string key = "\"azE=\"";    // k1
  std::string value = "\"e30=\"";  // {}
  std::string more = {};           // Members of the record, each followed by a comma.
  std::string timestamp = "1545084650987";
};

const std::string boom = "\"Ym9vbQ==\"";
const std::string msk = R"("eventSource":"aws:kafka","eventSourceArn":"arn:aws:kafka:eu-central-1:1:cluster/c/uuid",)"
                        R"("bootstrapServers":"b-1:9092")";

std::string record(const Put& put) {
  return "{" + put.more + R"("topic":")" + put.topic + R"(","partition":)" + std::to_string(put.partition) +
         R"(,"offset":)" + std::to_string(put.offset) + R"(,"timestamp":)" + put.timestamp +
         R"(,"timestampType":"CREATE_TIME","key":)" + put.key + R"(,"value":)" + put.value + R"(,"headers":[]})";
}

// As in https://docs.aws.amazon.com/lambda/latest/dg/with-msk.html
std::string kafka_event(const std::vector<Put>& puts, const std::string& source = msk) {
  std::map<std::string, std::string> groups;
  for (const Put& put : puts) {
    std::string& group = groups[put.topic + "-" + std::to_string(put.partition)];
    group += (group.empty() ? "" : ",") + record(put);
  }
  std::string out = "{" + source + R"(,"records":{)";
  for (const auto& [name, records] : groups) {
    if (out.back() == ']') out += ",";
    out += "\"" + name + "\":[" + records + "]";
  }
  return out + "}}";
}

// As EventBridge Pipes has them.
std::string piped_event(const std::vector<Put>& puts) {
  std::string out = "[";
  for (Put put : puts) {
    if (out.size() > 1) out += ",";
    put.more = msk + "," + R"("eventSourceKey":")" + put.topic + "-" + std::to_string(put.partition) + "\",";
    out += record(put);
  }
  return out + "]";
}

// As in https://docs.aws.amazon.com/lambda/latest/dg/kafka-retry-configurations.html
std::string kafka_failures(const std::vector<std::pair<std::string, int>>& places) {
  std::string out = R"({"batchItemFailures":[)";
  for (const auto& [partition, offset] : places) {
    if (out.back() == '}') out += ',';
    out += R"({"itemIdentifier":{"partition":")" + partition + R"(","offset":)" + std::to_string(offset) + "}}";
  }
  return out + "]}";
}

class KafkaBatchTest : public BatchTest {
 protected:
  auto handler() {
    return [this](const Message& message) {
      effects.add(message.topic + "-" + std::to_string(message.partition) + "/" + std::to_string(message.offset));
      if (message.value == "boom") throw std::runtime_error("boom");
    };
  }
};

TEST_F(KafkaBatchTest, FailuresAreReportedByPartitionAndOffset) {
  const auto batch = kafka::batch(engine, options(), handler());
  const std::vector<Put> puts = {{.offset = 15},
                                 {.offset = 16, .key = "null", .value = boom},
                                 {.partition = 1, .offset = 15},
                                 {.topic = "refunds", .offset = 7, .value = boom}};
  EXPECT_EQ(batch(kafka_event(puts), invocation()), kafka_failures({{"orders-0", 16}, {"refunds-0", 7}}));
  EXPECT_EQ(ends.of("orders-0/16"), "failed");
  EXPECT_THAT(effects.list(), UnorderedElementsAre("orders-0/15", "orders-0/16", "orders-1/15", "refunds-0/7"));
  ends.clear();

  // All of it again: what is done does not run.
  EXPECT_EQ(
      batch(kafka_event({{.offset = 15}, {.offset = 16, .key = "null"}, {.partition = 1, .offset = 15}}), invocation()),
      nothing_failed);
  EXPECT_EQ(ends.of("orders-0/15"), "replayed");
  EXPECT_EQ(ends.of("orders-0/16"), "executed");
  EXPECT_EQ(ends.of("orders-1/15"), "replayed");
}

TEST_F(KafkaBatchTest, AFailureStopsItsKeyInItsPartition) {
  const std::vector<Put> puts = {{.offset = 1, .value = boom},     {.offset = 2},
                                 {.offset = 3, .key = "\"azI=\""}, {.offset = 4, .key = "null", .value = boom},
                                 {.offset = 5, .key = "null"},     {.partition = 1, .offset = 1}};
  const auto run = [&](Order order) {
    effects.all.clear();
    ends.clear();
    return kafka::batch(engine, options([&](BatchOptions& o) {
                          o.order = order;
                          o.scope = "f/" + std::to_string(static_cast<int>(order));
                        }),
                        handler())(kafka_event(puts), invocation());
  };
  EXPECT_EQ(run(Order::key), kafka_failures({{"orders-0", 1}, {"orders-0", 2}, {"orders-0", 4}, {"orders-0", 5}}));
  EXPECT_EQ(ends.of("orders-0/2"), "blocked");
  EXPECT_EQ(ends.of("orders-0/5"), "blocked");
  EXPECT_EQ(run(Order::shard),
            kafka_failures({{"orders-0", 1}, {"orders-0", 2}, {"orders-0", 3}, {"orders-0", 4}, {"orders-0", 5}}));
  EXPECT_EQ(run(Order::none), kafka_failures({{"orders-0", 1}, {"orders-0", 4}}));
}

TEST_F(KafkaBatchTest, TheWorkGetsTheBytes) {
  TracePtr seen;
  const auto batch = kafka::batch(engine, options(), [&](const Message& message, Context&) {
    EXPECT_EQ(message.cluster, "arn:aws:kafka:eu-central-1:1:cluster/c/uuid");
    EXPECT_EQ(message.timestamp, Time(Millis(1545084650987)));
    EXPECT_EQ(message.key, "k1");
    EXPECT_EQ(message.value, std::nullopt);
    const Message::Header* const umlaut = message.header("umlaut");
    EXPECT_EQ(umlaut == nullptr ? "none" : umlaut->value, "\xC3\xA4");
    EXPECT_EQ(message.header("none"), nullptr);
    EXPECT_THAT(std::string(message.json), HasSubstr(R"("offset":15)"));
    seen = message.trace();
    return std::string("kept");
  });
  std::string trace;
  for (const char c : std::string_view("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")) {
    trace += (trace.empty() ? "" : ",") + std::to_string(static_cast<int>(c));
  }
  std::string event = kafka_event({{.offset = 15, .value = "null"}});
  const std::string none = R"("headers":[])";
  event.replace(event.find(none), none.size(), R"("headers":[{"umlaut":[-61,164]},{"traceparent":[)" + trace + "]}]");
  EXPECT_EQ(batch(event, invocation()), nothing_failed);
  ASSERT_NE(seen, nullptr);
}

TEST_F(KafkaBatchTest, ValuesAndRecordsNameTheOperation) {
  const auto by = [&](KeySource source, std::string_view key) {
    return kafka::batch(engine, options([&](BatchOptions& o) {
                          o.key_source = source;
                          o.key = key;
                        }),
                        handler());
  };
  const std::string seven = "\"eyJvcmRlciI6N30=\"";  // {"order":7}
  const auto by_value = by(KeySource::payload, "order");
  EXPECT_EQ(by_value(kafka_event({{.offset = 1, .value = seven}, {.partition = 1, .offset = 1, .value = seven}}),
                     invocation()),
            nothing_failed);
  EXPECT_EQ(effects.list().size(), 1U);
  ends.clear();
  EXPECT_EQ(by_value(kafka_event({{.offset = 2, .value = "null"}}), invocation()), kafka_failures({{"orders-0", 2}}));
  EXPECT_EQ(ends.of("orders-0/2"), "poison") << "a tombstone has no order";
  ends.clear();
  effects.all.clear();
  const auto by_record = by(KeySource::record, lambda::recipes::kafka.key);
  for (int i = 0; i < 2; ++i) {
    ends.clear();
    EXPECT_EQ(by_record(kafka_event({{.offset = 3}}), invocation()), nothing_failed);
  }
  EXPECT_EQ(effects.count("orders-0/3"), 1U);
}

TEST_F(KafkaBatchTest, OtherClustersAndTopicsMadeAgainAreOtherOperations) {
  const auto batch = kafka::batch(engine, options(), handler());
  const auto self_managed = [](const std::string& servers) {
    return R"("eventSource":"SelfManagedKafka","bootstrapServers":")" + servers + "\"";
  };
  const auto runs = [&](const std::string& event) {
    ends.clear();
    effects.all.clear();
    EXPECT_EQ(batch(event, invocation()), nothing_failed);
    return effects.list().size();
  };
  EXPECT_EQ(runs(kafka_event({{.offset = 1}})), 1U);
  EXPECT_EQ(runs(kafka_event({{.offset = 1}})), 0U);
  EXPECT_EQ(runs(kafka_event({{.offset = 1, .timestamp = "1545084650988"}})), 1U);
  EXPECT_EQ(runs(kafka_event({{.offset = 1}}, self_managed("a:9092,b:9092"))), 1U);
  EXPECT_EQ(runs(kafka_event({{.offset = 1}}, self_managed("b:9092,a:9092"))), 0U) << "the order says nothing";
  EXPECT_EQ(runs(kafka_event({{.offset = 1}}, self_managed("c:9092"))), 1U);
  EXPECT_EQ(runs(kafka_event({{.offset = 1}}, self_managed(std::string(2000, 'c')))), 1U) << "long lists fit";
}

// It can repeat only the whole batch.
TEST_F(KafkaBatchTest, ThroughPipesAFailureIsOneOfTheBatch) {
  const auto batch = kafka::batch(engine, options(), handler());
  try {
    const std::string response =
        batch(piped_event({{.offset = 1}, {.partition = 1, .offset = 2, .value = boom}}), invocation());
    ADD_FAILURE() << response;
  } catch (const FunctionError& error) {
    EXPECT_EQ(error.type(), lambda::errors::records_failed);
    EXPECT_THAT(error.what(), HasSubstr("orders-1/2"));
    EXPECT_TRUE(lambda::retry_helps(error.type()));
  }
  ends.clear();
  EXPECT_EQ(batch(piped_event({{.offset = 1}, {.partition = 1, .offset = 2}}), invocation()), nothing_failed);
  EXPECT_EQ(effects.count("orders-0/1"), 1U);
  ends.clear();
  EXPECT_EQ(batch(kafka_event({{.offset = 1}}), invocation()), nothing_failed);
  EXPECT_EQ(ends.of("orders-0/1"), "replayed") << "the keys are those of an event source mapping";
}

TEST_F(KafkaBatchTest, WhatCannotBeReadIsPoison) {
  const auto batch = kafka::batch(engine, options(), handler());
  const auto end = [&](const std::string& event) {
    ends.clear();
    EXPECT_EQ(batch(event, invocation()), kafka_failures({{"orders-0", 1}}));
    return ends.of("orders-0/1");
  };
  EXPECT_EQ(end(kafka_event({{.offset = 1, .value = "\"!\""}})), "poison");
  EXPECT_EQ(end(kafka_event({{.offset = 1, .value = "{}"}})), "poison");
  EXPECT_EQ(end(kafka_event({{.offset = 1, .key = "7"}})), "poison");
  for (const char* const headers : {"7", "[7]", R"([{"a":"x"}])", R"([{"a":[256]}])", R"([{"a":[1.5]}])"}) {
    std::string event = kafka_event({{.offset = 1}});
    event.replace(event.find("[]}"), 2, headers);
    EXPECT_EQ(end(event), "poison") << headers;
  }
}

TEST_F(KafkaBatchTest, EventsOfOtherServicesAreRefused) {
  const auto batch = kafka::batch(engine, options(), handler());
  for (const std::string& event :
       {std::string("{}"), std::string("[1]"), sqs_event({{.id = "a"}}), as_piped(sqs_event({{.id = "a"}})),
        "{" + msk + "}", "{" + msk + R"(,"records":[]})", "{" + msk + R"(,"records":{"orders-0":{}}})",
        "{" + msk + R"(,"records":{"orders-0":[1]}})", "{" + msk + R"(,"records":{"orders-0":[{"topic":"orders"}]}})",
        kafka_event({{.offset = 1}}, R"("eventSource":"aws:sqs")"),
        kafka_event({{.offset = 1}}, R"("eventSource":"SelfManagedKafka")")}) {
    EXPECT_THROW(batch(event, invocation()), FunctionError) << event;
  }
  EXPECT_EQ(batch("{" + msk + R"(,"records":{}})", invocation()), nothing_failed);
  EXPECT_THROW(
      kafka::batch(engine, options([](BatchOptions& o) { o.key_source = KeySource::deduplication_id; }), handler()),
      Exception);
}

}  // namespace kafka_test
}  // namespace once::testing
