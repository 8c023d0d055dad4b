#include <array>
#include <memory>
#include <memory_resource>

#include <once/error.hpp>
#include <once/frontends/lambda/batch.hpp>

#include "frontends/lambda/batch/batch_run.hpp"
#include "frontends/lambda/batch/event_records.hpp"
#include "frontends/lambda/metrics/invocation_span.hpp"
#include "text/base64.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"

namespace once::streams {

namespace {

namespace json = text::json;
using json::Kind;
using json::Value;

constexpr std::string_view stream_service = "Kinesis or DynamoDB stream records";

// The parts of a record that are known even if the rest is invalid.
struct Heads {
  Change::Source source{};
  std::string sequence_number;
  std::string event_id;
  std::string stream_arn;
  std::string order_key;
};

// EventBridge Pipes has the members of `kinesis` in the record itself.
Value kinesis_of(const Value& record) {
  const Value nested = record.member("kinesis");
  return nested.is_null() ? record : nested;
}

Heads heads_of(const Value& tree, std::size_t number) {
  const std::string where = "record " + std::to_string(number) + " of the event";
  const std::string_view service = tree.member("eventSource").string_or_empty();
  Heads heads;
  if (service == "aws:kinesis") {
    const Value kinesis = kinesis_of(tree);
    heads.source = Change::Source::kinesis;
    heads.sequence_number = kinesis.member("sequenceNumber").string_or_empty();
    heads.order_key = kinesis.member("partitionKey").string_or_empty();
  } else if (service == "aws:dynamodb") {
    const Value dynamodb = tree.member("dynamodb");
    heads.source = Change::Source::dynamodb;
    heads.sequence_number = dynamodb.member("SequenceNumber").string_or_empty();
    heads.order_key = json::written(dynamodb.member("Keys"));
  } else {
    lambda::refuse_batch(stream_service, where + R"( has neither "eventSource":"aws:kinesis" nor "aws:dynamodb")");
  }
  heads.event_id = tree.member("eventID").string_or_empty();
  heads.stream_arn = tree.member("eventSourceARN").string_or_empty();
  if (heads.sequence_number.empty() || heads.event_id.empty()) {
    lambda::refuse_batch(stream_service, where + " must have an eventID and a sequence number");
  }
  return heads;
}

Change read_change(std::string_view record, const Heads& heads) {
  std::array<std::byte, 16384> first;  // NOLINT(cppcoreguidelines-pro-type-member-init): raw room
  std::pmr::monotonic_buffer_resource arena(first.data(), first.size());
  const Value tree = json::parse(record, {}, arena, "the record");
  Change change;
  change.source = heads.source;
  change.event_id = heads.event_id;
  change.event_name = tree.member("eventName").string_or_empty();
  change.stream_arn = heads.stream_arn;
  change.sequence_number = heads.sequence_number;
  change.json = record;
  if (change.source == Change::Source::kinesis) {
    const Value data = kinesis_of(tree).member("data");
    if (data.kind() != Kind::string) throw Exception(ErrorKind::misuse, "the record has no data");
    change.partition_key = heads.order_key;
    auto bytes = text::decode_base64(data.text());
    if (!bytes) throw Exception(ErrorKind::misuse, "the record's data should be Base64, but is not");
    change.data = *std::move(bytes);
  } else {
    const std::string_view item = lambda::member_text(record, "dynamodb");
    change.keys = lambda::member_text(item, "Keys");
    change.new_image = lambda::member_text(item, "NewImage");
    change.old_image = lambda::member_text(item, "OldImage");
  }
  return change;
}

std::string order_of(Order order, const Heads& heads) {
  switch (order) {
    case Order::key:
      return "k" + heads.order_key;
    case Order::shard:
      return "s";  // All records of an event are of one shard.
    case Order::none:
      break;
  }
  return {};
}

}  // namespace

lambda::Handler batch_of(Engine& engine, BatchOptions options, ChangeWork work) {
  if (options.key_source == KeySource::deduplication_id) {
    throw Exception(ErrorKind::misuse, "records of streams have no deduplication id: use another KeySource");
  }
  struct Maker {
    lambda::Batch batch;
    ChangeWork work;
  };
  const auto maker = std::make_shared<const Maker>(Maker{lambda::Batch(engine, std::move(options)), std::move(work)});
  return [maker](std::string_view event, const lambda::Invocation& invocation) {
    const lambda::InvocationSpan span(invocation);
    std::pmr::monotonic_buffer_resource arena;
    const auto [records, piped] = lambda::event_records(event, arena, stream_service);
    std::vector<Change> changes(records.size());
    std::vector<lambda::BatchItem> items(records.size());
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::string_view text = records[i].text;
      const Heads heads = heads_of(records[i].lenient, i);
      lambda::BatchItem& item = items[i];
      item.id = piped ? heads.event_id : heads.sequence_number;
      item.name = heads.stream_arn + "/" + heads.event_id;
      item.order = order_of(maker->batch.options().order, heads);
      item.json = text;
      item.streamed = true;
      try {
        changes[i] = read_change(text, heads);
      } catch (const Exception& error) {
        item.poison = error.what();
        continue;
      }
      const bool kinesis = heads.source == Change::Source::kinesis;
      maker->batch.take_key(item, item.name, text,
                            kinesis ? std::string_view(changes[i].data) : lambda::member_text(text, "dynamodb"));
      item.work = [&work = maker->work, &change = changes[i]](Context& context) { return work(change, context); };
    }
    return maker->batch.run(std::move(items), invocation);
  };
}

}  // namespace once::streams
