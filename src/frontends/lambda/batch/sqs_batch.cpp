#include <array>
#include <charconv>
#include <memory>
#include <memory_resource>

#include <once/error.hpp>
#include <once/frontends/lambda/batch.hpp>

#include "frontends/lambda/batch/batch_run.hpp"
#include "frontends/lambda/batch/event_records.hpp"
#include "frontends/lambda/batch/sqs_message.hpp"
#include "text/base64.hpp"
#include "text/percent.hpp"

namespace once::sqs {

namespace {

namespace json = text::json;
using json::Kind;
using json::Value;

constexpr std::string_view sqs_service = "SQS messages";

std::string_view text_of(const Value& value) {
  return value.kind() == Kind::string ? value.text() : std::string_view();
}

template <class Number>
Number number_of(const Value& value) {
  const std::string_view text = text_of(value);
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// So that no two pairs give one name.
std::string escaped_group(std::string_view group) {
  std::string out;
  text::append_percent_encoded(out, group, [](char c) { return c != '%' && c != '/'; });
  return out;
}

}  // namespace

Message read_message(std::string_view record) {
  std::array<std::byte, 16384> first;  // NOLINT(cppcoreguidelines-pro-type-member-init): raw room
  std::pmr::monotonic_buffer_resource arena(first.data(), first.size());
  const Value tree = json::parse(record, {}, arena, "the record");
  if (tree.member("body").kind() != Kind::string) {
    throw Exception(ErrorKind::misuse, "the record has no body");
  }
  const Value system = tree.member("attributes");
  Message message;
  message.id = text_of(tree.member("messageId"));
  message.body = tree.member("body").text();
  message.receipt_handle = text_of(tree.member("receiptHandle"));
  message.queue_arn = text_of(tree.member("eventSourceARN"));
  message.group_id = text_of(system.member("MessageGroupId"));
  message.deduplication_id = text_of(system.member("MessageDeduplicationId"));
  message.receive_count = number_of<std::uint32_t>(system.member("ApproximateReceiveCount"));
  message.sent = Time(Millis(number_of<std::int64_t>(system.member("SentTimestamp"))));
  message.json = record;
  const Value own = tree.member("messageAttributes");
  if (own.kind() == Kind::object) {
    for (const json::Member& member : own.members()) {
      Message::Attribute attribute{.name = std::string(member.name),
                                   .type = std::string(text_of(member.value.member("dataType"))),
                                   .value = std::string(text_of(member.value.member("stringValue")))};
      if (const Value bytes = member.value.member("binaryValue"); bytes.kind() == Kind::string) {
        auto value = text::decode_base64(bytes.text());
        if (!value) throw Exception(ErrorKind::misuse, "the attribute's value is said to be Base64, and is not");
        attribute.value = *std::move(value);
      }
      message.attributes.push_back(std::move(attribute));
    }
  }
  return message;
}

std::string deduplication_name(const Message& message) {
  const std::string_view arn = message.queue_arn;
  return std::string(arn.substr(arn.rfind(':') + 1)) + "/" + escaped_group(message.group_id) + "/" +
         message.deduplication_id;
}

void check_key(KeySource source, std::string_view key) {
  if (source == KeySource::record && key.empty()) {
    throw Exception(ErrorKind::misuse,
                    "KeySource::record: a message's record has another receipt handle each time: name what identifies "
                    "it in `key`, or use KeySource::id");
  }
}

const Message::Attribute* Message::attribute(std::string_view name) const noexcept {
  for (const Attribute& each : attributes) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

lambda::Handler batch_of(Engine& engine, BatchOptions options, MessageWork work) {
  struct Maker {
    lambda::Batch batch;
    MessageWork work;
  };
  check_key(options.key_source, options.key);
  // One for all copies of the handler.
  const auto maker = std::make_shared<const Maker>(Maker{lambda::Batch(engine, std::move(options)), std::move(work)});
  return [maker](std::string_view event, const lambda::Invocation& invocation) {
    std::pmr::monotonic_buffer_resource arena;
    const std::vector<lambda::EventRecord> records = lambda::event_records(event, arena, sqs_service);
    std::vector<Message> messages(records.size());
    std::vector<lambda::BatchItem> items(records.size());
    for (std::size_t i = 0; i < records.size(); ++i) {
      const auto& [text, tree] = records[i];
      if (text_of(tree.member("eventSource")) != "aws:sqs" || text_of(tree.member("messageId")).empty()) {
        lambda::refuse_batch(sqs_service, "record " + std::to_string(i) +
                                              R"( of the event has not both "eventSource":"aws:sqs" and a messageId)");
      }
      lambda::BatchItem& item = items[i];
      item.id = text_of(tree.member("messageId"));
      item.name = item.id;
      item.json = text;
      const bool fifo = text_of(tree.member("eventSourceARN")).ends_with(".fifo");
      const bool deduplicates = maker->batch.options().key_source == KeySource::deduplication_id;
      if (deduplicates && !fifo) {
        lambda::refuse_batch(sqs_service, "KeySource::deduplication_id wants a FIFO queue, and this is '" +
                                              std::string(text_of(tree.member("eventSourceARN"))) + "'");
      }
      if (fifo) item.order = "g" + std::string(text_of(tree.member("attributes").member("MessageGroupId")));
      try {
        messages[i] = read_message(text);
      } catch (const Exception& error) {
        item.poison = error.what();
        continue;
      }
      maker->batch.take_key(item, deduplicates ? deduplication_name(messages[i]) : item.name, text, messages[i].body);
      item.work = [&work = maker->work, &message = messages[i]](Context& context) { return work(message, context); };
    }
    return maker->batch.run(std::move(items), invocation);
  };
}

}  // namespace once::sqs
