#include "queues/message.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <memory_resource>
#include <optional>
#include <utility>

#include <once/error.hpp>

#include "keys/jmespath/selector.hpp"
#include "text/base64.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/percent.hpp"

namespace once::sqs {

namespace {

namespace json = text::json;
using json::Kind;
using json::Value;

template <class Number>
Number number_of(const Value& value) {
  const std::string_view text = value.string_or_empty();
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// ["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"big","s3Key":"6f1d"}], and the older
// "com.amazon.sqs.javamessaging.MessageS3Pointer" (awslabs, "Payload Offloading Java Common Library for AWS").
std::optional<Message::S3Payload> pointer_in(const Value& tree) {
  if (tree.kind() != Kind::array || tree.elements().size() != 2) return std::nullopt;
  if (!tree.elements()[0].string_or_empty().ends_with("S3Pointer")) return std::nullopt;
  const std::string_view bucket = tree.elements()[1].member("s3BucketName").string_or_empty();
  const std::string_view key = tree.elements()[1].member("s3Key").string_or_empty();
  if (bucket.empty() || key.empty()) return std::nullopt;
  return Message::S3Payload{.bucket = std::string(bucket), .key = std::string(key)};
}

Value parse_or_null(std::string_view text, json::Arena& arena) {
  Value tree;
  if (!json::try_parse(text, {.unique_names = false, .exact_numbers = false, .lone_surrogates = true}, arena, tree)) {
    return {};
  }
  return tree;
}

// The text of a notification of SNS, in the body of a message.
std::string_view notified(const Value& body) {
  return body.member("Type").string_or_empty() == "Notification" ? body.member("Message").string_or_empty()
                                                                 : std::string_view();
}

// The object with other texts for some of its members.
std::string with_members(const Value& object, std::initializer_list<std::pair<std::string_view, std::string>> changed) {
  std::string out = "{";
  for (const json::Member& member : object.members()) {
    if (out.size() > 1) out += ',';
    json::append_quoted(out, member.name);
    out += ':';
    const auto* const change =
        std::ranges::find(changed, member.name, &std::pair<std::string_view, std::string>::first);
    out += change == changed.end() ? json::written(member.value) : json::quoted(change->second);
  }
  return out + "}";
}

// Escaped, so that different pairs give different names.
std::string escaped_group(std::string_view group) {
  return text::percent_encoded(group, [](char c) { return c != '%' && c != '/'; });
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
  message.id = tree.member("messageId").string_or_empty();
  message.body = tree.member("body").text();
  message.receipt_handle = tree.member("receiptHandle").string_or_empty();
  message.queue_arn = tree.member("eventSourceARN").string_or_empty();
  message.group_id = system.member("MessageGroupId").string_or_empty();
  message.deduplication_id = system.member("MessageDeduplicationId").string_or_empty();
  message.receive_count = number_of<std::uint32_t>(system.member("ApproximateReceiveCount"));
  message.sent = Time(Millis(number_of<std::int64_t>(system.member("SentTimestamp"))));
  message.xray = system.member("AWSTraceHeader").string_or_empty();
  message.json = record;
  const Value own = tree.member("messageAttributes");
  if (own.kind() == Kind::object) {
    for (const json::Member& member : own.members()) {
      Message::Attribute attribute{.name = std::string(member.name),
                                   .type = std::string(member.value.member("dataType").string_or_empty()),
                                   .value = std::string(member.value.member("stringValue").string_or_empty())};
      if (const Value bytes = member.value.member("binaryValue"); bytes.kind() == Kind::string) {
        auto value = text::decode_base64(bytes.text());
        if (!value) throw Exception(ErrorKind::misuse, "the attribute's value should be Base64, but is not");
        attribute.value = *std::move(value);
      }
      message.attributes.push_back(std::move(attribute));
    }
  }
  return message;
}

std::optional<Message::S3Payload> Message::s3_payload() const {
  if (body.find("S3Pointer") != std::string::npos) {
    std::pmr::monotonic_buffer_resource arena;
    const Value tree = parse_or_null(body, arena);
    if (auto pointer = pointer_in(tree)) return pointer;
    if (const std::string_view text = notified(tree); !text.empty()) {
      if (auto pointer = pointer_in(parse_or_null(text, arena))) return pointer;
    }
  }
  for (const std::string_view name : {"ExtendedPayloadSize", "SQSLargePayloadSize"}) {  // Reserved by the libraries.
    if (attribute(name) != nullptr) return S3Payload{};
  }
  return std::nullopt;
}

std::optional<queues::Elsewhere> payload_elsewhere(const Message& message) {
  const std::optional<Message::S3Payload> payload = message.s3_payload();
  if (!payload) return std::nullopt;
  // A pointer that differs in everything that a key could be taken from.
  const std::string other = R"(["once.S3Pointer",{"s3BucketName":)" + json::quoted(payload->bucket + "-") +
                            R"(,"s3Key":)" + json::quoted(payload->key + "-") + "}]";
  std::pmr::monotonic_buffer_resource arena;
  const Value body = parse_or_null(message.body, arena);
  queues::Elsewhere elsewhere;
  elsewhere.where = payload->bucket.empty() ? "S3" : "s3://" + payload->bucket + "/" + payload->key;
  elsewhere.payload = notified(body).empty() ? other : with_members(body, {{"Message", other}});
  elsewhere.record = with_members(json::parse(message.json, {}, arena, "the record"),
                                  {{"body", elsewhere.payload}, {"md5OfBody", "once"}});
  return elsewhere;
}

std::string deduplication_name(const Message& message) {
  const std::string_view arn = message.queue_arn;
  return std::string(arn.substr(arn.rfind(':') + 1)) + "/" + escaped_group(message.group_id) + "/" +
         message.deduplication_id;
}

void check_key(queues::KeySource source, std::string_view key) {
  if (source == queues::KeySource::record && key.empty()) {
    throw Exception(ErrorKind::misuse,
                    "KeySource::record: a message's record has a new receipt handle at each delivery: select what "
                    "identifies it with `key`, or use KeySource::id");
  }
}

bool survives_redrive(queues::KeySource source, std::string_view key) {
  using queues::KeySource;
  if (source == KeySource::payload) return true;
  if (source != KeySource::record || key.empty()) return false;  // Empty: the whole record.
  const keys::Selector selector(key, keys::Dialect::native, "the key expression");
  return std::ranges::none_of(selector.reads(), [](const keys::Selector::Path& path) {
    if (path.empty() || path.front() == "messageId" || path.front() == "receiptHandle") return true;
    // SequenceNumber, SentTimestamp and others. What AWS does not promise to keep counts as new too.
    return path.front() == "attributes" && (path.size() == 1 || path[1] != "MessageGroupId");
  });
}

void check_hold(queues::KeySource source, std::string_view key) {
  if (survives_redrive(source, key)) return;
  throw Exception(
      ErrorKind::misuse,
      "hold needs a key that survives a redrive. A message that is moved back from a dead-letter queue has a "
      "new message id, and may have a new deduplication id, so under a key of these it would run again. "
      "Select what identifies the operation: KeySource::payload, or KeySource::record, and `key`");
}

TracePtr Message::trace() const {
  const Attribute* const parent = attribute("traceparent");
  const Attribute* const state = attribute("tracestate");
  TracePtr trace = parent == nullptr ? nullptr : trace_from(parent->value, state == nullptr ? "" : state->value);
  return trace != nullptr || xray.empty() ? trace : trace_from_xray(xray);
}

const Message::Attribute* Message::attribute(std::string_view name) const noexcept {
  for (const Attribute& each : attributes) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

}  // namespace once::sqs
