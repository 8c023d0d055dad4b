#include <algorithm>
#include <array>
#include <memory>
#include <memory_resource>

#include <once/error.hpp>
#include <once/fingerprint.hpp>
#include <once/frontends/lambda/batch.hpp>

#include "frontends/lambda/batch/batch_run.hpp"
#include "frontends/lambda/batch/event_records.hpp"
#include "frontends/lambda/metrics/invocation_span.hpp"
#include "text/base64.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/number.hpp"

namespace once::kafka {

namespace {

namespace json = text::json;
using json::Kind;
using json::Value;

constexpr std::string_view kafka_service = "Kafka records";

// Where the records of a batch come from. Pipes says so in each record, an event source mapping once.
struct Cluster {
  std::string label;  // Message::cluster
  std::string name;   // In keys.
};

Cluster cluster_of(const Value& source) {
  const std::string_view service = source.member("eventSource").string_or_empty();
  if (service != "aws:kafka" && service != "SelfManagedKafka" && service != "aws:SelfManagedKafka") {
    lambda::refuse_batch(kafka_service, R"(it must have "eventSource":"aws:kafka" or "SelfManagedKafka")");
  }
  const std::string_view arn = source.member("eventSourceArn").string_or_empty();
  if (!arn.empty()) return {.label = std::string(arn), .name = std::string(arn)};
  // Another cluster may have the same topics. The list is sorted, because its order says nothing, and digested, because
  // a key has not the room for it.
  const std::string_view servers = source.member("bootstrapServers").string_or_empty();
  if (servers.empty()) lambda::refuse_batch(kafka_service, "it has neither eventSourceArn nor bootstrapServers");
  std::vector<std::string> each;
  for (std::size_t at = 0; at < servers.size();) {
    const std::size_t end = std::min(servers.find(',', at), servers.size());
    each.emplace_back(servers.substr(at, end - at));
    at = end + 1;
  }
  std::ranges::sort(each);
  std::string sorted;
  for (const std::string& server : each) sorted += server + ",";
  return {.label = std::string(servers), .name = "kafka:" + to_hex(sha256(sorted))};
}

// The parts of a record that are known even if the rest is invalid.
struct Place {
  std::string topic;
  std::uint32_t partition = 0;
  std::uint64_t offset = 0;
  std::string timestamp;

  [[nodiscard]] std::string group() const { return topic + "-" + std::to_string(partition); }
};

Place place_of(const Value& record, std::size_t number) {
  const auto digits = [&](std::string_view name) {
    const Value value = record.member(name);
    return value.kind() == Kind::number || value.kind() == Kind::string ? value.text() : std::string_view();
  };
  const auto partition = text::parse_whole<std::uint32_t>(digits("partition"));
  const auto offset = text::parse_whole<std::uint64_t>(digits("offset"));
  const std::string_view topic = record.member("topic").string_or_empty();
  if (topic.empty() || !partition || !offset) {
    lambda::refuse_batch(kafka_service, "record " + std::to_string(number) +
                                            " of the event must have a topic, a partition and an offset");
  }
  return {.topic = std::string(topic),
          .partition = *partition,
          .offset = *offset,
          .timestamp = std::string(digits("timestamp"))};
}

std::optional<std::string> decoded(const Value& value, const char* name) {
  if (value.is_null()) return std::nullopt;
  auto bytes = value.kind() == Kind::string ? text::decode_base64(value.text()) : std::nullopt;
  if (!bytes) throw Exception(ErrorKind::misuse, std::string("the record's ") + name + " should be Base64, but is not");
  return bytes;
}

// [104,-61,...]: a header's value as bytes, which may be signed.
std::string header_bytes(const Value& value) {
  std::string out;
  const auto refuse = [] {
    throw Exception(ErrorKind::misuse, "the value of a header of the record is not an array of bytes");
  };
  if (value.kind() != Kind::array) refuse();
  for (const Value& each : value.elements()) {
    const auto byte = each.kind() == Kind::number ? text::parse_whole<int>(each.text()) : std::nullopt;
    if (!byte || *byte < -128 || *byte > 255) refuse();
    out += static_cast<char>(*byte);
  }
  return out;
}

Message read_kafka_message(std::string_view record, const Place& place, const Cluster& cluster) {
  std::array<std::byte, 16384> first;  // NOLINT(cppcoreguidelines-pro-type-member-init): raw room
  std::pmr::monotonic_buffer_resource arena(first.data(), first.size());
  const Value tree = json::parse(record, {}, arena, "the record");
  Message message;
  message.cluster = cluster.label;
  message.topic = place.topic;
  message.partition = place.partition;
  message.offset = place.offset;
  if (const auto timestamp = text::parse_whole<std::int64_t>(place.timestamp)) {
    message.timestamp = Time(Millis(*timestamp));
  }
  message.key = decoded(tree.member("key"), "key");
  message.value = decoded(tree.member("value"), "value");
  message.json = record;
  const Value headers = tree.member("headers");
  if (headers.is_null()) return message;
  if (headers.kind() != Kind::array) throw Exception(ErrorKind::misuse, "the record's headers are not an array");
  for (const Value& each : headers.elements()) {
    if (each.kind() != Kind::object) throw Exception(ErrorKind::misuse, "a header of the record is not an object");
    for (const json::Member& header : each.members()) {
      message.headers.push_back({std::string(header.name), header_bytes(header.value)});
    }
  }
  return message;
}

std::string order_of(Order order, const Place& place, const Value& record) {
  switch (order) {
    case Order::key:
      return place.group() + "/" + json::written(record.member("key"));
    case Order::shard:
      return place.group();
    case Order::none:
      break;
  }
  return {};
}

}  // namespace

const Message::Header* Message::header(std::string_view name) const noexcept {
  const auto found = std::ranges::find(headers, name, &Header::name);
  return found == headers.end() ? nullptr : &*found;
}

TracePtr Message::trace() const {
  const Header* const parent = header("traceparent");
  const Header* const state = header("tracestate");
  return parent == nullptr ? nullptr : trace_from(parent->value, state == nullptr ? "" : state->value);
}

lambda::Handler batch_of(Engine& engine, BatchOptions options, MessageWork work) {
  if (options.key_source == KeySource::deduplication_id) {
    throw Exception(ErrorKind::misuse, "records of Kafka have no deduplication id: use another KeySource");
  }
  struct Maker {
    lambda::Batch batch;
    MessageWork work;
  };
  const auto maker = std::make_shared<const Maker>(Maker{lambda::Batch(engine, std::move(options)), std::move(work)});
  return [maker](std::string_view event, const lambda::Invocation& invocation) {
    const lambda::InvocationSpan span(invocation);
    std::pmr::monotonic_buffer_resource arena;
    Value tree;
    const auto [records, piped] = lambda::grouped_records(event, arena, kafka_service, tree);
    Cluster cluster;
    if (!piped) cluster = cluster_of(tree);
    std::vector<Message> messages(records.size());
    std::vector<lambda::BatchItem> items(records.size());
    for (std::size_t i = 0; i < records.size(); ++i) {
      const auto& [text, lenient] = records[i];
      if (piped) cluster = cluster_of(lenient);
      const Place place = place_of(lenient, i);
      lambda::BatchItem& item = items[i];
      const std::string offset = std::to_string(place.offset);
      item.id = place.group() + "/" + offset;
      item.identifier = R"({"partition":)" + json::quoted(place.group()) + R"(,"offset":)" + offset + "}";
      item.name = cluster.name + "/" + item.id + "/" + place.timestamp;
      item.order = order_of(maker->batch.options().order, place, lenient);
      item.json = text;
      item.streamed = true;
      try {
        messages[i] = read_kafka_message(text, place, cluster);
      } catch (const Exception& error) {
        item.poison = error.what();
        continue;
      }
      Message& message = messages[i];
      maker->batch.take_key(item, item.name, text, message.value ? std::string_view(*message.value) : "null");
      item.trace = message.trace();
      item.work = [&work = maker->work, &message](Context& context) { return work(message, context); };
    }
    return maker->batch.run(std::move(items), invocation,
                            piped ? lambda::Batch::Again::batch : lambda::Batch::Again::records);
  };
}

}  // namespace once::kafka
